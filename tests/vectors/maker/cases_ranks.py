"""Rank records: missing, moved, repeated, contradicting; signed with the right key."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.forge import SESSIONS, Run, read_base

Session = dict[str, Any]


def ranks(run: Run, change: Callable[[list[Session]], Any]) -> None:
    """Change the ranks' records, then chain, bind and seal them again."""
    run.edit(SESSIONS, lambda document: change(document["ranks"]) and None)
    run.follow(after="manifests")


def place(session: Session, phase: str) -> int:
    return next(index for index, record in enumerate(session["phases"]) if record["phase"] == phase)


def numbered(session: Session) -> None:
    for number, record in enumerate(session["phases"]):
        record["sequence"] = number


@vector("rank-missing", "One of two ranks left no record.", "session.rank-missing")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_.pop())


@vector(
    "rank-twice",
    "Rank 0 twice and rank 1 not at all: the count is right.",
    "session.rank-repeated",
    also=("session.rank-missing", "session.actor-repeated"),
)
def _(run: Run) -> None:
    ranks(run, lambda all_: all_.__setitem__(1, copy.deepcopy(all_[0])))


@vector("rank-unknown", "A third rank in a world of two.", "session.rank-unknown")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_.append({**copy.deepcopy(all_[1]), "rank": 2, "actor_id": "ab" * 16}))


@vector("ranks-out-of-order", "The ranks' records in another order.", "session.rank-order")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_.reverse())


@vector("rank-of-another-world", "A rank that believes in another world size.", "session.world-size")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_[1].update(world_size=4))


@vector("rank-under-another-actor", "A rank ran in an actor that was not planned.", "session.actor-mismatch")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_[1].update(actor="somebody-else"))


@vector(
    "rank-with-the-others-actor",
    "Both ranks ran in one actor.",
    "session.actor-repeated",
    also=("journal.actor-mismatch",),
)
def _(run: Run) -> None:
    ranks(run, lambda all_: all_[1].update(actor_id=all_[0]["actor_id"]))


@vector("rank-not-closed", "A rank's process groups were left open.", "session.cleanup-incomplete")
def _(run: Run) -> None:
    ranks(run, lambda all_: all_[1]["cleanup"].update(groups_destroyed=False))


@vector("phase-missing", "A phase was left out on one rank.", "session.phase-missing")
def _(run: Run) -> None:
    def change(all_: list[Session]) -> None:
        del all_[1]["phases"][place(all_[1], "grpo-1")]
        numbered(all_[1])

    ranks(run, change)


@vector("phases-swapped", "Two phases of one rank changed places.", "session.phase-order")
def _(run: Run) -> None:
    def change(all_: list[Session]) -> None:
        records = all_[1]["phases"]
        at = place(all_[1], "grpo-0")
        records[at], records[at + 1] = records[at + 1], records[at]
        numbered(all_[1])

    ranks(run, change)


@vector(
    "step-before-finalize",
    "The optimizer stepped before gradients were finalized, on every rank.",
    "session.phase-order",
)
def _(run: Run) -> None:
    def change(all_: list[Session]) -> None:
        for session in all_:
            records, at = session["phases"], place(session, "finalize")
            records[at], records[at + 1] = records[at + 1], records[at]
            numbered(session)

    ranks(run, change)


@vector("two-optimizer-steps", "Two optimizer steps on every rank, each recorded properly.", "session.phase-repeated")
def _(run: Run) -> None:
    def change(all_: list[Session]) -> None:
        for session in all_:
            at = place(session, "optimizer-step")
            session["phases"].insert(at, copy.deepcopy(session["phases"][at]))
            numbered(session)

    ranks(run, change)


@vector(
    "two-steps-in-one-phase",
    "One phase that stepped twice, on every rank.",
    "session.count-mismatch",
    also=("receipt.mismatch",),
)
def _(run: Run) -> None:
    run.edit_evidence("optimizer-step", lambda seen: seen.update(optimizer_steps=2))
    run.follow(after="manifests")


@vector(
    "two-steps-and-the-receipt-agrees",
    "Two steps in records and receipt alike.",
    "session.count-mismatch",
    base="run-one-rank",
    also=("receipt.mismatch",),
)
def _(run: Run) -> None:
    run.edit_evidence("optimizer-step", lambda seen: seen.update(optimizer_steps=2))
    run.set("receipt.json", "/optimizer_steps", 2)
    run.follow(after="manifests")


@vector("finalized-twice", "Gradients were finalized twice.", "session.count-mismatch", base="run-one-rank")
def _(run: Run) -> None:
    run.edit_evidence("finalize", lambda seen: seen.update(finalize_calls=2))
    run.set("receipt.json", "/finalize_calls", 2)
    run.follow(after="manifests")


@vector(
    "prefix-backward-short",
    "One chunk of the prefix was never differentiated.",
    "session.count-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("prefix-backward", lambda seen: seen.update(backward_calls=seen["backward_calls"] - 1))
    run.edit("receipt.json", lambda receipt: receipt.update(prefix_backwards=receipt["prefix_backwards"] - 1))
    run.follow(after="manifests")


@vector(
    "prefix-rows-differ", "Recomputed rows differ from the stored ones.", "session.count-mismatch", base="run-one-rank"
)
def _(run: Run) -> None:
    run.edit_evidence("prefix-backward", lambda seen: seen.update(row_difference=1e-6))
    run.set("receipt.json", "/max_row_difference", 1e-6)
    run.follow(after="manifests")


@vector(
    "prefix-nothing-compared",
    "No row was compared: an empty set proves nothing.",
    "session.count-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("prefix-backward", lambda seen: seen.update(rows_compared=0))
    run.follow(after="manifests")


@vector(
    "prefix-shorter-capture",
    "Fewer prompt tokens were captured than there are.",
    "session.count-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("capture-prefix", lambda seen: seen.update(prompt_tokens=seen["prompt_tokens"] - 1))
    run.follow(after="manifests")


@vector("gradients-not-zeroed", "Gradients were left after the step.", "session.count-mismatch", base="run-one-rank")
def _(run: Run) -> None:
    run.edit_evidence("optimizer-step", lambda seen: seen.update(gradients_zeroed=False))
    run.follow(after="manifests")


@vector(
    "phase-of-a-third-response",
    "A replay of a response that does not exist.",
    "session.phase-unexpected",
    base="run-one-rank",
)
def _(run: Run) -> None:
    def change(all_: list[Session]) -> None:
        records, at = all_[0]["phases"], place(all_[0], "grpo-1")
        records.insert(at + 1, {**copy.deepcopy(records[at]), "phase": "grpo-2"})
        numbered(all_[0])

    ranks(run, change)


@vector("sequence-gap", "The sequence numbers skip one.", "session.sequence", base="run-one-rank")
def _(run: Run) -> None:
    ranks(run, lambda all_: [record.update(sequence=record["sequence"] + 1) for record in all_[0]["phases"][5:]])


@vector("chain-broken", "A record names another record before it.", "session.chain-broken", base="run-one-rank")
def _(run: Run) -> None:
    run.set(SESSIONS, "/ranks/0/phases/5/previous_sha256", "1" * 64)
    run.redo_receipt()
    run.redo_seal()


@vector(
    "chain-of-the-other-rank",
    "One rank's records are the other's, renamed: the chain starts elsewhere.",
    "session.chain-broken",
)
def _(run: Run) -> None:
    def change(document: Any) -> None:
        first, second = document["ranks"]
        second["phases"] = copy.deepcopy(first["phases"])

    run.edit(SESSIONS, change)
    run.redo_receipt()
    run.redo_seal()


@vector(
    "records-of-another-execution",
    "Rank records of a second execution of the same plan, bound and sealed.",
    "session.file-mismatch",
    also=("receipt.other-run", "journal.actor-mismatch"),
)
def _(run: Run) -> None:
    run.files[SESSIONS] = read_base("run-again")[SESSIONS]
    run.redo_receipt()
    run.redo_seal()


@vector(
    "records-of-another-execution-renamed",
    "The same, with the execution id made right but not the chain.",
    "session.chain-broken",
)
def _(run: Run) -> None:
    run.files[SESSIONS] = read_base("run-again")[SESSIONS]
    run.set(SESSIONS, "/execution_id", run.json("receipt.json")["execution_id"])
    run.redo_receipt()
    run.redo_seal()


@vector(
    "one-rank-of-another-execution", "One rank's records are of a second execution of the plan.", "session.chain-broken"
)
def _(run: Run) -> None:

    other = json.loads(read_base("run-again")[SESSIONS])["ranks"][1]
    run.set(SESSIONS, "/ranks/1", other)
    run.redo_receipt()
    run.redo_seal()


@vector(
    "records-of-another-plan",
    "The records name another plan.",
    "session.plan-mismatch",
    base="run-one-rank",
    also=("receipt.other-run",),
)
def _(run: Run) -> None:
    run.set(SESSIONS, "/plan_sha256", "2" * 64)
    run.redo_chain()
    run.redo_receipt()
    run.redo_seal()


@vector(
    "evidence-left-out",
    "A phase does not say over which pages it ran.",
    "session.evidence-missing",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("capture-prefix", lambda seen: seen.pop("pages_sha256") and None)
    run.follow(after="manifests")


@vector(
    "weights-changed",
    "The frozen base model changed between two phases.",
    "session.weights-changed",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("checkpoint", lambda seen: seen.update(weights_sha256="3" * 64))
    run.follow(after="manifests")


@vector("ledgers-differ", "The ranks made different collective calls.", "session.ranks-disagree")
def _(run: Run) -> None:
    run.edit_evidence("grpo-1", lambda seen: seen.update(ledger_sha256="4" * 64), rank=1)
    run.follow(after="manifests")


@vector(
    "adapters-differ",
    "The ranks hold different adapters after the step.",
    "session.ranks-disagree",
    also=("session.adapter-mismatch",),
)
def _(run: Run) -> None:
    run.edit_evidence("optimizer-step", lambda seen: seen.update(adapter_sha256="5" * 64), rank=1)
    run.follow(after="manifests")


@vector(
    "adapter-digest-of-another",
    "All ranks agree on an adapter that is not the exported one.",
    "session.adapter-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    for phase in ("optimizer-step", "checkpoint"):
        run.edit_evidence(phase, lambda seen: seen.update(adapter_sha256="5" * 64))
    run.follow(after="manifests")


@vector(
    "runtime-drift",
    "A rank ran another set of packages.",
    "session.identity-mismatch",
    also=("session.ranks-disagree",),
)
def _(run: Run) -> None:
    run.edit_evidence("bind", lambda seen: seen.update(runtime_identity_sha256="6" * 64), rank=1)
    run.follow(after="manifests")


@vector(
    "runtime-drift-everywhere", "All ranks agree on a runtime that the plan does not name.", "session.identity-mismatch"
)
def _(run: Run) -> None:
    run.edit_evidence("bind", lambda seen: seen.update(runtime_identity_sha256="6" * 64))
    run.follow(after="manifests")


@vector(
    "optimizer-of-another-contract",
    "The live optimizer had another learning rate.",
    "session.optimizer-contract",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("optimizer-step", lambda seen: seen["optimizer_contract"].update(lr=1e-3))
    run.follow(after="manifests")


@vector(
    "record-of-another-file",
    "A rank wrote another gradient than the one here.",
    "session.file-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    def change(document: Any) -> None:
        for record in document["ranks"][0]["phases"]:
            for ref in record["files"]:
                if ref["path"] == "artifacts/gradient.safetensors":
                    ref["sha256"] = "7" * 64

    run.edit(SESSIONS, change)
    run.redo_chain()
    run.redo_receipt()
    run.redo_seal()


@vector(
    "record-of-a-file-that-is-gone",
    "A rank wrote a file that is not here.",
    "session.file-missing",
    base="run-one-rank",
)
def _(run: Run) -> None:
    ref = {"path": "checkpoint/__9_0.distcp", "sha256": "8" * 64, "size": 10}
    ranks(run, lambda all_: all_[0]["phases"][-1]["files"].append(ref))


@vector(
    "record-of-another-loss",
    "A rank recorded another loss than its log-probs give.",
    "session.number-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.edit_evidence("grpo-0", lambda seen: seen.update(loss=seen["loss"] + 0.01))
    run.follow(after="manifests")


@vector("record-of-other-clips", "A rank counted other clipped tokens.", "session.count-mismatch", base="run-one-rank")
def _(run: Run) -> None:
    run.edit_evidence("grpo-0", lambda seen: seen.update(clipped_low=seen["clipped_low"] - 1))
    run.follow(after="manifests")
