"""What an online training works with: the deployment read and held against what it pins, and the plan that follows.

The rule: everything that can be refused is refused here, before anything is drawn, and the plan is a function of these
inputs alone. So a training that is resumed can be held against the plan that it began with, member by member.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.run import ChosenSigner
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import FileRef, RunProfile
from mint2m_verify.documents.inputs import FixtureModel, PinnedFile
from mint2m_verify.documents.training import OnlineDeployment, TrainingPlan, TrainingRow
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.rewards import computable
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signing import public_key_pem
from mint2m_verify.source import source_sha256
from mint2m_verify.training import places
from mint2m_verify.training.rows import DATASET_LIMIT, read_rows
from mint2m_verify.tree import manifest

#: Tokens of the one tokenizer whose text follows from them.
_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A training's inputs, read once. Paths are this machine's."""

    deployment: OnlineDeployment
    plan: TrainingPlan
    profile: RunProfile
    profile_raw: bytes
    rows: tuple[TrainingRow, ...]
    dataset_raw: bytes
    snapshot: Path
    vocab_size: int
    adapter: Path | None
    signer: ChosenSigner
    public_key: Path


def read_setting(path: Path, *, steps: int) -> Setting:
    """The deployment at `path` with everything that it names.

    Raises:
        FindingError: `input.missing`, `file.*`, `json.*`, `schema.*`, `key.*`, `online.*`, `training.dataset-empty`,
            `fixture.reward-rule-absent`.
    """
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    raw = read_once(path.resolve(), name=path.name)
    deployment = OnlineDeployment.parse(raw, file=path.name, canonical_form=False)
    if not computable(deployment.reward_rule):
        raise FindingError(found("fixture.reward-rule-absent", file=path.name, actual=deployment.reward_rule))
    near = path.resolve().parent
    profile_raw = _pinned(near, deployment.profile, limit=DATASET_LIMIT)
    dataset_raw = _pinned(near, deployment.dataset, limit=DATASET_LIMIT)
    profile = RunProfile.parse(profile_raw, file=deployment.profile.path, canonical_form=False)
    _check_profile(deployment, profile, path.name)
    snapshot = near / deployment.model.snapshot
    vocab_size = _check_model(deployment, snapshot, path.name)
    adapter = None if deployment.adapter is None else near / deployment.adapter
    if adapter is not None and not adapter.is_dir():
        raise FindingError(found("input.missing", file=str(adapter)))
    key = near / deployment.signing_key
    public_key = key.with_suffix(".pub")
    for needed in (key, public_key):
        if not needed.is_file():
            raise FindingError(found("input.missing", file=str(needed)))
    signer = key_file_signer(key)
    if signer.public_key is None or read_once(public_key, name=public_key.name) != public_key_pem(signer.public_key):
        raise FindingError(found("online.input-mismatch", file=str(public_key), expected=f"the public half of {key}"))
    rows = read_rows(dataset_raw, file=deployment.dataset.path)
    plan = TrainingPlan(
        name=deployment.name,
        seed=deployment.seed,
        steps=steps,
        source_sha256=source_sha256(),
        hardware_class=deployment.hardware_class,
        model=FixtureModel(revision=deployment.model.revision, manifest_sha256=deployment.model.model_manifest_sha256),
        policy_sha256=None if adapter is None else manifest("file", adapter, "adapter").root_sha256,
        profile=FileRef.of(places.PROFILE, profile_raw),
        dataset=FileRef.of(places.DATASET, dataset_raw),
        rows=len(rows),
        reward_rule=deployment.reward_rule,
        sampling=deployment.sampling,
        rows_per_step=deployment.rows_per_step,
        logprob_bound=deployment.logprob_bound,
        moments=deployment.moments,
        prompts_per_step=None if deployment.prompts_per_step == 1 else deployment.prompts_per_step,  # one spelling
        checkpoints_kept=deployment.checkpoints_kept,
    )
    return Setting(
        deployment=deployment,
        plan=plan,
        profile=profile,
        profile_raw=profile_raw,
        rows=rows,
        dataset_raw=dataset_raw,
        snapshot=snapshot,
        vocab_size=vocab_size,
        adapter=adapter,
        signer=ChosenSigner(signer=signer, source=key),
        public_key=public_key,
    )


def _pinned(near: Path, pinned: PinnedFile, *, limit: int) -> bytes:
    raw = read_once(near / pinned.path, name=pinned.path, limit=limit)
    actual = sha256_hex(raw)
    if actual != pinned.sha256:
        raise FindingError(found("online.input-mismatch", file=pinned.path, expected=pinned.sha256, actual=actual))
    return raw


def _check_profile(deployment: OnlineDeployment, profile: RunProfile, file: str) -> None:
    options, sampling = profile.grpo, deployment.sampling
    rows: tuple[tuple[bool, str, str, str], ...] = (
        (
            profile.topology.world_size == deployment.ranks_on_this_machine,
            "/topology/world_size",
            f"{deployment.ranks_on_this_machine}, the deployment's ranks",
            str(profile.topology.world_size),
        ),
        (profile.rehearses is None, "/rehearses", "the profile of a run", "that of a rehearsal"),
        (
            options.advantage_source != "rollout",
            "/grpo/advantage_source",
            "advantages that follow from the rewards",
            "rollout",
        ),
        (
            options.kl_beta == 0 or options.ref_source == "recompute",
            "/grpo/ref_source",
            "recompute, since nobody else scores what is drawn",
            options.ref_source,
        ),
        (
            sampling.max_tokens <= profile.context.max_response_tokens,
            "/context/max_response_tokens",
            f"at least {sampling.max_tokens}, the cap of the sampling",
            str(profile.context.max_response_tokens),
        ),
    )
    for holds, pointer, expected, actual in rows:
        if not holds:
            raise FindingError(
                found("online.profile-unsuited", file=file, pointer=pointer, expected=expected, actual=actual)
            )


def _check_model(deployment: OnlineDeployment, snapshot: Path, file: str) -> int:
    """The model's vocabulary."""
    if not snapshot.is_dir():
        raise FindingError(found("input.missing", file=str(snapshot)))
    actual, wanted = manifest("model", snapshot, MODEL_TREE).sha256, deployment.model.model_manifest_sha256
    if actual != wanted:
        pointer = "/model/model_manifest_sha256"
        raise FindingError(found("online.input-mismatch", file=file, pointer=pointer, expected=wanted, actual=actual))
    vocab = read_numbers(snapshot).vocab
    if vocab > _BYTES:
        raise FindingError(
            found("online.vocabulary-not-bytes", file=str(snapshot), expected=f"at most {_BYTES}", actual=str(vocab))
        )
    return vocab
