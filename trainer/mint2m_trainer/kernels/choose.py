"""Which kernels a device and dtype get: decided here, once, from nothing but the two and what is installed.

All choices keep the same rows, bit for bit, because the bits of a score are part of the interface; attention agrees
within float32 rounding. The choice is a matter of speed and never of data, so it cannot differ between two phases.

| device | dtype             | kernels                                      |
|--------|-------------------|----------------------------------------------|
| cpu    | float32, bfloat16 | compiled (numba); torch where numba is absent |
| cuda   | float32, bfloat16 | Triton; torch where Triton is absent          |
| any    | float64           | torch                                         |
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch

from mint2m_trainer.kernels.interface import KernelError, Kernels
from mint2m_trainer.kernels.reference import TorchKernels

_FAST = (torch.float32, torch.bfloat16)


def choose_kernels(device: torch.device, dtype: torch.dtype, query_tile: int) -> Kernels:
    """The kernels for tensors of `dtype` on `device`, working on `query_tile` queries at once.

    Raises:
        KernelError: a dtype or device that no kernels take.
    """
    if dtype not in (*_FAST, torch.float64):
        raise KernelError(f"no kernels for {dtype}")
    if device.type == "cpu":
        if dtype in _FAST and importlib.util.find_spec("numba") is not None:
            from mint2m_trainer.kernels.cpu import CpuKernels

            return CpuKernels(query_tile=query_tile)
        return TorchKernels(query_tile=query_tile)
    if device.type == "cuda":
        if dtype in _FAST and importlib.util.find_spec("triton") is not None:
            from mint2m_trainer.kernels.triton_gpu import TritonKernels

            return TritonKernels(query_tile=query_tile)
        return TorchKernels(query_tile=query_tile)
    raise KernelError(f"no kernels for device {device}")


def compile_cache(device: torch.device, dtype: torch.dtype) -> Path | None:
    """Where the code that `choose_kernels` compiles for these two is kept from one process to the next.

    None where nothing is compiled, or where every process compiles for itself.
    """
    if dtype not in _FAST:
        return None
    if device.type == "cpu" and importlib.util.find_spec("numba") is not None:
        from mint2m_trainer.kernels.compiled import FOLDER

        return FOLDER
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        given = os.environ.get("TRITON_CACHE_DIR")  # as Triton itself looks for it
        return Path(given) if given else Path.home() / ".triton" / "cache"
    return None
