"""Archives by people who mean harm: each is refused for its own reason, and nothing is written anywhere.

Each case is the valid bundle with one change, put together by Python's tarfile and gzip. Those of the first table come
from somebody without the release key; those of the second are signed with it.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.anchor import ConsistencyOnly, VerifyOptions
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.bundle.gzipped import GzipWriter
from mint2m_verify.finding import Report, Verdict

#: (kit, valid archive) -> hostile archive.
Forge = Callable[[ModuleType, bytes], bytes]

CASES: dict[str, tuple[str, Forge]] = {}


def case(name: str, id: str) -> Callable[[Forge], Forge]:
    def register(forge: Forge) -> Forge:
        assert name not in CASES
        CASES[name] = (id, forge)
        return forge

    return register


def simple(title: str, id: str, **members: Any) -> None:
    """A member that does not belong there, at the end of the archive."""
    CASES[title] = (id, lambda kit, raw: kit.archive([*kit.entries_of(raw), kit.Entry(**members)]))


def on_readme(title: str, id: str, **members: Any) -> None:
    """A genuine member with another header."""
    CASES[title] = (id, lambda kit, raw: kit.archive(kit.changed(kit.entries_of(raw), "source/README.md", **members)))


def on_header(title: str, id: str, offset: int, new: bytes) -> None:
    """Bytes of a genuine member's header, under a right checksum."""

    def forge(kit: ModuleType, raw: bytes) -> bytes:
        entries = kit.entries_of(raw)
        return kit.archive(
            [kit.patched(entry, offset, new) if entry.name == "source/README.md" else entry for entry in entries]
        )

    CASES[title] = (id, forge)


# Kinds of members

simple("symbolic-link", "bundle.link", name="source/zz", type=tarfile.SYMTYPE, linkname="/etc/passwd")
simple("hard-link", "bundle.link", name="source/zz", type=tarfile.LNKTYPE, linkname="source/README.md")
on_readme("link-in-place-of-a-file", "bundle.link", type=tarfile.SYMTYPE, linkname="../../x", content=b"")
simple("character-device", "bundle.device", name="source/zz", type=tarfile.CHRTYPE)
simple("block-device", "bundle.device", name="source/zz", type=tarfile.BLKTYPE)
simple("pipe", "bundle.device", name="source/zz", type=tarfile.FIFOTYPE)
simple("directory", "bundle.directory", name="source/zz", type=tarfile.DIRTYPE)
simple("pax-header", "bundle.pax", name="source/zz", type=b"x", content=b"19 path=source/evil\n")
simple("global-pax-header", "bundle.pax", name="pax_global_header", type=b"g", content=b"18 comment=nothing\n")
simple("solaris-pax-header", "bundle.pax", name="source/zz", type=b"X", content=b"19 path=source/evil\n")
simple("gnu-long-name", "bundle.gnu-extension", name="././@LongLink", type=b"L", content=b"source/" + b"a" * 300)
simple("gnu-long-link", "bundle.gnu-extension", name="././@LongLink", type=b"K", content=b"source/a")
simple("gnu-sparse", "bundle.gnu-extension", name="source/zz", type=b"S")
simple("gnu-volume", "bundle.gnu-extension", name="volume", type=b"V")
simple("contiguous", "bundle.entry-type", name="source/zz", type=b"7")
simple("old-regular", "bundle.entry-type", name="source/zz", type=b"\0")
simple("vendor-type", "bundle.entry-type", name="source/zz", type=b"Z")

# Names

simple("absolute-name", "bundle.path-absolute", name="/tmp/owned", content=b"x")
simple("name-above", "bundle.path-outside", name="../owned", content=b"x")
simple("name-above-in-the-middle", "bundle.path-outside", name="source/../../owned", content=b"x")
simple("dot-segment", "bundle.path-invalid", name="source/./README.md", content=b"x")
simple("empty-segment", "bundle.path-invalid", name="source//README.md", content=b"x")
simple("backslash", "bundle.path-invalid", name="source\\evil", content=b"x")
simple("control-character", "bundle.path-invalid", name="source/a\x1b[2Jb", content=b"x")
simple("not-utf-8", "bundle.path-invalid", name="source/\udcff", content=b"x")
simple("not-composed", "bundle.path-invalid", name="source/e\u0301", content=b"x")
simple("git-directory", "bundle.path-invalid", name="source/.git/hooks/post-checkout", content=b"x", executable=True)
simple("git-directory-in-capitals", "bundle.path-invalid", name="source/.GIT/config", content=b"x")
simple("case-collision", "bundle.path-collision-case", name="source/readme.md", content=b"x")
simple("case-collision-of-directories", "bundle.path-collision-case", name="source/DOCS/other.md", content=b"x")
simple("two-forms-of-one-name", "bundle.path-collision-unicode", name="source/docs/cafe\u0301.md", content=b"x")
simple("file-where-a-directory-is", "bundle.path-conflict", name="source/docs", content=b"x")
simple("directory-where-a-file-is", "bundle.path-conflict", name="source/README.md/x", content=b"x")
simple("same-name-again", "bundle.member-duplicate", name="source/README.md", content=b"# A project\n")
simple("manifest-again", "bundle.member-duplicate", name="release.json", content=b"{}")
simple("unlisted", "bundle.member-unlisted", name="source/zz.py", content=b"import os\n")
simple("a-third-signature-without-a-second", "bundle.member-unlisted", name="release.3.sigstore.json", content=b"{}")


# Headers

on_readme("time", "bundle.not-canonical", mtime=1_700_000_000)
on_readme("owner", "bundle.not-canonical", uid=1000)
on_readme("group", "bundle.not-canonical", gid=1000)
on_readme("owner-name", "bundle.not-canonical", uname="root")
on_readme("set-user-id", "bundle.not-canonical", mode=0o4755)
on_readme("world-writable", "bundle.not-canonical", mode=0o666)
on_readme("link-name-of-a-file", "bundle.not-canonical", linkname="/etc/passwd")
on_readme("executable", "bundle.mode-mismatch", executable=True)
on_readme("changed", "bundle.member-changed", content=b"# A project!"[:12])
on_readme("shorter", "bundle.size-mismatch", content=b"# A\n")
on_readme("claims-gigabytes", "bundle.size-mismatch", size=8 << 29)
on_readme("grown", "bundle.size-mismatch", content=bytes(1 << 20))
on_header("size-in-base-256", "bundle.not-canonical", 124, b"\x80" + bytes(10) + b"\x0c")
on_header("size-with-blanks", "bundle.not-canonical", 124, b"         14 ")
on_header("mode-with-blanks", "bundle.not-canonical", 100, b"   644 \0")
on_header("gnu-magic", "bundle.not-canonical", 257, b"ustar  \0")
on_header("no-magic", "bundle.not-canonical", 257, bytes(8))
on_header("device-number", "bundle.not-canonical", 329, b"0000001\0")
on_header("bytes-behind-the-name", "bundle.not-canonical", 60, b"hidden")
on_header("bytes-behind-the-prefix", "bundle.not-canonical", 505, b"hidden")


@case("prefix-where-the-name-has-room", "bundle.not-canonical")
def _(kit: ModuleType, raw: bytes) -> bytes:
    def split(entry: Any) -> Any:
        if entry.name != "source/README.md":
            return entry
        block = bytearray(entry.block())
        block[0:100] = b"README.md".ljust(100, b"\0")
        block[345:351] = b"source"
        return kit.checksummed(bytes(block)) + entry.raw()[512:]

    return kit.archive([split(entry) for entry in kit.entries_of(raw)])


@case("checksum", "bundle.header-checksum")
def _(kit: ModuleType, raw: bytes) -> bytes:
    content = bytearray(kit.tar(kit.entries_of(raw)))
    content[content.index(b"source/README.md\0")] ^= 1
    return kit.deflated(bytes(content))


@case("checksum-in-another-spelling", "bundle.not-canonical")
def _(kit: ModuleType, raw: bytes) -> bytes:
    content = bytearray(kit.tar(kit.entries_of(raw)))
    start = content.index(b"source/README.md\0")
    content[start + 154 : start + 156] = b" \0"
    return kit.deflated(bytes(content))


# What is there, and in which order


@case("missing", "bundle.member-missing")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive([entry for entry in kit.entries_of(raw) if entry.name != "source/README.md"])


@case("last-one-missing", "bundle.member-missing")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw)[:-1])


@case("another-order", "bundle.out-of-order")
def _(kit: ModuleType, raw: bytes) -> bytes:
    entries = kit.entries_of(raw)
    return kit.archive([*entries[:2], entries[3], entries[2], *entries[4:]])


@case("signature-first", "bundle.head-invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    entries = kit.entries_of(raw)
    return kit.archive([entries[1], entries[0], *entries[2:]])


@case("something-first", "bundle.head-invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive([kit.Entry(name="source/README.md", content=b"# A project\n"), *kit.entries_of(raw)])


@case("no-signature", "bundle.head-invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    entries = kit.entries_of(raw)
    return kit.archive([entries[0], *entries[2:]])


@case("nothing-at-all", "bundle.head-invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive([])


@case("manifest-of-gigabytes", "bundle.head-invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive([kit.Entry(name="release.json", size=4 << 30), *kit.entries_of(raw)])


@case("manifest-edited", "release.manifest-changed")
def _(kit: ModuleType, raw: bytes) -> bytes:
    entries = kit.entries_of(raw)
    content = entries[0].content.replace(b'"executable":true', b'"executable":false')
    return kit.archive(kit.changed(entries, "release.json", content=content))


@case("statement-edited", "signature.invalid")
def _(kit: ModuleType, raw: bytes) -> bytes:
    import base64
    import json

    entries = kit.entries_of(raw)
    bundle = json.loads(entries[1].content)
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"]).replace(b'"1.2.3"', b'"1.2.4"')
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    return kit.archive(kit.changed(entries, "release.sigstore.json", content=json.dumps(bundle).encode()))


@case("signature-of-something-else-beside", "release.signatures-differ")
def _(kit: ModuleType, raw: bytes) -> bytes:
    entries = kit.entries_of(raw)
    other = signer().sign_statement(b'{"_type":"https://in-toto.io/Statement/v1"}')
    return kit.archive([*entries[:2], kit.Entry(name="release.2.sigstore.json", content=other), *entries[2:]])


# The end, and what comes after it


@case("padding-of-a-member", "bundle.not-canonical")
def _(kit: ModuleType, raw: bytes) -> bytes:
    content = bytearray(kit.tar(kit.entries_of(raw)))
    content[content.index(b"# A project\n") + 12] = 1
    return kit.deflated(bytes(content))


@case("bytes-behind-the-end", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw), end=bytes(1024) + b"more")


@case("zeros-behind-the-end", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw), end=bytes(10_240))


@case("an-archive-behind-the-end", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.deflated(kit.tar(kit.entries_of(raw)) + kit.tar([kit.Entry(name="source/evil", content=b"x")]))


@case("a-member-behind-one-block-of-zeros", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive([*kit.entries_of(raw), bytes(512), kit.Entry(name="source/evil", content=b"x")])


@case("one-block-of-zeros", "bundle.truncated")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw), end=bytes(512))


@case("no-end", "bundle.truncated")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw), end=b"")


@case("a-bomb-behind-the-end", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.archive(kit.entries_of(raw), end=bytes(16 << 20))


@case("a-bomb-before-the-head", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return kit.deflated(bytes(16 << 20), level=9)


# The wrapping


@case("not-compressed-at-all", "bundle.not-gzip")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return bytes(kit.tar(kit.entries_of(raw)))


@case("empty-file", "bundle.truncated")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return b""


@case("two-gzip-members", "bundle.gzip-member")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw + gzip.compress(kit.tar([kit.Entry(name="source/evil", content=b"x")]), mtime=0)


@case("two-halves", "bundle.gzip-member")
def _(kit: ModuleType, raw: bytes) -> bytes:
    content = kit.tar(kit.entries_of(raw))
    return bytes(kit.deflated(content[:5120]) + kit.deflated(content[5120:]))


@case("an-empty-gzip-member-behind", "bundle.gzip-member")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw + gzip.compress(b"", mtime=0)


@case("bytes-behind-the-gzip-member", "bundle.trailing-data")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw + b"\0"


@case("gzip-checksum", "bundle.gzip-damaged")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw[:-8] + bytes((raw[-8] ^ 1,)) + raw[-7:]


@case("gzip-length", "bundle.gzip-damaged")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw[:-1] + bytes((raw[-1] ^ 1,))


@case("deflate-of-a-reserved-kind", "bundle.gzip-damaged")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw[:10] + bytes((0b111,)) + raw[11:]


@case("stored-block-with-padding-bits", "bundle.gzip-damaged")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw[:10] + bytes((raw[10] | 0b1000,)) + raw[11:]


@case("stored-blocks-of-another-length", "bundle.gzip-damaged")
def _(kit: ModuleType, raw: bytes) -> bytes:
    content = kit.tar(kit.entries_of(raw))
    blocks = [content[start : start + 1000] for start in range(0, len(content), 1000)]
    body = b"".join(
        bytes((block is blocks[-1],)) + struct.pack("<HH", len(block), len(block) ^ 0xFFFF) + block for block in blocks
    )
    return raw[:10] + body + struct.pack("<II", zlib.crc32(content), len(content))


@case("operating-system-of-a-stored-archive", "bundle.gzip-header")
def _(kit: ModuleType, raw: bytes) -> bytes:
    return raw[:9] + b"\x03" + raw[10:]


def gzip_header(name: str, flags: int, extra: bytes, *, time: int = 0) -> None:
    def forge(kit: ModuleType, raw: bytes) -> bytes:
        head = raw[:3] + bytes((flags,)) + struct.pack("<I", time) + raw[8:10]
        return head + extra + raw[10:]

    CASES[name] = ("bundle.gzip-header", forge)


gzip_header("gzip-file-name", 8, b"evil.tar\0")
gzip_header("gzip-comment", 16, b"hello\0")
gzip_header("gzip-extra-field", 4, struct.pack("<H", 4) + b"abcd")
gzip_header("gzip-header-checksum", 2, b"\0\0")
gzip_header("gzip-text-flag", 1, b"")
gzip_header("gzip-reserved-flag", 64, b"")
gzip_header("gzip-time", 0, b"", time=1_700_000_000)


# Helpers


def signer() -> Any:
    """The release's own signer: what an insider holds."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from mint2m_verify.signers.key_signer import signer_of

    return signer_of(Ed25519PrivateKey.from_private_bytes(bytes(range(32))), kind="managed", source="an insider")


def resigned(kit: ModuleType, raw: bytes, more: list[Any]) -> bytes:
    """The archive with more members, all of it listed and signed by the release's own key."""
    from mint2m_verify.release.archive import Part, assemble, part_of, write_archive

    parts = [
        Part(**{**_members(part_of(entry.name, entry.content)), "executable": entry.executable})
        for entry in [*kit.entries_of(raw)[2:], *more]
    ]
    bundle = assemble(kit.VERSION, parts, commit="1" * 40, committed_at="2026-01-31T12:00:00Z")
    made = io.BytesIO()
    write_archive(bundle, (signer().sign_statement(bundle.statement.payload),), made.write)
    return made.getvalue()


def _members(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in ("path", "executable", "size", "sha256", "content")}


def stored(content: bytes) -> bytes:
    made = io.BytesIO()
    writer = GzipWriter(made.write)
    writer.write(content)
    writer.close()
    return made.getvalue()


def seen(place: Path) -> dict[str, bytes | None]:
    """Every file and directory below `place`."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))
    }


def judged(raw: bytes, release: Any, kit: ModuleType, tmp_path: Path) -> Report:
    """The report on these bytes under the archive's right name; asserts that nothing was written."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / kit.NAME).write_bytes(raw)
    before = seen(tmp_path)
    question = BundleQuestion(archive=folder / kit.NAME, verified_output=folder / "out")
    report = verify_bundle(question, release.anchor, VerifyOptions())
    assert seen(tmp_path) == before
    return report


# The tests


def test_there_are_more_than_thirty_hostile_archives_and_many_reasons() -> None:
    assert len(CASES) >= 90
    assert len({id for id, _ in CASES.values()}) >= 30


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_archive_is_refused_for_its_own_reason_and_nothing_is_written(
    name: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    id, forge = CASES[name]
    report = judged(forge(kit, release.archive), release, kit, tmp_path)
    assert report.roots[0].id == id, [fault.id for fault in report.findings]
    assert report.verdict is Verdict.FAILED


@pytest.mark.parametrize("name", [name for name, (id, _) in CASES.items() if id.startswith("bundle.path")])
def test_no_name_leaves_a_trace_outside_even_where_the_origin_does_not_matter(
    name: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    archive = tmp_path / kit.NAME
    archive.write_bytes(CASES[name][1](kit, release.archive))
    before = seen(tmp_path)
    report = verify_bundle(BundleQuestion(archive=archive), ConsistencyOnly(), VerifyOptions())
    assert report.verdict is not Verdict.ACCEPTED
    assert seen(tmp_path) == before


@pytest.mark.parametrize("wrap", ["stored", "deflated"])
def test_the_same_tar_in_either_wrapping_is_judged_alike(
    wrap: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    link = kit.Entry(name="source/zz", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    content = kit.tar([*kit.entries_of(release.archive), link])
    raw = stored(content) if wrap == "stored" else kit.deflated(content)
    assert judged(raw, release, kit, tmp_path).roots[0].id == "bundle.link"


def test_a_bomb_costs_no_memory(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    """A quarter of a gigabyte of zeros where a member of twelve bytes was signed."""
    import tracemalloc

    entries = kit.changed(kit.entries_of(release.archive), "source/README.md", size=1 << 28, content=b"")
    head, tail = kit.tar(entries, end=b""), bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    raw = b"".join([packer.compress(head), *(packer.compress(tail) for _ in range(256)), packer.flush()])
    assert len(raw) < 1 << 20
    archive = tmp_path / kit.NAME
    archive.write_bytes(raw[:4] + bytes(4) + raw[8:])
    tracemalloc.start()
    report = verify_bundle(BundleQuestion(archive=archive), release.anchor, VerifyOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.roots[0].id == "bundle.size-mismatch"
    assert peak < 16 << 20
