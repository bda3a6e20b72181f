"""Every member after the signatures, against what was signed; each is hashed as it goes by, once.

The rule: a member's name and size are held against the signed manifest before its content is read, so the archive
decides neither what is written nor how much. What cannot be skipped safely ends the reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

from mint2m_verify.bundle.head import Head, Signed
from mint2m_verify.bundle.names import Names
from mint2m_verify.bundle.reader import ArchiveReader
from mint2m_verify.bundle.unpacking import Unpacking
from mint2m_verify.bundle.ustar import Member
from mint2m_verify.documents.release import ReleaseMember
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.release import layout
from mint2m_verify.release.git_tree import blob_hash
from mint2m_verify.seal import megabytes
from mint2m_verify.walk import Progress


class MemberReader:
    """Reads an archive to its end.

    Args:
        archive: behind its head.
        head: what was read of it.
        signed: what the anchor vouches for.
        keep: for a path, the largest size at which its bytes are kept; 0 keeps none.
        output: where verified members go, if anywhere.

    `kept` and `blobs` (git's object name of each file of the source) are complete once `check` has run to its end
    without a finding.
    """

    def __init__(
        self,
        archive: ArchiveReader,
        head: Head,
        signed: Signed,
        *,
        keep: Callable[[str], int],
        output: Unpacking | None,
        progress: Progress | None,
    ) -> None:
        self._archive, self._head, self._signed = archive, head, signed
        self._keep, self._output, self._progress = keep, output, progress
        self._members = {member.path: (index, member) for index, member in enumerate(signed.manifest.members)}
        self._total = sum(member.size for member in signed.manifest.members)
        self._done = 0
        self._kept: dict[str, bytes] = {}
        self._blobs: dict[str, str] = {}

    @property
    def kept(self) -> Mapping[str, bytes]:
        return self._kept

    @property
    def blobs(self) -> Mapping[str, str]:
        return self._blobs

    def check(self) -> Check:
        """Names, sizes, order, bits and digests; nothing more and nothing less than was signed."""
        seen: set[str] = set()
        try:
            yield from self._each(seen)
        except FindingError as fault:
            yield fault.finding
        else:
            for path in self._members:
                if path not in seen:
                    yield found("bundle.member-missing", file=path, expected=self._signed.digests[path])
        return f"{len(seen)} of {len(self._members)}, {megabytes(self._done)} hashed"

    def _each(self, seen: set[str]) -> Iterator[Finding]:
        names = Names()
        for path in (layout.MANIFEST, *(signature.name for signature in self._head.signatures)):
            names.add(path)
        last = -1
        while (member := self._archive.next()) is not None:
            fault = names.add(member.path)
            if fault is not None:
                raise FindingError(fault)
            index, want = self._wanted(member)
            seen.add(member.path)
            if index < last:
                yield found("bundle.out-of-order", file=member.path)
            last = max(last, index)
            if member.executable != want.executable:
                words = ("not executable", "executable")
                yield found(
                    "bundle.mode-mismatch",
                    file=member.path,
                    expected=words[want.executable],
                    actual=words[member.executable],
                )
            yield from self._content(member)

    def _wanted(self, member: Member) -> tuple[int, ReleaseMember]:
        """The signed entry of a member; one that is not signed, or of another size, ends the reading."""
        known = self._members.get(member.path)
        if known is None:
            raise FindingError(found("bundle.member-unlisted", file=member.path, actual=f"{member.size} bytes"))
        if member.size != known[1].size:
            want, have = f"{known[1].size} bytes", f"{member.size} bytes"
            raise FindingError(found("bundle.size-mismatch", file=member.path, expected=want, actual=have))
        return known

    def _content(self, member: Member) -> Iterator[Finding]:
        digest = hashlib.sha256()
        blob = blob_hash(member.size) if member.path.startswith(layout.SOURCE) else None
        limit = self._keep(member.path)
        if limit and member.size > limit:
            raise FindingError(found("file.too-large", file=member.path, expected=f"at most {limit} bytes"))
        kept: list[bytes] = []
        place = nullcontext() if self._output is None else self._output.file(member.path, executable=member.executable)
        with place as stream:
            for piece in self._archive.content(member):
                digest.update(piece)
                if blob is not None:
                    blob.update(piece)
                if limit:
                    kept.append(piece)
                if stream is not None:
                    stream.write(piece)
                self._advance(len(piece))
        want, have = self._signed.digests[member.path], digest.hexdigest()
        if have != want:
            yield found("bundle.member-changed", file=member.path, expected=want, actual=have)
        if limit:
            self._kept[member.path] = b"".join(kept)
        if blob is not None:
            self._blobs[member.path.removeprefix(layout.SOURCE)] = blob.hexdigest()

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress("hash", self._done, self._total)
