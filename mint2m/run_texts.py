"""The words of the run commands: what a doctor, a plan and a finished run look like on stdout."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mint2m.outcome import Format, Outcome, present
from mint2m_verify.finding import Verdict
from mint2m_verify.render.escape import escape

if TYPE_CHECKING:
    from mint2m_trainer.cluster.driver import Trained
    from mint2m_trainer.run import RunResult
    from mint2m_verify.doctor import Examination
    from mint2m_verify.planning import Planned


def doctor_outcome(examination: Examination, subject: str, form: Format) -> Outcome:
    """JSON is the doctor document itself; text ends with the primary failure."""
    report = examination.report(subject)
    if form is Format.JSON:
        return Outcome(text=examination.doctor.encode().decode("utf-8"), verdict=report.verdict)
    outcome = present(report, form)
    if examination.doctor.primary_failure is None:
        return outcome
    text = f"{outcome.text.rstrip()}\n\nprimary_failure: {examination.doctor.primary_failure}"
    return Outcome(text=text, verdict=outcome.verdict)


def plan_outcome(made: Planned, output: Path, form: Format) -> Outcome:
    """The plan's address and its byte plan a rank; or what stood in the way."""
    outcome = present(made.report(), form)
    if made.plan is None or form is Format.JSON:
        return outcome
    plan = made.plan
    rows = [f"plan        {plan.plan_sha256}", f"written to  {escape(str(output))}", ""]
    rows += [f"rank {rank.rank:<6} {rank.node_ip} slot {rank.slot}   {rank.actor}" for rank in plan.placement.ranks]
    total = sum(item.bytes for item in plan.memory)
    rows += ["", "bytes of the fullest rank"]
    rows += [f"  {item.category:<16}{item.bytes:>16,}" for item in plan.memory]
    rows += [f"  {'together':<16}{total:>16,}"]
    return Outcome(text="\n".join(rows))


def run_outcome(result: RunResult, lines: Sequence[str], form: Format) -> Outcome:
    """The stages, then where the evidence is, what it proves and what it does not; a refusal is the report."""
    report = result.report
    if form is Format.JSON or report.verdict is not Verdict.ACCEPTED or result.directory is None or result.plan is None:
        outcome = present(report, form)
        head = "\n".join(lines)
        text = outcome.text if form is Format.JSON or not head else f"{head}\n\n{outcome.text}"
        return Outcome(text=text, verdict=outcome.verdict)
    plan = result.plan
    by = escape(result.signed_by or "")
    anchor = f"--key {_word(result.public_key)}"
    if result.public_key is None:
        anchor = "--policy POLICY --trusted-root ROOT   (a policy that names this identity and its root)"
    made = ("          The key was made for this run: it shows that nothing changed since, not who ran it.",)
    gradient = plan.profile.prefix.gradient
    rehearsed = plan.profile.rehearses
    what = f"one GRPO update ({gradient} prefix gradient)"
    if rehearsed is not None:
        tokens = plan.profile.context.prompt_tokens
        what = f"a rehearsal with {tokens} tokens of a run with {rehearsed.prompt_tokens}, and counts as none"
    if plan.claim_scope == "gradient_accumulation_only":
        what = f"the gradient of one prompt of a GRPO update ({gradient} prefix gradient), and no update"
    closing = (
        "",
        f"Evidence: {escape(str(result.directory))}",
        f"Proves:   {what}, {plan.deployment.hardware_class}, signed by {by}.",
        *(made if result.signer == "ephemeral" else ()),
        f"Does not: say anything about another model, length or hardware (claim scope {plan.claim_scope}).",
        f"Check it: mint2m verify run {_word(result.directory)} {anchor}",
    )
    return Outcome(text="\n".join((*lines, *closing)), verdict=report.verdict)


def train_outcome(trained: Trained, directory: Path, lines: Sequence[str]) -> Outcome:
    """The stages and the receipt; a receipt without a seal convinces nobody, and the text says so."""
    receipt = trained.receipt
    closing = (
        "",
        f"Receipt:  {escape(str(directory / 'receipt.json'))}",
        f"          plan {receipt.plan_sha256}",
        f"          execution {receipt.execution_id}",
        f"Not yet sealed: mint2m sign tree {_word(directory)} --key NAME.key",
    )
    return Outcome(text="\n".join((*lines, *closing)))


def _word(path: Path | None) -> str:
    """A path as one word of a shell's command line."""
    return escape(shlex.quote(str(path)))
