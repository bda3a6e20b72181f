"""Fixtures of runs over several hosts: a deployment for a running Ray, and what must be true when a run is over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.deployments import PACKAGED, Packaged, build, packaged_profile
from mint2m_verify.documents.inputs import RunProfile

sys.path.insert(0, str(Path(__file__).parent))

from ray_hosts import IMAGE_DIGEST, RayHosts


def small_profile(world_size: int, **timeouts: int) -> RunProfile:
    """The packaged profile with a short prompt, for this many ranks."""
    profile = packaged_profile(PACKAGED["local"])
    return replace(
        profile,
        name=f"hosts-{world_size}",
        topology=replace(
            profile.topology, world_size=world_size, context_parallel=world_size, expert_parallel=world_size
        ),
        context=replace(profile.context, prompt_tokens=1024),
        prefix=replace(profile.prefix, chunk_tokens=256),
        timeouts_s=replace(profile.timeouts_s, **{"start": 240, "phase": 400, "cleanup": 60, **timeouts}),
    )


@pytest.fixture
def deployment() -> Callable[..., Path]:
    """Writes snapshot, fixture, profile and the deployment that binds them to the hosts of a running Ray."""

    def make(
        directory: Path,
        ray: RayHosts,
        *,
        ranks_per_host: int = 1,
        profile: RunProfile | None = None,
        model: Packaged = PACKAGED["local"],
        **timeouts: int,
    ) -> Path:
        profile = profile or small_profile(len(ray.hosts) * ranks_per_host, **timeouts)
        path = build(directory, model, profile=profile)
        value = json.loads(path.read_text())
        value |= {
            "ray_address": ray.address,
            "node_ips": [host.ip for host in ray.hosts],
            "accelerators_per_node": ranks_per_host,
            "image": {"name": "reference", "digest": IMAGE_DIGEST},
        }
        path.write_text(json.dumps(value))
        return path

    return make
