"""`mint2m evidence report DIR`: the runs of a folder in one table, each verified here and now.

The rule: a run's verdict is computed, and its numbers stand in the table only where nothing contradicts them: a run
that fails has a first cause and no loss. A folder without a run proves nothing and fails; what lies beside the runs is
named, so that a run that is no longer recognized as one is missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, VerifyOptions, check_outside_of
from mint2m_verify.exhibits import Table
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, Trust, Verdict, found
from mint2m_verify.run import Examined, examine_run
from mint2m_verify.run_documents import RunDocuments
from mint2m_verify.run_exhibits import timeline_of
from mint2m_verify.seal import short
from mint2m_verify.walk import shown_name

#: Verdicts that a run gets whose bytes and numbers agree, whatever the auditor makes of its signer.
_CONSISTENT = (Verdict.ACCEPTED, Verdict.UNTRUSTED, Verdict.INCOMPLETE)

#: Entries beside the runs that are named.
_SHOWN = 10

_NONE = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One cell: what a run says or was found to be, and how that is known; the operator's word or recomputed."""

    name: str
    shown: str
    standing: Standing


def report_runs(folder: Path, anchor: Anchor, options: VerifyOptions) -> Report:
    """Every run directory right below `folder`, verified under the same anchor; the worst verdict is the report's.

    Raises:
        FindingError: `input.missing` or `input.not-a-directory`.
    """
    runs, others = _sorted_out(folder)
    rows: list[Requirement] = []
    findings = list(check_outside_of(anchor, folder))  # a key beside the runs came with them
    cells: list[tuple[str, ...]] = []
    heads: tuple[str, ...] = ()
    trust = Trust()
    accepted = 0
    for run in runs:
        name = shown_name(run.name)
        examined = examine_run(run, anchor, options)
        report, facts = examined.report, tuple(_facts(examined))
        accepted += report.verdict is Verdict.ACCEPTED
        verdict = f"{_verdict(report)}{_short_of_update(examined.documents)}"
        findings += [_of(name, fault) for fault in report.roots]
        trust = replace(report.trust, signers=tuple(dict.fromkeys((*trust.signers, *report.trust.signers))), digests=())
        rows.append(Requirement(required=name, found=verdict, standing=_standing(report)))
        rows += [
            Requirement(required=f"{name}: {fact.name}", found=fact.shown, standing=fact.standing) for fact in facts
        ]
        heads = ("run", "verdict", *(fact.name for fact in facts))
        cells.append((name, verdict, *(fact.shown for fact in facts)))
    if not runs:
        hint = "DIR is a run itself: give the folder that holds it" if _is_run(folder) else "no run right below it"
        findings.append(found("tree.empty", file=str(folder), hint=hint))
    return Report(
        subject=str(folder),
        command="evidence report",
        requirements=tuple(rows),
        findings=tuple(findings),
        not_checked=tuple(_not_checked(others)),
        trust=trust,
        summary=f"{accepted} of {len(runs)} runs accepted",
        exhibits=(Table(title="Runs", heads=heads, rows=tuple(cells)),) if cells else (),
        comparison=True,
    )


def _sorted_out(folder: Path) -> tuple[list[Path], list[str]]:
    """Run directories by name, and the names of everything else; links are not followed."""
    if not folder.exists():
        raise FindingError(found("input.missing", file=str(folder)))
    if not folder.is_dir():
        raise FindingError(found("input.not-a-directory", file=str(folder)))
    entries = sorted(folder.iterdir())
    runs = [entry for entry in entries if not entry.is_symlink() and entry.is_dir() and _is_run(entry)]
    return runs, [shown_name(entry.name) for entry in entries if entry not in runs]


def _is_run(folder: Path) -> bool:
    """One of a run's own files is enough: a run that has lost the others is shown as the failure that it is."""
    return any((folder / path).exists() for path in (*layout.REQUIRED_FILES, layout.SEAL))


def _of(name: str, fault: Finding) -> Finding:
    """A run's finding as one of the folder's."""
    return replace(fault, file=name if fault.file is None else f"{name}/{fault.file}")


def _verdict(report: Report) -> str:
    return report.verdict.word if not report.roots else f"{report.verdict.word}: {report.roots[0].id}"


def _short_of_update(documents: RunDocuments) -> str:
    """What is said of a run that is one of a step's and takes no step; the table shows numbers of updates beside it."""
    partial = documents.deployment is not None and documents.deployment.document.ends_with_gradient
    return " (a gradient, no update)" if partial else ""


def _standing(report: Report) -> Standing:
    if report.verdict is Verdict.ACCEPTED:
        return Standing.CACHED if _cached(report) else Standing.CHECKED
    return Standing.FAILED if report.verdict is Verdict.FAILED else Standing.UNVERIFIABLE


def _cached(report: Report) -> bool:
    return any(row.standing is Standing.CACHED for row in report.requirements)


def _facts(examined: Examined) -> Iterator[Fact]:
    """The cells of a run, always the same ones; nothing is told of a run that contradicts itself."""
    shown = dict(_known(examined.documents)) if examined.report.verdict in _CONSISTENT else {}
    for name, standing in _COLUMNS:
        words = shown.get(name)
        yield Fact(name=name, shown=_NONE if words is None else words, standing=standing if words else _UNTOLD)


_UNTOLD = Standing.UNVERIFIABLE

#: In the order of the table. What the operator says of hardware and time nobody computes again.
_COLUMNS = (
    ("loss", Standing.DERIVED),
    ("gradient norm", Standing.DERIVED),
    ("tokens", Standing.CHECKED),
    ("time", Standing.ATTESTED_ONLY),
    ("placement", Standing.ATTESTED_ONLY),
    ("hardware", Standing.ATTESTED_ONLY),
    ("model", Standing.CHECKED),
    ("plan", Standing.CHECKED),
    ("execution", Standing.CHECKED),
    ("source", Standing.ATTESTED_ONLY),
)


def _known(documents: RunDocuments) -> Iterator[tuple[str, str]]:
    """What the run's documents hold, as far as they could be read."""
    if documents.scores is not None:
        yield "loss", f"{documents.scores.document.loss:.6g}"
        yield "gradient norm", f"{documents.scores.document.gradient_norm:.6g}"
    if documents.receipt is not None:
        receipt = documents.receipt.document
        yield "tokens", f"{receipt.prompt_tokens:,}"
        yield "hardware", receipt.hardware_class
        yield "execution", short(receipt.execution_id)
    if documents.sessions is not None:
        ranks = documents.sessions.document.ranks
        nodes = len({session.placement.observed_node_ip for session in ranks})
        yield "time", f"{timeline_of(documents.sessions.document).seconds:.1f} s"
        yield "placement", f"{_count(len(ranks), 'rank')} on {_count(nodes, 'node')}"
    if documents.model_manifest is not None:
        yield "model", short(documents.model_manifest.document.root_sha256)
    if documents.plan is not None:
        yield "plan", short(documents.plan.document.plan_sha256)
        yield "source", short(documents.plan.document.source_sha256)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _not_checked(others: list[str]) -> Iterator[str]:
    yield "what each verification leaves open (mint2m verify run DIR)"
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        yield f"what is no run: {', '.join(others[:_SHOWN])}{more}"
