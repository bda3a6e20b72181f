"""Findings about the command itself."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="usage.invalid",
        verdict=Verdict.BLOCKED,
        message="the command was not understood",
        explanation="An option, argument or combination is not valid. Nothing was opened or written. See `mint2m COMMAND --help`.",
    ),
    Entry(
        id="usage.interrupted",
        verdict=Verdict.BLOCKED,
        message="interrupted before the end",
        explanation="The command was stopped by the person or system that started it. Nothing was judged, nothing half-written is left.",
    ),
    Entry(
        id="tool.internal",
        verdict=Verdict.INTERNAL,
        message="internal error",
        explanation=(
            "The tool itself failed; this is never a verdict on evidence, neither good nor bad. Run again with --debug and report\n"
            "the traceback."
        ),
        hint="run again with --debug to see the traceback",
    ),
    Entry(
        id="tool.io",
        verdict=Verdict.IO_ERROR,
        message="an input or output operation failed",
        explanation="The operating system refused an operation (permission, space, a vanished file). The evidence was not judged.",
    ),
    Entry(
        id="tool.extra-missing",
        verdict=Verdict.BLOCKED,
        message="this command needs the trainer extra",
        explanation="Verification works without it; training, replay and parity export need torch, megatron-core and ray.",
        hint="pip install 'mint2m[trainer]'",
    ),
)
