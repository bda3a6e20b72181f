"""Makes authorization grants: the grantor's statement over a deployment or a validation plan, beside that file.

The rule: what kind of grant it is follows from the file that it is for, which is read as strictly as whoever starts it
reads it; nobody grants what nothing here would run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.documents import Deployment
from mint2m_verify.documents.grant import Grant, GrantKind
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, found
from mint2m_verify.grant import GrantStatement, grant_statement
from mint2m_verify.named_input import read_named
from mint2m_verify.signers.signer import Signer
from mint2m_verify.signing import create_file
from mint2m_verify.times import parse_time

#: The name under which stages look for a grant beside their plan.
NAME = "grant.sigstore.json"

#: Characters of a reason, as the schema has it.
_MOST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRequest:
    """What the grantor was asked: for which file, what for, and for how long; `output` is where the bundle goes."""

    file: Path
    reason: str
    not_before: str
    not_after: str
    output: Path | None


def sign_grant(request: GrantRequest, signer: Signer) -> Report:
    """Write the signed grant.

    Raises:
        FindingError: `input.missing`, `usage.invalid`, `json.*`, `schema.*`, `file.exists` or `signer.*`.
    """
    raw = read_named(request.file)
    place = request.file.with_name(NAME) if request.output is None else request.output
    if place.exists() or place.is_symlink():
        raise FindingError(found("file.exists", file=str(place)))
    for option, time in (("--not-before", request.not_before), ("--not-after", request.not_after)):
        if parse_time(time) is None:
            raise FindingError(
                found("usage.invalid", expected=f"{option} like 2026-07-01T00:00:00Z, in UTC", actual=time)
            )
    if not 1 <= len(request.reason) <= _MOST:
        raise FindingError(
            found("usage.invalid", expected=f"--reason of 1 to {_MOST} characters", actual=request.reason)
        )
    grant = Grant(
        kind=_kind(raw, request.file),
        reason=request.reason,
        not_before=request.not_before,
        not_after=request.not_after,
    )
    statement = grant_statement(grant, sha256_hex(raw))
    create_file(place, signer.sign_statement(statement.payload))
    return _report(request.file, place, statement, signer)


def _kind(raw: bytes, file: Path) -> GrantKind:
    value = parse(raw, file=str(file))
    if isinstance(value, dict) and value.get("schema") == f"mint2m.{ValidationPlan.NAME}/v1":
        ValidationPlan.parse(raw, file=str(file))
        return "validation"
    deployment = Deployment.parse(raw, file=str(file), canonical_form=False)
    if deployment.kind != "training":
        # What a validation run is authorized by is its plan, which names more than the deployment does.
        raise FindingError(
            found("usage.invalid", expected="a training deployment or a validation plan", actual=deployment.kind)
        )
    return "training"


def _report(file: Path, place: Path, statement: GrantStatement, signer: Signer) -> Report:
    grant = statement.grant
    rows = (
        Requirement(
            required=f"a grant for {statement.subject.name}",
            found=f"{place}, sha256 {statement.subject.sha256}",
            standing=Standing.CHECKED,
        ),
        Requirement(
            required="its term", found=f"{grant.not_before} to {grant.not_after}", standing=Standing.ATTESTED_ONLY
        ),
    )
    return Report(
        subject=str(file),
        command="sign grant",
        requirements=rows,
        not_checked=("whether any policy names the signer as a grantor",),
        summary=f"{grant.kind}, signed by {signer.describe()}",
    )
