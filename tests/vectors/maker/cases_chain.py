"""Changes to a promotion chain: who vouches for it, its links, its ranks and its log."""

from __future__ import annotations

from typing import Any

from maker.case import vector
from maker.chain_forge import (
    Chain,
    part_of,
    proof_of,
    record_of,
    seal_of,
    tree_of,
)
from maker.forge import NONCE, Run, sha256

BASE = "chain"
VERIFY = ("verify", "chain", "{run}", "--key", "{keys}/release.pub", "--plan-key", "{keys}/planner.pub")
PARITY = tree_of("parity-32k")
EXACT = f"{PARITY}active_clip/exact/"


def chain(name: str, why: str, finding: str | None, **options: Any) -> Any:
    return vector(f"promotion-{name}", why, finding, **{"base": BASE, "command": VERIFY, **options})


def of(run: Run) -> Chain:
    if not isinstance(run, Chain):
        raise TypeError("not a chain")
    return run


# What must be accepted.


@chain("right", "A whole promotion chain, as the trainer left it.", None, exit=0)
def _(_run: Run) -> None:
    pass


@chain(
    "through-nccl",
    "A chain of three stages, asked for no more.",
    None,
    exit=0,
    command=(*VERIFY, "--through", "nccl"),
)
def _(run: Run) -> None:
    for stage in of(run).stages[3:]:
        of(run).drop(stage)


@chain(
    "expected",
    "Nonce and log head are those that the auditor knows.",
    None,
    exit=0,
    command=(*VERIFY, "--expect-nonce", NONCE),
)
def _(_run: Run) -> None:
    pass


# Who vouches for it.


@chain(
    "no-anchor",
    "Nothing says who should have signed the chain.",
    "trust.no-anchor",
    exit=4,
    command=("verify", "chain", "{run}"),
)
def _(_run: Run) -> None:
    pass


@chain(
    "other-digest",
    "Another chain than the digest names.",
    "trust.digest-mismatch",
    exit=4,
    command=("verify", "chain", "{run}", "--digest", "a" * 64),
)
def _(_run: Run) -> None:
    pass


@chain("resigned-by-stranger", "Every stage signed again by another key.", "signature.key-mismatch", exit=4)
def _(run: Run) -> None:
    for stage in of(run).stages:
        of(run).redo_record(stage)
        of(run).seal(stage, key="stranger")
        of(run).redo_proof(stage)


@chain(
    "plan-by-operator",
    "The operator signed the plan, where another planner is known.",
    "signature.key-mismatch",
    exit=4,
)
def _(run: Run) -> None:
    of(run).sign_plan("release")
    of(run).follow()


@chain(
    "other-nonce",
    "A chain of another attempt than the auditor asked for.",
    "trust.expectation-mismatch",
    command=(*VERIFY, "--expect-nonce", "another attempt"),
    exit=3,
)
def _(_run: Run) -> None:
    pass


@chain(
    "key-inside",
    "The operator's key lies in the chain that it should vouch for.",
    "trust.key-inside-evidence",
    also=("tree.file-unlisted",),
)
def _(run: Run) -> None:
    from maker.forge import KEYS

    run.files["attestations/release.pub"] = (KEYS / "release.pub").read_bytes()


# Links: stages, parents, executions.


@chain(
    "cut-tail",
    "The last stage is gone: a cut that only the plan's list of stages shows.",
    "chain.stage-missing",
    exit=3,
)
def _(run: Run) -> None:
    of(run).drop(of(run).stages[-1])


@chain(
    "gap", "A stage taken from the middle.", "chain.stage-gap", also=("chain.rests-on-broken", "runlog.entry-missing")
)
def _(run: Run) -> None:
    of(run).drop("actor")


@chain("stage-without-seal", "A stage whose seal is gone.", "chain.seal-missing", also=("chain.rests-on-broken",))
def _(run: Run) -> None:
    del run.files[seal_of("actor")]


@chain("parent-of-another-run", "A stage that names a parent of another run.", "chain.parent-mismatch")
def _(run: Run) -> None:
    run.set(record_of("nccl"), "/parent/seal_sha256", "ab" * 32)
    of(run).follow(after="nccl", parent=False)


@chain("parent-in-seal", "A seal that names another parent than its stage's record.", "chain.parent-mismatch")
def _(run: Run) -> None:
    of(run).seal("actor", lambda statement: statement["predicate"].update(parent="cd" * 32))
    of(run).redo_proof("actor")
    of(run).follow(after="parity-32k")


@chain(
    "stage-replaced",
    "A stage sealed again afterwards: its child consumed the first one.",
    "chain.parent-mismatch",
    also=("runlog.forked", "chain.rests-on-broken"),
)
def _(run: Run) -> None:
    run.set(record_of("kernel"), "/ended_at", "2031-01-01T00:00:00Z")
    of(run).redo_validation("kernel")
    of(run).seal("kernel")
    of(run).redo_proof("kernel")


@chain("run-id", "A stage of another run id.", "chain.run-mismatch")
def _(run: Run) -> None:
    run.set(record_of("actor"), "/run_id", "00000000-0000-4000-8000-000000000000")
    of(run).follow(after="actor")


@chain("execution-repeated", "Two stages that are one execution.", "chain.execution-repeated")
def _(run: Run) -> None:
    execution = of(run).execution("kernel")
    for file in (record_of("doctor"), part_of("doctor", "ranks"), part_of("doctor", "artifacts")):
        run.set(file, "/execution_id", execution)
    of(run).follow()


@chain(
    "ranks-of-another-execution",
    "The ranks of another execution under this stage's record.",
    "chain.execution-mismatch",
)
def _(run: Run) -> None:
    run.set(part_of("nccl", "ranks"), "/execution_id", "ef" * 32)
    of(run).follow(after="nccl")


@chain("artifacts-of-another-execution", "The artifact list of another execution.", "chain.execution-mismatch")
def _(run: Run) -> None:
    run.set(part_of("nccl", "artifacts"), "/execution_id", "ef" * 32)
    of(run).follow(after="nccl")


@chain("other-source", "A stage that ran another source.", "chain.source-mismatch")
def _(run: Run) -> None:
    run.set(record_of("actor"), "/source_sha256", "12" * 32)
    of(run).follow(after="actor")


@chain(
    "other-class",
    "A stage that claims a GPU class under a plan of the reference class.",
    "chain.binding-mismatch",
)
def _(run: Run) -> None:
    run.set(record_of("actor"), "/hardware_class", "h20-4x8")
    of(run).follow(after="actor")


@chain("seal-of-another-stage", "A seal that says it is of another stage.", "chain.binding-mismatch")
def _(run: Run) -> None:
    of(run).seal("kernel", lambda statement: statement["predicate"].update(stage="nccl"))
    of(run).redo_proof("kernel")
    of(run).follow(after="nccl")


@chain("seal-leaves-out-ranks", "A seal that does not name the ranks of its stage.", "chain.subject-missing")
def _(run: Run) -> None:
    of(run).seal("nccl", lambda statement: statement["subject"].pop(1))
    of(run).redo_proof("nccl")
    of(run).follow(after="actor")


@chain("seal-names-more", "A seal that also names a file of another stage.", "chain.subject-unexpected")
def _(run: Run) -> None:
    def change(statement: Any) -> None:
        statement["subject"].append(
            {"name": record_of("doctor"), "digest": {"sha256": sha256(run.files[record_of("doctor")])}}
        )
        statement["subject"].sort(key=lambda subject: subject["name"])

    of(run).seal("nccl", change)
    of(run).redo_proof("nccl")
    of(run).follow(after="actor")


# Bytes.


@chain(
    "flipped-byte", "One bit of a gradient shard after sealing.", "tree.file-changed", also=("chain.rests-on-broken",)
)
def _(run: Run) -> None:
    run.flip(f"{EXACT}rank-0.safetensors", 3000)


@chain("record-changed", "A record changed after sealing.", "tree.file-changed")
def _(run: Run) -> None:
    run.set(record_of("nccl"), "/ended_at", "2031-01-01T00:00:00Z")


@chain("added-file", "A file that no stage has a place for.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.files["notes.json"] = b"{}"


@chain(
    "artifact-missing",
    "A kernel case that was left out of the evidence.",
    "chain.artifact-missing",
    also=("chain.threshold-missed",),
)
def _(run: Run) -> None:
    del run.files[f"{tree_of('kernel')}attend-sharp.safetensors"]
    _without(run, "kernel", "attend-sharp")


@chain(
    "artifact-shape",
    "A kernel case with results of another shape.",
    "chain.artifact-shape",
    also=("chain.threshold-missed",),
)
def _(run: Run) -> None:
    name = f"{tree_of('kernel')}attend-plain.safetensors"
    tensors = run.tensors(name)
    run.put_tensors(name, tensors | {"out": tensors["out"][:-1].copy()})
    of(run).follow(after="kernel")


def _without(run: Run, stage: str, word: str) -> None:
    def change(ranks: Any) -> None:
        for rank in ranks["ranks"]:
            rank["files"] = [file for file in rank["files"] if word not in file["path"]]

    run.edit(part_of(stage, "ranks"), change)
    of(run).follow(after=stage)


# Ranks.


@chain("rank-missing", "One of two ranks is not there.", "chain.ranks-mismatch")
def _(run: Run) -> None:
    run.edit(part_of("nccl", "ranks"), lambda ranks: ranks["ranks"].pop() and None)
    of(run).follow(after="nccl")


@chain("rank-twice", "Two ranks that are one process.", "chain.rank-repeated")
def _(run: Run) -> None:
    run.edit(part_of("nccl", "ranks"), lambda ranks: ranks["ranks"][1].update(pid=ranks["ranks"][0]["pid"]))
    of(run).follow(after="nccl")


@chain("rank-exchanged-its-source", "A rank whose source changed while it ran.", "chain.identity-mismatch")
def _(run: Run) -> None:
    run.set(part_of("nccl", "ranks"), "/ranks/1/observed/source_after", "34" * 32)
    of(run).follow(after="nccl")


@chain("rank-still-there", "A rank that was not found absent.", "chain.rank-left")
def _(run: Run) -> None:
    run.set(part_of("actor", "ranks"), "/ranks/0/absent", False)
    of(run).follow(after="actor")


@chain("rank-names-another-file", "A rank that names a file by another digest.", "session.file-mismatch")
def _(run: Run) -> None:
    of(run).redo_tree("nccl")
    run.set(part_of("nccl", "ranks"), "/ranks/0/files/0/sha256", "56" * 32)
    of(run).redo_record("nccl")
    of(run).seal("nccl")
    of(run).redo_proof("nccl")
    of(run).follow(after="actor")


@chain("journal-open", "A journal of owned resources that was never closed.", "journal.not-closed")
def _(run: Run) -> None:
    name = f"{tree_of('nccl')}ownership.jsonl"
    run.files[name] = b"".join(run.files[name].splitlines(keepends=True)[:-1])
    of(run).follow(after="nccl")


@chain("journal-of-another-execution", "The journal of another execution.", "chain.execution-mismatch")
def _(run: Run) -> None:
    name = f"{tree_of('actor')}ownership.jsonl"
    run.files[name] = run.files[name].replace(of(run).execution("actor").encode(), b"78" * 32)
    of(run).follow(after="actor")


# The log.


@chain("log-forked", "The last seal continues another history than the one here.", "runlog.forked")
def _(run: Run) -> None:
    last = of(run).stages[-1]
    of(run).seal(last, lambda statement: statement["predicate"]["log"].update(root="de" * 32))
    of(run).redo_proof(last)


@chain("log-entry-missing", "The last seal says that one more statement came before it.", "runlog.entry-missing")
def _(run: Run) -> None:
    last = of(run).stages[-1]
    of(run).seal(last, lambda s: s["predicate"]["log"].update(size=s["predicate"]["log"]["size"] + 1))
    of(run).redo_proof(last)


@chain("log-reordered", "Two seals that say they are in each other's place of the log.", "runlog.reordered")
def _(run: Run) -> None:
    stages = of(run).stages
    for stage, size in ((stages[-2], len(stages)), (stages[-1], len(stages) - 1)):
        of(run).redo_record(stage)
        of(run).seal(stage, lambda s, size=size: s["predicate"]["log"].update(size=size))
        of(run).redo_proof(stage)


@chain("log-proof", "A consistency proof with one node changed.", "runlog.proof-invalid")
def _(run: Run) -> None:
    run.set(proof_of("actor"), "/consistency/0", "ab" * 32)


@chain(
    "replayed-old",
    "An old state of the chain, shown to somebody who saw a later one.",
    "runlog.cut",
    command=(*VERIFY, "--through", "kernel", "--known-checkpoint", f"8:{'ab' * 32}"),
)
def _(run: Run) -> None:
    for stage in of(run).stages[2:]:
        of(run).drop(stage)


@chain(
    "rewritten-history",
    "A chain with another history than the auditor saw.",
    "runlog.known-mismatch",
    command=(*VERIFY, "--known-checkpoint", f"3:{'ab' * 32}"),
)
def _(_run: Run) -> None:
    pass
