"""How `dist_checkpointing.save` writes a rank's parts: in this process, hashed as they pass.

Megatron forks a process for each part, so that a save may go on beside the training, and collects what they report in
one more, which imports torch again and outlives a rank that is killed. An update ends with its checkpoint: nothing goes
on beside it. Written here, the bytes are hashed on their way to the disk, so that what is signed is what the rank
meant to write, and nobody reads it back to say so.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.filesystem import SerializationFormat, _StorageWriterTransforms, _write_item

from mint2m_verify.elsewhere import HashedElsewhere, Listed
from mint2m_verify.file_hash import RunningDigests


class HashingFile(io.BufferedWriter):
    """A new file, written from its beginning to its end, that hashes what passes.

    Attributes:
        hashed: once closed, what was written, under the file's own name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"))
        self._path, self._running = path, RunningDigests()
        self.hashed: HashedElsewhere | None = None

    def write(self, raw: Any) -> int:
        """All of `raw`, or it raises."""
        count = super().write(raw)
        self._running.update(raw)
        return count

    def seek(self, *_where: int) -> int:
        """Refused: what is hashed in order is written in order."""
        raise io.UnsupportedOperation(f"{self._path.name} is written from its beginning to its end")

    def close(self) -> None:
        """Syncs the file; a second call changes nothing."""
        try:
            if not self.closed:
                self.flush()
                os.fsync(self.fileno())
                self.hashed = self._told(os.fstat(self.fileno()))
        finally:
            super().close()

    def _told(self, status: os.stat_result) -> HashedElsewhere:
        digests = self._running.digests()
        if status.st_size != digests.size:
            raise OSError(f"{self._path.name} has {status.st_size} bytes, and {digests.size} were written")
        file = Listed(path=self._path.name, size=status.st_size, modified_ns=status.st_mtime_ns)
        return HashedElsewhere(file=file, digests=digests)


class HashingStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's torch_dist format, one part a rank, for one save.

    Attributes:
        hashed: after the save, the parts of this rank.
        fault: why this rank could not write them; megatron tells it to rank 0 alone.
    """

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=1)
        self.hashed: tuple[HashedElsewhere, ...] = ()
        self.fault: Exception | None = None

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> AsyncRequest:
        """What megatron's own `save` asks for and then executes."""
        filesystem_async._results_queue = SimpleQueue()  # in place of a queue in a process of its own
        try:
            request = super().async_save(sharded_state_dict, checkpoint_dir)
        finally:
            filesystem_async._results_queue = None
        return request if request.async_fn is None else request._replace(async_fn=self._write)

    def _write(self, _rank: int, parts: Sequence[Any], results: SimpleQueue[Any]) -> None:
        """A fault is told as a result: the other ranks wait in a barrier until all have told theirs."""
        try:
            results.put({index: self._written(part) for index, part in enumerate(parts)})
        except (OSError, RuntimeError) as fault:
            self.fault = fault
            results.put(fault)

    def _written(self, part: Any) -> list[Any]:
        path, name, (objects, tensors) = part
        plain = _StorageWriterTransforms()
        with HashingFile(Path(path)) as stream:
            told = [
                _write_item(plain, stream, data, item, name, serialization_format=SerializationFormat.TORCH_SAVE)
                for item, data in (*objects, *tensors)
            ]
        if stream.hashed is not None:
            self.hashed = (*self.hashed, stream.hashed)
        return told
