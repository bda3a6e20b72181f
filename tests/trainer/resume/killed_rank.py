"""One rank of an update in a process of its own: `python killed_rank.py RANK INPUTS PHASE TOKENS`.

INPUTS is a pickle of the test's own; rank 1 kills itself in PHASE once TOKENS are behind, as a machine that loses its
power would: no handler runs.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from mint2m_trainer.update import Update


def main() -> None:
    rank, given, phase, tokens = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    update = Update(replace(pickle.loads(given.read_bytes()), rank=rank))

    def progress(_label: str, done: int, _total: int) -> None:
        if rank == 1 and current == phase and done >= tokens:
            os.kill(os.getpid(), signal.SIGKILL)

    for current in update.phases:
        print(current, update.run(current, progress).evidence.resumed_chunks or 0, flush=True)
    update.close()


if __name__ == "__main__":
    main()
