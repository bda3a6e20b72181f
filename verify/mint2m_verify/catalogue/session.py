"""Findings about what the ranks recorded."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHAT = (
    "Rank records are the operator's word, bound by the seal; what can be known of them is that they are complete, in order,\n"
    "chained to one execution of one plan, and agree with each other and with the numbers computed again. Here they do not.\n"
    "The run that they tell of cannot have happened as told. A new run is needed; records cannot be repaired."
)


def _entry(id: str, message: str, meaning: str) -> Entry:
    return Entry(id=id, verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHAT}")


ENTRIES = (
    _entry(
        "session.plan-mismatch",
        "the rank records are of another plan",
        "The records name another plan than plan.json: they come from another run.",
    ),
    _entry(
        "session.rank-missing",
        "a rank is missing",
        "The plan has more ranks than left records. A rank that left none may have done anything.",
    ),
    _entry(
        "session.rank-repeated",
        "a rank appears more than once",
        "Two records claim to be the same rank; ranks of two attempts never mix.",
    ),
    _entry(
        "session.rank-unknown",
        "a rank that the plan does not have",
        "The records hold a rank beyond the world size.",
    ),
    _entry(
        "session.rank-order",
        "ranks are not in order",
        "Records are written in the order of ranks.",
    ),
    _entry(
        "session.world-size",
        "a rank ran under another world size",
        "A rank recorded a world size that is not the profile's.",
    ),
    _entry(
        "session.actor-mismatch",
        "a rank ran under another actor name",
        "The plan gives each rank one actor name; the record names another.",
    ),
    _entry(
        "session.actor-repeated",
        "two ranks have one actor id",
        "Each rank is its own actor; one id twice means that one record was copied.",
    ),
    _entry(
        "session.phase-missing",
        "a phase is missing",
        "The profile calls for this phase on every rank and the record does not have it.",
    ),
    _entry(
        "session.phase-unexpected",
        "a phase that the profile does not call for",
        "The record has a phase that is not part of an update under this profile.",
    ),
    _entry(
        "session.phase-repeated",
        "a phase appears twice",
        "Each phase runs exactly once; a second optimizer step, for example, is a second update.",
    ),
    _entry(
        "session.phase-order",
        "phases are out of order",
        "All phases are there, in another order than an update runs in.",
    ),
    _entry(
        "session.sequence",
        "sequence numbers are not 0, 1, 2, …",
        "Order is proven by sequence numbers, and these do not count up.",
    ),
    _entry(
        "session.chain-broken",
        "the chain of records is broken",
        "A record names another predecessor than the one before it, or its first link is of another execution, plan or\n"
        "rank. A record was changed, moved, or taken from another run.",
    ),
    _entry(
        "session.evidence-missing",
        "a phase lacks evidence that it must have",
        "The phase did not record a member that every such phase records.",
    ),
    _entry(
        "session.file-missing",
        "a rank names a file that is not there",
        "A phase recorded that it wrote this file, and the run directory does not hold it.",
    ),
    _entry(
        "session.file-mismatch",
        "a file is not the one that a rank wrote",
        "A phase recorded the SHA-256 of a file that it wrote, and the file at hand has another.",
    ),
    _entry(
        "session.weights-changed",
        "the frozen base weights changed",
        "The digest of base weights and buffers differs between two phases of one rank. The base model is frozen during\n"
        "an update, buffers included.",
    ),
    _entry(
        "session.identity-mismatch",
        "a rank ran something else than planned",
        "Source, runtime identity or the shape of the process groups on this rank are not those of the plan.",
    ),
    _entry(
        "session.ranks-disagree",
        "ranks disagree about the update",
        "A value that describes the whole update differs between ranks: the same collectives, losses and digests must be\n"
        "seen by all.",
    ),
    _entry(
        "session.count-mismatch",
        "a count is not what the profile calls for",
        "Chunks, backward calls, finalize calls and steps follow from the profile, and the record has another number.",
    ),
    _entry(
        "session.number-mismatch",
        "a recorded number is not the one computed again",
        "The number was recomputed from scores and gradient, and the record is further off than rounding allows.",
    ),
    _entry(
        "session.adapter-mismatch",
        "the adapter is not the one the ranks held",
        "The digest over the exported adapter is not the one that the ranks recorded.",
    ),
    _entry(
        "session.optimizer-contract",
        "the live optimizer was not the contracted one",
        "What was read back from the live optimizer before its step differs from the profile's contract.",
    ),
    _entry(
        "session.cleanup-incomplete",
        "a rank was not closed or not found absent",
        "The record says that its session, its process groups or its actor remained.",
    ),
)
