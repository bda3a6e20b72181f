"""Image provenance: what an image was built from, held against the papers that it names.

The rule: every digest in it is of a file that lies beside the deployment or of the source that runs, and each is
computed again. That the image with this digest really came from them is the builder's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.documents.inputs import Image
from mint2m_verify.documents.runtime import ImageProvenance
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.runtime.digests import placeholders
from mint2m_verify.runtime.lock import ReadLock
from mint2m_verify.runtime.sbom import check_sbom


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What a provenance is held against; None is what the deployment does not name.

    `unread`: papers that it names and that could not be read, which is a finding of its own.
    """

    image: Image | None
    lock: ReadLock | None
    sbom_sha256: str | None
    source_sha256: str
    unread: frozenset[str] = frozenset()


def make_provenance(image: Image, lock: ReadLock, *, container_file: bytes, sbom: bytes, source_sha256: str) -> bytes:
    """The document's bytes; raises `FindingError` where the papers contradict each other."""
    digest = sha256_hex(container_file)
    locked = lock.document.container_file
    if locked is None or locked.sha256 != digest:
        want = None if locked is None else locked.sha256
        raise FindingError(
            found("image-provenance.mismatch", file=lock.file, pointer="/container_file", expected=want, actual=digest)
        )
    for fault in check_sbom(sbom, lock, file="--sbom"):
        raise FindingError(fault)
    return ImageProvenance(
        image=image,
        runtime_lock_sha256=lock.sha256,
        container_file_sha256=digest,
        sbom_sha256=sha256_hex(sbom),
        source_sha256=source_sha256,
    ).encode()


def check_provenance(raw: bytes, papers: Papers, *, file: str) -> Iterator[Finding]:
    """Where a provenance is not of these papers: `image-provenance.invalid`, `image-provenance.mismatch`."""
    try:
        for pointer, text in placeholders(parse(raw, file=file)):
            yield found("image-provenance.invalid", file=file, pointer=pointer, expected="a digest", actual=text)
            return
        given = ImageProvenance.parse(raw, file=file, canonical_form=False)
    except FindingError as stop:
        cause = stop.finding
        yield found("image-provenance.invalid", file=file, pointer=cause.pointer, actual=cause.actual or cause.message)
        return
    lock, image = papers.lock, papers.image
    container = None if lock is None else lock.document.container_file
    rows = (
        ("image", "/image/digest", None if image is None else image.digest, given.image.digest),
        ("lock", "/runtime_lock_sha256", None if lock is None else lock.sha256, given.runtime_lock_sha256),
        (
            "lock",
            "/container_file_sha256",
            None if container is None else container.sha256,
            given.container_file_sha256,
        ),
        ("sbom", "/sbom_sha256", papers.sbom_sha256, given.sbom_sha256),
        ("source", "/source_sha256", papers.source_sha256, given.source_sha256),
    )
    for paper, pointer, want, have in rows:
        if want != have and paper not in papers.unread:
            expected = want or "what the deployment names; it names none"
            yield found("image-provenance.mismatch", file=file, pointer=pointer, expected=expected, actual=have)
