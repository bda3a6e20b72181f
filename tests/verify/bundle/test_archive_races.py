"""Archives that change under the verifier: swapped, cut, overwritten or grown while they are read; pipes and devices.

Only the genuine bytes are ever unpacked, whatever lies under the archive's name before and after.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.bundle import gzipped

_SPEC = importlib.util.spec_from_file_location("mint2m_test_race_kit", Path(__file__).parents[1] / "race_kit.py")
assert _SPEC is not None and _SPEC.loader is not None
races = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(races)  # test modules do not import each other
verify, ids, make, meanwhile = races.verify, races.ids, races.make, races.meanwhile


@pytest.fixture
def archive(kit: ModuleType, release: Any, tmp_path: Path) -> Path:
    place = tmp_path / kit.NAME
    place.write_bytes(release.archive)
    return place


@pytest.mark.parametrize("kind", races.KINDS)
def test_an_archive_that_is_no_file_is_refused_at_once(
    kind: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    make(kind, tmp_path / kit.NAME)
    report = verify("verify", "bundle", tmp_path / kit.NAME, "--key", release.public)
    assert ids(report) == ["file.not-regular"]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_an_archive_that_is_swapped_before_it_is_opened_is_refused(
    kind: str, archive: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = os.open

    def swapped(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path) == archive and archive.is_file() and not archive.is_symlink():
            archive.unlink()
            make(kind, archive)
        return genuine(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swapped)
    assert ids(verify("verify", "bundle", archive, "--key", release.public)) == ["file.not-regular"]


@pytest.mark.parametrize("change", ["cut", "emptied", "overwritten", "appended"])
def test_an_archive_that_changes_while_it_is_read_is_refused_and_nothing_is_unpacked(
    change: str, archive: Path, release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, genuine, done = archive.stat().st_size, os.read, []
    monkeypatch.setattr(gzipped, "_READ_BYTES", 4096)

    def read(descriptor: int, count: int) -> bytes:
        piece = genuine(descriptor, count)
        if not done:
            done.append(True)
            match change:
                case "cut":
                    os.truncate(archive, size - 5000)
                case "emptied":
                    os.truncate(archive, 0)
                case "overwritten":
                    with archive.open("r+b") as stream:
                        stream.seek(size // 2)
                        stream.write(bytes(3000))
                case "appended":
                    with archive.open("ab") as stream:
                        stream.write(b"more")
        return piece

    monkeypatch.setattr(gzipped.os, "read", read)
    words = ("--key", release.public, "--verified-output", tmp_path / "out")
    report = verify("verify", "bundle", archive, *words)
    assert done
    assert report["exit_code"] in (1, 5)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_an_archive_renamed_away_while_it_is_read_is_the_one_that_was_opened(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read after the swap is still the opened file: the report is on that, whole."""
    genuine, done = os.read, []
    monkeypatch.setattr(gzipped, "_READ_BYTES", 4096)

    def read(descriptor: int, count: int) -> bytes:
        piece = genuine(descriptor, count)
        if not done:
            done.append(True)
            (tmp_path / "evil").write_bytes(b"evil")
            (tmp_path / "evil").rename(archive)
        return piece

    monkeypatch.setattr(gzipped.os, "read", read)
    words = ("--key", release.public, "--verified-output", tmp_path / "out")
    assert verify("verify", "bundle", archive, *words)["exit_code"] == 0
    assert (tmp_path / "out/source/README.md").read_bytes() == kit.small_files()["README.md"]


def test_whatever_archive_a_racing_thread_puts_there_only_the_genuine_one_is_unpacked(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    entries = kit.entries_of(release.archive)
    hostile = kit.archive(kit.changed(entries, "source/README.md", content=b"# A pr0ject\n"))
    (tmp_path / "side").mkdir()
    turn = iter(range(1 << 30))

    def swap() -> None:
        raw = (release.archive, hostile, release.archive[:5000])[next(turn) % 3]
        (tmp_path / "side/new").write_bytes(raw)
        (tmp_path / "side/new").rename(archive)

    codes = set()
    with meanwhile(swap):
        for number in range(races.ROUNDS):
            out = tmp_path / f"out-{number}"
            report = verify("verify", "bundle", archive, "--key", release.public, "--verified-output", out)
            codes.add(report["exit_code"])
            assert out.exists() == (report["exit_code"] == 0)
            if out.exists():
                assert (out / "source/README.md").read_bytes() == b"# A project\n"
    assert codes & {1, 5} and codes <= {0, 1, 5}


def test_whatever_a_racing_thread_writes_into_the_archive_only_the_genuine_bytes_are_unpacked(
    archive: Path, release: Any, tmp_path: Path
) -> None:
    place = release.archive.index(b"# A project")

    def scribble() -> None:
        with archive.open("r+b", buffering=0) as stream:
            stream.seek(place)
            stream.write(b"# A pr0ject")
            time.sleep(0.01)
            stream.seek(place)
            stream.write(b"# A project")
        time.sleep(0.01)

    with meanwhile(scribble):
        for number in range(races.ROUNDS):
            out = tmp_path / f"out-{number}"
            report = verify("verify", "bundle", archive, "--key", release.public, "--verified-output", out)
            assert report["exit_code"] in (0, 1, 5)
            assert out.exists() == (report["exit_code"] == 0)
            assert not out.exists() or (out / "source/README.md").read_bytes() == b"# A project\n"


def test_a_checkout_that_changes_while_it_is_compared_is_not_accepted(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    genuine, done = os.preadv, []

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        count = genuine(descriptor, buffers, offset)
        if count and not done:
            done.append(True)
            for path in checkout.rglob("*.md"):
                with path.open("ab") as stream:
                    stream.write(b"more")
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    report = verify("verify", "bundle", archive, "--key", release.public, "--checkout", checkout)
    assert report["exit_code"] in (1, 5)


def test_a_command_of_its_own_ends_on_a_pipe_without_a_traceback(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / kit.NAME)
    words = [sys.executable, "-m", "mint2m", "verify", "bundle", tmp_path / kit.NAME, "--key", release.public]
    done = subprocess.run(words, capture_output=True, text=True, timeout=races.LONGEST_S, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "file.not-regular" in done.stdout
