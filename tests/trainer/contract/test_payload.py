"""The streamed payload is the document that the fixture builder writes, byte for byte, and never lies there half."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_trainer.contract import payload
from mint2m_trainer.contract.fixture import Target, assemble, ledger_task
from mint2m_trainer.contract.ledger import ASKED
from mint2m_trainer.contract.payload import build_payload, payload_blocks
from mint2m_verify.documents import TrainingPayload
from mint2m_verify.finding import FindingError

TARGET = Target(revision="r", manifest_sha256="1" * 64, vocab_size=256, profile_sha256="2" * 64, policy_sha256=None)


@pytest.mark.parametrize("tokens", [900, 4096, 65_537])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_stream_is_the_payload_of_a_built_fixture(tmp_path: Path, seed: int, tokens: int) -> None:
    files, _ = assemble(ledger_task(seed, tokens=tokens), TARGET)
    output = tmp_path / "payload.json"

    made = build_payload(seed, tokens=tokens, output=output)

    assert output.read_bytes() == files.payload
    assert (made.size, made.sha256) == (len(files.payload), hashlib.sha256(files.payload).hexdigest())
    assert build_payload(seed, tokens=tokens, output=None).sha256 == made.sha256


def test_two_million_tokens_are_a_valid_document_of_exactly_that_length() -> None:
    raw = b"".join(payload_blocks(0, tokens=2_097_152))
    made = TrainingPayload.parse(raw, file="payload.json")  # strict: also that it is its own RFC 8785 form
    assert len(made.prompt_text.encode("utf-8")) == 2_097_152
    assert made.prompt_text.count(f"{ASKED}, ") == 2
    # Recorded once: whoever makes it again, on any machine, must find this.
    assert hashlib.sha256(raw).hexdigest() == "dd6e5c8e0d06799d81c89c59318aa6f129b7db798ea64d8e983191910d96e821"


def test_building_two_million_tokens_stays_below_200_megabytes(tmp_path: Path) -> None:
    """Peak resident memory of the whole process, the interpreter and its imports included.

    From /proc, since a child's `ru_maxrss` begins at what its parent held when it forked.
    """
    program = (
        "import atexit, sys\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "atexit.register(lambda: print(status().split('VmHWM:')[1].split()[0], file=sys.stderr))\n"
        "from mint2m.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    output = tmp_path / "payload.json"
    arguments = ["payload", "build", "--tokens", "2097152", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    assert 0 < int(done.stderr.split()[-1]) * 1024 < 200 * 10**6
    assert done.stdout.splitlines()[-1] == f"sha256  {hashlib.sha256(output.read_bytes()).hexdigest()}"


def test_the_same_file_again_is_fine_and_another_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "payload.json"
    first = build_payload(1, tokens=900, output=output)
    assert build_payload(1, tokens=900, output=output) == first
    with pytest.raises(FindingError) as fault:
        build_payload(2, tokens=900, output=output)
    assert fault.value.finding.id == "file.exists"
    assert hashlib.sha256(output.read_bytes()).hexdigest() == first.sha256


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    aim, link = tmp_path / "aim", tmp_path / "payload.json"
    build_payload(1, tokens=900, output=aim)
    link.symlink_to(aim)
    with pytest.raises(FindingError) as fault:
        build_payload(1, tokens=900, output=link)
    assert fault.value.finding.id == "file.exists"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(payload.os, "fsync", fails)
    with pytest.raises(FindingError) as fault:
        build_payload(1, tokens=900, output=tmp_path / "payload.json")
    assert fault.value.finding.id == "file.unwritable"
    assert list(tmp_path.iterdir()) == []


def test_a_length_that_no_ledger_has_is_wrong_usage(mint2m: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = mint2m("payload", "build", "--tokens", "64")
    assert done.returncode == 2
    assert "usage.invalid" in done.stdout + done.stderr
