"""What a finished step looks like to whoever watches: read from its sealed files, as they lie there.

The rule: the numbers are those of the evidence and of nothing else, so that a training that was resumed is drawn like
one that never stopped. They are shown and decide nothing; `mint2m verify training` computes its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout, phases
from mint2m_verify.documents.records import PhaseRecord, RankSessions, Scores
from mint2m_verify.documents.training import TrainingStep
from mint2m_verify.files import read_once
from mint2m_verify.times import parse_time
from mint2m_verify.training import places

#: Groups of phases, in the order in which they pass.
GROUPS = ("start", "score", "capture", "replay", "reverse", "step", "save")

_GROUP_OF: Mapping[str, str] = {
    phases.BIND: "start",
    phases.INITIALIZE: "start",
    phases.MATERIALIZE: "start",
    phases.SCORE_REFERENCE: "score",
    phases.SCORE_OLD: "score",
    phases.CAPTURE_PREFIX: "capture",
    phases.PREFIX_BACKWARD: "reverse",
    phases.FINALIZE: "step",
    phases.OPTIMIZER_STEP: "step",
    phases.CHECKPOINT: "save",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """One step.

    `reward` and `tokens` are means over the group that was trained on, `sampled` the mean reward of every group that
    was tried, `clipped` a share of the scored tokens. `seconds` are rank 0's by group of phases, `ended` is in seconds
    since 1970.
    """

    step: int
    row: int
    tried: int
    reward: float
    sampled: float
    tokens: float
    loss: float
    kl: float | None
    clipped: float
    gradient_norm: float
    seconds: tuple[float, ...]
    ended: float

    @property
    def total_seconds(self) -> float:
        """Of all phases together."""
        return math.fsum(self.seconds)


def read_numbers(root: Path, number: int) -> StepNumbers:
    """Of the sealed step `number` below `root`; raises `FindingError` (`file.*`, `json.*`, `schema.*`)."""
    step = TrainingStep.parse(read_once(root / places.step_file(number)), file=places.step_file(number))
    run = root / places.run_folder(number)
    scores = Scores.parse(read_once(run / layout.SCORES), file=layout.SCORES)
    records = RankSessions.parse(read_once(run / layout.RANK_SESSIONS), file=layout.RANK_SESSIONS).ranks[0].phases
    responses = step.attempts[-1].responses
    every = [response.reward for attempt in step.attempts for response in attempt.responses]
    return StepNumbers(
        step=number,
        row=step.attempts[-1].row,
        tried=len(step.attempts),
        reward=math.fsum(response.reward for response in responses) / len(responses),
        sampled=math.fsum(every) / len(every),
        tokens=sum(len(response.tokens) for response in responses) / len(responses),
        loss=scores.loss,
        kl=scores.kl,
        clipped=(scores.clipped_low + scores.clipped_high) / max(scores.scored_tokens, 1),
        gradient_norm=scores.gradient_norm,
        seconds=tuple(math.fsum(_lasted(record) for record in records if _group(record) == name) for name in GROUPS),
        ended=_moment(records[-1].ended_at),
    )


def _group(record: PhaseRecord) -> str:
    return "replay" if phases.response_of(record.phase) is not None else _GROUP_OF[record.phase]


def _lasted(record: PhaseRecord) -> float:
    return max(_moment(record.ended_at) - _moment(record.started_at), 0.0)


def _moment(text: str) -> float:
    time = parse_time(text)
    if time is None:
        raise ValueError(f"no time: {text}")  # the schema has refused it
    return time.timestamp()
