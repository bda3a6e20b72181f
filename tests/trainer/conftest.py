"""Fixtures of the trainer's tests: tiny snapshots, one rank in this process, several in processes of their own."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mint2m_trainer.compat  # noqa: F401  # before any other import of megatron
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.model.init_tiny import init_tiny

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

#: A rank that waits for work: each line on stdin names a test file, one of its functions, and where to put the result.
_RANK = """
import gc, importlib.util, json, os, pickle, sys, traceback, warnings
warnings.filterwarnings("ignore")
import mint2m_trainer.compat
import torch
from mint2m_trainer.comm.groups import close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
rank, world = map(int, sys.argv[1:])
torch.set_num_threads(1)
for line in sys.stdin:
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
            comm = open_comm(rank=rank, world_size=world, master_address="127.0.0.1", master_port=work["port"],
                             ledger=Ledger(), timeout_seconds=60)
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
"""


class World:
    """Processes of one world size, kept between tests: what costs is importing torch and megatron, not a new world."""

    def __init__(self, size: int) -> None:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-c", _RANK, str(rank), str(size)], env=environment, stdin=subprocess.PIPE, text=True
            )
            for rank in range(size)
        ]

    def run(
        self, function: Callable[..., Any], arguments: tuple[object, ...], place: Path, port: int | None
    ) -> list[Any]:
        """What `function` returns on each rank, in rank order; the test fails where one fails, dies or hangs.

        It is called with the rank's `Comm` over `port` first, or, where `port` is None, with the rank.
        """
        given = place / "arguments"
        given.write_bytes(pickle.dumps(arguments))
        results = [place / f"result-{rank}" for rank in range(len(self._ranks))]
        for rank, result in zip(self._ranks, results, strict=True):
            result.unlink(missing_ok=True)
            work = {"file": sys.modules[function.__module__].__file__, "function": function.__name__, "port": port}
            print(json.dumps(work | {"arguments": str(given), "result": str(result)}), file=rank.stdin, flush=True)
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

    @property
    def alive(self) -> bool:
        """Whether all ranks wait for work or do it."""
        return all(rank.poll() is None for rank in self._ranks)

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.kill()
            rank.wait()


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
def worlds() -> Iterator[dict[int, World]]:
    """The worlds that tests have asked for so far, by size."""
    started: dict[int, World] = {}
    yield started
    for world in started.values():
        world.close()


@pytest.fixture
def ranks(tmp_path: Path, worlds: dict[int, World]) -> Callable[..., list[Any]]:
    """`ranks(function, world, *arguments)` runs a function of the test's own file on each rank of a new process group.

    The function is called with the rank's `Comm` first; what the ranks return comes back in rank order.
    """

    def run(function: Callable[..., Any], world: int, *arguments: object) -> list[Any]:
        return _world(worlds, world).run(function, arguments, tmp_path, _free_port())

    return run


@pytest.fixture
def processes(tmp_path: Path, worlds: dict[int, World]) -> Callable[..., list[Any]]:
    """As `ranks`, for what opens its own process group: the function is called with the rank first."""

    def run(function: Callable[..., Any], world: int, *arguments: object) -> list[Any]:
        return _world(worlds, world).run(function, arguments, tmp_path, None)

    return run


def _world(worlds: dict[int, World], size: int) -> World:
    if size not in worlds or not worlds[size].alive:
        worlds[size] = World(size)
    return worlds[size]


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port that was free a moment ago."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
