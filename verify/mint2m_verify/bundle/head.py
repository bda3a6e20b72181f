"""What a bundle begins with, in memory: the manifest, its signatures, and the statement that they sign.

The rule: who signed is decided before anything else of the archive is looked at, and everything after it is held
against what was signed. Until then the archive is a stranger's, and the only thing to trust about it is a bound on how
much of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.bundle.names import Names
from mint2m_verify.bundle.reader import ArchiveReader
from mint2m_verify.bundle.ustar import Member
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.release import Release
from mint2m_verify.finding import FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.release import layout
from mint2m_verify.release.statement import ReleaseStatement
from mint2m_verify.statement import BUNDLE_LIMIT

#: A manifest of a hundred thousand members is a tenth of this.
MANIFEST_LIMIT = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFile:
    """A signature bundle as it lies in the archive."""

    name: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first members; nothing about them is verified."""

    manifest: bytes
    signatures: tuple[SignatureFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A statement and the manifest that it names."""

    statement: ReleaseStatement
    manifest: Release

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 by member."""
        return {subject.name: subject.sha256 for subject in self.statement.subjects}


def read_head(archive: ArchiveReader) -> Head:
    """The manifest and all signatures that follow it.

    Raises:
        FindingError: `bundle.head-invalid`, or as reading an archive.
    """
    manifest = _read(archive, layout.MANIFEST, MANIFEST_LIMIT)
    signatures = [SignatureFile(name=layout.SIGNATURE, raw=_read(archive, layout.SIGNATURE, BUNDLE_LIMIT))]
    for number in range(2, layout.MOST_SIGNATURES + 1):
        name = layout.signature_name(number)
        if not archive.peek().startswith(name.encode() + b"\0"):
            break
        signatures.append(SignatureFile(name=name, raw=_read(archive, name, BUNDLE_LIMIT)))
    return Head(manifest=manifest, signatures=tuple(signatures))


def read_manifest(head: Head, statement: ReleaseStatement) -> Release:
    """The manifest of a statement that was verified; raises `FindingError` (`release.manifest-changed`, `schema.*`)."""
    want = next(subject.sha256 for subject in statement.subjects if subject.name == layout.MANIFEST)
    have = sha256_hex(head.manifest)
    if have != want:
        raise FindingError(found("release.manifest-changed", file=layout.MANIFEST, expected=want, actual=have))
    return Release.parse(head.manifest, file=layout.MANIFEST)


def check_layout(signed: Signed) -> Check:
    """The signed names: the same in both documents, sorted, safe beside each other, and those of a release."""
    members = [member.path for member in signed.manifest.members]
    version = signed.statement.version
    subjects = [subject.name for subject in signed.statement.subjects if subject.name != layout.MANIFEST]
    if members != subjects:
        both = set(members) ^ set(subjects)
        actual = ", ".join(sorted(both)[:3]) or "another order"
        yield found("release.members-differ", file=layout.MANIFEST, actual=actual)
    names = Names()
    for path in (layout.MANIFEST, *map(layout.signature_name, range(1, layout.MOST_SIGNATURES + 1)), *members):
        fault = names.add(path)
        if fault is not None:
            yield fault
    for path in members:
        if not layout.has_place(path, version):
            yield found("release.member-unexpected", file=path)
    for path in layout.missing_parts(members, version):
        yield found("release.part-missing", file=path)
    return f"{len(members)} members of version {version}"


def _read(archive: ArchiveReader, name: str, limit: int) -> bytes:
    member = archive.next()
    if member is None or member != Member(path=name, size=member.size, executable=False) or member.size > limit:
        actual = None if member is None else f"{member.path}, {member.size} bytes"
        raise FindingError(
            found("bundle.head-invalid", file=name, expected=f"{name} of at most {limit} bytes", actual=actual)
        )
    return b"".join(archive.content(member))
