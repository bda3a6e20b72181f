"""`mint2m replay DIR --step N`: one step of an online training again, its draws and its update.

The rule: the whole training must verify first, so that the step's adapter, moments, seeds and rows are those that the
plan and the step before leave no choice about. Then every row that the step tried is drawn again from the same seeds,
and must give the same tokens; and each of its runs is repeated as any run is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mint2m_trainer.online.search import Search, SearchRow, search
from mint2m_trainer.replay import Tolerance, repeat, snapshot_of
from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, VerifyOptions
from mint2m_verify.documents.training import Attempt, DrawnResponse, TrainingStep
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.training import places
from mint2m_verify.training.reading import read_promised, read_step
from mint2m_verify.training.verify import verify_training


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplay:
    """What the auditor asked for; `model` is the snapshot, which no training brings along."""

    training: Path
    step: int
    anchor: Anchor
    model: Path | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)


def replay_step(request: StepReplay) -> Report:
    """Verify the training, draw again, update again, compare.

    Raises:
        FindingError: `usage.invalid` where there is no such step; `replay.model-missing`, `replay.model-mismatch`,
            `rank.*`, `fixture.reward-rule-absent`.
    """
    root = request.training
    verified = verify_training(root, request.anchor, VerifyOptions())
    if verified.findings:
        # What does not verify is not repeated: there would be nothing to compare with.
        return Report(
            subject=str(root),
            command="replay",
            requirements=verified.requirements,
            findings=verified.findings,
            not_checked=("the numbers: the training does not verify, so nothing was repeated",),
            trust=verified.trust,
            evaluated_at=verified.evaluated_at,
        )
    plan = read_promised(root).plan
    if request.step >= plan.steps:
        expected, actual = f"--step below {plan.steps}", str(request.step)
        raise FindingError(found("usage.invalid", expected=expected, actual=actual))
    run = root / places.run_folder(request.step)
    snapshot = snapshot_of(run, request.model)
    drawn = _draw(root, request.step, snapshot)
    rows: list[Requirement] = []
    findings: list[Finding] = []
    for index in range(plan.prompts):
        folder = root / places.prompt_folder(request.step, index, plan.prompts)
        made, faults = repeat(folder, request.model, request.tolerance)
        prompt = "" if plan.prompts == 1 else f"prompt {index}: "
        rows += [replace(row, required=f"{prompt}{row.required}") for row in made]
        findings += faults
    found_here = (*drawn.findings, *findings)
    return Report(
        subject=str(root),
        command="replay",
        requirements=(*drawn.requirements, *rows),
        findings=found_here,
        not_checked=(
            "when and on what hardware the evidence was made; that the repeated numbers were made only once",
            "the other steps: each is repeated by its own number",
        ),
        trust=verified.trust,
        evaluated_at=verified.evaluated_at,
        summary=f"step {request.step} drawn and updated again here" if not found_here else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    requirements: tuple[Requirement, ...]
    findings: tuple[Finding, ...]


def _draw(root: Path, number: int, snapshot: Path) -> _Drawn:
    """Every row that the step tried, drawn again from its seeds by the policy that the step before left."""
    promised, step = read_promised(root), read_step(root, number).document
    given = root / places.run_folder(number) / layout.ADAPTER_INITIAL
    again = search(
        Search(
            profile=promised.profile,
            snapshot=snapshot.resolve(),
            adapter=given if given.is_dir() else None,
            rows=tuple(
                SearchRow(
                    row=attempt.row,
                    prompt_tokens=tuple(promised.rows[attempt.row].text.encode("utf-8")),
                    ground_truth=promised.rows[attempt.row].ground_truth,
                    seeds=tuple(response.seed for response in attempt.responses),
                )
                for attempt in step.attempts
            ),
            parameters=promised.plan.sampling,
            reward_rule=promised.plan.reward_rule,
            prompts=promised.plan.prompts,
        )
    )
    findings = tuple(_differences(number, step, again))
    worst = max(
        (
            abs(one - other)
            for have, mine in zip(step.attempts, again, strict=False)
            for left, right in zip(have.responses, mine.responses, strict=True)
            for one, other in zip(left.logprobs, right.logprobs, strict=False)
        ),
        default=0.0,
    )
    count = sum(len(attempt.responses) for attempt in again)
    standing = Standing.FAILED if findings else Standing.REPLAYED
    return _Drawn(
        requirements=(
            Requirement(required="responses drawn again from their seeds", found=str(count), standing=standing),
            Requirement(required="log-probs as drawn, largest difference", found=f"{worst:.3g}", standing=standing),
        ),
        findings=findings,
    )


def _differences(number: int, step: TrainingStep, again: tuple[Attempt, ...]) -> list[Finding]:
    """Where the draws are not those of the step's file; a row that was not come to is told by the one before it."""
    findings = []
    for n, have in enumerate(step.attempts):
        if n >= len(again):
            findings.append(_differs(number, f"/attempts/{n}", f"row {have.row} tried", "signal in a row before it"))
            break
        for g, (left, right) in enumerate(zip(have.responses, again[n].responses, strict=True)):
            if _content(left) != _content(right):
                pointer = f"/attempts/{n}/responses/{g}"
                findings.append(_differs(number, pointer, _words(right), _words(left)))
    return findings


def _content(response: DrawnResponse) -> tuple[tuple[int, ...], str, float]:
    return response.tokens, response.finish, response.reward


def _words(response: DrawnResponse) -> str:
    return f"{len(response.tokens)} tokens {list(response.tokens[:8])}, {response.finish}, reward {response.reward:g}"


def _differs(number: int, pointer: str, expected: str, actual: str) -> Finding:
    file = places.step_file(number)
    return found("replay.differs", file=file, pointer=pointer, expected=expected, actual=actual)
