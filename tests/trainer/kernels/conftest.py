"""The implementations of `Kernels` that this machine can run, each by its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mint2m_trainer.kernels import Kernels, TorchKernels
from mint2m_trainer.kernels.cpu import CpuKernels

IMPLEMENTATIONS: dict[str, Callable[..., Kernels]] = {"torch": TorchKernels, "cpu": CpuKernels}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def made(request: pytest.FixtureRequest) -> Callable[..., Kernels]:
    """A class of kernels, called with `query_tile`."""
    return IMPLEMENTATIONS[request.param]
