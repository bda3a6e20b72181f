"""`mint2m verify run | chain | training | receipt | checkpoint | manifest | evidence`: against the auditor's anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.hash_options import Rehashing
from mint2m.option_groups import grouped
from mint2m.outcome import Outcome
from mint2m.verify_bundle_command import bundle
from mint2m.verify_options import (
    Anchoring,
    Expecting,
    ExpectPlan,
    Telling,
)
from mint2m.verify_signature_command import signature

Seal: TypeAlias = Annotated[Path | None, typer.Option("--seal", help="The run's seal, where it is not beside it.")]


def register(app: typer.Typer) -> None:
    """Add the `verify` group."""
    group = typer.Typer(help="Verify evidence offline, from its raw artifacts.", invoke_without_command=True)
    group.callback()(what_is_here)
    group.command("run")(run)
    group.command("chain")(chain)
    group.command("receipt")(receipt)
    group.command("checkpoint")(checkpoint)
    group.command("manifest")(manifest)
    group.command("evidence")(evidence)
    group.command("training")(training)
    group.command("bundle")(bundle)
    group.command("signature")(signature)
    app.add_typer(group, name="verify")


def what_is_here(context: typer.Context) -> Outcome | None:
    """Verify evidence offline, from its raw artifacts; alone: say what is here and what could be verified."""
    if context.invoked_subcommand is not None:
        return None
    from mint2m.survey_text import survey_outcome

    return survey_outcome(Path())


@grouped
def run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory.")],
    *,
    anchoring: Anchoring,
    expecting: Expecting,
    rehashing: Rehashing,
    telling: Telling,
) -> Outcome:
    """Verify a run directory: seal, files, plan, ranks, losses, optimizer step. --digest is of the seal's payload."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.run import verify_run

    anchor = anchoring.choose()
    with hash_bar() as progress, rehashing.kept(directory) as kept:
        wanted = expecting.options(
            at=anchoring.at, progress=progress, journal=kept, whole_digests=rehashing.whole_digests
        )
        return telling.present(verify_run(directory, anchor, wanted))


@grouped
def chain(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Evidence directory of a promotion run.")],
    *,
    anchoring: Anchoring,
    plan_key: Annotated[
        Path | None, typer.Option("--plan-key", help="Public key of the planner, where it is another than --key.")
    ] = None,
    through: Annotated[str | None, typer.Option("--through", help="Ask for the stages up to this one only.")] = None,
    known: Annotated[
        str | None, typer.Option("--known-checkpoint", help="SIZE:ROOT of the log as you saw it before.")
    ] = None,
    expecting: Expecting,
    telling: Telling,
) -> Outcome:
    """Verify a promotion chain: every stage again from raw artifacts, by the plan's bounds alone."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.chain.options import chain_options
    from mint2m_verify.chain.verify import verify_chain

    anchor = anchoring.choose()
    with hash_bar() as progress:
        wanted = expecting.options(at=anchoring.at, progress=progress)
        return telling.present(verify_chain(directory, anchor, chain_options(wanted, through, plan_key, known)))


@grouped
def training(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of an online training.")],
    *,
    anchoring: Anchoring,
    telling: Telling,
) -> Outcome:
    """Verify an online training: every step's run, the chain of steps, seeds, rewards. --digest is of its statement."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import options
    from mint2m_verify.training.verify import verify_training

    anchor = anchoring.choose()
    with hash_bar() as progress:
        return telling.present(verify_training(directory, anchor, options(anchoring.at, progress=progress)))


@grouped
def receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="receipt.json of a run.")],
    root: Annotated[Path | None, typer.Option("--root", help="Run directory with the files it names.")] = None,
    seal: Seal = None,
    *,
    anchoring: Anchoring,
    expect_plan: ExpectPlan = None,
    telling: Telling,
) -> Outcome:
    """Verify a receipt, and that the files it names are those at hand. --digest is of the receipt's file."""
    from mint2m_verify.anchor import options
    from mint2m_verify.verify_receipt import verify_receipt

    anchor = anchoring.choose()
    return telling.present(verify_receipt(file, root, seal, anchor, options(anchoring.at, expect_plan)))


@grouped
def checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory.")],
    manifest: Annotated[Path | None, typer.Option("--manifest", help="Its checkpoint-manifest.")] = None,
    signature: Annotated[
        Path | None,
        typer.Option("--signature", help="An OpenSSF model_signing signature of DIR, for a manifest."),
    ] = None,
    seal: Seal = None,
    *,
    anchoring: Anchoring,
    rehashing: Rehashing,
    telling: Telling,
) -> Outcome:
    """Verify a checkpoint file by file. --digest is of the manifest's root or file."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import options
    from mint2m_verify.verify_tree import verify_checkpoint

    anchor = anchoring.choose()
    with hash_bar() as progress, rehashing.kept(directory) as kept:
        wanted = options(anchoring.at, progress=progress, journal=kept, whole_digests=rehashing.whole_digests)
        if signature is not None:
            from mint2m_verify.model_signing import verify_model

            return telling.present(verify_model(directory, signature, anchor, wanted, manifest=manifest, seal=seal))
        return telling.present(verify_checkpoint(directory, manifest, seal, anchor, wanted))


@grouped
def manifest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file, model or checkpoint manifest.")],
    root: Annotated[Path, typer.Option("--root", help="The directory that it is of.")],
    seal: Seal = None,
    *,
    anchoring: Anchoring,
    rehashing: Rehashing,
    telling: Telling,
) -> Outcome:
    """Verify a directory against a manifest of any kind. --digest is of the manifest's root or file."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import options
    from mint2m_verify.verify_tree import verify_manifest

    anchor = anchoring.choose()
    with hash_bar() as progress, rehashing.kept(root) as kept:
        wanted = options(anchoring.at, progress=progress, journal=kept, whole_digests=rehashing.whole_digests)
        return telling.present(verify_manifest(file, root, seal, anchor, wanted))


@grouped
def evidence(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Published evidence.")] = Path("evidence"),
    *,
    anchoring: Anchoring,
    telling: Telling,
) -> Outcome:
    """Verify published evidence and say what each part is worth. --digest is of manifest.json or its root."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import options
    from mint2m_verify.verify_evidence import verify_evidence

    anchor = anchoring.choose()
    with hash_bar() as progress:
        return telling.present(verify_evidence(directory, anchor, options(anchoring.at, progress=progress)))
