"""What binds a stage: its seal to its files, its files to plan, parent and execution, its ranks to one execution.

The rule: each comparison names both sides and the place of the one that is wrong, and nothing is compared with itself:
the plan is the planner's, the parent is the directory's, the files are those that were hashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mint2m_verify.chain.bundle import Bundle, reference
from mint2m_verify.chain.ownership import check_journal
from mint2m_verify.chain.places import PLAN, StagePlaces, parent_of
from mint2m_verify.documents import TreeEntry
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.validation import ParentRef, StageName, StageRank, ValidationPlan
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check
from mint2m_verify.seal import counted, megabytes, short
from mint2m_verify.tree import check_manifest, compare
from mint2m_verify.walk import ReadFile

#: Stages in which the driver works alone; in all others the planned ranks do, as Ray actors.
ALONE: frozenset[StageName] = frozenset({"doctor", "kernel"})

#: The scale stage's journal is part of the run inside it, whose verifier reads it.
WITHOUT_JOURNAL: frozenset[StageName] = ALONE | {"scale-2m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the checks of a stage are held against; `parent` is the bundle before it, None for the first."""

    plan: ValidationPlan
    files: Mapping[str, ReadFile]
    run_id: str | None
    parent: Bundle | None
    executions: Mapping[str, StageName]

    @property
    def plan_sha256(self) -> str:
        return self.files[PLAN].entry.sha256


def check_sealed(bundle: Bundle, files: Mapping[str, ReadFile]) -> Check:
    """The seal names the stage's four files and nothing else, by the digests of the bytes at hand."""
    places = bundle.places
    if bundle.seal is None:
        yield found("chain.seal-missing", stage=bundle.stage, file=places.seal)
        return "no seal"
    sealed = {subject.name: subject.sha256 for subject in bundle.seal.subjects}
    for path in sorted({*places.bundle, *sealed}):
        file, want = files.get(path), sealed.get(path)
        if path not in places.bundle:
            yield _at(bundle, "chain.subject-unexpected", places.seal, "/subject", None, path)
        elif want is None:
            yield _at(bundle, "chain.subject-missing", places.seal, "/subject", path, None)
        elif file is None:
            yield found("tree.file-missing", stage=bundle.stage, file=path, expected=want)
        elif file.entry.sha256 != want:
            yield found(
                "tree.file-changed",
                stage=bundle.stage,
                file=path,
                byte_range=(0, file.entry.size),
                expected=want,
                actual=file.entry.sha256,
                hint=f"committed by {places.seal}",
            )
    return f"4 files, payload {short(bundle.seal.sha256)}"


def check_tree(bundle: Bundle, files: Mapping[str, ReadFile]) -> Check:
    """The raw artifacts are those of the stage's manifest, and the manifest agrees with itself."""
    places, manifest = bundle.places, bundle.artifacts
    if manifest is None:
        yield found("tree.file-missing", stage=bundle.stage, file=places.artifacts)
        return "no manifest"
    yield from check_manifest(manifest, file=places.artifacts)
    want = [replace(entry, path=places.tree + entry.path) for entry in manifest.files]
    have: list[TreeEntry] = [file.entry for path, file in files.items() if path.startswith(places.tree)]
    yield from compare(want, have, committed_by=places.artifacts, stage=bundle.stage)
    return f"{counted(len(have), 'file')}, {megabytes(sum(entry.size for entry in have))}"


def check_bound(bundle: Bundle, context: Context) -> Check:
    """Seal, record and manifest are of this stage, plan, parent and execution."""
    record, seal, places = bundle.record, bundle.seal, bundle.places
    if record is None:
        yield found("tree.file-missing", stage=bundle.stage, file=places.record)
        return "no record"
    plan = context.plan
    yield from _run(bundle, context)
    yield from _rows(
        bundle,
        places.record,
        "chain.binding-mismatch",
        (
            ("/stage", bundle.stage, record.stage),
            ("/validation_plan", str(reference(PLAN, context.files)), str(record.validation_plan)),
            ("/hardware_class", plan.hardware_class, record.hardware_class),
            ("/claim_scope", plan.claim_scope, record.claim_scope),
            ("/backend", plan.backend, record.backend),
            ("/world_size", str(plan.topology.world_size), str(record.world_size)),
            ("/ranks", str(reference(places.ranks, context.files)), str(record.ranks)),
            ("/artifacts", str(reference(places.artifacts, context.files)), str(record.artifacts)),
        ),
    )
    yield from _rows(
        bundle, places.record, "chain.source-mismatch", (("/source_sha256", plan.source_sha256, record.source_sha256),)
    )
    identity = ("/runtime_identity_sha256", plan.runtime_identity.sha256, record.runtime_identity_sha256)
    yield from _rows(bundle, places.record, "chain.identity-mismatch", (identity,))
    yield from _parent(bundle, context)
    if seal is not None:
        yield from _rows(
            bundle,
            places.seal,
            "chain.binding-mismatch",
            (
                ("/predicate/stage", bundle.stage, seal.stage),
                ("/predicate/execution_id", record.execution_id, seal.execution_id),
                ("/predicate/plan_sha256", context.plan_sha256, seal.plan_sha256),
                ("/predicate/hardware_class", plan.hardware_class, seal.hardware_class),
                ("/predicate/claim_scope", plan.claim_scope, seal.claim_scope),
            ),
        )
    if bundle.artifacts is not None:
        yield from _rows(
            bundle,
            places.artifacts,
            "chain.execution-mismatch",
            (
                ("/stage", bundle.stage, bundle.artifacts.stage),
                ("/execution_id", record.execution_id, bundle.artifacts.execution_id),
            ),
        )
    return f"execution {short(record.execution_id)}"


def check_ranks(bundle: Bundle, context: Context) -> Check:
    """Every planned rank once, each a process of its own, of this execution, as planned before and after."""
    ranks, record, places = bundle.ranks, bundle.record, bundle.places
    if ranks is None or record is None:
        yield found("tree.file-missing", stage=bundle.stage, file=places.ranks)
        return "no ranks"
    plan = context.plan
    world = 1 if bundle.stage in ALONE else plan.topology.world_size
    yield from _rows(
        bundle,
        places.ranks,
        "chain.execution-mismatch",
        (
            ("/stage", bundle.stage, ranks.stage),
            ("/execution_id", record.execution_id, ranks.execution_id),
            ("/validation_plan_sha256", context.plan_sha256, ranks.validation_plan_sha256),
            ("/world_size", str(world), str(ranks.world_size)),
        ),
    )
    if [rank.rank for rank in ranks.ranks] != list(range(world)):
        numbers = ", ".join(str(rank.rank) for rank in ranks.ranks) or "none"
        yield _at(bundle, "chain.ranks-mismatch", places.ranks, "/ranks", f"ranks 0 to {world - 1}, in order", numbers)
    yield from _distinct(bundle, ranks.ranks)
    want = (plan.runtime_identity.sha256, plan.runtime_identity.sha256, plan.source_sha256, plan.source_sha256)
    for pointer, seen in (
        ("/driver", ranks.driver),
        *((f"/ranks/{n}/observed", r.observed) for n, r in enumerate(ranks.ranks)),
    ):
        have = (seen.identity_before, seen.identity_after, seen.source_before, seen.source_after)
        names = ("identity_before", "identity_after", "source_before", "source_after")
        for name, wanted, had in zip(names, want, have, strict=True):
            if wanted != had:
                yield _at(bundle, "chain.identity-mismatch", places.ranks, f"{pointer}/{name}", wanted, had)
    for number, rank in enumerate(ranks.ranks):
        yield from _rank(bundle, rank, f"/ranks/{number}", context)
    if bundle.stage not in WITHOUT_JOURNAL:
        yield from check_journal(bundle, context.files, context.plan_sha256)
    return f"{len(ranks.ranks)} of {world}"


def _run(bundle: Bundle, context: Context) -> Iterator[Finding]:
    record, places = bundle.record, bundle.places
    if record is None:
        return
    if context.run_id is not None and record.run_id != context.run_id:
        yield _at(bundle, "chain.run-mismatch", places.record, "/run_id", context.run_id, record.run_id)
    other = context.executions.get(record.execution_id)
    if other is not None:
        actual = f"{record.execution_id}, as in {other}"
        yield _at(bundle, "chain.execution-repeated", places.record, "/execution_id", "an execution of its own", actual)


def _parent(bundle: Bundle, context: Context) -> Iterator[Finding]:
    """The record's and the seal's parent, against the bundle that lies before this one."""
    record, seal, places = bundle.record, bundle.seal, bundle.places
    name, parent = parent_of(bundle.stage), context.parent
    if record is None:
        return
    if name is None:
        if record.parent is not None:
            yield _at(bundle, "chain.parent-mismatch", places.record, "/parent", "null", record.parent.stage)
        if seal is not None and seal.parent is not None:
            yield _at(bundle, "chain.parent-mismatch", places.seal, "/predicate/parent", "null", seal.parent)
        return
    if parent is None or parent.seal is None:
        return  # that the parent is missing has a finding of its own
    validation = context.files.get(parent.places.validation)
    want = ParentRef(
        stage=name,
        seal_sha256=parent.seal.sha256,
        validation_sha256="" if validation is None else validation.entry.sha256,
    )
    if record.parent is None:
        yield _at(bundle, "chain.parent-mismatch", places.record, "/parent", name, "null")
    else:
        yield from _rows(
            bundle,
            places.record,
            "chain.parent-mismatch",
            (
                ("/parent/stage", want.stage, record.parent.stage),
                ("/parent/seal_sha256", want.seal_sha256, record.parent.seal_sha256),
                ("/parent/validation_sha256", want.validation_sha256, record.parent.validation_sha256),
            ),
        )
    if seal is not None and seal.parent != want.seal_sha256:
        yield _at(
            bundle, "chain.parent-mismatch", places.seal, "/predicate/parent", want.seal_sha256, seal.parent or "null"
        )


def _distinct(bundle: Bundle, ranks: tuple[StageRank, ...]) -> Iterator[Finding]:
    """No two ranks are one actor, one process or one place."""
    places = bundle.places
    seen: dict[tuple[str, str], int] = {}
    for number, rank in enumerate(ranks):
        identities = [("pid", f"{rank.node_ip} {rank.pid}"), ("slot", f"{rank.node_ip} {rank.slot}")]
        if rank.device != "cpu":
            identities.append(("device", f"{rank.node_ip} {rank.device}"))
        if rank.actor is not None and rank.actor_id is not None:
            identities += [("actor", rank.actor), ("actor_id", rank.actor_id)]
        for kind, value in identities:
            first = seen.setdefault((kind, value), number)
            if first != number:
                pointer = f"/ranks/{number}/{kind}"
                yield _at(bundle, "chain.rank-repeated", places.ranks, pointer, f"another than rank {first}'s", value)


def _rank(bundle: Bundle, rank: StageRank, where: str, context: Context) -> Iterator[Finding]:
    places = bundle.places
    alone = bundle.stage in ALONE
    if alone == (rank.actor is not None) or alone == (rank.actor_id is not None):
        wanted = "no actor: the driver works alone" if alone else "a Ray actor with its id"
        yield _at(bundle, "chain.ranks-mismatch", places.ranks, f"{where}/actor", wanted, rank.actor or "null")
    for member, value in (("groups_destroyed", rank.groups_destroyed), ("absent", rank.absent)):
        if not value:
            yield _at(bundle, "chain.rank-left", places.ranks, f"{where}/{member}", "true", "false")
    if not rank.files:
        yield _at(bundle, "chain.ranks-mismatch", places.ranks, f"{where}/files", "at least one file", "none")
    for number, ref in enumerate(rank.files):
        yield from _file(places, ref, f"{where}/files/{number}", context, bundle)


def _file(places: StagePlaces, ref: FileRef, pointer: str, context: Context, bundle: Bundle) -> Iterator[Finding]:
    have = reference(ref.path, context.files)
    if not ref.path.startswith(places.tree):
        yield _at(bundle, "chain.ranks-mismatch", places.ranks, pointer, f"a file of {places.tree}", ref.path)
    elif have is None:
        yield _at(bundle, "session.file-missing", places.ranks, pointer, ref.path, "not there")
    elif have != ref:
        yield _at(bundle, "session.file-mismatch", places.ranks, pointer, f"{ref.path}: {ref.sha256}", have.sha256)


def _rows(bundle: Bundle, file: str, fault: str, rows: tuple[tuple[str, str, str], ...]) -> Iterator[Finding]:
    for pointer, want, have in rows:
        if want != have:
            yield found(fault, stage=bundle.stage, file=file, pointer=pointer, expected=want, actual=have)


def _at(bundle: Bundle, fault: str, file: str, pointer: str, expected: str | None, actual: str | None) -> Finding:
    return found(fault, stage=bundle.stage, file=file, pointer=pointer, expected=expected, actual=actual)
