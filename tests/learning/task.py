"""What the learning runs share: rows of watch logs, the profile, and the files of one online training.

The rule: a held-out row is a log whose seed no training row has, and its answer is in its own prompt only. The answers
are even over ten codes, so a policy that does not read earns a mean reward of -0.8 at best.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mint2m_trainer import deployments
from mint2m_trainer.contract.fixture import GENERATED
from mint2m_trainer.contract.watch_log import QUESTION, watch_log
from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.documents.inputs import ModelSource, PinnedFile, RunProfile
from mint2m_verify.documents.sampling import SamplingParameters
from mint2m_verify.documents.training import OnlineDeployment, TrainingRow
from mint2m_verify.signing import new_key_pair
from mint2m_verify.tree import manifest

Mode = Literal["exact", "detached", "conventional"]

RULE = "exact-match/v1"
SAMPLING = SamplingParameters(temperature=1.0, top_p=1.0, top_k=None, stop_tokens=(), max_tokens=1)

#: Logs of a training begin at a multiple of this by its seed; held-out logs lie beyond all of them.
_APART = 1000
HELD_OUT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One setting of the experiment; a training adds its seed."""

    prompt_tokens: int = 4096
    group: int = 16
    lr: float = 0.2
    rank: int = 16
    rows: int = 64
    rows_per_step: int = 8

    def row(self, seed: int) -> TrainingRow:
        """A log as a row of a dataset."""
        log = watch_log(seed, tokens=self.prompt_tokens)
        return TrainingRow(prompt=log.text, question=QUESTION, ground_truth=log.code)

    def training_rows(self, seed: int) -> tuple[TrainingRow, ...]:
        """The rows of the training with this seed."""
        return tuple(self.row(_APART * seed + number) for number in range(self.rows))

    def held_out(self, count: int) -> tuple[TrainingRow, ...]:
        """Rows that no training has."""
        return tuple(self.row(HELD_OUT + number) for number in range(count))

    def profile(self, seed: int, gradient: Literal["exact", "detached"]) -> RunProfile:
        """One rank, a small adapter, and an epsilon of 1, far above the gradient of most weights.

        Each step's Adam is fresh, so that its step is lr g / (|g| + eps): with a small epsilon it would move every
        weight by lr, whatever its gradient, and what a single row says of its own code would drown the rest.
        """
        given = deployments.packaged_profile(deployments.PACKAGED["local-8k-1"])
        return replace(
            given,
            name="learning",
            context=replace(given.context, prompt_tokens=self.prompt_tokens, max_response_tokens=1),
            group_size=self.group,
            lora=replace(
                given.lora, rank=self.rank, alpha=2.0 * self.rank, families=("attention", "unembed"), seed=seed
            ),
            optimizer=replace(given.optimizer, lr=self.lr, eps=1.0, weight_decay=0.0),
            grpo=replace(given.grpo, old_source="rollout"),
            prefix=replace(given.prefix, gradient=gradient),
        )


def write_site(folder: Path, task: Task, model: Path, seed: int, gradient: Literal["exact", "detached"]) -> Path:
    """What the operator of a training has; the deployment file."""
    folder.mkdir(parents=True)
    profile = task.profile(seed, gradient)
    (folder / "profile.json").write_bytes(profile.encode())
    dataset = b"".join(canonical(row.value()) + b"\n" for row in task.training_rows(seed))
    (folder / "dataset.jsonl").write_bytes(dataset)
    key, _ = new_key_pair(str(folder / "training"), "ed25519")
    deployment = OnlineDeployment(
        name=f"learning-{seed}",
        seed=seed,
        hardware_class="reference-cpu",
        ranks_on_this_machine=1,
        model=ModelSource(
            snapshot=str(model.resolve()),
            revision="pretrained",
            model_manifest_sha256=manifest("model", model, "model").sha256,
        ),
        adapter=None,
        profile=PinnedFile(path="profile.json", sha256=profile.sha256),
        dataset=PinnedFile(path="dataset.jsonl", sha256=sha256_hex(dataset)),
        reward_rule=RULE,
        sampling=SAMPLING,
        rows_per_step=task.rows_per_step,
        logprob_bound=1e-4,
        distribution=GENERATED,
        signing_key=key.name,
    )
    path = folder / "online.json"
    path.write_text(json.dumps(deployment.value(), indent=2) + "\n", encoding="utf-8")
    return path
