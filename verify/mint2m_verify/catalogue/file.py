"""Findings about opening and writing files."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="file.missing",
        verdict=Verdict.FAILED,
        message="a required file is missing",
        explanation="Evidence that should hold this file does not. What the file would have shown is not shown; the set is incomplete.",
    ),
    Entry(
        id="file.not-regular",
        verdict=Verdict.FAILED,
        message="not a regular file",
        explanation=(
            "Links, devices, pipes and sockets are never followed or read: what they give can differ between two looks, or lie\n"
            "outside the evidence. Evidence holds regular files and directories only."
        ),
    ),
    Entry(
        id="file.too-large",
        verdict=Verdict.FAILED,
        message="the file is larger than its kind allows",
        explanation="A document longer than the reader's stated limit is refused before it is held in memory.",
    ),
    Entry(
        id="tensors.too-large",
        verdict=Verdict.IO_ERROR,
        message="the file of tensors is larger than is read whole",
        explanation=(
            "The verifier holds these tensors in memory to compute with them, 1 GiB of a run's and 16 GiB of a comparison's, and\n"
            "this file has more. Its bytes may be hashed, its numbers were not looked at: this is a limit here and says nothing\n"
            "about the evidence."
        ),
    ),
    Entry(
        id="file.unreadable",
        verdict=Verdict.IO_ERROR,
        message="the file cannot be read",
        explanation="The operating system refused to open or read it. This says nothing about the evidence; mend the cause and run again.",
    ),
    Entry(
        id="file.unwritable",
        verdict=Verdict.IO_ERROR,
        message="the file cannot be written",
        explanation="The output could not be written whole, so nothing was left under its name. Free space or choose another place.",
    ),
    Entry(
        id="file.exists",
        verdict=Verdict.BLOCKED,
        message="the output exists already",
        explanation="Nothing is overwritten. Choose another name, or remove the old output yourself if it is no longer needed.",
    ),
    Entry(
        id="input.missing",
        verdict=Verdict.BLOCKED,
        message="the named input does not exist",
        explanation="A path on the command line leads nowhere. Check the spelling and the directory you are in.",
    ),
)
