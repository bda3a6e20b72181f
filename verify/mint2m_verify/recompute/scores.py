"""Rewards, advantages, losses and clip counts of a run, each against its own leaves.

The rule: a number is held against what it is made from, never against a copy of itself. Rewards come from the text of
the responses, advantages from the rewards, losses from the log-probs; where old or reference log-probs come from the
rollout they must be the rollout's. What remains the operator's word are the policy's log-probs: only a replay shows
that the model gives them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mint2m_verify import layout
from mint2m_verify.documents import ResponseScores, Rollout, RunProfile, Scores, TrainingPayload
from mint2m_verify.documents.inputs import Accumulation
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.recompute.grpo import (
    TokenLosses,
    group_advantages,
    machine_epsilon,
    token_losses,
    token_weights,
)
from mint2m_verify.rewards import computable, response_text, reward

_FILE = layout.SCORES

#: Advantages and sums of doubles are made in doubles; this much is the rounding of a different order.
_DOUBLE_SLACK = 1e-12


def check_identity(scores: Scores, rollout: Rollout, profile: RunProfile) -> Check:
    """The scores are of this rollout: tokens, counts, sources, and the log-probs that the rollout gives."""
    options = profile.grpo
    has_reference = options.kl_beta > 0
    yield from _same("/old_source", options.old_source, scores.old_source)
    yield from _same("/ref_source", options.ref_source if has_reference else None, scores.ref_source)
    yield from _same("/responses", f"{profile.group_size} responses", f"{len(scores.responses)} responses")
    copied = 0
    for g, (entry, tokens) in enumerate(zip(scores.responses, rollout.responses, strict=False)):
        where = f"/responses/{g}"
        yield from _same(f"{where}/response", g, entry.response)
        if entry.tokens != tokens:
            yield _fault("scores.tokens-mismatch", f"{where}/tokens", "the rollout's tokens", "others")
        first = _first_scored(rollout, g, profile)
        yield from _same(f"{where}/first_scored", first, entry.first_scored)
        scored = len(tokens) - first
        for member in ("policy", "old", "ref", "loss"):
            values: Sequence[float] | None = getattr(entry, member)
            want = scored if member != "ref" or has_reference else None
            yield from _same(f"{where}/{member}", _entries(want), _entries(None if values is None else len(values)))
        yield from _positive(entry, where)
        if options.old_source == "rollout" and rollout.old_logprobs is not None and g < len(rollout.old_logprobs):
            copied += len(entry.old)
            yield from _copied(rollout.old_logprobs[g], entry.old, f"{where}/old", profile)
        from_rollout = has_reference and options.ref_source == "rollout"
        if from_rollout and rollout.ref_logprobs is not None and g < len(rollout.ref_logprobs):
            copied += len(entry.ref or ())
            yield from _copied(rollout.ref_logprobs[g], entry.ref or (), f"{where}/ref", profile)
    for member, source in (("old_logprobs", options.old_source), ("ref_logprobs", options.ref_source)):
        needed = source == "rollout" and (member == "old_logprobs" or has_reference)
        if needed and getattr(rollout, member) is None:
            yield _source_missing(member)
    return f"{len(scores.responses)} responses; {copied} log-probs as in the rollout"


def check_rewards(scores: Scores, rollout: Rollout, payload: TrainingPayload) -> Check:
    """Each reward again from the bytes of its response; of a rule that is not installed here, as in the rollout."""
    words: list[str] = []
    if not computable(payload.reward_rule):
        yield from _same("/rewards", list(rollout.rewards), list(scores.rewards))
        return f"as in the rollout; {payload.reward_rule} is not installed here"
    for g, tokens in enumerate(rollout.responses):
        try:
            right = reward(payload.reward_rule, response_text(tokens), payload.ground_truth)
        except FindingError as fault:
            yield fault.finding
            continue
        words.append(f"{right:+g}")
        for file, values in ((layout.ROLLOUT, rollout.rewards), (_FILE, scores.rewards)):
            actual = values[g] if g < len(values) else None
            if actual != right:
                yield found(
                    "grpo.reward-mismatch",
                    file=file,
                    pointer=f"/rewards/{g}",
                    expected=f"{right:g}",
                    actual="absent" if actual is None else repr(actual),
                    stage="fixture",
                )
    yield from _same("/rewards", _entries(len(rollout.responses)), _entries(len(scores.rewards)))
    return ", ".join(words)


def check_token_advantages(scores: Scores, rollout: Rollout, profile: RunProfile) -> Check:
    """Each token's advantage is the rollout's; that it follows from anything is the operator's word."""
    count = 0
    if rollout.advantages is None:
        yield _fault("grpo.advantage-mismatch", "/responses", "advantages in the rollout", "none")
        return "none"
    yield from _same("/advantages", _entries(None), _entries(_length(scores.advantages)))
    for g, entry in enumerate(scores.responses):
        source = rollout.advantages[g] if g < len(rollout.advantages) else ()
        for where, want, have in _tail_differences(source, entry.advantages or (), profile):
            yield _fault("grpo.advantage-mismatch", f"/responses/{g}/advantages{where}", want, have)
        count += len(entry.advantages or ())
    return f"{count}, as in the rollout; rewards do not determine them"


def check_sampler(scores: Scores, rollout: Rollout, bound: float) -> Check:
    """The trainer's log-probs beside those that the rollout's sampler gave, one by one, within the profile's bound."""
    if rollout.old_logprobs is None:
        yield _source_missing("old_logprobs")
        return "none to compare with"
    worst, total, count = 0.0, 0.0, 0
    for g, (entry, drawn) in enumerate(zip(scores.responses, rollout.old_logprobs, strict=False)):
        common = min(len(entry.policy), len(drawn))  # either may leave the first token out
        if common < len(entry.tokens) - 1:
            expected, actual = f"{len(entry.tokens) - 1} tokens or more", str(common)
            yield _fault("scores.sampler-mismatch", f"/responses/{g}/policy", expected, actual)
        ours, theirs = (np.asarray(values[len(values) - common :], np.float64) for values in (entry.policy, drawn))
        apart = np.abs(ours - theirs)
        for t in np.flatnonzero(~(apart <= bound))[:1]:
            where = f"/responses/{g}/policy/{int(t) + len(entry.policy) - common}"
            expected = f"{float(theirs[t])!r} within {bound:g}"
            yield _fault("scores.sampler-mismatch", where, expected, repr(float(ours[t])))
        worst, total, count = max(worst, float(apart.max(initial=0.0))), total + float(apart.sum()), count + common
    return f"largest difference {worst:.1e}, mean {total / max(count, 1):.1e}, of {count} tokens; bound {bound:g}"


def response_losses(scores: Scores, profile: RunProfile) -> tuple[TokenLosses, ...]:
    """The token losses of each response, from its log-probs and its advantages; lists must fit.

    Advantages are those of the rewards, or the tokens' own where the profile takes them from the rollout.
    """
    advantages: Sequence[float | Sequence[float]]
    if profile.grpo.advantage_source == "rollout":
        advantages = [entry.advantages or () for entry in scores.responses]
    else:
        advantages = [float(value) for value in group_advantages(scores.rewards, profile.grpo.advantage_eps)]
    return tuple(
        token_losses(
            policy=entry.policy,
            old=entry.old,
            reference=entry.ref,
            advantage=advantage,
            options=profile.grpo,
            epsilon=machine_epsilon(profile.model.dtype),
        )
        for entry, advantage in zip(scores.responses, advantages, strict=True)
    )


def check_losses(
    scores: Scores, losses: Sequence[TokenLosses], profile: RunProfile, accumulation: Accumulation | None = None
) -> Check:
    """Advantages, token losses, clip counts, drift and the aggregated loss: of a step's, the run's share."""
    largest = 0.0
    advantages: Sequence[float] = ()
    if profile.grpo.advantage_source != "rollout":
        advantages = group_advantages(scores.rewards, profile.grpo.advantage_eps).tolist()
        yield from _same("/advantages", _entries(len(advantages)), _entries(_length(scores.advantages)))
    for g, (right, have) in enumerate(zip(advantages, scores.advantages or (), strict=False)):
        if not abs(right - have) <= _DOUBLE_SLACK * (1 + abs(right)):
            yield _fault("grpo.advantage-mismatch", f"/advantages/{g}", repr(right), repr(have))
        largest = max(largest, abs(right - have))
    for g, (entry, right_losses) in enumerate(zip(scores.responses, losses, strict=True)):
        where = f"/responses/{g}"
        difference = np.abs(np.asarray(entry.loss) - right_losses.loss)
        for t in np.flatnonzero(~(difference <= right_losses.slack) | ~np.isfinite(right_losses.slack))[:3]:
            yield _fault(
                "grpo.loss-mismatch", f"{where}/loss/{t}", repr(float(right_losses.loss[t])), repr(entry.loss[int(t)])
            )
        largest = max(largest, float(difference.max(initial=0.0)))
        for side, count, have_count in (
            ("clipped_low", right_losses.clipped_low, entry.clipped_low),
            ("clipped_high", right_losses.clipped_high, entry.clipped_high),
        ):
            if not count.holds(have_count):
                yield _fault("grpo.clip-count-mismatch", f"{where}/{side}", str(count), str(have_count))
    yield from _totals(scores, losses, profile, accumulation)
    clipped = f"{scores.clipped_low} below and {scores.clipped_high} above the clip"
    return f"loss {scores.loss:.4f}; {clipped}; largest difference {largest:.1g}"


def response_share(losses: TokenLosses, weight: float) -> tuple[float, float]:
    """A response's part of the group's loss, and what rounding can have moved it by."""
    slack = float(np.sum(losses.slack)) + _DOUBLE_SLACK * float(np.sum(np.abs(losses.loss)))
    return weight * float(np.sum(losses.loss)), weight * slack + _DOUBLE_SLACK


def ratio_deviation(losses: TokenLosses) -> tuple[float, float]:
    """Largest |ratio - 1| of a response, and its slack."""
    deviation = float(np.max(np.abs(losses.ratio - 1), initial=0.0))
    return deviation, float(np.max(losses.ratio_slack, initial=_DOUBLE_SLACK))


def _totals(
    scores: Scores, losses: Sequence[TokenLosses], profile: RunProfile, accumulation: Accumulation | None
) -> Iterator[Finding]:
    scored = [len(entry.policy) for entry in scores.responses]
    yield from _same("/scored_tokens", sum(scored), scores.scored_tokens)
    if sum(scored) == 0:
        yield _fault("scores.nothing-scored", "/scored_tokens", "at least one scored token", "0")
    for member in ("clipped_low", "clipped_high"):
        total = sum(getattr(entry, member) for entry in scores.responses)
        yield from _same(f"/{member}", total, getattr(scores, member))
    weights = token_weights(scored, profile.grpo, accumulation)
    shares = [response_share(loss, weight) for loss, weight in zip(losses, weights, strict=True)]
    total_loss, slack = sum(share for share, _ in shares), sum(slack for _, slack in shares)
    if not _near(total_loss, scores.loss, slack):
        yield _fault("grpo.total-loss-mismatch", "/loss", repr(total_loss), repr(scores.loss))
    drifts = [loss.kl for loss in losses if loss.kl is not None]
    if not drifts or not sum(scored):
        yield from _same("/kl", None, scores.kl)
        return
    mean = sum(float(np.sum(kl)) for kl in drifts) / sum(scored)
    slack = sum(float(np.sum(loss.kl_slack)) for loss in losses) / sum(scored) + _DOUBLE_SLACK
    if scores.kl is None or not _near(mean, scores.kl, slack):
        yield _fault("grpo.kl-mismatch", "/kl", repr(mean), repr(scores.kl))


def _near(want: float, have: float, slack: float) -> bool:
    """Whether two numbers agree; an overflow bounds nothing, so an infinite slack is no agreement."""
    return math.isfinite(slack) and abs(want - have) <= slack


def _source_missing(member: str) -> Finding:
    expected = "log-probs, since the profile asks the rollout for them"
    return found("scores.source-missing", file=layout.ROLLOUT, pointer=f"/{member}", expected=expected, actual="null")


def _first_scored(rollout: Rollout, g: int, profile: RunProfile) -> int:
    """1 where the rollout has R - 1 old log-probs for this response: the older contract leaves its first token out."""
    if profile.grpo.old_source == "recompute" or rollout.old_logprobs is None or g >= len(rollout.old_logprobs):
        return 0
    return 1 if len(rollout.old_logprobs[g]) == len(rollout.responses[g]) - 1 else 0


def _positive(entry: ResponseScores, where: str) -> Iterator[Finding]:
    for member in ("policy", "old", "ref"):
        for t, value in enumerate(getattr(entry, member) or ()):
            if value > 0:
                yield _fault("scores.logprob-positive", f"{where}/{member}/{t}", "at most 0", repr(value))
                break


def _copied(source: Sequence[float], have: Sequence[float], pointer: str, profile: RunProfile) -> Iterator[Finding]:
    """Log-probs taken from the rollout, rounded to the run's dtype; the tail counts where the first is skipped."""
    for where, expected, actual in _tail_differences(source, have, profile):
        yield _fault("scores.source-mismatch", f"{pointer}{where}", expected, actual)


def _tail_differences(
    source: Sequence[float], have: Sequence[float], profile: RunProfile
) -> Iterator[tuple[str, str, str]]:
    """Where values are not the last of the rollout's in the run's dtype: pointer, expected and actual of the first."""
    kind = np.float64 if profile.model.dtype == "float64" else np.float32
    want = np.asarray(source[max(len(source) - len(have), 0) :], dtype=np.float64)
    values = np.asarray(have, dtype=np.float64)
    if want.shape != values.shape:
        yield "", f"{len(have)} of the rollout's", f"{len(source)} there"
        return
    for t in np.flatnonzero(want.astype(kind) != values.astype(kind))[:1]:
        yield f"/{t}", repr(float(want[t])), repr(float(values[t]))


def _same(pointer: str, want: object, have: object) -> Iterator[Finding]:
    if want != have:
        yield _fault("scores.mismatch", pointer, str(want), str(have))


def _length(values: Sequence[float] | None) -> int | None:
    return None if values is None else len(values)


def _entries(count: int | None) -> str:
    return "null" if count is None else f"{count} entries"


def _fault(id: str, pointer: str, expected: str, actual: str) -> Finding:
    return found(id, file=_FILE, pointer=pointer, expected=expected, actual=actual, stage="grpo")
