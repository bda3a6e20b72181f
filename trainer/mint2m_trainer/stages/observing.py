"""What this process runs, looked at again each time: a stage hashes itself before its work and after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mint2m_verify.documents.inputs import RuntimeIdentity
from mint2m_verify.documents.validation import Observed
from mint2m_verify.runtime_identity import observe
from mint2m_verify.source import observed_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Digests of runtime identity and source at one moment."""

    identity: str
    source: str

    @property
    def words(self) -> str:
        return f"source {self.source}, runtime identity {self.identity}"


def look(image_digest: str | None) -> Look:
    """Hash everything again; nothing of an earlier look is reused."""
    source = observed_sha256()
    return Look(identity=identity_now(image_digest, source).sha256, source=source)


def identity_now(image_digest: str | None, source: str) -> RuntimeIdentity:
    """The runtime identity with a source digest that was taken just now."""
    return replace(observe(image_digest=image_digest), source_sha256=source)


def observed(before: Look, after: Look) -> Observed:
    """Two looks as the ranks' file holds them."""
    return Observed(
        identity_before=before.identity,
        identity_after=after.identity,
        source_before=before.source,
        source_after=after.source,
    )
