"""What a deployment trains: the model's files, the adapter, the fixture with its payload and rollout, and the memory.

The rule: files are hashed as they lie there, now, and held against the digests that the operator wrote down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mint2m_verify.accumulation_check import contradictions, scored_tokens
from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.deployment_parts import Parts, because, blocking
from mint2m_verify.documents.inputs import Deployment, FixtureShape, RunProfile
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.fixture import CheckedFixture, Expected, check_bytes, read_fixture
from mint2m_verify.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TENSOR_LIMIT
from mint2m_verify.memory_plan import plan_memory
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.recompute.tensors import read_tensors
from mint2m_verify.runtime.digests import is_placeholder
from mint2m_verify.tree import hash_tree, manifest_of
from mint2m_verify.walk import Progress

#: Name of the tree inside every model-manifest. Fixed, since the manifest's digest covers it.
MODEL_TREE = "model"

#: The file of a snapshot that says what kind of model it is, and the one kind that the trainer has.
MODEL_CONFIG, MODEL_TYPE = "config.json", "glm_moe_dsa"


def check_model(parts: Parts, deployment: Deployment, progress: Progress | None) -> None:
    root = parts.near(deployment.model.snapshot)
    try:
        manifest = manifest_of("model", hash_tree(root, progress), MODEL_TREE)
    except FindingError as stop:
        fault = because("model.snapshot-missing", stop.finding, pointer="/model/snapshot")
        parts.record("model", replace(fault, hint=_hint(stop.finding)))
        return
    if not isinstance(manifest, ModelManifest):
        raise TypeError("a model tree has a model manifest")
    want = deployment.model.model_manifest_sha256
    if manifest.sha256 != want:
        fault = found(
            "model.manifest-mismatch",
            file=parts.path.name,
            pointer="/model/model_manifest_sha256",
            expected=want,
            actual=manifest.sha256,
        )
        parts.record("model", fault)
        return
    other = _type_fault(root / MODEL_CONFIG)
    if other is not None:
        parts.record("model", other)
        return
    parts.manifest = manifest
    parts.record("model", actual=f"{manifest.file_count} files, {manifest.total_bytes} bytes, {manifest.sha256}")


def _type_fault(path: Path) -> Finding | None:
    """Why the snapshot is of a kind of model that nothing here trains; None where it is of the one."""
    try:
        config = parse(read_once(path, name=MODEL_CONFIG), file=MODEL_CONFIG)
    except FindingError as stop:
        return because("model.config-invalid", stop.finding, pointer="/model/snapshot")
    have = config.get("model_type") if isinstance(config, dict) else None
    if have == MODEL_TYPE:
        return None
    actual = "none" if have is None else str(have)
    return found("model.type-unsupported", file=MODEL_CONFIG, pointer="/model_type", expected=MODEL_TYPE, actual=actual)


def _hint(cause: Finding) -> str | None:
    """Download caches keep snapshots as links; a link's target is in no manifest."""
    return "copy the snapshot with `cp -rL`: files, not links" if cause.id == "tree.symlink" else cause.hint


def check_adapter(parts: Parts, deployment: Deployment) -> None:
    if deployment.adapter is None:
        return
    try:
        entries = hash_tree(parts.near(deployment.adapter))
    except FindingError as stop:
        parts.record("adapter", because("adapter.missing", stop.finding, pointer="/adapter"))
        return
    names = [entry.path for entry in entries]
    if any("/" in name for name in names) or not {ADAPTER_CONFIG, ADAPTER_WEIGHTS} <= set(names):
        expected = f"{ADAPTER_CONFIG}, {ADAPTER_WEIGHTS} and no folder"
        fault = found(
            "adapter.missing", file=deployment.adapter, pointer="/adapter", expected=expected, actual=", ".join(names)
        )
        parts.record("adapter", fault)
        return
    parts.adapter_sha256 = manifest_of("file", entries, "adapter").root_sha256
    parts.record("adapter", actual=parts.adapter_sha256)


def check_moments(parts: Parts, deployment: Deployment) -> None:
    """The moments to go on from, against the digest that the deployment gives; an adapter must go on with them."""
    start = deployment.optimizer
    if start is None:
        return
    try:
        raw = read_once(parts.near(start.path), name=start.path, limit=TENSOR_LIMIT)
        tensors = read_tensors(raw, file=start.path)
    except FindingError as stop:
        parts.record("optimizer", because("optimizer.moments-refused", stop.finding, pointer="/optimizer/path"))
        return
    fault = None
    if sha256_hex(raw) != start.sha256:
        pointer, actual = "/optimizer/sha256", sha256_hex(raw)
        fault = found(
            "optimizer.moments-refused", file=start.path, pointer=pointer, expected=start.sha256, actual=actual
        )
    elif deployment.adapter is None:
        fault = found(
            "optimizer.moments-refused", pointer="/adapter", expected="the adapter that they are of", actual="null"
        )
    if fault is not None:
        parts.record("optimizer", fault)
        return
    parts.record("optimizer", actual=f"{len(tensors)} moments after {start.steps} steps, {start.sha256}")


def check_fixture(parts: Parts, deployment: Deployment) -> None:
    path = parts.near(deployment.fixture.path)
    if is_placeholder(deployment.fixture.sha256):
        fault = found(
            "fixture.placeholder-hash",
            file=parts.path.name,
            pointer="/fixture/sha256",
            actual=deployment.fixture.sha256,
        )
        parts.record("fixture", fault)
        return
    try:
        files = read_fixture(path)
    except FindingError as stop:
        parts.record("fixture", because("fixture.unreadable", stop.finding, pointer="/fixture/path"))
        return
    digest = sha256_hex(files.fixture)
    if digest != deployment.fixture.sha256:
        pointer = "/fixture/sha256"
        fault = found(
            "fixture.hash-mismatch", file=path.name, pointer=pointer, expected=deployment.fixture.sha256, actual=digest
        )
        parts.record("fixture", blocking(fault))
        return
    expected = Expected(
        revision=deployment.model.revision,
        manifest_sha256=deployment.model.model_manifest_sha256,
        profile_sha256=sha256_hex(parts.profile_raw) if parts.profile is not None else None,
        profile=parts.profile,
        policy_sha256=parts.adapter_sha256,
        fresh_policy=deployment.adapter is None,
    )
    checked, findings = check_bytes(files, expected)
    if findings or checked is None:
        parts.record("fixture", *(blocking(finding) for finding in findings))
        return
    missing = tuple(_missing_scores(parts.profile, checked, files.rollout_name))
    if missing:
        parts.record("fixture", *missing)
        return
    parts.fixture, parts.fixture_bytes = checked, files
    shape = checked.fixture.shape
    parts.record("fixture", actual=f"{shape.prompt_tokens} prompt tokens, {len(shape.response_tokens)} responses")


def _missing_scores(profile: RunProfile | None, checked: CheckedFixture, file: str) -> Iterator[Finding]:
    """Log-probs that the profile asks of a rollout which has none."""
    if profile is None:
        return
    rows = (
        (
            "old_logprobs",
            profile.grpo.old_source == "rollout" or profile.grpo.logprob_bound is not None,
            checked.rollout.old_logprobs,
        ),
        (
            "ref_logprobs",
            profile.grpo.kl_beta > 0 and profile.grpo.ref_source == "rollout",
            checked.rollout.ref_logprobs,
        ),
    )
    for member, needed, values in rows:
        if needed and values is None:
            yield found(
                "fixture.logprobs-missing", file=file, pointer=f"/{member}", expected="log-probs", actual="null"
            )


def check_accumulation(parts: Parts, deployment: Deployment) -> None:
    """The run's place in a step over several prompts, and the gradient that it goes on from, by its digest."""
    place = deployment.accumulation
    if place is None:
        return
    scored = None
    if parts.fixture is not None and parts.profile is not None:
        scored = scored_tokens(parts.fixture.rollout, parts.profile)
    faults = [
        found(
            "accumulation.refused",
            file=parts.path.name,
            pointer=fault.pointer,
            expected=fault.expected,
            actual=fault.actual,
        )
        for fault in contradictions(deployment, scored)
    ]
    start = place.gradient
    if start is not None:
        pointer = "/accumulation/gradient"
        try:
            raw = read_once(parts.near(start.path), name=start.path, limit=TENSOR_LIMIT)
            read_tensors(raw, file=start.path)
        except FindingError as stop:
            faults.append(because("accumulation.refused", stop.finding, pointer=f"{pointer}/path"))
        else:
            actual = sha256_hex(raw)
            if actual != start.sha256:
                faults.append(
                    found(
                        "accumulation.refused",
                        file=start.path,
                        pointer=f"{pointer}/sha256",
                        expected=start.sha256,
                        actual=actual,
                    )
                )
    parts.record("accumulation", *faults, actual=f"prompt {place.index + 1} of {place.prompts}")


def check_memory(parts: Parts, deployment: Deployment) -> None:
    """The byte plan of the fullest rank, held against the profile's own limit."""
    if parts.profile is None or parts.manifest is None:
        return
    context = parts.profile.context
    profile_file = "profile" if deployment.profile is None else deployment.profile.path
    # Without a fixture that fits, the profile's own bounds say what the longest one may need.
    longest = (context.max_response_tokens,) * parts.profile.group_size
    shape = FixtureShape(vocab_size=1, prompt_tokens=context.prompt_tokens, response_tokens=longest)
    if parts.fixture is not None:
        shape = parts.fixture.fixture.shape
    config = parts.near(deployment.model.snapshot) / MODEL_CONFIG
    try:
        items = plan_memory(read_once(config, name=MODEL_CONFIG), parts.profile, shape)
    except FindingError as stop:
        parts.record("memory", because("model.config-invalid", stop.finding, pointer="/model/snapshot"))
        return
    experts, ways = read_numbers(config.parent).experts, parts.profile.topology.expert_parallel
    if experts % ways:
        fault = found(
            "profile.unsupported",
            file=profile_file,
            pointer="/topology/expert_parallel",
            expected=f"a divisor of the model's {experts} experts",
            actual=str(ways),
        )
        parts.record("memory", fault)
        return
    total, limit = sum(item.bytes for item in items), parts.profile.memory.rank_bytes
    if limit is not None and total > limit:
        fault = found(
            "memory.does-not-fit",
            file=profile_file,
            pointer="/memory/rank_bytes",
            expected=f"at most {limit} bytes a rank",
            actual=f"{total} bytes",
        )
        parts.record("memory", fault)
        return
    parts.memory = items
    parts.record("memory", actual=f"{total} bytes on the fullest rank")
