"""The expected reward of adapters on rows that no training has, without the noise of draws.

A response is one token and earns 1 where it is the row's code, -1 otherwise. So the mean reward of infinitely many
draws at temperature 1 is 2 p - 1, p the policy's probability of the code, which the trainer's own scoring gives.
"""

from __future__ import annotations

import gc
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mint2m_trainer import compat, evidence
from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.kernels import choose_kernels
from mint2m_trainer.local_ranks import free_port, run_ranks
from mint2m_trainer.model.policy import Policy, materialize
from mint2m_trainer.peft import read_adapter
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.session import Session
from mint2m_trainer.profiled import layout_of, policy_source, store_of
from mint2m_verify.documents.inputs import RunProfile
from mint2m_verify.documents.training import TrainingRow

_RESULT = "held-out.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    profile: RunProfile
    model: Path
    adapters: tuple[Path | None, ...]
    rows: tuple[TrainingRow, ...]
    folder: Path
    port: int


def expected_rewards(
    profile: RunProfile, model: Path, adapters: Sequence[Path | None], rows: Sequence[TrainingRow]
) -> tuple[tuple[float, ...], ...]:
    """For each adapter, None a fresh one, the expected reward of each row."""
    with tempfile.TemporaryDirectory(prefix="mint2m-held-out-") as folder:
        given = _Given(
            profile=profile,
            model=model,
            adapters=tuple(adapters),
            rows=tuple(rows),
            folder=Path(folder),
            port=free_port(),
        )
        run_ranks(_rank, given, world_size=1, threads=1, folder=given.folder)
        return tuple(tuple(row) for row in json.loads((given.folder / _RESULT).read_text()))


def _rank(rank: int, given: _Given) -> None:
    with told_as_rank_error(rank, "score"):
        comm = open_comm(
            rank=rank,
            world_size=1,
            master_address="127.0.0.1",
            master_port=given.port,
            ledger=Ledger(),
            timeout_seconds=given.profile.timeouts_s.phase,
        )
        try:
            (given.folder / _RESULT).write_text(json.dumps(_scores(given, comm)))
        finally:
            del comm
            gc.collect()  # or modules would keep groups alive; see `close_comm`
            close_comm()


def _scores(given: _Given, comm: Comm) -> list[list[float]]:
    policy = materialize(policy_source(given.profile, snapshot=given.model, adapter=None), comm)
    rewards = []
    for adapter in given.adapters:
        if adapter is None:
            if rewards:
                raise ValueError("a fresh adapter comes first")
        else:
            _put(policy, adapter)
        rewards.append([2 * math.exp(_logp(given.profile, policy, row, comm)) - 1 for row in given.rows])
    return rewards


@torch.no_grad()
def _put(policy: Policy, adapter: Path) -> None:
    tensors = read_adapter(adapter).tensors
    for name, parameter in policy.trainable():
        parameter.copy_(tensors[name])


def _logp(profile: RunProfile, policy: Policy, row: TrainingRow, comm: Comm) -> float:
    session = Session(
        model=policy.wrapped,
        inner=policy.inner,
        comm=comm,
        kernels=choose_kernels(compat.device(), policy.inner.dtype, profile.memory.query_tile),
        layout=layout_of(profile, comm),
        store=store_of(profile, policy.inner),
        decisions=Decisions("rescore"),
        mode="detached",
        prompt=torch.tensor(list(row.text.encode()), dtype=torch.int64),
        responses=[torch.tensor([ord(row.ground_truth)])],
        weights=evidence.weights_witness(policy.inner),
    )
    try:
        session.capture()
        return float(session.score(0).sum())
    finally:
        session.close()
