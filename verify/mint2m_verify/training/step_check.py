"""One step against the plan, its parent and its own run.

The rule: nothing of a step is free. The plan fixes its rows, seeds, parameters and profile; the step before fixes its
policy and its parent; the run under its seal repeats the group that the step drew, and its plan carries the step's own
digest as the nonce. A step that was edited, reordered, swapped or drawn under another policy contradicts one of them.
Where a step has several prompts all that holds of each of its runs, and each names the seal of the one before.
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
from mint2m_verify.seal import counted, short
from mint2m_verify.sums import total
from mint2m_verify.training import places
from mint2m_verify.training.reading import Promised, ReadStep, StepRun
from mint2m_verify.training.rules import has_signal, rows_to_try, run_nonce, scored, step_profile

#: Of a run's place in its step, what the step's file says as well.
_PLACE = ("index", "prompts", "tokens", "responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Of a run in the training."""

    step: int
    index: int
    prompts: int

    @property
    def last(self) -> bool:
        return self.index == self.prompts - 1

    def file(self, path: str) -> str:
        """A file of the run."""
        return f"{places.prompt_folder(self.step, self.index, self.prompts)}/{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a step must go on from: the seal of the step before, policy and moments that it left, and the next row."""

    parent: str | None
    policy_sha256: str | None
    moments_sha256: str | None
    row: int


def check_links(promised: Promised, step: ReadStep, runs: Sequence[StepRun], before: Before) -> Check:
    """The step's number, plan, parent and policy, and that its runs were planned for it and nothing else."""
    document, file = step.document, places.step_file(step.number)
    yield from _same("training.order-mismatch", file, "/step", step.number, document.step)
    yield from _same("training.plan-mismatch", file, "/plan_sha256", promised.sha256, document.plan_sha256)
    yield from _same("training.parent-mismatch", file, "/parent", before.parent, document.parent)
    yield from _same("training.policy-mismatch", file, "/policy_sha256", before.policy_sha256, document.policy_sha256)
    moments = "fresh"
    for index, run in enumerate(runs):
        moments = yield from _planned_for(promised, step, index, run, before)
    policy = f"policy {_digest(document.policy_sha256, 'fresh')}, moments {moments}"
    return f"parent {_digest(document.parent, 'none')}, {policy}"


def _planned_for(
    promised: Promised, step: ReadStep, index: int, run: StepRun, before: Before
) -> Generator[Finding, None, str]:
    """A run is this step's, of its policy and of the training's model, source and class; its moments in words."""
    document, place = step.document, _Place(step=step.number, index=index, prompts=promised.plan.prompts)
    nonce = sha256_hex(run_nonce(step.sha256, index, promised.plan.prompts).encode("ascii"))
    at = place.file("plan.json")
    yield from _same("training.run-mismatch", at, "/nonce_sha256", nonce, run.plan.nonce_sha256)
    fixture = place.file("inputs/fixture.json")
    yield from _same(
        "training.policy-mismatch", fixture, "/policy_sha256", document.policy_sha256, run.fixture.policy_sha256
    )
    yield from _same("training.model-mismatch", fixture, "/model", promised.plan.model, run.fixture.model)
    yield from _same(
        "training.source-mismatch", at, "/source_sha256", promised.plan.source_sha256, run.plan.source_sha256
    )
    hardware = run.plan.deployment.hardware_class
    yield from _same("training.plan-mismatch", at, "/hardware_class", promised.plan.hardware_class, hardware)
    return (yield from _moments(promised, place, run, before))


def _moments(promised: Promised, place: _Place, run: StepRun, before: Before) -> Generator[Finding, None, str]:
    """The optimizer went on from what the step before left, after as many steps as there were; or from zero state.

    Runs that take no step have no use for moments, and name none.
    """
    carried = place.last and promised.plan.moments == "carried" and before.moments_sha256 is not None
    digest, steps = (before.moments_sha256, place.step) if carried else (None, 0)
    have = (None, 0) if run.start is None else (run.start.sha256, run.start.steps)
    file = place.file("inputs/deployment.json")
    yield from _same("training.moments-mismatch", file, "/optimizer/sha256", digest, have[0])
    yield from _same("training.moments-mismatch", file, "/optimizer/steps", steps, have[1])
    return _digest(digest, "fresh")


def check_search(promised: Promised, step: ReadStep, before: Before) -> Check:
    """The rows in their order, within the bound, and that each search ended with the first group that has signal."""
    plan, attempts, file = promised.plan, step.document.attempts, places.step_file(step.number)
    due = rows_to_try(before.row, len(attempts), plan.rows)
    for n, (attempt, row) in enumerate(zip(attempts, due, strict=True)):
        yield from _same("training.row-mismatch", file, f"/attempts/{n}/row", row, attempt.row)
        signal = has_signal([response.reward for response in attempt.responses])
        yield from _same("training.search-mismatch", file, f"/attempts/{n}/signal", signal, attempt.signal)
    # By what the file says of signal, which was just held against the rewards: a search ends with its first.
    searches = step.document.searches
    longest = max(map(len, searches))
    most = f"at most {plan.rows_per_step} a prompt"
    if longest > plan.rows_per_step:
        yield found("training.search-mismatch", file=file, pointer="/attempts", expected=most, actual=str(longest))
    groups = sum(attempt.signal for attempt in attempts)
    if groups != plan.prompts or not attempts[-1].signal:
        expected = f"{counted(plan.prompts, 'group')} with signal, the last row's among them"
        actual = f"{groups}, and {'signal' if attempts[-1].signal else 'no signal'} in the last row"
        yield found("training.search-mismatch", file=file, pointer="/attempts", expected=expected, actual=actual)
    return f"{len(attempts)} rows, {most}"


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


def check_accumulation(promised: Promised, step: ReadStep, runs: Sequence[StepRun]) -> Check:
    """One run a prompt, in order, each averaged over the whole step and on top of the gradient of the one before."""
    prompts = promised.plan.prompts
    tokens, responses = scored(step.document.groups)
    for index, run in enumerate(runs):
        before = runs[index - 1] if index else None
        if prompts == 1:
            want: dict[str, object] = {"": None}
            have: dict[str, object] = {"": run.accumulation}
        else:
            place = run.accumulation
            want = {"/index": index, "/prompts": prompts, "/tokens": tokens, "/responses": responses}
            have = {f"/{name}": None if place is None else getattr(place, name) for name in _PLACE}
            start = None if place is None else place.gradient
            want |= {"/gradient/sha256": None if before is None else before.gradient_sha256}
            have |= {"/gradient/sha256": None if start is None else start.sha256}
            want |= {"/gradient/seal_sha256": None if before is None else before.seal_sha256}
            have |= {"/gradient/seal_sha256": None if start is None else start.seal_sha256}
        file = _Place(step=step.number, index=index, prompts=prompts).file("inputs/deployment.json")
        for member, right in want.items():
            pointer = f"/accumulation{member}"
            yield from _same("training.accumulation-mismatch", file, pointer, right, have[member])
    return f"{counted(prompts, 'prompt')}, {tokens} tokens of {responses} responses"


def check_group(promised: Promised, step: ReadStep, index: int, run: StepRun) -> Check:
    """The run trained on a group that the step drew, at the planned profile, and scored it as it was drawn."""
    groups = step.document.groups
    if index >= len(groups):
        yield from _same(
            "training.search-mismatch", places.step_file(step.number), "/attempts", f"{index + 1} groups", len(groups)
        )
        return "no group"
    attempt, place = groups[index], _Place(step=step.number, index=index, prompts=promised.plan.prompts)
    rollout = place.file("inputs/rollout.json")
    payload = place.file("inputs/payload.json")
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
            file=place.file("inputs/profile.json"),
            expected=f"the training's profile at {len(run.rollout.prompt_tokens)} prompt tokens",
            actual="another profile",
        )
    worst = yield from _scored_as_drawn(promised, place, run, attempt)
    return f"{len(drawn)} responses; trainer and sampler differ by {worst:.1e} at most"


def check_policy(promised: Promised, step: ReadStep, index: int, run: StepRun) -> Check:
    """The policy that drew is the one that was trained, and its pages were captured under it."""
    file, attempts, groups = places.step_file(step.number), step.document.attempts, step.document.groups
    sessions = _Place(step=step.number, index=index, prompts=promised.plan.prompts).file("artifacts/rank-sessions.json")
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
    drawn = groups[index].pages_sha256 if index < len(groups) else None
    yield from _same("training.pages-mismatch", sessions, "/ranks", drawn, pages)
    return f"adapter {short(adapter)}, pages {short(pages)}" if adapter and pages else "unknown"


def _scored_as_drawn(
    promised: Promised, place: _Place, run: StepRun, attempt: Attempt
) -> Generator[Finding, None, float]:
    """The old log-probs that the run trained against, beside those of the sampler; returns the largest difference."""
    worst, bound = 0.0, promised.plan.logprob_bound
    file = place.file("artifacts/scores.json")
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


def _digest(digest: str | None, otherwise: str) -> str:
    return otherwise if digest is None else short(digest)


def _same(id: str, file: str, pointer: str, want: object, have: object) -> Iterator[Finding]:
    if want != have:
        yield found(id, file=file, pointer=pointer, expected=_shown(want), actual=_shown(have))


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 160 else f"{text[:157]}…"
