"""Findings about files and directory trees."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="tree.file-changed",
        verdict=Verdict.FAILED,
        message="the file is not the one that was committed",
        explanation=(
            "A manifest or the seal names this file with a SHA-256, and the bytes at hand have another one. The byte range is the\n"
            "first 64 MiB piece that differs. The file was altered, damaged in transfer, or written again after the run.\n"
            "Whatever follows from this file is void. If the seal itself is genuine, the change came after it was made:\n"
            "get the file again from where the run was done."
        ),
    ),
    Entry(
        id="tree.file-missing",
        verdict=Verdict.FAILED,
        message="a committed file is missing",
        explanation=(
            "A manifest or the seal names this file and the directory does not hold it. What it would have shown is not shown,\n"
            "so the evidence is incomplete. Copy the whole directory again; partial copies do not verify."
        ),
    ),
    Entry(
        id="tree.file-unlisted",
        verdict=Verdict.FAILED,
        message="a file that nothing commits",
        explanation=(
            "The directory holds a file that neither the seal nor the manifest of its tree names. It was added after signing, or\n"
            "left behind by a tool. A loader might read it, so it cannot be ignored. Remove what does not belong, never edit\n"
            "what does; then verify again."
        ),
    ),
    Entry(
        id="tree.file-renamed",
        verdict=Verdict.FAILED,
        message="a committed file lies under another name",
        explanation=(
            "A committed file is missing and a file with exactly its content lies here under an uncommitted name. The content is\n"
            "genuine and its place is not: names decide what a loader does with a file. Give it its committed name back."
        ),
    ),
    Entry(
        id="tree.file-unexpected",
        verdict=Verdict.FAILED,
        message="the file has no place in a run directory",
        explanation=(
            "The seal names this file, but run directories have a fixed layout and this name is not part of it. Nothing checks\n"
            "its content, so accepting it would lend a signature to whatever it says. See the receipt formats in the docs."
        ),
    ),
    Entry(
        id="tree.mode-changed",
        verdict=Verdict.FAILED,
        message="the executable bit differs",
        explanation=(
            "Of a file's mode only the executable bit counts, and it is not as committed. A data file that became executable can\n"
            "be run; a copy through a file system without modes does this to all files at once. Set the bit back with chmod."
        ),
    ),
    Entry(
        id="tree.symlink",
        verdict=Verdict.FAILED,
        message="a symbolic link",
        explanation=(
            "Links are never followed: the target may lie outside the evidence and change between two looks. A committed file that\n"
            "became a link counts as missing. Replace the link by the file itself and verify again."
        ),
    ),
    Entry(
        id="tree.special-file",
        verdict=Verdict.FAILED,
        message="neither a regular file nor a directory",
        explanation=(
            "Pipes, sockets and devices have no content that could be committed, and reading one can hang or have effects.\n"
            "Evidence holds regular files and directories only."
        ),
    ),
    Entry(
        id="tree.name-invalid",
        verdict=Verdict.FAILED,
        message="a file name that no manifest may hold",
        explanation=(
            "Names are relative POSIX paths in UTF-8 and Unicode normal form C, without control characters or backslashes.\n"
            "Other names can look like a different file, or write to the terminal of whoever lists them. The file was not read."
        ),
    ),
    Entry(
        id="tree.empty",
        verdict=Verdict.FAILED,
        message="nothing is committed",
        explanation=(
            "The tree or its manifest has no file. An empty set agrees with everything and proves nothing, so it fails.\n"
            "Check that the directory is the right one."
        ),
    ),
    Entry(
        id="tree.changed-while-read",
        verdict=Verdict.IO_ERROR,
        message="the file or directory changed while it was read",
        explanation=(
            "Size, time or entries differed before and after reading, so what was hashed is not what lies there now. Something\n"
            "is still writing. Verify a copy that nothing writes to. This is not a verdict on the evidence."
        ),
    ),
    Entry(
        id="tree.too-many",
        verdict=Verdict.IO_ERROR,
        message="the directory is larger than the stated limits",
        explanation=(
            "The walk stops at 200,000 files and 64 levels. Nothing was judged. A run directory is far below both; check that the\n"
            "directory is the right one."
        ),
    ),
    Entry(
        id="input.not-a-directory",
        verdict=Verdict.BLOCKED,
        message="the named input is not a directory",
        explanation="The command needs a directory and was given something else. Check the argument; nothing was read.",
    ),
)
