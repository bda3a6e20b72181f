"""The inputs of a step's runs: what was drawn, written as the fixture, profile and deployment of an ordinary run.

The model and the adapter are links beside them, so that the deployment, which becomes evidence, names no path of the
operator's machine and is the same wherever the training runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.contract.fixture import FIXTURE_NAME, Target, bind, write_fixture
from mint2m_trainer.online.setting import Setting
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import Rollout, TrainingPayload
from mint2m_verify.documents.inputs import (
    Accumulation,
    Deployment,
    GradientStart,
    ModelSource,
    OptimizerStart,
    PinnedFile,
    Signer,
)
from mint2m_verify.documents.training import Attempt, TrainingRow, TrainingStep
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.layout import GRADIENT, TENSOR_LIMIT
from mint2m_verify.training.rules import scored, step_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The run of the prompt before in the same step: its directory, and the digest of its seal's payload."""

    directory: Path
    seal_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a run of a step starts from.

    `adapter` is what the step starts from, by `step.policy_sha256`, None a fresh one; `moments` what the step before
    left, where its optimizer is gone on from; `earlier` the run before in the step, None for the first.
    """

    adapter: Path | None
    moments: Path | None
    earlier: Earlier | None


def write_inputs(folder: Path, setting: Setting, step: TrainingStep, index: int, start: Start) -> Path:
    """Write those of the step's prompt `index` into an empty folder; the deployment file.

    Raises:
        FindingError: what the verifier refuses in the fixture.
    """
    attempt = step.groups[index]
    accumulation = _accumulation(folder, setting, step, index, start.earlier)
    steps = accumulation is None or accumulation.takes_step
    row = setting.rows[attempt.row]
    profile = step_profile(setting.profile, len(row.text.encode("utf-8")))
    profile_raw = profile.encode()
    write_atomic(folder / "profile.json", profile_raw)
    target = Target(
        revision=setting.plan.model.revision,
        manifest_sha256=setting.plan.model.manifest_sha256,
        vocab_size=setting.vocab_size,
        profile_sha256=sha256_hex(profile_raw),
        policy_sha256=step.policy_sha256,
    )
    write_fixture(folder, *bind(*_drawn(setting, row, attempt), target, setting.deployment.distribution))
    deployment = Deployment(
        kind="training",
        name=setting.plan.name,
        hardware_class=setting.plan.hardware_class,
        ray_address="local",
        node_ips=("127.0.0.1",),
        accelerators_per_node=setting.deployment.ranks_on_this_machine,
        image=None,
        model=ModelSource(
            snapshot=_linked(folder, "model", setting.snapshot),
            revision=setting.plan.model.revision,
            model_manifest_sha256=setting.plan.model.manifest_sha256,
        ),
        adapter=None if start.adapter is None else _linked(folder, "policy", start.adapter),
        fixture=PinnedFile(path=FIXTURE_NAME, sha256=sha256_hex(read_once(folder / FIXTURE_NAME))),
        profile=PinnedFile(path="profile.json", sha256=sha256_hex(profile_raw)),
        runtime_identity=None,
        sbom=None,
        image_provenance=None,
        authorization_grant=None,
        output_root=".",
        signer=Signer(kind="ephemeral"),
        optimizer=None if start.moments is None or not steps else _moments(folder, start.moments, step.step),
        accumulation=accumulation,
    )
    path = folder / "deployment.json"
    write_atomic(path, (json.dumps(deployment.value(), indent=2) + "\n").encode("utf-8"))
    return path


def _accumulation(
    folder: Path, setting: Setting, step: TrainingStep, index: int, earlier: Earlier | None
) -> Accumulation | None:
    """The run's place in the step, with the gradient of the run before beside the other inputs."""
    prompts = setting.plan.prompts
    if prompts == 1:
        return None
    gradient = None
    if earlier is not None:
        place = earlier.directory / GRADIENT
        near = _linked(folder, "earlier", place.parent)
        raw = read_once(place, name=place.name, limit=TENSOR_LIMIT)
        path = f"{near}/{place.name}"
        gradient = GradientStart(path=path, sha256=sha256_hex(raw), seal_sha256=earlier.seal_sha256)
    tokens, responses = scored(step.groups)
    return Accumulation(index=index, prompts=prompts, tokens=tokens, responses=responses, gradient=gradient)


def _moments(folder: Path, moments: Path, steps: int) -> OptimizerStart:
    """The moments beside the other inputs; every step before this one led to them."""
    near = _linked(folder, "before", moments.parent)
    raw = read_once(moments, name=moments.name, limit=TENSOR_LIMIT)
    return OptimizerStart(path=f"{near}/{moments.name}", sha256=sha256_hex(raw), steps=steps)


def _linked(folder: Path, name: str, target: Path) -> str:
    (folder / name).symlink_to(target.resolve(), target_is_directory=True)
    return name


def _drawn(setting: Setting, row: TrainingRow, attempt: Attempt) -> tuple[TrainingPayload, Rollout]:
    """Payload and rollout of a group, token by token: bytes that are no text stay what they are."""
    payload = TrainingPayload(
        tokenizer="utf8-bytes",
        prompt_text=row.text,
        ground_truth=row.ground_truth,
        reward_rule=setting.plan.reward_rule,
    )
    rollout = Rollout(
        prompt_tokens=tuple(row.text.encode("utf-8")),
        responses=tuple(response.tokens for response in attempt.responses),
        rewards=tuple(response.reward for response in attempt.responses),
        old_logprobs=tuple(response.logprobs for response in attempt.responses),
        ref_logprobs=None,
    )
    return payload, rollout
