"""A deployment and everything it names, read once and held against the hashes it gives.

The rule: all faults are collected, not only the first, and a part that fails takes with it only the checks that need
it. Paths in a deployment are the operator's own: absolute, or relative to the deployment file. The bytes read here are
the bytes that the plan binds and that the run copies beside its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.deployment_checks import check_deployment, check_image, check_profile, check_topology
from mint2m_verify.deployment_papers import check_attachments, check_lock, check_runtime
from mint2m_verify.deployment_parts import Check, Parts
from mint2m_verify.documents.inputs import Deployment, RunProfile, RuntimeIdentity
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.documents.plan import MemoryItem
from mint2m_verify.finding import Finding
from mint2m_verify.fixture import CheckedFixture, FixtureBytes
from mint2m_verify.input_checks import (
    check_accumulation,
    check_adapter,
    check_fixture,
    check_memory,
    check_model,
    check_moments,
)
from mint2m_verify.walk import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInputs:
    """Everything a plan binds, complete and agreeing. Raw bytes are as the operator wrote them."""

    deployment: Deployment
    deployment_raw: bytes
    profile: RunProfile
    profile_raw: bytes
    fixture: CheckedFixture
    fixture_bytes: FixtureBytes
    model_manifest: ModelManifest
    runtime_identity: RuntimeIdentity
    memory: tuple[MemoryItem, ...]
    snapshot: Path
    adapter: Path | None
    moments: Path | None
    gradient: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All checks in their fixed order, and the inputs where no check found a fault."""

    checks: tuple[Check, ...]
    deployment: Deployment | None = None
    profile: RunProfile | None = None
    inputs: PlannedInputs | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)


def gather(
    path: Path, *, profile: Path | None = None, progress: Progress | None = None, of_a_stage: bool = False
) -> Gathered:
    """Read `path` and what it names.

    Args:
        path: the deployment.
        profile: a profile in place of one the deployment leaves open; where the deployment binds one they must agree.
        progress: told as the snapshot is hashed.
        of_a_stage: the run is a stage of a promotion run, whose plan is what a grant is for.
    """
    parts = Parts(path=path, of_a_stage=of_a_stage)
    check_deployment(parts)
    deployment = parts.deployment
    if deployment is not None:
        check_image(parts, deployment)
        check_lock(parts, deployment)
        check_profile(parts, deployment, profile)
        check_model(parts, deployment, progress)
        check_adapter(parts, deployment)
        check_moments(parts, deployment)
        check_fixture(parts, deployment)
        check_accumulation(parts, deployment)
        check_topology(parts, deployment)
        check_attachments(parts, deployment)
        check_runtime(parts, deployment)
        check_memory(parts, deployment)
    return Gathered(
        checks=tuple(parts.checks), deployment=deployment, profile=parts.profile, inputs=_complete(parts, deployment)
    )


def _complete(parts: Parts, deployment: Deployment | None) -> PlannedInputs | None:
    if any(check.findings for check in parts.checks):
        return None
    if (
        deployment is None
        or parts.profile is None
        or parts.fixture is None
        or parts.fixture_bytes is None
        or parts.manifest is None
        or parts.identity is None
        or parts.memory is None
    ):
        return None
    return PlannedInputs(
        deployment=deployment,
        deployment_raw=parts.deployment_raw,
        profile=parts.profile,
        profile_raw=parts.profile_raw,
        fixture=parts.fixture,
        fixture_bytes=parts.fixture_bytes,
        model_manifest=parts.manifest,
        runtime_identity=parts.identity,
        memory=parts.memory,
        snapshot=parts.near(deployment.model.snapshot),
        adapter=None if deployment.adapter is None else parts.near(deployment.adapter),
        moments=None if deployment.optimizer is None else parts.near(deployment.optimizer.path),
        gradient=_gradient(parts, deployment),
    )


def _gradient(parts: Parts, deployment: Deployment) -> Path | None:
    start = None if deployment.accumulation is None else deployment.accumulation.gradient
    return None if start is None else parts.near(start.path)
