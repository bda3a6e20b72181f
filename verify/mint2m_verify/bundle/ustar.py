"""Tar headers: POSIX ustar, regular files only, in one spelling.

The rule: a header is read into a name, a size and an executable bit, and those three are written out again; the result
must be the 512 bytes that were read. So owner, time, mode, link and device fields, GNU and PAX extensions and every
second spelling of a number have no room, without a list of what to forbid. The list below only gives each of them its
own name for the reader. Format: POSIX.1-1988 ustar; the fields are written as Python's tarfile writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from mint2m_verify.finding import FindingError, found

BLOCK_BYTES = 512

#: What ends an archive. No padding to a record follows: that would be room for bytes that nobody signed.
END = bytes(2 * BLOCK_BYTES)

#: Every member's time, 1980-01-01: the earliest that a zip made from an unpacked archive can hold.
MTIME = 315_532_800

#: What eleven octal digits hold.
LARGEST_MEMBER = 8**11 - 1

_NAME, _PREFIX = 100, 155
_ZERO_BLOCK = bytes(BLOCK_BYTES)

_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_DEVICES = {b"3": "a character device", b"4": "a block device", b"6": "a pipe"}
_PAX = {b"x": "a PAX header", b"g": "a global PAX header", b"X": "a Solaris PAX header"}
_GNU = {
    b"D": "a GNU directory dump",
    b"K": "a GNU long link",
    b"L": "a GNU long name",
    b"M": "a GNU continued file",
    b"N": "an old GNU name",
    b"S": "a GNU sparse file",
    b"V": "a GNU volume label",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A regular file in an archive: all that a header may say."""

    path: str
    size: int
    executable: bool


def header(member: Member) -> bytes:
    """The 512 bytes of the one header that `member` can have.

    Raises:
        FindingError: `release.path-too-long` or `release.member-too-large` where ustar has no room for it.
    """
    if member.size > LARGEST_MEMBER:
        limit = f"at most {LARGEST_MEMBER} bytes"
        raise FindingError(found("release.member-too-large", file=member.path, expected=limit, actual=str(member.size)))
    prefix, name = _split(member.path)
    mode = 0o755 if member.executable else 0o644
    before = name.ljust(_NAME, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, member.size, MTIME)
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8) + prefix.ljust(_PREFIX, b"\0") + bytes(12)
    checksum = sum(before) + 8 * ord(" ") + sum(after)
    return before + b"%06o\0 " % checksum + after


def padding(size: int) -> int:
    """Zero bytes between a member's content and the next block."""
    return -size % BLOCK_BYTES


def parse(block: bytes, *, offset: int) -> Member | None:
    """The member that a header names; None for a block of zeros, which ends an archive.

    Args:
        block: 512 bytes.
        offset: where they lie in the archive, uncompressed.

    Raises:
        FindingError: `bundle.header-checksum`, one of `bundle.link`, `.device`, `.directory`, `.pax`, `.gnu-extension`,
            `.entry-type`, or `bundle.not-canonical`.
    """
    if block == _ZERO_BLOCK:
        return None
    where = (offset, offset + BLOCK_BYTES)
    blanked = block[:148] + b" " * 8 + block[156:]
    if _octal(block[148:154]) != sum(blanked):
        raise FindingError(found("bundle.header-checksum", byte_range=where))
    shown = _shown(block)
    _refuse_other_kinds(block[156:157], shown, where)
    path = _path(block, shown, where)
    size = _octal(block[124:135])
    if size is None:
        _not_canonical(shown, where, expected="a size of eleven octal digits", actual=repr(block[124:136]))
    executable = block[100:108] == b"0000755\0"
    member = Member(path=path, size=size, executable=executable)
    again = header(member)
    for name, first, last in _FIELDS:
        if block[first:last] != again[first:last]:
            _not_canonical(path, where, expected=f"{name} {again[first:last]!r}", actual=repr(block[first:last]))
    return member


#: Fields in an order in which a checksum that differs because of another field comes last.
_FIELDS = (
    ("mode", 100, 108),
    ("uid", 108, 116),
    ("gid", 116, 124),
    ("size", 124, 136),
    ("mtime", 136, 148),
    ("type", 156, 157),
    ("link name", 157, 257),
    ("magic and version", 257, 265),
    ("user name", 265, 297),
    ("group name", 297, 329),
    ("device numbers", 329, 345),
    ("rest of the block", 500, 512),
    ("prefix", 345, 500),
    ("name", 0, 100),
    ("checksum", 148, 156),
)


def _refuse_other_kinds(kind: bytes, shown: str, where: tuple[int, int]) -> None:
    for id, names in (
        ("bundle.link", _LINKS),
        ("bundle.device", _DEVICES),
        ("bundle.directory", {b"5": "a directory"}),
        ("bundle.pax", _PAX),
        ("bundle.gnu-extension", _GNU),
    ):
        if kind in names:
            raise FindingError(found(id, file=shown, byte_range=where, actual=names[kind]))
    if kind != b"0":
        raise FindingError(found("bundle.entry-type", file=shown, byte_range=where, actual=repr(kind)))


def _path(block: bytes, shown: str, where: tuple[int, int]) -> str:
    try:
        path = _raw_path(block).decode("utf-8")
    except UnicodeDecodeError:
        raise FindingError(found("bundle.path-invalid", file=shown, byte_range=where, actual="not UTF-8")) from None
    if not path or path.endswith("/"):
        raise FindingError(found("bundle.path-invalid", file=shown, byte_range=where, actual="no name"))
    return path


def _shown(block: bytes) -> str:
    return _raw_path(block).decode("utf-8", "backslashreplace")


def _raw_path(block: bytes) -> bytes:
    name, prefix = block[0:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _split(path: str) -> tuple[bytes, bytes]:
    """Prefix and name; the prefix is as short as can be, and empty where the name has room for all."""
    raw = path.encode("utf-8")
    if len(raw) <= _NAME:
        return b"", raw
    parts = raw.split(b"/")
    for count in range(1, len(parts)):
        prefix, name = b"/".join(parts[:count]), b"/".join(parts[count:])
        if len(prefix) <= _PREFIX and 0 < len(name) <= _NAME:
            return prefix, name
    raise FindingError(found("release.path-too-long", file=path, actual=f"{len(raw)} bytes"))


def _octal(digits: bytes) -> int | None:
    """The number in a field of octal digits alone; None for any other spelling, base-256 and blanks among them."""
    return int(digits, 8) if digits and all(digit in b"01234567" for digit in digits) else None


def _not_canonical(shown: str, where: tuple[int, int], *, expected: str, actual: str) -> NoReturn:
    raise FindingError(
        found("bundle.not-canonical", file=shown, byte_range=where, expected=expected[:200], actual=actual[:200])
    )
