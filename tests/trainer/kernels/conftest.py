"""The implementations of `Kernels` that this process can run, each by its name.

Triton's kernels run here under its interpreter: the same code, executed by numpy on a CPU. That shows what they
compute; that they compile for a GPU, and how fast they are there, it cannot show. Triton reads `TRITON_INTERPRET` once,
when it is first imported, and torch imports it early: so `test_triton.py` runs this folder again in a process that has
it set, and only there do they take part.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from mint2m_trainer.kernels import Kernels, TorchKernels
from mint2m_trainer.kernels.cpu import CpuKernels

IMPLEMENTATIONS: dict[str, Callable[..., Kernels]] = {"cpu": CpuKernels, "torch": TorchKernels}
if os.environ.get("TRITON_INTERPRET") == "1":
    from mint2m_trainer.kernels.triton_gpu import TritonKernels

    IMPLEMENTATIONS = {"triton": TritonKernels}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def made(request: pytest.FixtureRequest) -> Callable[..., Kernels]:
    """A class of kernels, called with `query_tile`."""
    return IMPLEMENTATIONS[request.param]
