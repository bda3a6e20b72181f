"""What `mint2m verify` says without a command."""

from __future__ import annotations

import shlex
from pathlib import Path

from mint2m.outcome import Outcome
from mint2m_verify.finding import Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.survey import Role, Seen, survey


def survey_outcome(folder: Path) -> Outcome:
    """What lies in `folder` and which command would verify it; nothing was verified, so this is no acceptance."""
    seen = survey(folder)
    evidence = [item for item in seen if item.role is Role.EVIDENCE]
    anchors = [item for item in seen if item.role is Role.ANCHOR]
    lines = [f"{len(evidence)} to verify in {escape(str(folder.resolve()))}; nothing was verified yet"]
    for item in evidence:
        lines += ["", f"{_shown(item)}   {item.what}", f"  mint2m {_words(item)}", f"  needs {item.needs}"]
    if not evidence:
        lines += [
            "",
            "No run, release bundle, checkpoint, manifest, receipt or signature was recognized here.",
            "Name one:",
        ]
        lines += [
            "  mint2m verify run DIR | bundle FILE | checkpoint DIR | manifest FILE | receipt FILE | signature FILE"
        ]
    if anchors:
        lines += ["", "Could be an anchor, if it did not come with the evidence:"]
        lines += [f"  {_words(item)}   {item.what}" for item in anchors]
    return Outcome(text="\n".join(lines), verdict=Verdict.BLOCKED)


def _shown(item: Seen) -> str:
    return escape(item.path)


def _words(item: Seen) -> str:
    """The arguments as a shell takes them; a name that a terminal must not see is shown as its escape."""
    return escape(shlex.join(item.arguments))
