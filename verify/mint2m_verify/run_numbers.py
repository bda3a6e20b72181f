"""The numbers of a run again, in the order in which they depend on each other.

Rewards from text, losses from log-probs, norm from the gradient, the step from all of these; then the rank records and
the receipt against what came out. A stage whose inputs are malformed is not reached, and says which.
"""

from __future__ import annotations

import numpy as np

from mint2m_verify import accumulation_check, layout, moments_check, receipt_check, sessions
from mint2m_verify.documents import Rollout, RunProfile, Scores
from mint2m_verify.documents.inputs import Accumulation
from mint2m_verify.finding import FindingError, Standing
from mint2m_verify.findings import Findings
from mint2m_verify.recompute import scores as score_checks
from mint2m_verify.recompute import step as step_checks
from mint2m_verify.recompute.grpo import TokenLosses, token_weights
from mint2m_verify.recompute.tensors import read_tensors
from mint2m_verify.rewards import computable
from mint2m_verify.run_documents import RunDocuments
from mint2m_verify.sessions import Facts, Near

_ROW_LOSSES = "advantages, losses, clip counts, total"
_ROW_TOKEN_ADVANTAGES = "advantages by token"
_ROW_FIT, _ROW_NORM = "adapter, gradient and moments fit", "gradient norm and clip"
_ROW_STEP = "optimizer step and moments"
_ROW_MOMENTS = "the moments that the step went on from"
_ROW_PLACE = "its place in a step over several prompts"
_TENSOR_FILES = (step_checks.ADAPTER_BEFORE, step_checks.ADAPTER, layout.GRADIENT, layout.OPTIMIZER_AFTER)
_GRADIENT_FILES = (step_checks.ADAPTER_BEFORE, layout.GRADIENT)


def check_numbers(log: Findings, documents: RunDocuments) -> list[str]:
    """Recompute and compare; what a float64 run's rounded export leaves unchecked is returned in words.

    Overflows in hostile numbers become infinities and NaN here, which no comparison accepts; numpy need not warn.
    """
    with np.errstate(all="ignore"):
        return _check_numbers(log, documents)


def _check_numbers(log: Findings, documents: RunDocuments) -> list[str]:
    losses = _scores(log, documents)
    _moments(log, documents)
    _place(log, documents)
    tensors = _gradient(log, documents) if _ends_with_gradient(documents) else _step(log, documents)
    profile, rollout, scores = documents.profile, documents.rollout, documents.scores
    ranks, plan, receipt = documents.sessions, documents.plan, documents.receipt
    notes: list[str] = []
    if profile is not None and profile.document.grpo.advantage_source == "rollout":
        notes.append(
            "that the advantages follow from the rewards: the profile takes one for each token from the rollout"
        )
    needs: tuple[str, ...] = (layout.SCORES, layout.ROLLOUT, layout.RANK_SESSIONS, *_TENSOR_FILES)
    if (
        losses is not None
        and tensors is not None
        and profile is not None
        and rollout is not None
        and scores is not None
        and ranks is not None
    ):
        digests = step_checks.adapter_digests(tensors)
        rounded = profile.document.model.dtype == "float64"
        if rounded:
            notes.append("the ranks' adapter digests: a float64 run exports its adapter rounded to float32")
        accumulation = _accumulation(documents)
        facts = _facts(
            rollout.document, scores.document, profile.document, accumulation, losses, None if rounded else digests
        )
        log.judge(
            "rank records hold the recomputed numbers",
            Standing.DERIVED,
            sessions.check_facts(ranks.document, facts),
            sources=needs,
        )
    else:
        log.not_reached("rank records hold the recomputed numbers", needs)
    needs = (layout.RECEIPT, layout.PLAN, layout.PROFILE, layout.RANK_SESSIONS, layout.SCORES)
    if receipt is not None:
        log.judge("receipt contradicts itself nowhere", Standing.DERIVED, receipt_check.check_self(receipt.document))
    if receipt is not None and plan is not None and profile is not None and ranks is not None and scores is not None:
        check = receipt_check.check_numbers(
            receipt.document, plan.document, profile.document, ranks.document, scores.document
        )
        log.judge("receipt holds the recomputed numbers", Standing.DERIVED, check, sources=needs)
    else:
        log.not_reached("receipt holds the recomputed numbers", needs)
    return notes


def _scores(log: Findings, documents: RunDocuments) -> tuple[TokenLosses, ...] | None:
    """Rewards and losses; the recomputed token losses where the scores are of the right shape."""
    scores, rollout, payload, profile = documents.scores, documents.rollout, documents.payload, documents.profile
    needs = (layout.SCORES, layout.ROLLOUT, layout.PAYLOAD, layout.PROFILE)
    if scores is not None and rollout is not None and payload is not None:
        check = score_checks.check_rewards(scores.document, rollout.document, payload.document)
        standing = Standing.DERIVED if computable(payload.document.reward_rule) else Standing.ATTESTED_ONLY
        log.judge("rewards from the response text", standing, check, sources=needs)
    else:
        log.not_reached("rewards from the response text", needs)
    if scores is None or rollout is None or profile is None:
        log.not_reached("scores are of this rollout", needs)
        log.not_reached(_ROW_LOSSES, needs)
        return None
    check = score_checks.check_identity(scores.document, rollout.document, profile.document)
    log.judge("scores are of this rollout", Standing.CHECKED, check, sources=needs)
    bound = profile.document.grpo.logprob_bound
    if bound is not None:
        check = score_checks.check_sampler(scores.document, rollout.document, bound)
        log.judge("trainer and sampler give the same log-probs", Standing.DERIVED, check, sources=needs)
    if profile.document.grpo.advantage_source == "rollout":
        check = score_checks.check_token_advantages(scores.document, rollout.document, profile.document)
        log.judge(_ROW_TOKEN_ADVANTAGES, Standing.ATTESTED_ONLY, check, sources=needs)
    if not _computable(scores.document, profile.document):
        log.not_reached(_ROW_LOSSES, needs)
        return None
    losses = score_checks.response_losses(scores.document, profile.document)
    check = score_checks.check_losses(scores.document, losses, profile.document, _accumulation(documents))
    log.judge(_ROW_LOSSES, Standing.DERIVED, check, sources=needs)
    return losses


def _computable(scores: Scores, profile: RunProfile) -> bool:
    """Whether the lists fit each other; where they do not, `check_identity` has said so."""
    reference = profile.grpo.kl_beta > 0
    by_token = profile.grpo.advantage_source == "rollout"
    return len(scores.rewards) == len(scores.responses) and all(
        len(entry.policy) == len(entry.old) == len(entry.loss)
        and (entry.ref is not None) == reference
        and (entry.ref is None or len(entry.ref) == len(entry.policy))
        and (entry.advantages is not None) == by_token
        and (entry.advantages is None or len(entry.advantages) == len(entry.policy))
        for entry in scores.responses
    )


def _moments(log: Findings, documents: RunDocuments) -> None:
    """The state that the optimizer went on from; a run that speaks of none has no row."""
    deployment, receipt, ranks = documents.deployment, documents.receipt, documents.sessions
    if deployment is None or receipt is None or ranks is None:
        if documents.ref(layout.OPTIMIZER_INITIAL) is not None:
            log.not_reached(_ROW_MOMENTS, (layout.DEPLOYMENT, layout.RECEIPT, layout.RANK_SESSIONS))
        return
    copy = documents.ref(layout.OPTIMIZER_INITIAL)
    if not moments_check.concerns(deployment.document, copy, receipt.document, ranks.document):
        return
    raw = documents.raw(layout.OPTIMIZER_INITIAL)
    if raw is None and copy is not None:  # too large to be read whole, of which there is a finding
        log.not_reached(_ROW_MOMENTS, (layout.OPTIMIZER_INITIAL,))
        return
    check = moments_check.check_start(deployment.document, copy, raw, receipt.document, ranks.document)
    log.judge(_ROW_MOMENTS, Standing.CHECKED, check, sources=(layout.OPTIMIZER_INITIAL,))


def _accumulation(documents: RunDocuments) -> Accumulation | None:
    """The run's place in a step over several prompts, by its deployment; without one a step has one prompt."""
    return None if documents.deployment is None else documents.deployment.document.accumulation


def _ends_with_gradient(documents: RunDocuments) -> bool:
    return documents.deployment is not None and documents.deployment.document.ends_with_gradient


def _place(log: Findings, documents: RunDocuments) -> None:
    """The run among those of its step; one that speaks of no other prompt has no row."""
    deployment, receipt, ranks = documents.deployment, documents.receipt, documents.sessions
    needs = (layout.DEPLOYMENT, layout.RECEIPT, layout.RANK_SESSIONS)
    copy = documents.ref(layout.GRADIENT_INITIAL)
    if deployment is None or receipt is None or ranks is None:
        if copy is not None or _accumulation(documents) is not None:
            log.not_reached(_ROW_PLACE, needs)
        return
    if not accumulation_check.concerns(deployment.document, copy, receipt.document, ranks.document):
        return
    raw = documents.raw(layout.GRADIENT_INITIAL)
    if raw is None and copy is not None:  # too large to be read whole, of which there is a finding
        log.not_reached(_ROW_PLACE, (layout.GRADIENT_INITIAL,))
        return
    scored = None
    if documents.rollout is not None and documents.profile is not None:
        scored = accumulation_check.scored_tokens(documents.rollout.document, documents.profile.document)
    check = accumulation_check.check_place(
        deployment.document,
        copy,
        raw,
        receipt.document,
        ranks.document,
        scored,
    )
    log.judge(_ROW_PLACE, Standing.CHECKED, check, sources=(*needs, layout.GRADIENT_INITIAL))


def _gradient(log: Findings, documents: RunDocuments) -> step_checks.GradientTensors | None:
    """The adapter and the gradient of a run that takes no step; as `_step`."""
    profile, scores = documents.profile, documents.scores
    config = documents.raw(f"artifacts/adapter-before/{layout.ADAPTER_CONFIG}")
    if profile is not None and config is not None:
        check = step_checks.check_config(config, None, profile.document)
        log.judge("adapter configuration", Standing.CHECKED, check, sources=(layout.PROFILE,))
    else:
        log.not_reached("adapter configuration", (layout.PROFILE,))
    wanted = _with_start(documents, _GRADIENT_FILES)
    raw = {path: data for path in wanted if (data := documents.raw(path)) is not None}
    needs = (*wanted, layout.PROFILE, layout.SCORES)
    tensors = None
    if len(raw) == len(wanted):
        tensors, faults = step_checks.read_gradient(raw)
        for fault in faults:
            log.unreadable(fault.file or "", (fault,))
    if tensors is None or profile is None or scores is None:
        for row in (_ROW_FIT, _ROW_NORM):
            log.not_reached(row, needs)
        return None
    if not _sound(log, tensors, profile.document, scores.document, needs):
        return None
    _start(log, documents, tensors)
    return tensors


def _with_start(documents: RunDocuments, files: tuple[str, ...]) -> tuple[str, ...]:
    """`files`, with the gradient that the run went on from where its deployment names one."""
    place = _accumulation(documents)
    named = place is not None and place.gradient is not None
    return (*files, layout.GRADIENT_INITIAL) if named else files


def _sound(
    log: Findings,
    tensors: step_checks.GradientTensors,
    profile: RunProfile,
    scores: Scores,
    needs: tuple[str, ...],
) -> bool:
    """Names, shapes and the norm; whether the former agree."""
    fits = log.judge(_ROW_FIT, Standing.CHECKED, step_checks.check_tensors(tensors, profile), sources=needs)
    signal = scores.has_signal or profile.grpo.kl_beta > 0
    norm = step_checks.check_norm(tensors, scores, profile, signal=signal)
    log.judge(_ROW_NORM, Standing.DERIVED, norm, sources=needs)
    return fits


def _step(log: Findings, documents: RunDocuments) -> step_checks.StepTensors | None:
    """The adapter, the gradient and the step; the tensors where their names and shapes agree."""
    profile, scores = documents.profile, documents.scores
    configs = [documents.raw(f"{folder}/{layout.ADAPTER_CONFIG}") for folder in ("artifacts/adapter-before", "adapter")]
    if profile is not None and configs[0] is not None and configs[1] is not None:
        check = step_checks.check_config(configs[0], configs[1], profile.document)
        log.judge("adapter configuration", Standing.CHECKED, check, sources=(layout.PROFILE,))
    else:
        log.not_reached("adapter configuration", (layout.PROFILE,))
    steps_before = _steps_before(documents)
    files = (*_TENSOR_FILES, *((layout.OPTIMIZER_INITIAL,) if steps_before else ()))
    wanted = _with_start(documents, files)
    raw = {path: data for path in wanted if (data := documents.raw(path)) is not None}
    needs = (*wanted, layout.PROFILE, layout.SCORES)
    rows = (_ROW_FIT, _ROW_NORM, _ROW_STEP)
    if steps_before is None or len(raw) < len(wanted) or profile is None or scores is None:
        for row in rows:
            log.not_reached(row, needs)
        return None
    tensors, faults = step_checks.read_step(raw, steps_before=steps_before)
    for fault in faults:
        log.unreadable(fault.file or "", (fault,))
    if tensors is None:
        for row in rows:
            log.not_reached(row, needs)
        return None
    if not _sound(log, tensors, profile.document, scores.document, needs):
        log.not_reached(rows[2], needs)
        return None
    _start(log, documents, tensors)
    log.judge(rows[2], Standing.DERIVED, step_checks.check_step(tensors, profile.document), sources=needs)
    return tensors


def _steps_before(documents: RunDocuments) -> int | None:
    """Steps in the life of the state that the deployment names, 0 for zero state; None without a deployment."""
    if documents.deployment is None:
        return None
    start = documents.deployment.document.optimizer
    return 0 if start is None else start.steps


def _start(log: Findings, documents: RunDocuments, tensors: step_checks.GradientTensors) -> None:
    """What the step started from; a given policy that is not at hand is noted where the fixture is checked."""
    deployment, raw = documents.deployment, documents.raw(step_checks.ADAPTER_GIVEN)
    required = "the adapter that the step started from"
    if deployment is None:
        log.not_reached(required, (layout.DEPLOYMENT,))
        return
    if deployment.document.adapter is None:
        log.judge(required, Standing.DERIVED, step_checks.check_start(tensors.before, None))
    elif raw is not None:
        try:
            given = read_tensors(raw, file=step_checks.ADAPTER_GIVEN)
        except FindingError as fault:
            log.unreadable(step_checks.ADAPTER_GIVEN, (fault.finding,))
            return
        log.judge(required, Standing.CHECKED, step_checks.check_start(tensors.before, given))


def _facts(
    rollout: Rollout,
    scores: Scores,
    profile: RunProfile,
    accumulation: Accumulation | None,
    losses: tuple[TokenLosses, ...],
    adapter_sha256: tuple[str, str] | None,
) -> Facts:
    scored = tuple(len(entry.policy) for entry in scores.responses)
    weights = token_weights(scored, profile.grpo, accumulation)
    shares = (score_checks.response_share(loss, weight) for loss, weight in zip(losses, weights, strict=True))
    deviations = (score_checks.ratio_deviation(loss) for loss in losses)
    return Facts(
        response_tokens=tuple(len(tokens) for tokens in rollout.responses),
        scored_tokens=scored,
        clipped=tuple((entry.clipped_low, entry.clipped_high) for entry in scores.responses),
        gradient_norm=scores.gradient_norm,
        clip_coefficient=scores.clip_coefficient,
        shares=tuple(Near(value=value, slack=slack) for value, slack in shares),
        deviations=tuple(Near(value=value, slack=slack) for value, slack in deviations),
        drifts=tuple(_drift(loss) for loss in losses),
        adapter_sha256=adapter_sha256,
    )


def _drift(loss: TokenLosses) -> Near | None:
    """Mean drift of one response; None where there is no reference or nothing is scored."""
    if loss.kl is None or not len(loss.kl):
        return None
    return Near(value=float(np.mean(loss.kl)), slack=float(np.mean(loss.kl_slack)))
