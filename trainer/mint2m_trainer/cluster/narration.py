"""What a finished phase looks like to a person: one line each, from the ranks' own evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mint2m_trainer.cluster.messages import PhaseReply
from mint2m_verify import phases
from mint2m_verify.documents.inputs import Rollout
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import PhaseEvidence

#: Names by which people know the long phases.
_NAMES = {
    phases.CAPTURE_PREFIX: "capture",
    phases.PREFIX_BACKWARD: "reverse",
    phases.OPTIMIZER_STEP: "step",
    phases.SCORE_REFERENCE: "reference",
    phases.SCORE_OLD: "score",
}

#: Phases that say nothing of their own: they are over in a moment, and what they saw is in the evidence.
_QUIET = frozenset({phases.BIND, phases.INITIALIZE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A stage's short name and what became of it."""

    name: str
    text: str


def stage_name(phase: str) -> str:
    """The name of a phase on a bar or a line."""
    return _NAMES.get(phase, phase)


def phase_line(plan: Plan, rollout: Rollout, replies: Sequence[PhaseReply], seconds: float) -> Line | None:
    """The line for one phase of all ranks, or None for a quiet one."""
    phase, seen = replies[0].phase, replies[0].evidence
    if phase in _QUIET:
        return None
    response = phases.response_of(phase)
    captured = plan.profile.context.prompt_tokens - 1
    rate = _rate(plan, phase, seen, seconds)
    if response is not None:
        clipped = (seen.clipped_low or 0) + (seen.clipped_high or 0)
        text = (
            f"{rollout.rewards[response]:+.1f} reward  {_count(seen.scored_tokens, 'token')}  "
            f"loss {_number(seen.loss)}  clip {clipped}"
        )
    elif phase == phases.MATERIALIZE:
        text = f"{seen.parameters or 0:,} weights and {seen.trainable_parameters or 0:,} trainable ones a rank"
    elif phase == phases.CAPTURE_PREFIX:
        text = f"{_count(captured, 'token')} in {_count(seen.chunks, 'chunk')}  {rate}"
    elif phase in (phases.SCORE_OLD, phases.SCORE_REFERENCE):
        text = f"{_count(seen.scored_tokens, 'response token')} scored before any gradient"
    elif phase == phases.PREFIX_BACKWARD:
        largest = max(reply.evidence.row_difference or 0.0 for reply in replies)
        rows = "rows equal bit for bit" if largest == 0 else f"largest row difference {largest:g}"
        text = f"{_count(seen.chunks, 'chunk')}  {rate}  {rows}"
    elif phase == phases.FINALIZE:
        text = f"gradient norm {seen.gradient_norm or 0:.4f}, clip {seen.clip_coefficient or 0:.4f}"
    elif phase == phases.OPTIMIZER_STEP:
        observed = sum(reply.evidence.optimizer_contract == plan.profile.optimizer for reply in replies)
        text = f"AdamW {seen.optimizer_steps} of 1, contract observed on {observed} of {_count(len(replies), 'rank')}"
    else:
        files = {ref.path: ref.size for reply in replies for ref in reply.files if ref.path.startswith("checkpoint/")}
        text = f"{_count(len(files), 'file')}, {sum(files.values()) / 1e6:.1f} MB"
    return Line(name=stage_name(phase), text=text)


def _rate(plan: Plan, phase: str, seen: PhaseEvidence, seconds: float) -> str:
    """Tokens a second of the chunks that this execution ran itself, and how many it took over."""
    captured, chunk = plan.profile.context.prompt_tokens - 1, plan.profile.prefix.chunk_tokens
    resumed = seen.resumed_chunks or 0
    behind = (
        resumed * chunk
        if phase == phases.CAPTURE_PREFIX
        else captured - (phases.prefix_chunks(plan.profile) - resumed) * chunk
    )
    own = captured - min(max(behind, 0), captured)
    rate = f"{own / max(seconds, 1e-9) / 1000:.1f}k tok/s"
    return f"{rate}  {_count(resumed, 'chunk')} of an earlier execution" if resumed else rate


def plan_text(plan: Plan) -> str:
    """Digest, ranks and the byte plan of the fullest rank."""
    sizes = {item.category: item.bytes for item in plan.memory}
    nodes, world = len(plan.deployment.node_ips), plan.profile.topology.world_size
    parts = ", ".join(
        f"{name} {_bytes(sizes[category])}"
        for category, name in (("pages", "pages"), ("gradient-pages", "gradient pages"), ("decisions", "decisions"))
        if category in sizes
    )
    ranks = f"{_count(world, 'rank')} on {_count(nodes, 'node')}"
    digest = f"{plan.plan_sha256[:4]}…{plan.plan_sha256[-4:]}"
    return f"{digest}  {ranks}, {_bytes(sum(sizes.values()))} a rank ({parts})"


def _count(number: int | None, noun: str) -> str:
    """`1 chunk`, `2,048 chunks`."""
    return f"{number or 0:,} {noun}{'' if number == 1 else 's'}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:+.4f}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
