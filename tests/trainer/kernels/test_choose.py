"""What each device and dtype gets, and that nothing heavy comes along unasked."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mint2m_trainer.kernels import KernelError, TorchKernels, choose_kernels
from mint2m_trainer.kernels.cpu import CpuKernels

CPU = torch.device("cpu")


def test_float32_and_bfloat16_on_a_cpu_get_the_compiled_kernels_and_float64_torch() -> None:
    assert type(choose_kernels(CPU, torch.float32, 8)) is CpuKernels
    assert type(choose_kernels(CPU, torch.bfloat16, 8)) is CpuKernels
    assert type(choose_kernels(CPU, torch.float64, 8)) is TorchKernels


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float16), ("cpu", torch.int64), ("meta", torch.float32)])
def test_what_no_kernels_take_is_refused(device: str, dtype: torch.dtype) -> None:
    with pytest.raises(KernelError):
        choose_kernels(torch.device(device), dtype, 8)


def test_a_tile_of_no_queries_is_refused() -> None:
    for kernels in (TorchKernels, CpuKernels):
        with pytest.raises(ValueError, match="at least 1"):
            kernels(query_tile=0)


def test_neither_numba_nor_triton_is_imported_before_it_is_chosen() -> None:
    code = "import sys, mint2m_trainer.kernels; print('numba' in sys.modules, 'triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
