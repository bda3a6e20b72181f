"""What a bundle signs, before anybody asks who signed it: the digest of a file, or a statement with its subjects.

The rule: the digest that a bundle states of its artifact is a hint that nobody signs. It is compared where the artifact
is at hand, and where it is not, it only becomes what the signature is held against.
"""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.sigstore_bundle.model import Artifact, Envelope, SignedBundle, Statement
from mint2m_verify.sigstore_bundle.subject import check_subject, read_statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What a signature is held against: for a message, the file's SHA-256; for an envelope, its statement."""

    sha256: str | None
    statement: Statement | None
    findings: tuple[Finding, ...]


def read_content(bundle: SignedBundle, artifact: Artifact | None) -> Signed:
    """The content of a bundle, held against the artifact where one is given."""
    content = bundle.content
    if isinstance(content, Envelope):
        try:
            statement = read_statement(content, file=bundle.file)
        except FindingError as fault:
            return Signed(sha256=None, statement=None, findings=(fault.finding,))
        findings = () if artifact is None else tuple(check_subject(statement, artifact, file=bundle.file))
        return Signed(sha256=None, statement=statement, findings=findings)
    stated = None if content.digest is None else content.digest.hex()
    if artifact is None:
        missing = (found("sigstore.artifact-needed", file=bundle.file),) if stated is None else ()
        return Signed(sha256=stated, statement=None, findings=missing)
    if stated is not None and stated != artifact.sha256:
        other = found(
            "sigstore.artifact-mismatch",
            file=bundle.file,
            pointer="/messageSignature/messageDigest/digest",
            expected=artifact.sha256,
            actual=stated,
        )
        return Signed(sha256=artifact.sha256, statement=None, findings=(other,))
    return Signed(sha256=artifact.sha256, statement=None, findings=())
