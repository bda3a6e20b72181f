"""`mint2m trust init | show`: the template is refused, a sound policy told in words, the root exported as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_template_is_written_once_and_refused_until_it_is_filled_in(mint2m: Run, tmp_path: Path) -> None:
    place = tmp_path / "policy.json"
    assert mint2m("trust", "init", "--output", place).returncode == 0
    assert place.read_text() == mint2m("trust", "init").stdout
    again = mint2m("trust", "init", "--output", place)
    assert (again.returncode, "file.exists" in again.stdout) == (2, True)
    shown = mint2m("trust", "show", place, "--format", "json")
    report = json.loads(shown.stdout)
    assert shown.returncode == 2
    assert {fault["id"] for fault in report["findings"]} == {"policy.placeholder"}
    # Every place that is to be filled in is told, and nothing else: the template is a whole policy otherwise.
    places = [fault["pointer"] for fault in report["findings"]]
    assert len(places) == place.read_text().count('"<') == 7
    used = mint2m("verify", "run", VECTORS / "bases/run", "--policy", place, "--trusted-root", "public-good")
    assert (used.returncode, "policy.placeholder" in used.stdout) == (2, True)


def test_a_filled_in_template_is_a_sound_policy(mint2m: Run, tmp_path: Path) -> None:
    sys.path.insert(0, str(VECTORS))
    from maker import policies

    made: Any = json.loads(mint2m("trust", "init").stdout)
    signer = policies.key_signer()
    made["name"], made["not_after"] = "acme-2026", "2999-01-01T00:00:00Z"
    known = json.loads((Path(__file__).resolve().parents[2] / "trust/known-roots.json").read_text())
    made["roots"][0]["sha256"] = known[0]["sha256"]
    made["signers"][0]["key"] |= {name: signer["key"][name] for name in ("sha256", "pem")}
    identity = made["signers"][1]["identity"]
    identity["san"] = identity["san"].strip("<>").replace("OWNER/REPOSITORY", "acme/tool")
    identity["claims"][0]["value"] = "https://github.com/acme/tool"
    place = tmp_path / "policy.json"
    place.write_text(json.dumps(made))
    shown = mint2m("trust", "show", place)
    assert (shown.returncode, shown.stderr) == (0, "")
    used = mint2m("verify", "run", VECTORS / "bases/run", "--policy", place, "--trusted-root", "public-good")
    assert used.stdout.startswith("ACCEPTED"), used.stdout
    assert "signed by operator, managed-key, under policy acme-2026" in used.stdout


def test_the_words_name_every_signer_rule_and_revocation(mint2m: Run) -> None:
    policy = VECTORS / "right-policy-documented/outside/policy.json"
    made = json.loads(policy.read_bytes())
    text = mint2m("trust", "show", policy).stdout
    for signer in made["signers"]:
        assert f"\n  {signer['name']}" in text
    for rule in made["rules"]:
        assert f"\n  {rule['name']}: a statement of {rule['predicate_type']}" in text
    for words in (
        "signed by 2 distinct keys or identities of operator, workflow",
        "REVOKED: lost with a laptop in May 2026",
        "identity https://example.com/acme/runs/.workflows/run.yml@refs/heads/ and whatever follows",
        "runs of hardware class h20-4x8",
        "needs an entry in a transparency log",
        "of version 0.1.0 or newer",
        "signed at most 365 days before",
        made["revoked"][0]["sha256"],
        made["roots"][0]["sha256"],
    ):
        assert words in text, words


def test_words_of_a_policy_cannot_paint_on_the_terminal(mint2m: Run, tmp_path: Path) -> None:
    made = json.loads((VECTORS / "right-policy-documented/outside/policy.json").read_bytes())
    made["revoked"][0]["reason"] = "a\u202eb\u2066c"
    place = tmp_path / "policy.json"
    place.write_text(json.dumps(made))
    text = mint2m("trust", "show", place).stdout
    assert "\\u202e" in text and "\u202e" not in text


def test_all_faults_of_a_policy_are_told_at_once(mint2m: Run, tmp_path: Path) -> None:
    made = json.loads((VECTORS / "right-policy-documented/outside/policy.json").read_bytes())
    made["rules"][0]["threshold"] = 0
    made["rules"][1]["minimum_version"] = "new"
    made["signers"][2]["identity"]["san"] = "*"
    place = tmp_path / "policy.json"
    place.write_text(json.dumps(made))
    done = mint2m("trust", "show", place, "--format", "json")
    told = {fault["id"]: fault["pointer"] for fault in json.loads(done.stdout)["findings"]}
    assert done.returncode == 2
    assert told == {
        "policy.too-wide": "/signers/2/identity/san",
        "policy.vacuous": "/rules/0/threshold",
        "policy.invalid": "/rules/1/minimum_version",
    }


def test_the_exported_root_is_the_file_that_sigstore_ships_and_the_known_one(tmp_path: Path) -> None:
    from importlib import resources

    done = subprocess.run(
        [sys.executable, "-m", "mint2m", "trust", "show", "public-good"], capture_output=True, check=True
    )
    shipped = resources.files("sigstore._store").joinpath("https%3A%2F%2Ftuf-repo-cdn.sigstore.dev/trusted_root.json")
    assert done.stdout == shipped.read_bytes()
    import hashlib
    from importlib.metadata import version

    known = json.loads((Path(__file__).resolve().parents[2] / "trust/known-roots.json").read_text())
    (entry,) = [item for item in known if item["shipped_by"] == f"sigstore {version('sigstore')}"]
    assert entry["sha256"] == hashlib.sha256(done.stdout).hexdigest()
    assert entry["mode"] == "public-good"


@pytest.mark.parametrize("name", ["nothing.json", "no/such/folder"])
def test_a_policy_that_is_not_there_is_the_callers_fault(mint2m: Run, name: str) -> None:
    done = mint2m("trust", "show", name)
    assert (done.returncode, "input.missing" in done.stdout) == (2, True)
