"""A policy as an anchor: the document that the auditor brought, the root beside it, and the time it is judged at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mint2m_verify.anchor_file import AnchorFile
from mint2m_verify.documents.trust_policy import PolicyRoot, TrustPolicy
from mint2m_verify.signing import PublicKey

if TYPE_CHECKING:
    from mint2m_verify.sigstore_bundle import TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnchor:
    """A sound policy that is valid at `at`; nothing but `read_policy` makes one.

    `sha256` is of the policy's file. `root` is given exactly where the policy names roots, and is one of them. `keys`
    are all keys of its signers, revoked ones too, so that their signatures are told from those of strangers. `files`
    are what must not lie in the evidence.
    """

    path: Path
    document: TrustPolicy
    sha256: str
    root: TrustRoot | None
    at: datetime
    keys: tuple[PublicKey, ...]
    files: tuple[AnchorFile, ...]

    @property
    def named_root(self) -> PolicyRoot | None:
        """The policy's entry for the root that was brought."""
        if self.root is None:
            return None
        return next((root for root in self.document.roots if root.sha256 == self.root.sha256), None)

    @property
    def evaluated_at(self) -> str:
        """The evaluation time as reports write it."""
        return self.at.isoformat().replace("+00:00", "Z")
