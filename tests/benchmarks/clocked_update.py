"""The real update with its evidence timed, for `bench_driver.py --real`; loaded by rank actors by name.

The rule: whatever an update does for its evidence alone is counted, and where a function serves evidence and product
alike (the adapter and the moments are both), all of it is: the share that comes out is an upper bound.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stopwatch import FOLDER, Stopwatch

import mint2m_trainer.update as real
from mint2m_trainer import evidence
from mint2m_trainer.cluster import rank_actor
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.prefix.store import PagedRowStore
from mint2m_trainer.update import RankInputs, Update
from mint2m_verify.file_hash import RunningDigests

__all__ = ["ClockedUpdate", "RankInputs"]

_WATCH = Stopwatch()
_WATCH.watch(evidence, "tensors_sha256", "weights_sha256", "peak_memory_bytes")
_WATCH.watch(real, "write_scores", "write_tensors", "write_adapter_copy", "observe")
_WATCH.watch(Ledger, "record", "summary")
_WATCH.watch(PagedRowStore, "chunk_leaves", "witness")
_WATCH.watch(RunningDigests, "update", "digests")
# After the backend has returned, so not inside its phase; `bench_driver.py` counts that by the driver's clock.
_WATCH.watch(rank_actor, "hash_written")

_witness = evidence.weights_witness


def _timed_witness(model: Any) -> Any:
    return _WATCH.timed("weights_witness", _witness(model))


evidence.weights_witness = _timed_witness


class ClockedUpdate(Update):
    """An update that says at its end what its evidence took."""

    def close(self) -> None:
        place = Path(os.environ[FOLDER]) / f"rank-{self._inputs.rank}.json"
        place.write_text(json.dumps(_WATCH.seconds))
        super().close()
