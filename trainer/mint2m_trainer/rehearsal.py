"""`mint2m run --rehearse`: the deployment's own ranks, nodes, image, papers and model, over a short generated prompt.

The rule: nothing that decides where and with what the run happens is changed, and everything that says what it is worth
is. The profile names the one that it stands for, so plan, receipt and seal have the claim scope `topology_rehearsal`,
which no rule for a real run asks for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from mint2m_trainer.contract.fixture import FIXTURE_NAME, Target, Task, build_fixture, ledger_task
from mint2m_verify import layout
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.documents.inputs import Deployment, PinnedFile, Rehearsed, RunProfile
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.model_numbers import read_numbers

#: The shortest round length that holds a ledger with its question; some chunks on every rank even of thirty-two.
TOKENS = 1024
CHUNK_TOKENS = 256

_SEED = 7


def rehearsal_profile(profile: RunProfile, profile_sha256: str) -> RunProfile:
    """The profile with a short prompt, its log-probs recomputed; topology, group, optimizer and precision stand."""
    return replace(
        profile,
        context=replace(profile.context, prompt_tokens=TOKENS),
        grpo=replace(
            profile.grpo, old_source="recompute", ref_source="recompute", advantage_source=None, logprob_bound=None
        ),
        prefix=replace(profile.prefix, chunk_tokens=min(profile.prefix.chunk_tokens, CHUNK_TOKENS)),
        rehearses=Rehearsed(profile_sha256=profile_sha256, prompt_tokens=profile.context.prompt_tokens),
    )


def write_rehearsal(directory: Path, inputs: PlannedInputs, place: Path) -> Path:
    """Write the rehearsal's inputs below the run directory and return its deployment file.

    Args:
        directory: may hold nothing under `inputs/` yet.
        inputs: of the real run, complete and agreeing.
        place: the folder of its deployment, where the paths in it begin.

    Raises:
        FindingError: what a file could not be written for, or what the fixture's own check refuses.
    """
    folder = directory / "inputs"
    folder.mkdir(parents=True)
    profile_raw = rehearsal_profile(inputs.profile, sha256_hex(inputs.profile_raw)).encode()
    write_atomic(directory / layout.PROFILE, profile_raw)
    target = Target(
        revision=inputs.deployment.model.revision,
        manifest_sha256=inputs.model_manifest.sha256,
        vocab_size=read_numbers(inputs.snapshot).vocab,
        profile_sha256=sha256_hex(profile_raw),
        policy_sha256=inputs.fixture.fixture.policy_sha256,
    )
    build_fixture(folder, _task(inputs.profile.group_size), target)
    deployment = _elsewhere(inputs.deployment, place)
    deployment = replace(
        deployment,
        fixture=PinnedFile(path=FIXTURE_NAME, sha256=sha256_hex(read_once(directory / layout.FIXTURE))),
        profile=PinnedFile(path=Path(layout.PROFILE).name, sha256=sha256_hex(profile_raw)),
        output_root="..",
        accumulation=None,  # a short prompt has no place among those of the real step
        # A grant is for one deployment by its digest, and this is another; the real one's was held against it before.
        authorization_grant=None,
    )
    write_atomic(directory / layout.DEPLOYMENT, (json.dumps(deployment.value(), indent=2) + "\n").encode("utf-8"))
    return directory / layout.DEPLOYMENT


def _task(group_size: int) -> Task:
    """The ledger with as many responses as the group has: the wrong and the right one in turn."""
    task = ledger_task(_SEED, tokens=TOKENS)
    return replace(task, responses=tuple(task.responses[index % 2] for index in range(group_size)))


def _elsewhere(deployment: Deployment, place: Path) -> Deployment:
    """The deployment as it reads from another folder: every path absolute."""

    def there(path: str | None) -> str | None:
        return None if path is None else str((place / path).absolute())

    return replace(
        deployment,
        model=replace(deployment.model, snapshot=str((place / deployment.model.snapshot).absolute())),
        adapter=there(deployment.adapter),
        runtime_identity=there(deployment.runtime_identity),
        runtime_lock=there(deployment.runtime_lock),
        sbom=there(deployment.sbom),
        image_provenance=there(deployment.image_provenance),
        signer=replace(deployment.signer, path=there(deployment.signer.path)),
    )
