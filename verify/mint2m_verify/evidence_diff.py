"""`mint2m evidence diff A B`: what two runs have in common and where they part: inputs, identities, numbers, time.

The rule: a difference is told by what it means, not by bytes. Inputs are compared member by member, numbers within
bounds, and what differs between any two runs (ids, clocks, placement) is shown and never a fault. Neither run is
verified here: two forgeries may agree perfectly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mint2m_verify import layout
from mint2m_verify.canonical import JsonValue
from mint2m_verify.documents import Deployment, Document, Plan, RankSessions, RuntimeIdentity, Scores, TrainingReceipt
from mint2m_verify.documents.base import encode
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.recompute.parity import Side, Thresholds, compare
from mint2m_verify.recompute.tensors import read_tensors
from mint2m_verify.run_exhibits import timeline_of

#: Documents that decide what is computed, in the order of the report.
_INPUTS = (
    ("profile", layout.PROFILE),
    ("model", layout.MODEL_MANIFEST),
    ("fixture", layout.FIXTURE),
    ("rollout", layout.ROLLOUT),
)

#: Of the deployment, what the run went on from and its place in a step; all else in it is where it ran.
_PLACE = "place in its step"

#: Differing members told of one document.
_MOST = 20

_TENSOR_LIMIT = 16 << 30

_D = TypeVar("_D", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is read of a run directory; `inputs` are JSON values by the name of the report."""

    name: str
    inputs: Mapping[str, JsonValue]
    plan: Plan
    identity: RuntimeIdentity
    receipt: TrainingReceipt
    sessions: RankSessions
    scores: Scores
    side: Side


def diff_runs(first: Path, second: Path, thresholds: Thresholds) -> Report:
    """Compare two run directories; exit 1 where inputs differ or a number is past its bound.

    Raises:
        FindingError: `input.missing` or `input.not-a-directory` for a path that is no run.
    """
    subject, command = f"{second} against {first}", "evidence diff"
    try:
        one, other = read_run(first), read_run(second)
    except FindingError as fault:
        return Report(subject=subject, command=command, findings=(fault.finding,))
    rows: list[Requirement] = []
    findings: list[Finding] = []
    for name, path in (*_INPUTS, (_PLACE, layout.DEPLOYMENT)):
        parts = tuple(differences(one.inputs[name], other.inputs[name]))
        findings += [
            found("diff.input", file=path, pointer=pointer, expected=a, actual=b) for pointer, a, b in parts[:_MOST]
        ]
        rows.append(_compared(name, parts))
    parity = compare(one.side, other.side, thresholds)
    findings += parity.findings
    rows += parity.report().requirements
    rows += [*_identities(one, other), _placement(one, other), *_times(one, other)]
    return Report(
        subject=subject,
        command=command,
        requirements=tuple(rows),
        findings=tuple(findings),
        not_checked=("whether either run is genuine: mint2m verify run says that", "which of the two is right"),
        summary=f"{sum(fault.id == 'diff.input' for fault in findings)} members of the inputs differ"
        if findings
        else "same inputs, numbers within the bounds",
        comparison=True,
    )


def read_run(root: Path) -> Run:
    """The documents and the gradient of a run; raises `FindingError`."""
    if not root.exists():
        raise FindingError(found("input.missing", file=str(root)))
    if not root.is_dir():
        raise FindingError(found("input.not-a-directory", file=str(root)))
    scores = _read(root, layout.SCORES, Scores)
    gradient = read_once(root / layout.GRADIENT, name=str(root / layout.GRADIENT), limit=_TENSOR_LIMIT)
    return Run(
        name=str(root),
        inputs={name: encode(_read(root, path, layout.DOCUMENTS[path])) for name, path in _INPUTS}
        | {_PLACE: _place(_read(root, layout.DEPLOYMENT, Deployment))},
        plan=_read(root, layout.PLAN, Plan),
        identity=_read(root, layout.RUNTIME_IDENTITY, RuntimeIdentity),
        receipt=_read(root, layout.RECEIPT, TrainingReceipt),
        sessions=_read(root, layout.RANK_SESSIONS, RankSessions),
        scores=scores,
        side=Side(
            name=str(root),
            gradients=read_tensors(gradient, file=layout.GRADIENT),
            logprobs=tuple(response.policy for response in scores.responses),
            loss=scores.loss,
            gradient_norm=scores.gradient_norm,
            clip_coefficient=scores.clip_coefficient,
            clipped_low=scores.clipped_low,
            clipped_high=scores.clipped_high,
        ),
    )


def _place(deployment: Deployment) -> JsonValue:
    """What decides a number of the run: its place among a step's, what it went on from, and not where that lay."""
    start, place = deployment.optimizer, deployment.accumulation
    gradient = None if place is None else place.gradient
    return {
        "optimizer": None if start is None else {"sha256": start.sha256, "steps": start.steps},
        "accumulation": None
        if place is None
        else {
            "index": place.index,
            "prompts": place.prompts,
            "tokens": place.tokens,
            "responses": place.responses,
            "gradient": None if gradient is None else gradient.sha256,
        },
    }


def differences(one: JsonValue, other: JsonValue, pointer: str = "") -> Iterator[tuple[str, str, str]]:
    """JSON pointer and both values wherever two documents part; a list of another length is told as a whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            where = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            if name in one and name in other:
                yield from differences(one[name], other[name], where)
            else:
                yield where, _shown(one.get(name)), _shown(other.get(name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{pointer}/{index}")
    elif one != other or isinstance(one, bool) != isinstance(other, bool):
        yield pointer, _shown(one), _shown(other)


def _shown(value: JsonValue) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return f"{len(value)} members"
    return "nothing" if value is None else str(value)


def _read(root: Path, path: str, kind: type[_D]) -> _D:
    raw = read_once(root / path, name=str(root / path))
    return kind.parse(raw, file=path, canonical_form=path not in layout.WRITTEN_BY_PEOPLE)


def _compared(name: str, parts: tuple[tuple[str, str, str], ...]) -> Requirement:
    if not parts:
        return Requirement(required=f"same {name}", found="equal", standing=Standing.CHECKED)
    pointer, one, other = parts[0]
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    return Requirement(required=f"same {name}", found=f"{pointer}: {one}, {other}{more}", standing=Standing.FAILED)


def _identities(one: Run, other: Run) -> Iterator[Requirement]:
    """Shown side by side: two runs of one plan differ in some of these, and that is no fault."""
    facts = (
        ("source", one.plan.source_sha256, other.plan.source_sha256),
        ("plan", one.plan.plan_sha256, other.plan.plan_sha256),
        ("execution", one.receipt.execution_id, other.receipt.execution_id),
        ("hardware class", one.receipt.hardware_class, other.receipt.hardware_class),
        ("claim scope", one.receipt.claim_scope, other.receipt.claim_scope),
    )
    for name, a, b in facts:
        yield _aside(name, "equal" if a == b else f"{_short(a)}, {_short(b)}")
    parts = tuple(differences(encode(one.identity), encode(other.identity)))
    yield _aside("runtime", "equal" if not parts else f"{len(parts)} members differ, first {parts[0][0]}")


def _placement(one: Run, other: Run) -> Requirement:
    places = [
        tuple(
            (s.rank, s.placement.observed_node_ip, s.placement.observed_slot, s.placement.observed_accelerator)
            for s in run.sessions.ranks
        )
        for run in (one, other)
    ]
    nodes = [len({place[1] for place in ranks}) for ranks in places]
    words = [f"{len(ranks)} ranks on {count} nodes" for ranks, count in zip(places, nodes, strict=True)]
    return _aside("placement", "equal" if places[0] == places[1] else ", ".join(words))


def _times(one: Run, other: Run) -> Iterator[Requirement]:
    """The slowest rank's time by phase, as the second run's share of the first's; machines differ, so only shown."""
    slowest = [timeline_of(run.sessions).slowest() for run in (one, other)]
    for phase in dict.fromkeys([*slowest[0], *slowest[1]]):
        a, b = (times.get(phase) for times in slowest)
        if a is None or b is None:
            yield _aside(f"time of {phase}", "in the second run only" if a is None else "in the first run only")
        else:
            share = f", {b / a:.2f} of it" if a > 0 else ""
            yield _aside(f"time of {phase}", f"{a:.3f} s, {b:.3f} s{share}")


def _aside(required: str, words: str) -> Requirement:
    return Requirement(required=required, found=words, standing=Standing.ATTESTED_ONLY)


def _short(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:8]}…{value[-4:]}"
