"""`mint2m verify` alone: names what lies there and how it could be verified, and never sounds like an acceptance."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify.finding import FindingError
from mint2m_verify.survey import Role, survey

Run = Callable[..., subprocess.CompletedProcess[str]]


def folder_with_everything(place: Path) -> Path:
    """Names and first bytes only: a survey looks at no more."""
    sealed = place / "a run" / "attestations"
    sealed.mkdir(parents=True)
    (sealed / "seal.sigstore.json").write_text("{}")
    (sealed.parent / "receipt.json").write_text("{}")
    (place / "unsealed").mkdir()
    (place / "unsealed" / "receipt.json").write_text("{}")
    (place / "state").mkdir()
    (place / "state" / ".metadata").write_text("")
    (place / "state" / "__0_0.distcp").write_text("")
    (place / "mint2m-v1.2.0-release-bundle.tar.gz").write_text("")
    (place / "model.whl").write_text("")
    (place / "model.whl.sigstore.json").write_text("{}")
    (place / "orphan.sigstore.json").write_text("{}")
    (place / "manifest.json").write_text(json.dumps({"files": [], "schema": "mint2m.file-manifest/v1"}))
    (place / "policy.json").write_text(json.dumps({"name": "p", "schema": "mint2m.trust-policy/v1"}))
    (place / "release.pub").write_text("")
    (place / "notes.json").write_text("{}")
    return place


def test_each_kind_of_evidence_comes_with_its_command_and_the_rest_is_left_out(tmp_path: Path) -> None:
    seen = survey(folder_with_everything(tmp_path))
    commands = {Path(item.path).name: " ".join(item.arguments[:2]) for item in seen if item.role is Role.EVIDENCE}
    assert commands == {
        "a run": "verify run",
        "unsealed": "verify run",
        "state": "verify checkpoint",
        "mint2m-v1.2.0-release-bundle.tar.gz": "verify bundle",
        "model.whl.sigstore.json": "verify signature",
        "manifest.json": "verify manifest",
    }
    anchors = {Path(item.path).name: item.arguments[0] for item in seen if item.role is Role.ANCHOR}
    assert anchors == {"policy.json": "--policy", "release.pub": "--key"}


def test_inside_a_run_the_run_itself_is_named_and_no_key_in_it(tmp_path: Path) -> None:
    run = folder_with_everything(tmp_path) / "a run"
    (run / "inside.pub").write_text("")
    (seen,) = survey(run)
    assert (seen.what, seen.arguments[:2]) == ("a sealed run", ("verify", "run"))


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "receipt.json").write_text("{}")
    place = tmp_path / "here"
    place.mkdir()
    (place / "linked").symlink_to(tmp_path / "elsewhere")
    (place / "release.pub").symlink_to("/etc/passwd")
    os.mkfifo(place / "pipe.json")
    assert survey(place) == ()


@pytest.mark.parametrize(("name", "id"), [("nowhere", "input.missing"), ("file", "input.not-a-directory")])
def test_a_folder_that_is_none_is_a_finding(tmp_path: Path, name: str, id: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FindingError) as caught:
        survey(tmp_path / name)
    assert caught.value.finding.id == id


def test_the_command_line_accepts_nothing_and_shows_commands_that_can_be_copied(mint2m: Run, tmp_path: Path) -> None:
    folder_with_everything(tmp_path)
    (tmp_path / "\x1b[32mACCEPTED.pub").write_text("")
    done = mint2m("verify", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith(f"6 to verify in {tmp_path}; nothing was verified yet\n")
    assert "\x1b" not in done.stdout
    line = next(line for line in done.stdout.splitlines() if "'a run'" in line)
    assert shlex.split(line) == ["mint2m", "verify", "run", "a run"]
    empty = tmp_path / "empty"
    empty.mkdir()
    done = mint2m("verify", cwd=empty)
    assert done.returncode == 2
    assert "nothing was verified yet" in done.stdout
