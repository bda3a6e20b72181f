"""Fixtures of the trainer's tests: tiny snapshots, one rank in this process, several in processes of their own."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
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

#: Loads a test file by path and calls one of its functions as a rank of a world.
_RANK = """
import importlib.util, pickle, sys, warnings
warnings.filterwarnings("ignore")
import mint2m_trainer.compat
import torch
from mint2m_trainer.comm.groups import close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
file, function, rank, world, port, arguments, result = sys.argv[1:]
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("rank_test", file)
module = importlib.util.module_from_spec(spec)
sys.modules["rank_test"] = module
spec.loader.exec_module(module)
comm = open_comm(rank=int(rank), world_size=int(world), master_address="127.0.0.1", master_port=int(port),
                 ledger=Ledger(), timeout_seconds=60)
try:
    with open(arguments, "rb") as given:
        value = getattr(module, function)(comm, *pickle.load(given))
    with open(result, "wb") as made:
        pickle.dump(value, made)
finally:
    close_comm()
"""


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


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """`ranks(function, world, *arguments)` runs a function of the test's own file on each rank of a new world.

    The function is called with the rank's `Comm` first; what the ranks return comes back in rank order.
    """

    def run(function: Callable[..., Any], world: int, *arguments: object) -> list[Any]:
        file, port = sys.modules[function.__module__].__file__, _free_port()
        given = tmp_path / "arguments"
        given.write_bytes(pickle.dumps(arguments))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        children = []
        for rank in range(world):
            words = [file, function.__name__, rank, world, port, given, tmp_path / f"result-{rank}"]
            command = [sys.executable, "-c", _RANK, *map(str, words)]
            children.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        try:
            said = [child.communicate(timeout=120)[0] for child in children]
        finally:
            for child in children:
                child.kill()
        failed = [text for child, text in zip(children, said, strict=True) if child.returncode]
        if failed:
            pytest.fail("a rank failed:\n" + "\n".join(failed))
        return [pickle.loads((tmp_path / f"result-{rank}").read_bytes()) for rank in range(world)]

    return run


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port that was free a moment ago."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
