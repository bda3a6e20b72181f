"""`mint2m model init-tiny | pretrain | manifest | export-adapter`: Hugging Face's snapshots, PEFT's adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome


def register(app: typer.Typer) -> None:
    """Add the `model` group."""
    group = typer.Typer(
        help="Make or train a tiny model snapshot, or the manifest of one; write an adapter for another loader.",
        no_args_is_help=True,
    )
    group.command("init-tiny")(init_tiny)
    group.command("pretrain")(pretrain)
    group.command("manifest")(manifest)
    group.command("export-adapter")(export_adapter)
    app.add_typer(group, name="model")


def init_tiny(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the weights.")] = 0,
    config: Annotated[Path | None, typer.Option("--config", help="JSON with the members to change.")] = None,
) -> Outcome:
    """Write a small GLM-MoE-DSA snapshot: config.json, safetensors shards, index."""
    from mint2m_trainer.snapshots import make_tiny

    made = make_tiny(output, seed=seed, config=config)
    return Outcome(text=f"{made.file_count} files, {made.total_bytes:,} bytes\nmodel_manifest_sha256  {made.sha256}")


def pretrain(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first weights and of the texts.")] = 7,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Batches to train on.")] = 300,
    sure: Annotated[
        float, typer.Option("--sure", min=0.1, max=1.0, help="Probability that is taught of the right answer.")
    ] = 0.4,
    config: Annotated[Path | None, typer.Option("--config", help="JSON with the members to change.")] = None,
) -> Outcome:
    """Train a small snapshot from its seed to read generated logs and to doubt what it read; takes minutes."""
    from mint2m_verify.doctor.machine import require_trainer

    require_trainer()
    from mint2m_trainer.pretraining.batches import Texts
    from mint2m_trainer.pretraining.request import PretrainRequest
    from mint2m_trainer.pretraining.request import pretrain as train

    texts = Texts(short=128, long=4096, count=8, sure=sure)
    made = train(PretrainRequest(output=output, seed=seed, steps=steps, texts=texts, config=config))
    files = made.manifest
    return Outcome(
        text=f"{files.file_count} files, {files.total_bytes:,} bytes\n"
        f"loss in the texts {made.first.codes:.3f} to {made.last.codes:.3f}, "
        f"of the answers {made.first.answers:.3f} to {made.last.answers:.3f}\n"
        f"model_manifest_sha256  {files.sha256}"
    )


def manifest(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Model snapshot.")],
    output: Annotated[Path | None, typer.Option("--output", help="Write the manifest here; else print it.")] = None,
) -> Outcome:
    """Hash a snapshot and write its model-manifest, whose SHA-256 a deployment names."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.files import write_atomic
    from mint2m_verify.input_checks import MODEL_TREE
    from mint2m_verify.tree import manifest as manifest_of

    with hash_bar() as progress:
        made = manifest_of("model", directory, MODEL_TREE, progress)
    if output is None:
        return Outcome(text=made.encode().decode("utf-8"), exact=True)
    write_atomic(output, made.encode())
    return Outcome(text=f"model_manifest_sha256  {made.sha256}\nroot_sha256            {made.root_sha256}")


def export_adapter(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="PEFT adapter, such as a run's adapter/.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory.")],
    fused: Annotated[bool, typer.Option("--fused", help="For transformers 5: experts as fused parameters.")] = False,
) -> Outcome:
    """Check an adapter whole and write it in canonical form, or with fused experts; the function stays the same."""
    from mint2m_verify.doctor.machine import require_trainer

    require_trainer()
    from mint2m_trainer.adapter_export import export_adapter as export

    made = export(directory, output, fused=fused)
    shape = f"{made.modules} modules, {made.tensors} tensors, rank {made.rank}"
    return Outcome(text=f"{output}  {shape}\nroot_sha256  {made.root_sha256}")
