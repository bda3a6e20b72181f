"""`mint2m release cosign ARCHIVE`: one more signature over the statement of a bundle that agrees with itself.

The rule: a co-signer signs what lies there and changes nothing. The new archive is the old one with one member more,
put behind the signatures that it has, and is written elsewhere: the old one stands.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from mint2m_verify.anchor import Anchor, ConsistencyOnly, DigestAnchor, NoAnchor, VerifyOptions
from mint2m_verify.bundle import ustar
from mint2m_verify.bundle.gzipped import GzipWriter
from mint2m_verify.bundle.head import Head, read_head
from mint2m_verify.bundle.reader import ArchiveReader, open_archive
from mint2m_verify.bundle.ustar import Member
from mint2m_verify.bundle.verify import BundleQuestion, verify_bundle
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, Trust, found
from mint2m_verify.release import layout
from mint2m_verify.signers.signer import Signer
from mint2m_verify.sigstore_bundle import Envelope, read_bundle
from mint2m_verify.walk import Progress


def cosign_release(
    archive: Path, output: Path, signer: Signer, anchor: Anchor, *, progress: Progress | None = None
) -> Report:
    """Write `archive` with one signature more into the directory `output`.

    Args:
        archive: a bundle; `anchor` must accept it, and where none is given it must at least agree with itself.
        output: an existing directory, in which nothing has the bundle's name.
        signer: who signs.

    Raises:
        FindingError: `file.exists`, `file.unwritable`, `usage.invalid`, `signer.*`.
    """
    asked = ConsistencyOnly() if isinstance(anchor, NoAnchor) else anchor
    before = verify_bundle(BundleQuestion(archive=archive), asked, VerifyOptions(progress=progress))
    if before.verdict != 0:
        return before
    digest = next(item for item in before.trust.digests if item.name == "release")
    target = output / archive.name
    if os.path.lexists(target):
        raise FindingError(found("file.exists", file=str(target)))
    try:
        work = Path(tempfile.mkdtemp(prefix=".release.", suffix=".partial", dir=output))
        try:
            number = _write(archive, work / archive.name, signer, statement=digest.sha256)
            question = BundleQuestion(archive=work / archive.name)
            report = verify_bundle(question, DigestAnchor(sha256=digest.sha256), VerifyOptions(progress=progress))
            for fault in report.roots:
                raise FindingError(fault)
            os.link(work / archive.name, target)  # unlike a rename, never onto something
        finally:
            shutil.rmtree(work, ignore_errors=True)
        sync_directory(output)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(target), actual=fault.strerror)) from fault
    row = Requirement(
        required="the bundle with one signature more",
        found=f"signature {number} in {target}",
        standing=Standing.CHECKED,
    )
    return Report(
        subject=str(target),
        command="release cosign",
        requirements=(*before.requirements, row),
        not_checked=("whether the tests pass at this commit", "who may release: that is the auditor's policy"),
        trust=Trust(digests=(digest,)),
        summary=f"signed by {signer.describe()} as well",
    )


def _write(archive: Path, place: Path, signer: Signer, *, statement: str) -> int:
    """The new archive at `place`; how many signatures it has. `statement` is the SHA-256 of the only one to sign."""
    with open_archive(archive) as source, place.open("xb") as stream:
        head = read_head(source)
        number = len(head.signatures) + 1
        if number > layout.MOST_SIGNATURES:
            raise FindingError(found("usage.invalid", expected=f"at most {layout.MOST_SIGNATURES} signatures"))
        payload = _payload(head)
        if sha256_hex(payload) != statement:  # the archive is read a second time
            raise FindingError(found("tree.changed-while-read", file=str(archive)))
        writer = GzipWriter(stream.write)
        _member(writer, layout.MANIFEST, head.manifest)
        for signature in head.signatures:
            _member(writer, signature.name, signature.raw)
        _member(writer, layout.signature_name(number), signer.sign_statement(payload))
        _rest(source, writer)
        writer.close()
        stream.flush()
        os.fsync(stream.fileno())
    return number


def _payload(head: Head) -> bytes:
    content = read_bundle(head.signatures[0].raw, file=head.signatures[0].name).content
    if not isinstance(content, Envelope):
        raise FindingError(found("release.statement-invalid", file=head.signatures[0].name))
    return content.payload


def _member(writer: GzipWriter, name: str, raw: bytes) -> None:
    writer.write(ustar.header(Member(path=name, size=len(raw), executable=False)))
    writer.write(raw + bytes(ustar.padding(len(raw))))


def _rest(source: ArchiveReader, writer: GzipWriter) -> None:
    """Every other member as it is; what it is was verified, and the new archive is verified again."""
    while (member := source.next()) is not None:
        writer.write(ustar.header(member))
        for piece in source.content(member):
            writer.write(piece)
        writer.write(bytes(ustar.padding(member.size)))
    writer.write(ustar.END)
