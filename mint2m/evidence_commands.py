"""`mint2m evidence report | diff | manifest | status`: runs beside each other, and what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.outcome import Outcome, ReportFormat, present, report_files
from mint2m.verify_options import At, Consistency, Key, Policy, Reports, TrustedRoot

Form: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")]


def register(app: typer.Typer) -> None:
    """Add the `evidence` group."""
    group = typer.Typer(help="Compare runs, and bind what is published.", no_args_is_help=True)
    group.command("report")(report)
    group.command("diff")(diff)
    group.command("manifest")(manifest)
    group.command("status")(status)
    app.add_typer(group, name="evidence")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run directories.")],
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    consistency_only: Consistency = False,
    at: At = None,
    form: Form = ReportFormat.TEXT,
    reports: Reports = None,
) -> Outcome:
    """Verify every run of a folder and show them in one table; exit 0 only where all are accepted."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.evidence_report import report_runs

    files = report_files(reports)
    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=None, consistency_only=consistency_only, at=at
    )
    with hash_bar() as progress:
        return present(report_runs(directory, anchor, options(at, progress=progress)), form, files)


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Run directory.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Run directory.")],
    logprob: Annotated[float, typer.Option("--max-logprob", min=0, help="Largest log-prob difference.")] = 5e-3,
    loss: Annotated[float, typer.Option("--max-loss", min=0, help="Largest loss difference.")] = 5e-3,
    cosine: Annotated[float, typer.Option("--min-cosine", help="Least gradient cosine.")] = 0.999,
    relative_l2: Annotated[float, typer.Option("--max-relative-l2", min=0, help="Largest relative L2.")] = 1e-2,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Compare two runs: inputs, numbers, identities, placement, time; exit 1 for other inputs or past a bound."""
    from mint2m_verify.evidence_diff import diff_runs
    from mint2m_verify.recompute.parity import Thresholds

    bounds = Thresholds(logprob=logprob, loss=loss, cosine=cosine, relative_l2=relative_l2)
    return present(diff_runs(first, second, bounds), form)


def manifest(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Published evidence.")]) -> Outcome:
    """Write DIR/manifest.json anew: it binds every other file below DIR."""
    from mint2m_verify.files import write_atomic
    from mint2m_verify.verify_evidence import MANIFEST, evidence_manifest

    made = evidence_manifest(directory)
    write_atomic(directory / MANIFEST, made.encode())
    return Outcome(text=f"{made.file_count} files, {made.total_bytes:,} bytes\nsha256  {made.sha256}")


def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Published evidence.")],
    output: Annotated[Path | None, typer.Option("--output", help="Write the page here.")] = None,
) -> Outcome:
    """Say on one page what the published evidence shows and what it does not; made from the evidence alone."""
    from mint2m_verify.evidence_status import evidence_status
    from mint2m_verify.files import write_atomic

    page = evidence_status(directory)
    if output is None:
        return Outcome(text=page.removesuffix("\n"))
    write_atomic(output, page.encode("utf-8"))
    return Outcome(text=str(output))
