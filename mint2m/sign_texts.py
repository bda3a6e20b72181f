"""The words of the signing commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mint2m.outcome import Format, Outcome, present
from mint2m_verify.finding import Report, Requirement, Standing
from mint2m_verify.render.escape import escape

if TYPE_CHECKING:
    from mint2m_verify.signers.sign_files import SignedFile


def files_outcome(signed: Sequence[SignedFile], signer: str, form: Format) -> Outcome:
    """Each file with its digest and its bundle, then who signed; in every other form a report of the same."""
    if form is not Format.TEXT:
        return present(_report(signed, signer), form)
    rows: list[str] = []
    for item in signed:
        rows += [f"signed  {escape(str(item.file))}", f"        sha256 {item.sha256}"]
        rows += [f"        {escape(str(item.bundle))}"]
    return Outcome(text="\n".join([*rows, f"by      {escape(signer)}"]))


def _report(signed: Sequence[SignedFile], signer: str) -> Report:
    return Report(
        subject=str(signed[0].file) if len(signed) == 1 else f"{len(signed)} files",
        command="sign file",
        requirements=tuple(
            Requirement(
                required=f"a signature of {item.file}",
                found=f"{item.bundle}, sha256 {item.sha256}",
                standing=Standing.CHECKED,
            )
            for item in signed
        ),
        not_checked=("who else trusts the signer",),
        summary=f"signed by {signer}",
    )
