"""Fixtures of the trainer's tests: tiny snapshots, one rank in this process, several in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mint2m_trainer.compat  # noqa: F401  # before any other import of megatron
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update

sys.path.insert(0, str(Path(__file__).parent))
from update_kit import rank_inputs

#: A model that runs in milliseconds and still has every part: dense and sparse layers, full and shared indexers,
#: more rows than a query keeps.
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 8,
    "index_topk": 8,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "first_k_dense_replace": 1,
    "indexer_types": ["full", "shared", "full", "shared"],
    "max_position_embeddings": 512,
}

#: After so long a test's ranks are taken for hung; a machine that does much else needs more.
PATIENCE_S = float(os.environ.get("MINT2M_RANKS_PATIENCE_S", "180"))

#: As many as most tests of more than one rank take at most.
USUAL_RANKS = 4

#: Imports once what every rank needs, then forks the ranks: each line on a rank's pipe names a test file, one of its
#: functions, and where to put the result. Nothing may start a thread before the fork.
_NURSERY = """
import gc, importlib.util, json, os, pickle, signal, sys, traceback, warnings
warnings.filterwarnings("ignore")
import mint2m_trainer.compat
import torch
import mint2m_trainer.checkpoint, mint2m_trainer.update
from mint2m_trainer.comm import flight
from mint2m_trainer.comm.groups import close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.kernels import choose_kernels
torch.set_num_threads(1)
choose_kernels(torch.device("cpu"), torch.float32, 64)
flight.prepare()  # as a rank's own process does before its first group, which some tests open themselves

def serve(rank, pipe):
    for line in open(pipe):
        work = json.loads(line)
        spec = importlib.util.spec_from_file_location("rank_test", work["file"])
        module = importlib.util.module_from_spec(spec)
        sys.modules["rank_test"] = module
        try:
            spec.loader.exec_module(module)
            function = getattr(module, work["function"])
            with open(work["arguments"], "rb") as given:
                arguments = pickle.load(given)
            if work["port"] is None:
                value = function(rank, *arguments)
            else:
                comm = open_comm(rank=rank, world_size=work["world"], master_address="127.0.0.1",
                                 master_port=work["port"], ledger=Ledger(), timeout_seconds=60)
                try:
                    value = function(comm, *arguments)
                finally:
                    del comm  # or its group, and the group's threads, would stay until the next
                    gc.collect()
                    close_comm()
            result = (True, value)
        except Exception:
            result = (False, traceback.format_exc())
        with open(work["result"] + ".partial", "wb") as made:
            pickle.dump(result, made)
        os.rename(work["result"] + ".partial", work["result"])

pipes = list(map(int, sys.argv[1:]))
for rank, pipe in enumerate(pipes):
    if os.fork() == 0:
        serve(rank, pipe)
        os._exit(0)
for _ in pipes:
    if os.wait()[1] != 0:  # a rank that dies takes the others along
        os.killpg(0, signal.SIGKILL)
"""


class Nursery:
    """Rank processes, kept between tests: what costs is importing torch and megatron, so all fork from one that did.

    A world of n ranks is the first n of them.
    """

    def __init__(self, size: int) -> None:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        pipes = [os.pipe() for _ in range(size)]
        reading = [reader for reader, _ in pipes]
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _NURSERY, *map(str, reading)],
            env=environment,
            pass_fds=reading,
            start_new_session=True,
        )
        for reader in reading:
            os.close(reader)
        self._ranks = [os.fdopen(writer, "w") for _, writer in pipes]

    def run(
        self, function: Callable[..., Any], world: int, arguments: tuple[object, ...], place: Path, port: int | None
    ) -> list[Any]:
        """What `function` returns on each rank, in rank order; the test fails where one fails, dies or hangs.

        It is called with the rank's `Comm` over `port` first, or, where `port` is None, with the rank.
        """
        given = place / "arguments"
        given.write_bytes(pickle.dumps(arguments))
        results = [place / f"result-{rank}" for rank in range(world)]
        work = {"file": sys.modules[function.__module__].__file__, "function": function.__name__, "port": port}
        for result in results:
            result.unlink(missing_ok=True)
        for rank, result in zip(self._ranks[:world], results, strict=True):
            line = work | {"world": world, "arguments": str(given), "result": str(result)}
            print(json.dumps(line), file=rank, flush=True)
        deadline, outcomes = time.monotonic() + PATIENCE_S, {}
        while len(outcomes) < len(results):
            for rank, result in enumerate(results):
                if rank not in outcomes and result.exists():
                    outcomes[rank] = pickle.loads(result.read_bytes())
                    if not outcomes[rank][0]:  # the others may wait for one that failed
                        deadline = min(deadline, time.monotonic() + 10)
            if time.monotonic() > deadline or not self.alive:
                break
            time.sleep(0.01)
        failed = [value for good, value in outcomes.values() if not good]
        if failed or len(outcomes) < len(results):
            self.close()  # what a failed test left behind must not meet the next one
            pytest.fail("\n".join(["a rank failed:", *failed]) if failed else "a rank died or hangs")
        return [outcomes[rank][1] for rank in range(len(results))]

    def holds(self, world: int) -> bool:
        """Whether so many ranks wait for work."""
        return self.alive and world <= len(self._ranks)

    @property
    def alive(self) -> bool:
        """Whether all ranks wait for work or do it."""
        return self._parent.poll() is None

    def close(self) -> None:
        """End the processes: those that wait for work end by themselves."""
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.close()
        try:
            self._parent.wait(timeout=1)
        except subprocess.TimeoutExpired:
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of `SMALL`."""
    place = tmp_path_factory.mktemp("small") / "snapshot"
    init_tiny(place, 11, SMALL)
    return place


@pytest.fixture
def small_config() -> dict[str, Any]:
    """What `small_snapshot` was made from, to change."""
    return dict(SMALL)


@pytest.fixture
def single() -> Iterator[Comm]:
    """A world of one rank in this process."""
    comm = open_comm(
        rank=0, world_size=1, master_address="127.0.0.1", master_port=_free_port(), ledger=Ledger(), timeout_seconds=60
    )
    try:
        yield comm
    finally:
        close_comm()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Callable[[int], Nursery]]:
    """`nursery(n)` has at least n ranks; it is the same one for all tests until a test fails on it."""
    started: list[Nursery] = []

    def of(world: int) -> Nursery:
        if not started or not started[-1].holds(world):
            for other in started:
                other.close()
            started[:] = [Nursery(max(world, USUAL_RANKS))]
        return started[-1]

    yield of
    for last in started:
        last.close()


@pytest.fixture
def ranks(tmp_path: Path, nursery: Callable[[int], Nursery]) -> Callable[..., list[Any]]:
    """`ranks(function, world, *arguments)` runs a function of the test's own file on each rank of a new process group.

    The function is called with the rank's `Comm` first; what the ranks return comes back in rank order.
    """

    def run(function: Callable[..., Any], world: int, *arguments: object) -> list[Any]:
        return nursery(world).run(function, world, arguments, tmp_path, _free_port())

    return run


@pytest.fixture
def processes(tmp_path: Path, nursery: Callable[[int], Nursery]) -> Callable[..., list[Any]]:
    """As `ranks`, for what opens its own process group: the function is called with the rank first."""

    def run(function: Callable[..., Any], world: int, *arguments: object) -> list[Any]:
        return nursery(world).run(function, world, arguments, tmp_path, None)

    return run


def every_phase(rank: int, inputs: RankInputs) -> dict[str, PhaseOutcome]:
    """All phases of an update on one of its ranks."""
    update = Update(replace(inputs, rank=rank))
    try:
        return {phase: update.run(phase) for phase in update.phases}
    finally:
        update.close()


@pytest.fixture
def updated(processes: Callable[..., list[Any]]) -> Callable[[RankInputs], list[dict[str, PhaseOutcome]]]:
    """`updated(inputs)` runs a whole update on as many ranks as its world has, and returns each rank's outcomes.

    What `run_local` does on processes that it starts, here on those that are there.
    """

    def run(inputs: RankInputs) -> list[dict[str, PhaseOutcome]]:
        return processes(every_phase, inputs.world_size, inputs)

    return run


@pytest.fixture
def inputs(tmp_path: Path, small_snapshot: Path) -> Callable[..., RankInputs]:
    """A rank's inputs of the small update in a world of one, with the given members changed."""

    def make(**change: Any) -> RankInputs:
        return rank_inputs(change.pop("run_dir", tmp_path / "run"), small_snapshot, _free_port(), **change)

    return make


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port that was free a moment ago."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
