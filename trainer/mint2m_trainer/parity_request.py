"""`mint2m parity export`: where the constants of the loss come from, and refusals as findings.

A rollout does not carry its loss's constants. `ratio1` needs only the advantage's epsilon, whose default is the
project's; `active_clip` means nothing without clip bounds and KL weight, so it takes them from a file that says so:
one that is named, or the `expected.json` that lies beside the rollout. The outcome names the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mint2m_trainer.faults import InputError
from mint2m_trainer.parity_export import Case, Constants, ExportError, Gradient, oracle_run
from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.deployment_parts import blocking
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, Verdict, found

_BESIDE = "expected.json"
_MEMBERS = ("clip_low", "clip_high", "kl_beta", "advantage_eps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The words of the command line."""

    model: Path
    adapter: Path
    rollout: Path
    output: Path
    case: Case
    prefix_gradient: Gradient
    ranks: int
    dtype: Literal["float32", "float64", "bfloat16"]
    chunk_tokens: int
    decisions: Literal["store", "rescore"]
    constants: Path | None


def export(request: ExportRequest) -> str:
    """Run and write; returns where the constants came from. Raises `FindingError` (`input.missing`, `parity.*`)."""
    for path in (request.model, request.adapter, request.rollout):
        if not path.exists():
            raise FindingError(found("input.missing", file=str(path)))
    constants, source = _constants(request)
    constants = replace(constants, chunk_tokens=request.chunk_tokens, decisions=request.decisions)
    try:
        oracle_run(
            request.model,
            request.adapter,
            request.rollout,
            request.case,
            request.prefix_gradient,
            request.ranks,
            request.dtype,
            request.output,
            constants,
        )
    except FileExistsError as fault:
        raise FindingError(found("file.exists", file=str(request.output))) from fault
    except FindingError as fault:
        # A rollout that cannot be read is the caller's own input, not evidence that failed.
        if fault.finding.id.split(".")[0] in ("json", "schema") and fault.finding.verdict is Verdict.FAILED:
            raise FindingError(blocking(fault.finding)) from fault
        raise
    except InputError as fault:
        raise FindingError(found("rank.input-refused", actual=str(fault))) from fault
    except ExportError as fault:
        raise FindingError(found("usage.invalid", actual=str(fault))) from fault
    return source


def _constants(request: ExportRequest) -> tuple[Constants, str]:
    source = request.constants
    if source is None:
        beside = request.rollout.parent / _BESIDE
        source = beside if beside.is_file() else None
    if source is None:
        if request.case == "active_clip":
            raise FindingError(
                found("usage.invalid", expected="--constants F for case active_clip", actual="no constants")
            )
        return Constants(), "defaults"
    if not source.exists():
        raise FindingError(found("input.missing", file=str(source)))
    value = parse(read_once(source.resolve(), name=str(source)), file=str(source))
    return _read(value, str(source)), str(source)


def _read(value: JsonValue, file: str) -> Constants:
    """The member `grpo` of a case file, or of the `case` that an expected.json repeats."""
    holder = value.get("case", value) if isinstance(value, dict) else None
    grpo = holder.get("grpo") if isinstance(holder, dict) else None
    if not isinstance(grpo, dict):
        raise FindingError(found("parity.malformed", file=file, pointer="/grpo", expected="an object"))
    numbers: Mapping[str, float] = {name: _number(grpo, name, file) for name in _MEMBERS}
    return Constants(
        clip_low=numbers["clip_low"],
        clip_high=numbers["clip_high"],
        kl_beta=numbers["kl_beta"],
        advantage_eps=numbers["advantage_eps"],
    )


def _number(members: Mapping[str, JsonValue], name: str, file: str) -> float:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FindingError(
            found("parity.malformed", file=file, pointer=f"/grpo/{name}", expected="a number", actual=repr(value))
        )
    return float(value)
