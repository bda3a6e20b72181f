"""One step against the plan, its parent and its own run.

The rule: nothing of a step is free. The plan fixes its rows, seeds, parameters and profile; the step before fixes its
policy and its parent; the run under its seal repeats the group that the step drew, and its plan carries the step's own
digest as the nonce. A step that was edited, reordered, swapped or drawn under another policy contradicts one of them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from mint2m_verify import phases
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.records import PhaseEvidence, RankSessions
from mint2m_verify.documents.training import Attempt
from mint2m_verify.draws import response_seed
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.response_ends import end_fault
from mint2m_verify.rewards import computable, response_text, reward
from mint2m_verify.seal import short
from mint2m_verify.sums import total
from mint2m_verify.training import places
from mint2m_verify.training.reading import Promised, ReadStep, StepRun
from mint2m_verify.training.rules import has_signal, rows_to_try, step_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a step must go on from: the seal of the step before, policy and moments that it left, and the next row."""

    parent: str | None
    policy_sha256: str | None
    moments_sha256: str | None
    row: int


def check_links(promised: Promised, step: ReadStep, run: StepRun, before: Before) -> Check:
    """The step's number, plan, parent and policy, and that its run was planned for it and nothing else."""
    document, file = step.document, places.step_file(step.number)
    yield from _same("training.order-mismatch", file, "/step", step.number, document.step)
    yield from _same("training.plan-mismatch", file, "/plan_sha256", promised.sha256, document.plan_sha256)
    yield from _same("training.parent-mismatch", file, "/parent", before.parent, document.parent)
    yield from _same("training.policy-mismatch", file, "/policy_sha256", before.policy_sha256, document.policy_sha256)
    nonce = sha256_hex(step.sha256.encode("ascii"))
    at = _in_run(step, "plan.json")
    yield from _same("training.run-mismatch", at, "/nonce_sha256", nonce, run.plan.nonce_sha256)
    fixture = _in_run(step, "inputs/fixture.json")
    yield from _same(
        "training.policy-mismatch", fixture, "/policy_sha256", document.policy_sha256, run.fixture.policy_sha256
    )
    yield from _same("training.model-mismatch", fixture, "/model", promised.plan.model, run.fixture.model)
    yield from _same(
        "training.source-mismatch", at, "/source_sha256", promised.plan.source_sha256, run.plan.source_sha256
    )
    hardware = run.plan.deployment.hardware_class
    yield from _same("training.plan-mismatch", at, "/hardware_class", promised.plan.hardware_class, hardware)
    moments = yield from _moments(promised, step, run, before)
    policy = f"policy {_digest(document.policy_sha256, 'fresh')}, moments {moments}"
    return f"parent {_digest(document.parent, 'none')}, {policy}"


def _moments(promised: Promised, step: ReadStep, run: StepRun, before: Before) -> Generator[Finding, None, str]:
    """The optimizer went on from what the step before left, after as many steps as there were; or from zero state."""
    carried = promised.plan.moments == "carried" and before.moments_sha256 is not None
    digest, steps = (before.moments_sha256, step.number) if carried else (None, 0)
    have = (None, 0) if run.start is None else (run.start.sha256, run.start.steps)
    file = _in_run(step, "inputs/deployment.json")
    yield from _same("training.moments-mismatch", file, "/optimizer/sha256", digest, have[0])
    yield from _same("training.moments-mismatch", file, "/optimizer/steps", steps, have[1])
    return _digest(digest, "fresh")


def check_search(promised: Promised, step: ReadStep, before: Before) -> Check:
    """The rows in their order, within the bound, and that the search ended with the first group that has signal."""
    plan, attempts, file = promised.plan, step.document.attempts, places.step_file(step.number)
    if len(attempts) > plan.rows_per_step:
        most = f"at most {plan.rows_per_step}"
        yield found(
            "training.search-mismatch", file=file, pointer="/attempts", expected=most, actual=str(len(attempts))
        )
    due = rows_to_try(before.row, len(attempts), plan.rows)
    for n, (attempt, row) in enumerate(zip(attempts, due, strict=True)):
        yield from _same("training.row-mismatch", file, f"/attempts/{n}/row", row, attempt.row)
        signal = has_signal([response.reward for response in attempt.responses])
        yield from _same("training.search-mismatch", file, f"/attempts/{n}/signal", signal, attempt.signal)
        last = n == len(attempts) - 1
        if signal != last:
            expected = "a group with signal" if last else "a search that ends with its first group with signal"
            actual = "no signal" if last else "signal"
            yield found(
                "training.search-mismatch", file=file, pointer=f"/attempts/{n}", expected=expected, actual=actual
            )
    return f"{len(attempts)} of at most {plan.rows_per_step} rows"


def check_draws(promised: Promised, step: ReadStep) -> Check:
    """Seeds, ends and log-probs of every response of every attempt, as the plan promised them."""
    plan, profile, file = promised.plan, promised.profile, places.step_file(step.number)
    stops, count = frozenset(plan.sampling.stop_tokens), 0
    for n, attempt in enumerate(step.document.attempts):
        at = f"/attempts/{n}/responses"
        yield from _same("training.parameters-mismatch", file, at, profile.group_size, len(attempt.responses))
        for g, response in enumerate(attempt.responses):
            seed = response_seed(plan.seed, step=step.number, attempt=n, response=g)
            yield from _same("training.seed-mismatch", file, f"{at}/{g}/seed", seed, response.seed)
            fault = end_fault(response.tokens, response.finish, stops, plan.sampling.max_tokens)
            if fault is not None:
                yield found(
                    "training.parameters-mismatch",
                    file=file,
                    pointer=f"{at}/{g}/finish",
                    expected=fault.expected,
                    actual=fault.actual,
                )
            yield from _same(
                "training.logprobs-mismatch",
                file,
                f"{at}/{g}/logprobs",
                f"{len(response.tokens)} entries",
                f"{len(response.logprobs)} entries",
            )
            if max(response.logprobs) > 0:
                pointer = f"{at}/{g}/logprobs"
                actual = repr(max(response.logprobs))
                yield found(
                    "training.logprobs-mismatch", file=file, pointer=pointer, expected="at most 0", actual=actual
                )
            count += 1
    return f"{count} responses"


def check_rewards(promised: Promised, step: ReadStep) -> Check:
    """Every reward again, from the response's bytes and its row's ground truth."""
    rule, file = promised.plan.reward_rule, places.step_file(step.number)
    shown: list[float] = []
    for n, attempt in enumerate(step.document.attempts):
        row = promised.rows[attempt.row] if attempt.row < len(promised.rows) else None
        if row is None:
            continue  # `check_search` has said so
        for g, response in enumerate(attempt.responses):
            pointer = f"/attempts/{n}/responses/{g}"
            shown.append(response.reward)
            if not computable(rule):
                continue
            try:
                right = reward(rule, response_text(response.tokens), row.ground_truth)
            except FindingError as fault:
                inner = fault.finding
                yield found(inner.id, file=file, pointer=pointer, expected=inner.expected, actual=inner.actual)
                continue
            yield from _same("training.reward-mismatch", file, f"{pointer}/reward", right, response.reward)
    mean = total(shown) / len(shown) if shown else math.nan
    return f"mean {mean:+.3f} over {len(shown)} responses"


def check_group(promised: Promised, step: ReadStep, run: StepRun) -> Check:
    """The run trained on the group that the step drew last, at the planned profile, and scored it as it was drawn."""
    attempt = step.document.attempts[-1]
    rollout = _in_run(step, "inputs/rollout.json")
    payload = _in_run(step, "inputs/payload.json")
    responses = attempt.responses
    drawn = tuple(response.tokens for response in responses)
    for g, (want, have) in enumerate(zip(drawn, run.rollout.responses, strict=False)):
        yield from _same("training.response-mismatch", rollout, f"/responses/{g}", want, have)
    yield from _same("training.response-mismatch", rollout, "/responses", len(drawn), len(run.rollout.responses))
    rewards = tuple(response.reward for response in responses)
    yield from _same("training.reward-mismatch", rollout, "/rewards", rewards, run.rollout.rewards)
    scores = tuple(response.logprobs for response in responses)
    yield from _same("training.logprobs-mismatch", rollout, "/old_logprobs", scores, run.rollout.old_logprobs)
    if attempt.row < len(promised.rows):
        row = promised.rows[attempt.row]
        yield from _same("training.row-mismatch", payload, "/prompt_text", row.text, run.payload.prompt_text)
        yield from _same("training.row-mismatch", payload, "/ground_truth", row.ground_truth, run.payload.ground_truth)
    rule = promised.plan.reward_rule
    yield from _same("training.parameters-mismatch", payload, "/reward_rule", rule, run.payload.reward_rule)
    right = step_profile(promised.profile, len(run.rollout.prompt_tokens))
    if run.profile != right:
        yield found(
            "training.parameters-mismatch",
            file=_in_run(step, "inputs/profile.json"),
            expected=f"the training's profile at {len(run.rollout.prompt_tokens)} prompt tokens",
            actual="another profile",
        )
    worst = yield from _scored_as_drawn(promised, step, run, attempt)
    return f"{len(drawn)} responses; trainer and sampler differ by {worst:.1e} at most"


def check_policy(step: ReadStep, run: StepRun) -> Check:
    """The policy that drew is the one that was trained, and its pages were captured under it."""
    file, attempts = places.step_file(step.number), step.document.attempts
    sessions = _in_run(step, "artifacts/rank-sessions.json")
    weights = _evidence(run.sessions, phases.MATERIALIZE)
    adapter = weights[0].adapter_sha256 if weights else None
    base = tuple(evidence.weights_sha256 for evidence in weights)
    for n, attempt in enumerate(attempts):
        at = f"/attempts/{n}"
        yield from _same("training.policy-mismatch", file, f"{at}/adapter_sha256", adapter, attempt.adapter_sha256)
        yield from _same(
            "training.pages-mismatch", file, f"{at}/pages_adapter_sha256", adapter, attempt.pages_adapter_sha256
        )
        yield from _same("training.policy-mismatch", file, f"{at}/weights_sha256", base, attempt.weights_sha256)
    captured = _evidence(run.sessions, phases.CAPTURE_PREFIX)
    pages = captured[0].pages_sha256 if captured else None
    yield from _same("training.pages-mismatch", sessions, "/ranks", attempts[-1].pages_sha256, pages)
    return f"adapter {short(adapter)}, pages {short(pages)}" if adapter and pages else "unknown"


def _scored_as_drawn(
    promised: Promised, step: ReadStep, run: StepRun, attempt: Attempt
) -> Generator[Finding, None, float]:
    """The old log-probs that the run trained against, beside those of the sampler; returns the largest difference."""
    worst, bound = 0.0, promised.plan.logprob_bound
    file = _in_run(step, "artifacts/scores.json")
    for g, (entry, response) in enumerate(zip(run.scores.responses, attempt.responses, strict=False)):
        for t, (old, drawn) in enumerate(zip(entry.old, response.logprobs[entry.first_scored :], strict=False)):
            difference = abs(old - drawn)
            worst = max(worst, difference)
            if not difference <= bound:
                yield found(
                    "training.logprobs-mismatch",
                    file=file,
                    pointer=f"/responses/{g}/old/{t}",
                    expected=f"{drawn!r} within {bound:g}",
                    actual=repr(old),
                )
    return worst


def _evidence(sessions: RankSessions, phase: str) -> Sequence[PhaseEvidence]:
    """What each rank saw in a phase, in rank order."""
    return [record.evidence for rank in sessions.ranks for record in rank.phases if record.phase == phase]


def _in_run(step: ReadStep, path: str) -> str:
    return f"{places.run_folder(step.number)}/{path}"


def _digest(digest: str | None, otherwise: str) -> str:
    return otherwise if digest is None else short(digest)


def _same(id: str, file: str, pointer: str, want: object, have: object) -> Iterator[Finding]:
    if want != have:
        yield found(id, file=file, pointer=pointer, expected=_shown(want), actual=_shown(have))


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 160 else f"{text[:157]}…"
