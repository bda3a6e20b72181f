"""Checkpoints: the signed note in which a log states its size and root hash.

The rule: every line is accounted for. Lines that a lax reader skips would be room to write in; here the header is
origin, size, root hash and non-empty further lines, and what follows the blank line is signatures and nothing else.
Cosignatures of witnesses are read and ignored: the trusted root names no witness. Format: C2SP signed-note and
tlog-checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

_SIGNATURE = re.compile("\N{EM DASH} ([^ +\n]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_MOST_LINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSignature:
    """One signature line: who it says signed, the first four bytes of the key's id, the signature."""

    name: str
    hint: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`note` are the bytes that are signed."""

    origin: str
    size: int
    root_hash: bytes
    note: bytes
    signatures: tuple[NoteSignature, ...]

    def signature_of(self, log_id: bytes) -> NoteSignature | None:
        """The first line whose hint is that of the log; verifiers look at no other."""
        return next((line for line in self.signatures if line.hint == log_id[:4]), None)

    def names_host(self, name: str) -> bool:
        """Whether a line's name is the origin's host; older logs add a tree id to it, after " - "."""
        return name == self.origin.split(" - ")[0]


def parse_checkpoint(text: str) -> Checkpoint | str:
    """The checkpoint in `text`, or in words what is wrong with it."""
    note, separator, block = text.partition("\n\n")
    lines = note.split("\n")
    if not separator or "\n\n" in block:
        return "not one blank line between note and signatures"
    if len(lines) < 3 or "" in lines or len(lines) > _MOST_LINES:
        return "fewer lines than origin, size and root hash"
    if _SIZE.fullmatch(lines[1]) is None:
        return "the second line is no tree size"
    root_hash = _decode(lines[2])
    if root_hash is None or len(root_hash) != 32:
        return "the third line is no root hash"
    signatures = _signatures(block)
    if isinstance(signatures, str):
        return signatures
    return Checkpoint(
        origin=lines[0],
        size=int(lines[1]),
        root_hash=root_hash,
        note=f"{note}\n".encode(),
        signatures=signatures,
    )


def _signatures(block: str) -> tuple[NoteSignature, ...] | str:
    if not block.endswith("\n"):
        return "no signature, or the last one is cut"
    lines = block[:-1].split("\n")
    if len(lines) > _MOST_LINES:
        return f"more than {_MOST_LINES} signatures"
    found = []
    for line in lines:
        match = _SIGNATURE.fullmatch(line)
        raw = None if match is None else _decode(match[2])
        if match is None or raw is None or len(raw) < 5:
            return "a line that is no signature"
        found.append(NoteSignature(name=match[1], hint=raw[:4], signature=raw[4:]))
    return tuple(found)


def _decode(text: str) -> bytes | None:
    """Base64 in its only spelling."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return raw if base64.b64encode(raw).decode("ascii") == text else None
