"""Several tensors of one length in one collective: their rows side by side, as bytes.

A layer of a small model spends more time on starting collectives than on their payload, so what travels together is
packed together. No value is converted on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mint2m_trainer.comm.collectives import collect_rows, send_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag


def collect_packed(
    parts: Sequence[Tensor], counts: Sequence[int], comm: Comm, tag: Tag, name: str
) -> tuple[Tensor, ...]:
    """`collect_rows` of each of `parts` [n, ...], in one collective."""
    if comm.size == 1:
        collect_rows(parts[0], counts, comm, tag, name)  # for the ledger; nothing moves
        return tuple(part[: counts[0]] for part in parts)
    return _unpacked(collect_rows(_packed(parts), counts, comm, tag, name), parts)


def send_packed(
    parts: Sequence[Tensor], *, received: Sequence[int], sent: Sequence[int], comm: Comm, tag: Tag, name: str
) -> tuple[Tensor, ...]:
    """`send_rows` of each of `parts` [n, ...], in one collective."""
    packed = send_rows(_packed(parts), received=received, sent=sent, comm=comm, tag=tag, name=name)
    return _unpacked(packed, parts)


def _packed(parts: Sequence[Tensor]) -> Tensor:
    """[n, bytes] uint8."""
    return torch.cat([p.contiguous().view(p.shape[0], math.prod(p.shape[1:])).view(torch.uint8) for p in parts], dim=1)


def _unpacked(packed: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    # A copy even where the slice is contiguous: one row's bytes may begin where no wider type may.
    widths = [math.prod(part.shape[1:]) * part.element_size() for part in like]
    return tuple(
        raw.clone(memory_format=torch.contiguous_format).view(part.dtype).view(packed.shape[0], *part.shape[1:])
        for raw, part in zip(packed.split(widths, dim=1), like, strict=True)
    )
