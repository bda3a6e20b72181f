"""The generated training payload as a stream: the bytes of `training-payload` without the document being held.

The rule: the pieces, one after another, are exactly the RFC 8785 bytes that `TrainingPayload.encode` gives for the same
ledger, so a payload made here and the one inside a built fixture are one file. They are written under another name,
hashed as they pass, and get the final name when they are complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import rfc8785

from mint2m_trainer.contract.fixture import REWARD_RULE
from mint2m_trainer.contract.ledger import LedgerError, ledger_pieces
from mint2m_verify.documents import FileRef, TrainingPayload
from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, found

#: A written block; pieces are lines of a few dozen bytes.
BLOCK_BYTES = 1 << 18


def build_payload(seed: int, *, tokens: int, output: Path | None) -> FileRef:
    """Make the payload of `ledger(seed, tokens)`: its digest and size, and where `output` is given the file.

    Args:
        output: gets the file; one that is there already must hold the same bytes. None makes nothing.

    Raises:
        FindingError: `usage.invalid` for a length that no ledger has, `file.exists`, `file.unwritable`.
    """
    name = "payload.json" if output is None else str(output)
    if output is None or output.exists() or output.is_symlink():
        made = _reference(name, payload_blocks(seed, tokens=tokens))
        if output is not None and _held(output) != made:
            raise FindingError(found("file.exists", file=name))
        return made
    return _write(output, payload_blocks(seed, tokens=tokens))


def payload_blocks(seed: int, *, tokens: int) -> Iterator[bytes]:
    """The payload's bytes in blocks of about `BLOCK_BYTES`; a length that is too short is refused at once."""
    try:
        made = ledger_pieces(seed, tokens=tokens)
    except LedgerError as fault:
        raise FindingError(
            found("usage.invalid", expected="a number of tokens that holds a ledger", actual=str(fault))
        ) from fault

    def pieces() -> Iterator[bytes]:
        # Members in RFC 8785 order; a string's escapes are those of its pieces, since no piece ends inside a character.
        yield b'{"ground_truth":' + rfc8785.dumps(made.ground_truth) + b',"prompt_text":"'
        for piece in made.text:
            yield rfc8785.dumps(piece)[1:-1]
        yield b'","reward_rule":' + rfc8785.dumps(REWARD_RULE)
        yield b',"schema":' + rfc8785.dumps(f"mint2m.{TrainingPayload.NAME}/v1") + b',"tokenizer":"utf8-bytes"}'

    return _blocks(pieces())


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= BLOCK_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _reference(name: str, blocks: Iterator[bytes]) -> FileRef:
    digest, size = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        size += len(block)
    return FileRef(path=name, sha256=digest.hexdigest(), size=size)


def _held(path: Path) -> FileRef | None:
    """What lies at `path`, or None where that is no regular file."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            return _reference(str(path), iter(lambda: stream.read(BLOCK_BYTES), b""))
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(path), actual=fault.strerror)) from fault


def _write(path: Path, blocks: Iterator[bytes]) -> FileRef:
    """Write a file that was not there, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                for block in blocks:
                    stream.write(block)
                    digest.update(block)
                    size += len(block)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(path), actual=fault.strerror)) from fault
    return FileRef(path=str(path), sha256=digest.hexdigest(), size=size)
