"""torch's own record of collectives: which were begun on this rank and have not ended, the same with Gloo and NCCL.

The rule: the record is JSON, and bounded in entries and in bytes. torch can also write a pickle by itself when a
collective times out, into /tmp and unasked; that is turned off, for nobody here reads one. The ledger says which
collective a rank came to; where a device works on behind the host, as with NCCL, only this record says which of them
does not end.
"""

from __future__ import annotations

import os

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from mint2m_trainer import compat

#: Latest collectives that are remembered; about half a kilobyte each.
ENTRIES = 512

#: Of a record; a longer one is written without its collectives.
LIMIT_BYTES = 1 << 20


def prepare() -> None:
    """Bound the record and keep torch from writing its own; before the first group, and an operator's choice stands."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")


def recorded() -> bytes | None:
    """The record now, at most `LIMIT_BYTES`; None before a group is open. May be asked from another thread."""
    if not dist.is_initialized():
        return None
    # A build with NCCL has a function for what NCCL does, besides the one for everything else.
    name = f"_dump_{compat.backend()}_trace_json"
    dump = getattr(c10d, name, c10d._dump_fr_trace_json)
    raw = bytes(dump(includeCollectives=True, onlyActive=False))
    return raw if len(raw) <= LIMIT_BYTES else bytes(dump(includeCollectives=False, onlyActive=True))
