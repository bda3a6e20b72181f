"""What a stage's rank is started with. A plain frozen value: Ray carries it between processes by pickle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.chain.places import PLACES
from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.validation import StageName, ValidationPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """Paths are the same on every node; `root` is the stage's work directory, `port` the rendezvous' where planned."""

    rank: int
    world_size: int
    stage: StageName
    root: Path
    plan: ValidationPlan
    plan_sha256: str
    execution_id: str
    snapshot: Path
    adapter: Path
    profile: RunProfile | None
    rollout: Rollout | None
    labels: tuple[str, ...]
    worker: str
    port: int | None

    @property
    def tree(self) -> Path:
        """Where the stage's raw artifacts are written."""
        return self.root / PLACES[self.stage].tree

    def own(self, name: str) -> str:
        """A file of the stage's tree, relative to `root`; its directory exists afterwards."""
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.relative_to(self.root).as_posix()
