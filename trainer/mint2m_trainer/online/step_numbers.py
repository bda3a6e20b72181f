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

    `rows`, `reward` and `tokens` are of the groups that were trained on, one a prompt, the latter as means over all
    their responses; `sampled` is the mean reward of every group that was tried, `clipped` a share of the scored tokens.
    `loss` is the sum of the prompts' shares. `seconds` are rank 0's by group of phases, `ended` is in seconds since
    1970.
    """

    step: int
    rows: tuple[int, ...]
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
    prompts = len(step.groups)
    runs = [root / places.prompt_folder(number, index, prompts) for index in range(prompts)]
    scores = [Scores.parse(read_once(run / layout.SCORES), file=layout.SCORES) for run in runs]
    sessions = [RankSessions.parse(read_once(run / layout.RANK_SESSIONS), file=layout.RANK_SESSIONS) for run in runs]
    records = [record for session in sessions for record in session.ranks[0].phases]
    responses = [response for group in step.groups for response in group.responses]
    tokens = sum(one.scored_tokens for one in scores)
    drifts = [one.kl * one.scored_tokens for one in scores if one.kl is not None]
    every = [response.reward for attempt in step.attempts for response in attempt.responses]
    return StepNumbers(
        step=number,
        rows=tuple(group.row for group in step.groups),
        tried=len(step.attempts),
        reward=math.fsum(response.reward for response in responses) / len(responses),
        sampled=math.fsum(every) / len(every),
        tokens=sum(len(response.tokens) for response in responses) / len(responses),
        loss=math.fsum(one.loss for one in scores),
        kl=math.fsum(drifts) / max(tokens, 1) if drifts else None,
        clipped=sum(one.clipped_low + one.clipped_high for one in scores) / max(tokens, 1),
        gradient_norm=scores[-1].gradient_norm,  # of the sum over prompts
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
