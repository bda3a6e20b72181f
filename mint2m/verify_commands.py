"""`mint2m verify run | chain | training | receipt | checkpoint | manifest | evidence`: against the auditor's anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.hash_options import Journal, UseCached, WholeDigests, hash_journal
from mint2m.outcome import Outcome, ReportFormat, present, report_files
from mint2m.verify_bundle_command import bundle
from mint2m.verify_options import At, Consistency, Digest, Form, Key, Policy, Reports, TrustedRoot
from mint2m.verify_signature_command import signature

ExpectPlan: TypeAlias = Annotated[str | None, typer.Option("--expect-plan", help="SHA-256 of the plan it must be of.")]
ExpectNonce: TypeAlias = Annotated[str | None, typer.Option("--expect-nonce", help="Instance nonce it must be of.")]
ExpectSeal: TypeAlias = Annotated[str | None, typer.Option("--expect-seal", help="SHA-256 of the seal's payload.")]
ExpectSource: TypeAlias = Annotated[str | None, typer.Option("--expect-source", help="SHA-256 of the source it ran.")]
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


def run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory.")],
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    expect_plan: ExpectPlan = None,
    expect_nonce: ExpectNonce = None,
    expect_seal: ExpectSeal = None,
    expect_source: ExpectSource = None,
    journal: Journal = None,
    use_cached: UseCached = False,
    whole_digests: WholeDigests = False,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a run directory: seal, files, plan, ranks, losses, optimizer step. --digest is of the seal's payload."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.run import verify_run

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress, hash_journal(journal, directory, use_cached=use_cached) as kept:
        wanted = options(
            at, expect_plan, expect_nonce, expect_seal, expect_source, progress, kept, whole_digests=whole_digests
        )
        return present(verify_run(directory, anchor, wanted), form, files)


def chain(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Evidence directory of a promotion run.")],
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    plan_key: Annotated[
        Path | None, typer.Option("--plan-key", help="Public key of the planner, where it is another than --key.")
    ] = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    through: Annotated[str | None, typer.Option("--through", help="Ask for the stages up to this one only.")] = None,
    known: Annotated[
        str | None, typer.Option("--known-checkpoint", help="SIZE:ROOT of the log as you saw it before.")
    ] = None,
    at: At = None,
    expect_plan: ExpectPlan = None,
    expect_nonce: ExpectNonce = None,
    expect_seal: ExpectSeal = None,
    expect_source: ExpectSource = None,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a promotion chain: every stage again from raw artifacts, by the plan's bounds alone."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.chain.options import chain_options
    from mint2m_verify.chain.verify import verify_chain

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress:
        wanted = options(at, expect_plan, expect_nonce, expect_seal, expect_source, progress)
        return present(verify_chain(directory, anchor, chain_options(wanted, through, plan_key, known)), form, files)


def training(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of an online training.")],
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify an online training: every step's run, the chain of steps, seeds, rewards. --digest is of its statement."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.training.verify import verify_training

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress:
        return present(verify_training(directory, anchor, options(at, progress=progress)), form, files)


def receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="receipt.json of a run.")],
    root: Annotated[Path | None, typer.Option("--root", help="Run directory with the files it names.")] = None,
    seal: Seal = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    expect_plan: ExpectPlan = None,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a receipt, and that the files it names are those at hand. --digest is of the receipt's file."""
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.verify_receipt import verify_receipt

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    return present(verify_receipt(file, root, seal, anchor, options(at, expect_plan)), form, files)


def checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory.")],
    manifest: Annotated[Path | None, typer.Option("--manifest", help="Its checkpoint-manifest.")] = None,
    signature: Annotated[
        Path | None,
        typer.Option("--signature", help="An OpenSSF model_signing signature of DIR, for a manifest."),
    ] = None,
    seal: Seal = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    journal: Journal = None,
    use_cached: UseCached = False,
    whole_digests: WholeDigests = False,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a checkpoint file by file. --digest is of the manifest's root or file."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.verify_tree import verify_checkpoint

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress, hash_journal(journal, directory, use_cached=use_cached) as kept:
        wanted = options(at, progress=progress, journal=kept, whole_digests=whole_digests)
        if signature is not None:
            from mint2m_verify.model_signing import verify_model

            return present(
                verify_model(directory, signature, anchor, wanted, manifest=manifest, seal=seal), form, files
            )
        return present(verify_checkpoint(directory, manifest, seal, anchor, wanted), form, files)


def manifest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file, model or checkpoint manifest.")],
    root: Annotated[Path, typer.Option("--root", help="The directory that it is of.")],
    seal: Seal = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    journal: Journal = None,
    use_cached: UseCached = False,
    whole_digests: WholeDigests = False,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a directory against a manifest of any kind. --digest is of the manifest's root or file."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.verify_tree import verify_manifest

    files = report_files(report)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress, hash_journal(journal, root, use_cached=use_cached) as kept:
        wanted = options(at, progress=progress, journal=kept, whole_digests=whole_digests)
        return present(verify_manifest(file, root, seal, anchor, wanted), form, files)


def evidence(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Published evidence.")] = Path("evidence"),
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    at: At = None,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify published evidence and say what each part is worth. --digest is of manifest.json or its root."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.verify_evidence import verify_evidence

    files = report_files(report)
    anchor = choose(
        key=key, digest=digest, consistency_only=consistency_only, policy=policy, trusted_root=trusted_root, at=at
    )
    with hash_bar() as progress:
        return present(verify_evidence(directory, anchor, options(at, progress=progress)), form, files)
