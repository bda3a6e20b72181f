"""What one rank needs for an update, and that it is of one piece: the profile's numbers are those of the rollout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.inputs import Accumulation


class UpdateError(Exception):
    """A phase was asked for out of order, or after a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInputs:
    """What one rank needs. Paths are this machine's; `adapter` None starts a fresh one.

    `moments` is the file that the optimizer goes on from after `steps_before` steps; None is zero state. `accumulation`
    is the run's place in a step over several prompts, `gradient` the file that it goes on from in that step.

    `baseline` runs each response over the whole sequence instead of a resident prefix. It is for parity only: no
    profile can ask for it, and it has no phases of the prefix. `instruments` is a directory, there already, for what
    the instruments see from materialize to finalize; None watches nothing. `progress` is a folder outside the run
    directory where capture and reverse keep their work and go on from it; None keeps nothing.
    """

    rank: int
    world_size: int
    master_address: str
    master_port: int
    run_dir: Path
    snapshot: Path
    adapter: Path | None
    profile: RunProfile
    rollout: Rollout
    plan_sha256: str
    execution_id: str
    image_digest: str | None
    baseline: bool = False
    instruments: Path | None = None
    progress: Path | None = None
    moments: Path | None = None
    steps_before: int = 0
    accumulation: Accumulation | None = None
    gradient: Path | None = None

    def check(self) -> None:
        """Raises `UpdateError` where they contradict each other."""
        profile, rollout = self.profile, self.rollout
        topology = profile.topology
        for subject, planned, given in (
            ("world size", topology.world_size, self.world_size),
            ("context parallel", topology.context_parallel, self.world_size),
            ("expert parallel", topology.expert_parallel, self.world_size),
            ("tensor parallel", topology.tensor_parallel, 1),
            ("pipeline parallel", topology.pipeline_parallel, 1),
            ("prompt tokens", profile.context.prompt_tokens, len(rollout.prompt_tokens)),
            ("group size", profile.group_size, len(rollout.responses)),
        ):
            if planned != given:
                raise UpdateError(f"{subject}: the profile has {planned}, here it is {given}")
        if self.progress is not None and (self.baseline or self.instruments is not None):
            raise UpdateError("a baseline has no prefix to keep, and instruments must see every chunk of one execution")
        if (self.moments is None) != (self.steps_before == 0):
            raise UpdateError(f"moments after {self.steps_before} steps: {self.moments}")
        named = self.accumulation is not None and self.accumulation.gradient is not None
        if named != (self.gradient is not None):
            raise UpdateError(f"the gradient to go on from: {self.gradient}, in {self.accumulation}")
        longest = max(map(len, rollout.responses))
        if longest > profile.context.max_response_tokens:
            raise UpdateError(f"a response of {longest} tokens exceeds the profile's maximum")
