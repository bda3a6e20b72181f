"""Findings of the doctor: what a deployment still lacks. All are about the operator's own input and block, never fail."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_PACKAGES = ("torch", "megatron-core", "ray", "psutil", "numba")


def _blocked(id: str, message: str, explanation: str, hint: str | None = None) -> Entry:
    return Entry(id=id, verdict=Verdict.BLOCKED, message=message, explanation=explanation, hint=hint)


ENTRIES = (
    *(
        _blocked(
            f"{package}.package-missing",
            f"{package} is not installed",
            f"Training needs {package}; verification does not. The doctor looks at installed metadata and imports nothing.",
            "pip install 'mint2m[trainer]'",
        )
        for package in _PACKAGES
    ),
    *(
        _blocked(
            f"{package}.package-version",
            f"{package} has a version that this trainer was not made for",
            f"The trainer extra states the range of {package} that it was tested with; another one may compute something else.",
            "pip install 'mint2m[trainer]'",
        )
        for package in _PACKAGES
    ),
    _blocked(
        "platform.unsupported",
        "this operating system cannot run ranks",
        "Ranks are identified through /proc and pidfd, which only Linux has. Verification works elsewhere.",
    ),
    _blocked(
        "deployment.unreadable",
        "the deployment cannot be read",
        "The file is missing, not regular, or not strict JSON. The checks that depend on it were not made.",
    ),
    _blocked(
        "deployment.invalid",
        "the deployment breaks its schema",
        "The pointer says which member. See `mint2m schema show deployment` and docs/runbook.md.",
    ),
    _blocked(
        "deployment.wrong-kind",
        "the deployment is of another kind",
        "Training takes kind `training` with a training fixture; the validation stages take kind `validation`.",
    ),
    _blocked(
        "image.placeholder-digest",
        "the image digest is a template's",
        "All zeros, or a few characters over and over: it stands for a value that nobody filled in and identifies no image.",
        "write the digest of the image your workers run",
    ),
    _blocked(
        "image.missing",
        "this hardware class needs an image by digest",
        "On a cluster the image digest is the only name for what the workers run, and each node advertises it as a resource.",
        "name the image and its sha256 digest",
    ),
    _blocked(
        "profile.missing",
        "no run profile is given",
        "The deployment names none and --profile was not used. Every number of a run comes from its profile.",
        "name a profile in the deployment, or give --profile",
    ),
    _blocked(
        "profile.conflict",
        "--profile differs from the deployment's profile",
        "The deployment binds a profile by SHA-256, and the one on the command line is another. Which one was meant?",
    ),
    _blocked(
        "profile.unreadable", "the profile cannot be read", "The file is missing, not regular, or not strict JSON."
    ),
    _blocked(
        "profile.hash-mismatch",
        "the profile is not the one that the deployment binds",
        "The SHA-256 of the file differs from the deployment's. One of them was changed without the other.",
    ),
    _blocked(
        "profile.invalid",
        "the profile breaks its schema",
        "The pointer says which member. See `mint2m schema show run-profile`.",
    ),
    _blocked(
        "profile.unsupported",
        "the profile asks for what this trainer does not do",
        "Tensor and pipeline parallelism are 1; context and expert parallelism equal the world size; an option that would have no\n"
        "effect is refused instead of ignored.",
    ),
    _blocked(
        "topology.mismatch",
        "world size is not nodes times accelerators",
        "Each accelerator of each node gets exactly one rank, so the product is the world size.",
    ),
    _blocked(
        "topology.not-of-class",
        "nodes and accelerators are not those that the hardware class names",
        "A class is a placement too: h20-4x8 is four nodes of eight. Evidence of another one would carry the class's name and show\n"
        "nothing about it. A smaller cluster has no class of its own here; reference-cpu is any machine.",
    ),
    _blocked(
        "topology.not-local",
        "a Ray started for the run has one node, this machine",
        "With ray_address `local` the run starts its own Ray on loopback, so node_ips is exactly 127.0.0.1. Name the address of\n"
        "your cluster to use other nodes.",
    ),
    _blocked(
        "topology.placeholder-address",
        "an address that exists only in examples",
        "192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24 and 2001:db8::/32 are kept for documentation, and others name no node at all.\n"
        "A template is full of them. Write the addresses of your own nodes, as Ray shows them.",
    ),
    _blocked(
        "topology.loopback-address",
        "a loopback address among several nodes",
        "127.0.0.0/8, ::1 and `localhost` mean another machine on every machine, so they name no node of a cluster class. Write\n"
        "the addresses of your own nodes, as Ray shows them.",
    ),
    _blocked(
        "model.snapshot-missing",
        "the model snapshot is not a folder of regular files",
        "The path in the deployment is not a directory that can be read, or holds something that is no regular file.",
    ),
    _blocked(
        "model.manifest-mismatch",
        "the snapshot's files are not those of the manifest",
        "The snapshot was hashed and its model-manifest has another SHA-256 than the deployment says: a file was added, removed or\n"
        "changed, or the manifest is of another snapshot. `mint2m model manifest DIR` writes the manifest of what is there.",
    ),
    _blocked(
        "model.config-invalid",
        "the snapshot's config.json is not understood",
        "The memory plan needs the numbers in it, and the trainer would refuse it for the same reason.",
    ),
    _blocked(
        "model.type-unsupported",
        "the model is of a kind that is not trained here",
        "The trainer computes GLM-MoE-DSA exactly and nothing else; `model_type` in the snapshot's config.json says what it is. Another\n"
        "architecture with the same sizes would pass every plan and be another function.",
    ),
    _blocked(
        "optimizer.moments-refused",
        "the optimizer cannot go on from these moments",
        "A deployment may name the moments that an earlier run left (`artifacts/optimizer-after.safetensors`), by path and\n"
        "SHA-256, with the steps that led to them. They are missing, malformed or other bytes, or no adapter is named that\n"
        "they belong to. Stages of a promotion run take none.",
    ),
    _blocked(
        "accumulation.refused",
        "the run cannot have this place in a step over several prompts",
        "A deployment may say that a run is one of several of a step: which, of how many, what they score together, and the\n"
        "gradient that the one before left (`artifacts/gradient.safetensors`). The place cannot be, the counts are smaller\n"
        "than the run's own, or the gradient is missing, malformed or other bytes. Stages of a promotion run have one prompt.",
    ),
    _blocked(
        "adapter.missing",
        "the initial adapter is not there",
        "The deployment names a PEFT adapter directory that cannot be read.",
    ),
    _blocked(
        "adapter.malformed",
        "the adapter is not one that can be read whole",
        "A setting that would change the function, a tensor without its pair, of another rank or not finite, or, with --fused,\n"
        "an expert without LoRA: what is not understood is not written in another form.",
    ),
    _blocked(
        "fixture.placeholder-hash",
        "the fixture hash is a template's",
        "All zeros, or a few characters over and over: it stands for a value that nobody filled in and binds no fixture.",
        "write the SHA-256 of your training fixture",
    ),
    _blocked(
        "fixture.logprobs-missing",
        "the rollout lacks log-probs that the profile takes from it",
        "With old_source or ref_source `rollout` (and a KL term) the rollout must bring them. Give them, or set `recompute`.",
    ),
    _blocked(
        "fixture.unreadable",
        "the training fixture cannot be read",
        "The fixture or a file it names is missing or not regular.",
    ),
    _blocked(
        "fixture-set.unreadable",
        "the fixture set cannot be read",
        "A validation deployment's `fixture` names a mint2m.fixture-set/v1 document: for each stage its profile and its training\n"
        "fixture. See docs/promotion.md and `mint2m schema show fixture-set`.",
    ),
    _blocked(
        "fixture-set.hash-mismatch",
        "the fixture set is not the one that the deployment names",
        "Its bytes have another SHA-256 than the one in the deployment's `fixture`: one of the two was changed after the other.",
    ),
    _blocked(
        "fixture-set.stages-invalid",
        "the fixture set has not the cases of a promotion run",
        "One case for each stage that computes on a fixture, in the stages' order and from the first on: actor, parity-32k,\n"
        "parity-64k, scale-2m. A set may end early; then so does the run.",
    ),
    _blocked(
        "fixture-set.case-differs",
        "a case of the fixture set does not fit its files",
        "The set names every file by itself: a case repeats the payload and the rollout that its training fixture binds, and sizes.",
    ),
    _blocked(
        "fixture-set.wrong-length",
        "a stage's prompt has not the length of its name",
        "On a cluster parity-32k has 32,768 prompt tokens, parity-64k 65,536 and scale-2m 2,097,152, exactly.",
    ),
    _blocked(
        "fixture-set.cases-disagree",
        "the cases of a fixture set are of two kinds",
        "Topology, optimizer, LoRA and model numerics are the same in all profiles: what one stage shows counts for the next\n"
        "only if the same thing runs in it.",
    ),
    _blocked(
        "runtime-identity.missing",
        "this hardware class needs a runtime identity",
        "On a cluster the operator states what the workers run, and every rank compares itself with that.",
    ),
    _blocked(
        "runtime-identity.mismatch",
        "this installation is not the runtime identity of the deployment",
        "Interpreter, platform, package versions, source or image digest differ from the file that the deployment names.",
    ),
    _blocked(
        "sbom.missing",
        "this hardware class needs an SBOM",
        "The deployment names no readable SPDX document of the image.",
    ),
    _blocked(
        "image-provenance.missing",
        "this hardware class needs image provenance",
        "The deployment names no readable provenance file. It says how the image that the workers run was built.",
    ),
    _blocked(
        "authorization.missing",
        "this hardware class needs an authorization grant",
        "The deployment names no grant that is for it and for this time. Declaring oneself authorized is no grant: another signs one,\n"
        "with `mint2m sign grant`.",
    ),
    _blocked(
        "output.unwritable",
        "the output directory cannot be written",
        "The run directory, or the nearest existing directory above it, is missing, not a directory, or not writable.",
    ),
    _blocked(
        "output.not-empty",
        "the output directory is not empty",
        "Evidence is never overwritten or mixed with that of another run.",
        "give --output a new directory",
    ),
    _blocked(
        "output.inside-checkout",
        "the output directory lies inside the source tree",
        "On a cluster, files that a run writes must not change the source that the run is identified by.",
    ),
    _blocked(
        "output.space",
        "there is not enough free disk space",
        "The estimate covers checkpoint, adapter, gradient and copies of the inputs.",
    ),
    _blocked(
        "signer.unusable",
        "the signing key cannot be used",
        "The key is missing, encrypted, or neither P-256 nor Ed25519. A run that cannot be sealed is not started.",
    ),
    _blocked(
        "scope.none",
        "no claim scope fits this hardware class and length",
        "What a receipt may be used for comes from a closed list. On h20-4x8 a training run is the 2,097,152-token execution; shorter\n"
        "lengths are parity stages of the validation chain.",
    ),
    _blocked(
        "checkout.schema-invalid",
        "a schema of the source tree is broken",
        "Every file in schemas/ must be a valid JSON Schema 2020-12 with its own $id.",
    ),
    _blocked(
        "checkout.package-missing",
        "a package of the source tree is missing",
        "The directory is not a mint2m checkout, or not a whole one.",
    ),
    _blocked(
        "checkout.constraints-missing",
        "a dependency is not pinned",
        "constraints.txt pins every dependency of pyproject.toml, so that two installs are the same.",
    ),
    _blocked(
        "doctor.option-missing",
        "this doctor scope needs another option",
        "Scopes `run` and `validation` examine one deployment and need --deployment; scope `checkout` examines --root.",
    ),
)
