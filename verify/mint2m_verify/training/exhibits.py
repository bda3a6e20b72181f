"""What a report shows of a training: one row a step, and the mean rewards as bars.

The numbers are those of each step's files, drawn as they stand there; that they follow from anything is said by the
report's own rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mint2m_verify.exhibits import Exhibit, Measure, Measures, Table
from mint2m_verify.finding import Requirement
from mint2m_verify.run_exhibits import timeline_of
from mint2m_verify.sums import total
from mint2m_verify.training.reading import ReadStep, StepRun

#: A requirement of one step.
_OF_STEP = re.compile(r"step [0-9]+(?P<prompt>, prompt [0-9]+)?: (.+)")

_HEADS = ("step", "row", "tried", "mean reward", "tokens", "loss", "KL", "clipped", "gradient norm", "update, s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """A step's numbers; `reward` and `tokens` are means over the groups that were trained on, `rows` are theirs.

    `loss` is the sum of its prompts' shares.
    """

    number: int
    rows: tuple[int, ...]
    tried: int
    reward: float
    tokens: float
    loss: float
    kl: float | None
    clipped: float
    gradient_norm: float
    seconds: float


def shown_step(step: ReadStep, runs: Sequence[StepRun]) -> ShownStep:
    """The numbers of one step, from its file and its runs' scores and rank records."""
    groups, scores = step.document.groups, [run.scores for run in runs]
    responses = [response for group in groups for response in group.responses]
    scored = max(sum(one.scored_tokens for one in scores), 1)
    drifts = [one.kl * one.scored_tokens for one in scores if one.kl is not None]
    return ShownStep(
        number=step.number,
        rows=tuple(group.row for group in groups),
        tried=len(step.document.attempts),
        reward=total(response.reward for response in responses) / len(responses),
        tokens=sum(len(response.tokens) for response in responses) / len(responses),
        loss=total(one.loss for one in scores),
        kl=total(drifts) / scored if drifts else None,
        clipped=sum(one.clipped_low + one.clipped_high for one in scores) / scored,
        gradient_norm=scores[-1].gradient_norm,  # of the sum over prompts
        seconds=total(timeline_of(run.sessions).seconds for run in runs),
    )


def training_exhibits(steps: Sequence[ShownStep], requirements: Sequence[Requirement]) -> tuple[Exhibit, ...]:
    """What was required, the steps side by side, and their mean rewards; nothing where no step could be read."""
    if not steps:
        return ()
    required = Table(title="Requirements", heads=("required", "found", "standing"), rows=_grouped(requirements))
    lowest = min(step.reward for step in steps)
    table = Table(
        title="Steps", heads=_HEADS, rows=tuple(step_cells(step.number, step, step.seconds) for step in steps)
    )
    rewards = Measures(
        title="Mean reward by step",
        note=f"above the lowest, {lowest:+.3f}; of the groups that were trained on",
        rows=tuple(
            Measure(label=f"step {step.number}", value=step.reward - lowest, shown=f"{step.reward:+.3f}")
            for step in steps
        ),
    )
    return (required, table, rewards)


def _grouped(requirements: Sequence[Requirement]) -> tuple[tuple[str, ...], ...]:
    """The rows, those of all steps that ask the same as one: how many steps, and every standing that occurs."""
    of_steps: dict[str, list[Requirement]] = {}
    for row in requirements:
        match = _OF_STEP.fullmatch(row.required)
        whose = "each step" if match is None or match["prompt"] is None else "each prompt"
        of_steps.setdefault(row.required if match is None else f"{whose}: {match[2]}", []).append(row)
    return tuple(
        (
            name,
            rows[0].found if len(rows) == 1 else f"{len(rows)} {'prompts' if name.startswith('each p') else 'steps'}",
            ", ".join(dict.fromkeys(row.standing.value for row in rows)),
        )
        for name, rows in of_steps.items()
    )


class StepFigures(Protocol):
    """The numbers of a step as every table shows them."""

    @property
    def rows(self) -> tuple[int, ...]: ...
    @property
    def tried(self) -> int: ...
    @property
    def reward(self) -> float: ...
    @property
    def tokens(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def kl(self) -> float | None: ...
    @property
    def clipped(self) -> float: ...
    @property
    def gradient_norm(self) -> float: ...


def step_cells(number: int, step: StepFigures, *seconds: float) -> tuple[str, ...]:
    """A table's row: the step's number, its numbers, and the seconds that parts of it took."""
    return (
        str(number),
        ", ".join(map(str, step.rows)),
        str(step.tried),
        f"{step.reward:+.3f}",
        f"{step.tokens:.1f}",
        f"{step.loss:.5f}",
        "none" if step.kl is None else f"{step.kl:.2e}",
        f"{step.clipped:.1%}",
        f"{step.gradient_norm:.4g}",
        *(f"{value:.1f}" for value in seconds),
    )
