"""The search of one step: rows in order until each prompt has a group with signal, drawn from pages of its own.

The rule: every rank knows every response and computes the rewards for itself, so all come to the same end without
asking. The policy's digests are taken when the pages were captured and again when the last token was drawn: a policy
that changed under its own pages would leave rollouts that nobody could have drawn.
"""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from mint2m_trainer import compat, evidence
from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger, Tag
from mint2m_trainer.kernels import choose_kernels
from mint2m_trainer.local_ranks import free_port, run_ranks
from mint2m_trainer.model.policy import Policy, materialize
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.session import Session
from mint2m_trainer.profiled import layout_of, policy_source, store_of
from mint2m_trainer.sampling.decode import Sampled, SamplingError
from mint2m_verify.canonical import canonical, parse
from mint2m_verify.documents import RunProfile
from mint2m_verify.documents.base import decode, encode
from mint2m_verify.documents.sampling import SamplingParameters
from mint2m_verify.documents.training import Attempt, DrawnResponse
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.rewards import response_text, reward
from mint2m_verify.training.rules import has_signal

#: Threads of each rank: those that a run's actors have, or a page could differ from the run's in its last bit.
_THREADS = 1

_RESULT = "attempts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """A row to try: its number, what the policy is given, the right answer, and the seed of each response."""

    row: int
    prompt_tokens: tuple[int, ...]
    ground_truth: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One step's search; `adapter` None starts a fresh one from the profile's seed.

    It ends with the group of the last of `prompts` that has signal, or where a prompt found none in `rows_each` rows;
    None bounds nothing.
    """

    profile: RunProfile
    snapshot: Path
    adapter: Path | None
    rows: tuple[SearchRow, ...]
    parameters: SamplingParameters
    reward_rule: str
    prompts: int = 1
    rows_each: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    search: Search
    folder: Path
    port: int


def search(wanted: Search) -> tuple[Attempt, ...]:
    """The attempts up to the last that was looked for, or all of them; runs on processes of this machine.

    Raises:
        FindingError: `rank.*`.
    """
    with tempfile.TemporaryDirectory(prefix="mint2m-search-") as folder:
        task = _Task(search=wanted, folder=Path(folder), port=free_port())
        world = wanted.profile.topology.world_size
        run_ranks(_rank, task, world_size=world, threads=_THREADS, folder=task.folder)
        value = parse(read_once(task.folder / _RESULT), file=_RESULT)
    if not isinstance(value, list):
        raise TypeError("attempts are a list")
    return tuple(decode(Attempt, item) for item in value)


def _rank(rank: int, task: _Task) -> None:
    profile = task.search.profile
    with told_as_rank_error(rank, "sample"):
        comm = open_comm(
            rank=rank,
            world_size=profile.topology.world_size,
            master_address="127.0.0.1",
            master_port=task.port,
            ledger=Ledger(),
            timeout_seconds=profile.timeouts_s.phase,
        )
        try:
            attempts = attempts_of(task.search, comm)
            if rank == 0:
                write_atomic(task.folder / _RESULT, canonical([encode(attempt) for attempt in attempts]))
        finally:
            del comm
            gc.collect()  # or modules would keep groups alive; see `close_comm`
            close_comm()


def attempts_of(wanted: Search, comm: Comm) -> list[Attempt]:
    """`search`, on this rank of an open group."""
    source = policy_source(wanted.profile, snapshot=wanted.snapshot, adapter=wanted.adapter)
    policy = materialize(source, comm)
    attempts: list[Attempt] = []
    groups = tried = 0  # with signal, and rows since the last of them
    for row in wanted.rows:
        attempts.append(_attempt(wanted, row, policy, comm))
        comm.agree(f"row-{row.row}")
        groups, tried = (groups + 1, 0) if attempts[-1].signal else (groups, tried + 1)
        if groups == wanted.prompts or tried == wanted.rows_each:
            break
    return attempts


def _attempt(wanted: Search, row: SearchRow, policy: Policy, comm: Comm) -> Attempt:
    session = _session(wanted.profile, row, policy, comm)
    try:
        before = _weights(policy, comm), evidence.tensors_sha256(policy.adapter_tensors("sample"))
        session.capture()
        drawn = session.sample(wanted.parameters, row.seeds)
        after = _weights(policy, comm), evidence.tensors_sha256(policy.adapter_tensors("sample"))
        pages = session.pages_sha256()
    finally:
        session.close()
    if before != after:
        raise SamplingError("the policy changed while responses were drawn")
    responses = tuple(_rewarded(one, wanted.reward_rule, row.ground_truth) for one in drawn)
    return Attempt(
        row=row.row,
        pages_sha256=pages,
        pages_adapter_sha256=before[1],
        adapter_sha256=after[1],
        weights_sha256=after[0],
        responses=responses,
        signal=has_signal([response.reward for response in responses]),
    )


def _session(profile: RunProfile, row: SearchRow, policy: Policy, comm: Comm) -> Session:
    return Session(
        model=policy.wrapped,
        inner=policy.inner,
        comm=comm,
        kernels=choose_kernels(compat.device(), policy.inner.dtype, profile.memory.query_tile),
        layout=layout_of(profile, comm),
        store=store_of(profile, policy.inner),
        decisions=Decisions("rescore"),  # nothing is reversed, so nothing need be kept
        mode="detached",
        prompt=torch.tensor(row.prompt_tokens, dtype=torch.int64, device=compat.device()),
        responses=(),
        weights=evidence.weights_witness(policy.inner),
        label="sampler",
    )


def _weights(policy: Policy, comm: Comm) -> tuple[str, ...]:
    """The digest of each rank's base weights, on every rank."""
    mine = evidence.weights_sha256(policy.inner)
    every = [""] * comm.size
    comm.ledger.record(Tag(phase="sample"), "weights.gather", len(mine))
    dist.all_gather_object(every, mine, group=comm.group)
    return tuple(every)


def _rewarded(drawn: Sampled, rule: str, ground_truth: str) -> DrawnResponse:
    return DrawnResponse(
        seed=drawn.seed,
        tokens=drawn.tokens,
        logprobs=tuple(value + 0.0 for value in drawn.logp),  # JSON has no negative zero
        finish=drawn.finish,
        reward=reward(rule, response_text(drawn.tokens), ground_truth),
    )
