"""The smallest run that has everything: a real snapshot, ledger and profile, seconds instead of minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.deployments import PACKAGED, build, packaged_profile
from mint2m_verify.documents.inputs import RunProfile


def small_profile(*, world_size: int = 2, gradient: str = "exact", phase_timeout: int = 400) -> RunProfile:
    """The packaged profile with a short prompt."""
    profile = packaged_profile(PACKAGED["local"])
    return replace(
        profile,
        name="tiny",
        topology=replace(
            profile.topology, world_size=world_size, context_parallel=world_size, expert_parallel=world_size
        ),
        context=replace(profile.context, prompt_tokens=1024),
        prefix=replace(profile.prefix, chunk_tokens=256, gradient=gradient),
        timeouts_s=replace(profile.timeouts_s, start=240, phase=phase_timeout, cleanup=60),
    )


@pytest.fixture
def tiny_profile(tmp_path: Path) -> Callable[..., Path]:
    """Writes the profile and returns its path."""

    def write(**changes: object) -> Path:
        path = tmp_path / "tiny.profile.json"
        path.write_bytes(small_profile(**changes).encode())  # type: ignore[arg-type]  # of small_profile
        return path

    return write


@pytest.fixture
def tiny_deployment() -> Callable[..., Path]:
    """Makes the inputs of a tiny run below a directory and returns the deployment file."""

    def make(directory: Path, **changes: object) -> Path:
        return build(directory, PACKAGED["local"], profile=small_profile(**changes))  # type: ignore[arg-type]

    return make
