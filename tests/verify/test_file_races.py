"""Files that change under the verifier: swapped between two looks, cut or grown while read, pipes and devices.

Whatever happens, a verification ends, with a report and never with an exception; and it accepts only where the bytes
that it hashed were the genuine ones. Where a moment matters the change is made at that very moment, by a hook; where
luck does, a thread changes the files as fast as it can. Archives: tests/verify/bundle/test_archive_races.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import threading
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError
from mint2m_verify.walk import read_tree

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
RUN, KEY = VECTORS / "bases/run", VECTORS / "test-only-keys/release.pub"

_SPEC = importlib.util.spec_from_file_location("mint2m_test_race_kit", Path(__file__).with_name("race_kit.py"))
assert _SPEC is not None and _SPEC.loader is not None
races = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(races)  # test modules do not import each other
verify, ids, make, meanwhile, device = races.verify, races.ids, races.make, races.meanwhile, races.device


# Directories: runs and checkpoints


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


#: Each command over a run directory, and a file of it that the command reads.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run": ("receipt.json", ("verify", "run", "{run}", "--key", str(KEY))),
    "checkpoint": ("checkpoint/metadata.json", ("verify", "checkpoint", "{run}/checkpoint", "--key", str(KEY))),
    "receipt": ("receipt.json", ("verify", "receipt", "{run}/receipt.json", "--root", "{run}", "--key", str(KEY))),
    "manifest": (
        "checkpoint/metadata.json",
        (
            *("verify", "manifest", "{run}/artifacts/checkpoint-manifest.json", "--root", "{run}/checkpoint"),
            *("--seal", "{run}/attestations/seal.sigstore.json", "--key", str(KEY)),
        ),
    ),
}


def lines(command: str, root: Path) -> tuple[Path, list[str]]:
    """A file that the command reads, and its words."""
    name, words = COMMANDS[command]
    return root / name, [word.replace("{run}", str(root)) for word in words]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_genuine_directory_is_accepted_by_each_command(command: str, evidence: Path) -> None:
    place, words = lines(command, evidence)
    assert place.is_file()
    assert verify(*words)["exit_code"] == 0


@pytest.mark.parametrize("kind", races.KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_in_a_tree_is_refused_and_does_not_hold_anybody_up(
    command: str, kind: str, evidence: Path
) -> None:
    place, words = lines(command, evidence)
    place.unlink()
    make(kind, place)
    report = verify(*words)
    assert report["exit_code"] in (1, 2), ids(report)
    expected = {"tree.symlink", "tree.special-file", "tree.file-missing", "file.not-regular", "file.missing"}
    assert set(ids(report)) & expected


@pytest.mark.parametrize("kind", ["pipe", "link", "device"])
@pytest.mark.parametrize("command", ["run", "checkpoint", "manifest"])
def test_a_file_that_is_swapped_before_it_is_opened_is_refused(
    command: str, kind: str, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, words = lines(command, evidence)
    if kind == "device":
        device(evidence.parent / "probe")
    genuine = os.open

    def swapped(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(os.fspath(path)) == place.name and stat.S_ISREG(place.lstat().st_mode):  # noqa: PTH119
            place.unlink()
            make(kind, place)
        return genuine(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swapped)
    report = verify(*words)
    assert report["exit_code"] == 1
    assert set(ids(report)) & {"tree.symlink", "tree.special-file"}


def test_a_directory_that_is_swapped_for_a_link_is_not_followed(
    evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link leads to a genuine copy: even that is not the run's own."""
    shutil.copytree(evidence / "checkpoint", tmp_path / "elsewhere")
    genuine = os.open

    def swapped(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "checkpoint" and not (evidence / "checkpoint").is_symlink():
            shutil.rmtree(evidence / "checkpoint")
            (evidence / "checkpoint").symlink_to(tmp_path / "elsewhere")
        return genuine(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swapped)
    report = verify("verify", "run", evidence, "--key", KEY)
    assert report["exit_code"] == 1
    assert "tree.symlink" in ids(report)


@pytest.mark.parametrize("change", ["cut", "grown"])
def test_a_file_that_changes_between_two_blocks_is_not_hashed_as_if_it_were_whole(
    change: str, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, done = os.preadv, []
    place = evidence / "checkpoint/metadata.json"

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if not done:
            done.append(True)
            os.truncate(place, 10 if change == "cut" else 100_000)
        return genuine(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    report = verify("verify", "checkpoint", evidence / "checkpoint", "--key", KEY)
    assert report["exit_code"] in (1, 5)
    assert set(ids(report)) & {"tree.changed-while-read", "tree.file-changed"}


def test_a_file_that_grows_as_fast_as_it_is_read_does_not_hold_anybody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tree" / "log"
    place.parent.mkdir()
    place.write_bytes(b"begun\n")
    genuine, calls = os.preadv, []

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(True)
        assert len(calls) < 100, "it reads for ever"
        with place.open("ab") as stream:
            stream.write(b"more\n" * 100)
        return genuine(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    snapshot = read_tree(place.parent, keep=lambda _: 0)
    assert [fault.id for fault in snapshot.findings] == ["tree.changed-while-read"]
    assert snapshot.files == ()


@pytest.mark.parametrize("command", ["run", "checkpoint"])
def test_whatever_a_racing_thread_does_to_a_file_the_command_ends_with_a_report(
    command: str, evidence: Path, tmp_path: Path
) -> None:
    place, words = lines(command, evidence)
    raw = place.read_bytes()
    turn = iter(range(1 << 30))

    def disturb() -> None:
        fresh = tmp_path / "fresh"
        match next(turn) % 5:
            case 0:
                fresh.write_bytes(raw)
                fresh.rename(place)
            case 1:
                os.truncate(place, len(raw) // 2)
            case 2:
                fresh.symlink_to("/etc/passwd")
                fresh.rename(place)
            case 3:
                os.mkfifo(fresh)
                fresh.rename(place)
            case 4:
                fresh.write_bytes(raw[::-1])
                fresh.rename(place)
                time.sleep(0.002)

    codes = set()
    with meanwhile(disturb):
        for _ in range(races.ROUNDS):
            codes.add(verify(*words)["exit_code"])
    assert codes <= {0, 1, 5} and codes & {1, 5}


# Single files


def test_one_read_is_of_the_file_that_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "document"
    place.write_bytes(b"genuine")
    genuine = os.fstat

    def swapped(descriptor: int) -> os.stat_result:
        (tmp_path / "other").write_bytes(b"evil")
        (tmp_path / "other").rename(place)
        return genuine(descriptor)

    monkeypatch.setattr(os, "fstat", swapped)
    assert read_once(place) == b"genuine"


def test_one_read_is_bounded_though_the_file_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "document"
    place.write_bytes(b"x")
    genuine = os.fstat

    def grown(descriptor: int) -> os.stat_result:
        status = genuine(descriptor)
        os.truncate(place, 1 << 40)  # a hole: it costs no space
        return status

    monkeypatch.setattr(os, "fstat", grown)
    with pytest.raises(FindingError) as caught:
        read_once(place, limit=1000)
    assert caught.value.finding.id == "file.too-large"


@pytest.fixture
def signed_file(mint2m: Any, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A file, its bundle and the key that signed it."""
    place = tmp_path / "artifact"
    place.write_bytes(b"content\n" * 1000)
    assert mint2m("keys", "new", tmp_path / "key").returncode == 0
    assert mint2m("sign", "file", place, "--key", tmp_path / "key.key").returncode == 0
    return place, tmp_path / "artifact.sigstore.json", tmp_path / "key.pub"


@pytest.mark.parametrize("kind", races.KINDS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_signature_s_files_that_are_no_files_are_refused_at_once(
    which: int, kind: str, signed_file: tuple[Path, Path, Path]
) -> None:
    artifact, bundle, key = signed_file
    assert verify("verify", "signature", artifact, "--bundle", bundle, "--key", key)["exit_code"] == 0
    signed_file[which].unlink()
    make(kind, signed_file[which])
    report = verify("verify", "signature", artifact, "--bundle", bundle, "--key", key)
    assert report["exit_code"] in (1, 2)
    assert ids(report) == ["file.not-regular"]


def test_whatever_a_racing_thread_writes_only_the_genuine_file_is_signed(
    signed_file: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    artifact, bundle, key = signed_file
    turn = iter(range(1 << 30))

    def swap() -> None:
        other = next(turn) % 2
        (tmp_path / "fresh").write_bytes(b"c0ntent\n" * 1000 if other else b"content\n" * 1000)
        (tmp_path / "fresh").rename(artifact)
        time.sleep(0.005)

    codes = set()
    with meanwhile(swap):
        for _ in range(races.ROUNDS):
            codes.add(verify("verify", "signature", artifact, "--bundle", bundle, "--key", key)["exit_code"])
    assert codes <= {0, 1}


def test_a_signal_that_no_wait_was_interrupted_by_is_seen_all_the_same(tmp_path: Path) -> None:
    """As one that comes between the last look for signals and the wait: here another thread takes it."""
    with (tmp_path / "endless").open("wb") as stream:
        stream.truncate(256 << 30)
    sent = Event()

    def send(_what: str, _done: int, _total: int) -> None:
        if not sent.is_set():
            sent.set()
            time.sleep(0.2)  # the reader's main thread has begun to wait
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        read_tree(tmp_path, keep=lambda _: 0, progress=send)
    assert sent.is_set()
