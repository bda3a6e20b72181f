"""`mint2m parity trace A B`: where two watched runs part first, as a report.

The rule: agreement is said of what was laid side by side, and of nothing else; traces without a token in common are no
agreement.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_trainer.instruments.divergence import Divergence, compare
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.trace import RankTrace
from mint2m_trainer.instruments.trace_file import read_traces
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found


def trace_report(left: Path, right: Path, *, relative: float, common_only: bool) -> Report:
    """Lay the traces of two instruments' directories beside each other.

    Args:
        relative: a hidden state may differ by this times its norm.
        common_only: leave out tokens that one run has alone.

    Raises:
        FindingError: `input.missing`, `parity.trace-invalid`, or a file that cannot be read.
    """
    sides = _read(left), _read(right)
    try:
        seen = compare(*sides, relative=relative, common_only=common_only)
    except InstrumentError as fault:
        raise FindingError(found("parity.trace-invalid", file=str(right), actual=str(fault))) from fault
    first = seen.first
    row = Requirement(
        required=f"every layer of every token within {relative:g} of its norm, choices equal",
        found=f"{seen.tokens} entries in {seen.places} places" if first is None else str(first),
        standing=Standing.DERIVED if first is None else Standing.FAILED,
    )
    return Report(
        subject=f"{left} and {right}",
        command="parity trace",
        requirements=(row,),
        findings=() if first is None else (_finding(first),),
        not_checked=("what the traces do not hold: positions between strides, and gradients",),
        summary="the runs part nowhere" if first is None else "",
    )


def _finding(first: Divergence) -> Finding:
    """The first difference: phase, layer and kind are the place, the ranks of both sides the evidence."""
    return found(
        "parity.trace-diverged",
        stage=first.phase,
        pointer=f"layer {first.layer}, {first.kind}, position {first.position}",
        expected=_side(first.left_ranks, None if first.left is None else first.left.values),
        actual=_side(first.right_ranks, None if first.right is None else first.right.values)
        + f"; {first.relative:.3g} relative, {first.differing} of {first.compared} tokens",
    )


def _side(ranks: tuple[int, ...], values: tuple[float, ...] | None) -> str:
    where = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks)) or 'none'}"
    return f"{where}: {'no such token' if values is None else ', '.join(f'{value:.9g}' for value in values)}"


def _read(directory: Path) -> tuple[RankTrace, ...]:
    if not directory.is_dir():
        raise FindingError(found("input.missing", file=str(directory)))
    try:
        return tuple(read_traces(directory))
    except InstrumentError as fault:
        raise FindingError(found("parity.trace-invalid", file=str(directory), actual=str(fault))) from fault
