"""Ranks as processes of this machine, for work that leaves no record of its ranks: parity exports, sampling.

The rule: whatever a rank raises reaches the caller as one finding with the rank's own words, as from a Ray actor. The
first rank to stop knows why; the others may only have missed it in a collective.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.multiprocessing

from mint2m_trainer.cluster.messages import FINDING_IDS, RankError
from mint2m_verify.finding import FindingError, found

T = TypeVar("T")

#: What a rank that stops writes into the folder: the finding's id, the phase, and its own words.
_FAULT = "fault-"


def run_ranks(work: Callable[[int, T], None], given: T, *, world_size: int, threads: int, folder: Path) -> None:
    """Call `work(rank, given)` on each of `world_size` processes and wait for all.

    Args:
        work: a function of a module; what it raises should be a `RankError` (`told_as_rank_error`).
        threads: of each process.
        folder: where a rank that stops may leave its words.

    Raises:
        FindingError: `rank.*`.
    """
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it tells of each process that it ends
    try:
        torch.multiprocessing.spawn(_rank, args=(work, given, threads, folder), nprocs=world_size, join=True)
    except torch.multiprocessing.ProcessRaisedException as fault:
        told = sorted(folder.glob(f"{_FAULT}*"), key=lambda path: path.stat().st_mtime_ns)
        if not told:
            raise
        finding_id, stage, actual = told[0].read_text(encoding="utf-8").split("\n", 2)
        refused = FindingError(found(finding_id, stage=stage, actual=actual))
        refused.add_note(str(fault))
        raise refused from fault


def _rank(rank: int, work: Callable[[int, T], None], given: T, threads: int, folder: Path) -> None:
    if not torch.cuda.is_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(threads)
    try:
        work(rank, given)
    except RankError as fault:
        words = f"{FINDING_IDS[fault.cause]}\n{fault.phase}\nrank {rank}: {fault.kind}: {fault.text}"
        (folder / f"{_FAULT}{rank}").write_text(words, encoding="utf-8")
        raise


def free_port() -> int:
    """A port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
