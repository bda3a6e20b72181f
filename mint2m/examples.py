"""Examples that the help of each command ends with; a test holds every one to what the command takes.

Here and not beside the commands, since they share names: one key, one policy and one run go through all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

#: By the command's words after `mint2m`; each line is what follows `mint2m`.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "doctor": (
        "doctor --scope run --deployment deployment.json",
        "doctor --scope run --deployment deployment.json --against validation.json",
        "doctor --scope checkout --root .",
    ),
    "plan": ("plan --deployment deployment.json --run-id r1 --instance-nonce NONCE --output plan.json",),
    "run": (
        "run --deployment local --output run1",
        "run --deployment deployment.json --key release.key --output run1",
        "run --deployment deployment.json --rehearse --output rehearsal1",
        "run --deployment local-128k --progress run1.progress --output run1",
        "run --deployment local --instruments watched1 --output run1",
    ),
    "online": (
        "online --deployment online.json --steps 20 --output t1",
        "online --deployment online.json --steps 20 --resume t1",
    ),
    "train": ("train --plan run1/plan.json --ownership run1/ownership.jsonl --deployment deployment.json",),
    "cleanup": ("cleanup --plan run1/plan.json --ownership run1/ownership.jsonl",),
    "status": ("status --ownership run1/ownership.jsonl",),
    "verify run": (
        "verify run run1 --key release.pub",
        "verify run run1 --policy policy.json --trusted-root public-good --report report.html",
        "verify run run1 --key release.pub --hash-journal run1.journal",
        "verify run run1 --consistency-only",
    ),
    "verify chain": (
        "verify chain evidence1 --policy policy.json --trusted-root public-good",
        "verify chain evidence1 --key operator.pub --plan-key planner.pub --through parity-32k",
    ),
    "verify training": (
        "verify training t1 --key training.pub",
        "verify training t1 --consistency-only --report report.html",
    ),
    "verify receipt": ("verify receipt run1/receipt.json --root run1 --key release.pub",),
    "verify checkpoint": (
        "verify checkpoint run1/checkpoint --key release.pub",
        "verify checkpoint run1/checkpoint --key release.pub --hash-journal run1.journal --whole-digests",
        "verify checkpoint model --signature model.sig --key signer.pub",
    ),
    "verify manifest": ("verify manifest manifest.json --root model --digest SHA256",),
    "verify bundle": ("verify bundle mint2m-v1.0.0-release-bundle.tar.gz --policy policy.json --expect-version 1.0.0",),
    "verify signature": ("verify signature payload.json --bundle payload.json.sigstore.json --key signer.pub",),
    "verify evidence": ("verify evidence evidence --digest SHA256",),
    "rollout check": (
        "rollout check rollouts.jsonl --model snapshot --revision r1 --adapter policy",
        "rollout check rollouts.jsonl --no-adapter --max-flagged 0.05",
    ),
    "replay": (
        "replay run1 --key release.pub --model snapshot",
        "replay evidence1 --stage parity-32k --key operator.pub --plan-key planner.pub",
    ),
    "sign tree": (
        "sign tree run1 --key release.key",
        "sign tree run1 --key second.key --cosign",
        "sign tree model --key release.key --output model.sig",
        "sign tree run1 --key release.key --ray 10.0.0.1:6379",
    ),
    "sign file": (
        "sign file payload.json --key release.key",
        "sign file payload.json --private-root root --identity alice@example.org --issuer https://id.example.org",
    ),
    "sign grant": (
        "sign grant plan/validation-plan.json --reason 'the July promotion' "
        "--not-before 2026-07-01T00:00:00Z --not-after 2026-08-01T00:00:00Z --key grantor.key",
    ),
    "keys new": ("keys new release", "keys new release --type ed25519 --passphrase"),
    "keys show": ("keys show release.pub",),
    "trust init": ("trust init --output policy.json",),
    "trust show": ("trust show policy.json", "trust show public-good"),
    "trust private-root": ("trust private-root --output root",),
    "parity export": ("parity export --model snapshot --adapter adapter --rollout rollout.json --output ours",),
    "parity compare": ("parity compare theirs ours --max-loss 0.005",),
    "parity trace": ("parity trace watched1 watched2",),
    "evidence report": ("evidence report runs --key release.pub --report runs.html",),
    "evidence diff": ("evidence diff run1 run2 --max-loss 0.001",),
    "evidence manifest": ("evidence manifest evidence",),
    "evidence status": ("evidence status evidence --output docs/status.md",),
    "model init-tiny": ("model init-tiny --output snapshot --seed 1",),
    "model pretrain": ("model pretrain --output snapshot", "model pretrain --output snapshot --seed 2 --sure 0.3"),
    "model export-adapter": ("model export-adapter run1/adapter --fused --output adapter",),
    "model manifest": ("model manifest snapshot --output model-manifest.json",),
    "fixture build": (
        "fixture build --model snapshot --profile profile.json --revision main --text book.txt --question q.txt "
        "--answer a.txt --license CC0-1.0 --statement permission.txt --output fixture",
    ),
    "fixture check": ("fixture check fixture/fixture.json --model model-manifest.json",),
    "payload build": ("payload build --tokens 2000000 --output payload.json",),
    "schema list": ("schema list",),
    "schema show": ("schema show training-receipt",),
    "schema check": ("schema check run1/receipt.json",),
    "release check": ("release check --version 1.0.0", "release check --lock runtime-lock.json"),
    "release build": ("release build --version 1.0.0 --key release.key --output dist",),
    "release cosign": ("release cosign mint2m-v1.0.0-release-bundle.tar.gz --key second.key --output dist2",),
    "release lock": (
        "release lock --environment cpu --hashes report.json --wheel dist/mint2m-1.0.0-py3-none-any.whl "
        "--base-image python@sha256:HEX --container-file docs/containers/cpu.Containerfile --python 3.11.9 "
        "--output runtime-lock.json",
    ),
    "release requirements": ("release requirements --lock runtime-lock.json --output requirements.txt",),
    "release sbom": ("release sbom --lock runtime-lock.json --output sbom.spdx.json",),
    "release image-provenance": (
        "release image-provenance --image mint2m@sha256:HEX --lock runtime-lock.json --sbom sbom.spdx.json "
        "--container-file docs/containers/cpu.Containerfile --output image-provenance.json",
    ),
    "stage plan": ("stage plan --deployment local-small --instance-nonce NONCE --key planner.key --output evidence1",),
    "explain": ("explain tree.file-changed", "explain --list"),
    "completion": ("completion bash > ~/.local/share/bash-completion/completions/mint2m",),
}

#: The stages of a promotion run differ by name only.
_STAGE = "--validation-plan evidence1/validation-plan.json --run-id UUID --evidence evidence1 --key operator.key"


def add_examples(command: click.Command, words: str) -> None:
    """Give `command`, known as `mint2m WORDS`, and all below it their examples."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_examples(inner, f"{words} {name}")
        return
    lines = examples_of(words)
    if lines:
        # The mark keeps click from filling the lines into a paragraph.
        command.epilog = "\n".join(["\b", "Examples:", *(f"  mint2m {line}" for line in lines)])


def examples_of(words: str) -> tuple[str, ...]:
    """The examples of `mint2m WORDS`."""
    if words not in EXAMPLES and words.startswith("stage "):
        return (f"{words} {_STAGE}",)
    return EXAMPLES.get(words, ())
