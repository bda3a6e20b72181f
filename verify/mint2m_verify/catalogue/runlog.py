"""Findings about the run log: the Merkle tree over everything that a promotion run signed."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="runlog.empty",
        verdict=Verdict.FAILED,
        message="the run log holds no entry",
        explanation=(
            "A promotion run begins with its signed validation plan, which is entry 0 of the log. A log of nothing says nothing."
        ),
    ),
    Entry(
        id="runlog.forked",
        verdict=Verdict.FAILED,
        message="a statement was signed over another history than the one at hand",
        explanation=(
            "Every statement carries the root of the Merkle tree over all statements before it. This one names another root, so an\n"
            "earlier statement was replaced after this one was signed, or this one belongs to another run. Both are signed: ask\n"
            "the signer for the history that this statement continues."
        ),
    ),
    Entry(
        id="runlog.reordered",
        verdict=Verdict.FAILED,
        message="statements of the log changed places",
        explanation=(
            "The sizes of the log that the statements carry are each there once, in another order than that of the stages. A stage\n"
            "was run before its parent, or statements were put under each other's names."
        ),
    ),
    Entry(
        id="runlog.entry-missing",
        verdict=Verdict.FAILED,
        message="the log has another number of entries before this statement than it was signed with",
        explanation=(
            "The statement says how many statements came before it, and another number lies here: one was taken from the middle,\n"
            "put in, or comes from another run."
        ),
    ),
    Entry(
        id="runlog.proof-invalid",
        verdict=Verdict.FAILED,
        message="a proof of the log does not prove what it says",
        explanation=(
            "Beside each seal lies the head of the log after it, with proofs that the seal is in it and that it continues the log\n"
            "before (RFC 6962). They are made again from the statements at hand, and one of them does not follow."
        ),
    ),
    Entry(
        id="runlog.cut",
        verdict=Verdict.FAILED,
        message="the log is shorter than the one you saw before",
        explanation=(
            "The head that you gave with --known-checkpoint has more entries than the evidence at hand. The newest stages were taken\n"
            "away: a cut tail cannot be seen from the inside."
        ),
    ),
    Entry(
        id="runlog.known-mismatch",
        verdict=Verdict.FAILED,
        message="the log does not continue the one you saw before",
        explanation=(
            "At the size of the head that you gave with --known-checkpoint this log has another root: its history was rewritten\n"
            "since, or it is the log of another run."
        ),
    ),
)
