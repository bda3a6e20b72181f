"""The words of the signing commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mint2m.outcome import Outcome
from mint2m_verify.render.escape import escape

if TYPE_CHECKING:
    from mint2m_verify.signers.sign_files import SignedFile


def files_outcome(signed: Sequence[SignedFile], signer: str) -> Outcome:
    """Each file with its digest and its bundle; then who signed."""
    rows = [
        f"signed  {escape(str(item.file))}\n        sha256 {item.sha256}\n        {escape(str(item.bundle))}"
        for item in signed
    ]
    return Outcome(text="\n".join([*rows, f"by      {escape(signer)}"]))
