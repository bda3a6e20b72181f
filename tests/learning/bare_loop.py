"""The steps of an online training without Ray, seals and verification, in one process, in any of three modes.

The rule: it draws as `mint2m online` draws (same rows, seeds and search) and updates with the same `Update`, so in mode
exact or detached its adapters are those of `mint2m online`, bit for bit. In mode conventional, which no profile can ask
for, each response runs over the whole sequence under plain autograd: the trajectory that exact must follow.
"""

from __future__ import annotations

import gc
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from task import RULE, SAMPLING, Mode, Task

from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.comm.groups import close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.local_ranks import free_port, run_ranks
from mint2m_trainer.online.search import Search, SearchRow, attempts_of
from mint2m_trainer.peft import write_adapter
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_trainer.update import Update
from mint2m_verify import phases
from mint2m_verify.documents import Rollout
from mint2m_verify.documents.training import Attempt, TrainingRow
from mint2m_verify.draws import response_seed
from mint2m_verify.training.rules import rows_to_try, step_profile

#: What each step drew: rows tried and the tokens of the group that was trained on.
DRAWS = "draws.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """One training: `folder` is new or holds its first steps."""

    folder: Path
    task: Task
    model: Path
    seed: int
    mode: Mode
    steps: int

    def adapter(self, step: int) -> Path:
        """What a step left."""
        return self.folder / f"{step:04d}" / "adapter"


def train(bare: Bare) -> None:
    """Make the steps that are not there yet."""
    bare.folder.mkdir(parents=True, exist_ok=True)
    run_ranks(_rank, bare, world_size=1, threads=1, folder=bare.folder)


def _rank(_rank: int, bare: Bare) -> None:
    rows, first = bare.task.training_rows(bare.seed), 0
    for step in range(bare.steps):
        draws = bare.folder / f"{step:04d}" / DRAWS
        if not draws.exists():
            begun = time.process_time()
            with told_as_rank_error(0, f"step-{step}"):
                attempts = _drawn(bare, rows, step, first)
                _updated(bare, rows, step, attempts[-1])
            kept = {
                "rows": [attempt.row for attempt in attempts],
                "tokens": [list(response.tokens) for response in attempts[-1].responses],
                "reward": sum(response.reward for response in attempts[-1].responses) / bare.task.group,
                "cpu_s": time.process_time() - begun,
            }
            draws.write_text(json.dumps(kept) + "\n")  # last: with it the step is there
            print(f"{bare.mode}, seed {bare.seed}, step {step}: {kept}", flush=True)
        first = (first + len(json.loads(draws.read_text())["rows"])) % len(rows)


def _before(bare: Bare, step: int) -> Path | None:
    return bare.adapter(step - 1) if step else None


def _drawn(bare: Bare, rows: tuple[TrainingRow, ...], step: int, first: int) -> list[Attempt]:
    profile = bare.task.profile(bare.seed, "detached" if bare.mode == "detached" else "exact")
    tried = []
    for attempt, number in enumerate(rows_to_try(first, bare.task.rows_per_step, len(rows))):
        seeds = (
            response_seed(bare.seed, step=step, attempt=attempt, response=response)
            for response in range(bare.task.group)
        )
        tried.append(
            SearchRow(
                row=number,
                prompt_tokens=tuple(rows[number].text.encode()),
                ground_truth=rows[number].ground_truth,
                seeds=tuple(seeds),
            )
        )
    wanted = Search(
        profile=profile,
        snapshot=bare.model,
        adapter=_before(bare, step),
        rows=tuple(tried),
        parameters=SAMPLING,
        reward_rule=RULE,
    )
    comm = open_comm(
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_port(),
        ledger=Ledger(),
        timeout_seconds=profile.timeouts_s.phase,
    )
    try:
        attempts = attempts_of(wanted, comm)
    finally:
        del comm
        gc.collect()  # or modules would keep groups alive; see `close_comm`
        close_comm()
    if not attempts[-1].signal:
        raise ValueError(f"none of {len(attempts)} rows has signal")
    return attempts


def _updated(bare: Bare, rows: tuple[TrainingRow, ...], step: int, attempt: Attempt) -> None:
    prompt = tuple(rows[attempt.row].text.encode())
    profile = step_profile(
        bare.task.profile(bare.seed, "detached" if bare.mode == "detached" else "exact"), len(prompt)
    )
    run_dir = bare.folder / f"{step:04d}"
    run_dir.mkdir()
    update = Update(
        RankInputs(
            rank=0,
            world_size=1,
            master_address="127.0.0.1",
            master_port=free_port(),
            run_dir=run_dir,
            snapshot=bare.model,
            adapter=_before(bare, step),
            profile=profile,
            rollout=Rollout(
                prompt_tokens=prompt,
                responses=tuple(response.tokens for response in attempt.responses),
                rewards=tuple(response.reward for response in attempt.responses),
                old_logprobs=tuple(response.logprobs for response in attempt.responses),
                ref_logprobs=None,
            ),
            plan_sha256=profile.sha256,  # there is no plan; the profile says what ran
            execution_id=secrets.token_hex(32),
            image_digest=None,
            baseline=bare.mode == "conventional",
        )
    )
    try:
        for phase in update.phases:
            if phase != phases.CHECKPOINT:  # three quarters of a small step, for what nobody reads here
                update.run(phase)
        adapter = update.policy.adapter_tensors("publish")
        write_adapter(run_dir / "adapter", adapter, profile.lora.rank, profile.lora.alpha)
    finally:
        update.close()
