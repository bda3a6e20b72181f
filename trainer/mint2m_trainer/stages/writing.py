"""From raw artifacts to a sealed bundle: judged by the verifier's code first, moved into place, the seal last.

The rule: the seal is the commit. Everything before it can be made again, and a stage without its seal is one that did
not happen; so an interruption at any point leaves a chain that verifies up to the stage before.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.stages.observing import Look, observed
from mint2m_trainer.stages.setting import INPUT_LIMIT, Inputs, Setting, discard
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.log_check import log_proof
from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.recompute.evidence import Evidence
from mint2m_verify.chain.recomputing import Judged, recompute, validation_of
from mint2m_verify.chain.statements import stage_payload
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.validation import (
    ParentRef,
    StageArtifacts,
    StageNumber,
    StageRank,
    StageRanks,
    StageRecord,
)
from mint2m_verify.documents.validation import (
    Setting as EnvironmentSetting,
)
from mint2m_verify.files import read_once, sync_directory, write_atomic
from mint2m_verify.finding import Finding
from mint2m_verify.runlog import head_of
from mint2m_verify.statement import Subject, parse_bundle
from mint2m_verify.tree import manifest_of, root_digest
from mint2m_verify.walk import CHUNK_BYTES, read_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a stage's work left besides its artifacts."""

    started_at: str
    ended_at: str
    after: Look
    ranks: tuple[StageRank, ...]
    settings: tuple[EnvironmentSetting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """The four files in the work directory, and what verification made of them."""

    record: StageRecord
    judged: Judged
    findings: tuple[Finding, ...]


def begin(inputs: Inputs, evidence: Path) -> None:
    """Copy the plan, its statement and every input into an evidence directory that holds no run yet."""
    evidence.mkdir(parents=True, exist_ok=True)
    (evidence / places.ATTESTATIONS).mkdir(exist_ok=True)
    for ref in inputs.plan.inputs:
        place = evidence / ref.path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, read_once(inputs.directory / ref.path, name=ref.path, limit=INPUT_LIMIT))
    # A model beside its plan is small enough to go along; any other stays where the operator has it.
    if inputs.snapshot.resolve() == (inputs.directory / places.MODEL).resolve():
        shutil.copytree(inputs.snapshot, evidence / places.MODEL, dirs_exist_ok=True)
    write_atomic(evidence / places.PLAN, inputs.raw)
    write_atomic(evidence / places.PLAN_SEAL, inputs.seal)
    grant = inputs.directory / Path(places.GRANT).name
    if grant.exists():
        write_atomic(evidence / places.GRANT, read_once(grant, name=grant.name))


def bundle(setting: Setting, done: Done) -> Bundled:
    """Write the four files beside the artifacts, from what the verifier's code computes of them."""
    where, stage, plan = places.PLACES[setting.stage], setting.stage, setting.plan
    entries = tuple(file.entry for file in read_tree(setting.tree, keep=lambda _: 0).files)
    tree = manifest_of("file", entries, where.tree.rstrip("/"))
    artifacts = StageArtifacts(
        tree=tree.tree,
        chunk_bytes=CHUNK_BYTES,
        file_count=tree.file_count,
        total_bytes=tree.total_bytes,
        files=tree.files,
        root_sha256=root_digest(tree.files),
        stage=stage,
        execution_id=setting.execution_id,
    )
    ranks = StageRanks(
        stage=stage,
        execution_id=setting.execution_id,
        validation_plan_sha256=setting.inputs.sha256,
        world_size=len(done.ranks),
        driver=observed(setting.before, done.after),
        ranks=done.ranks,
    )
    write_atomic(setting.work / where.ranks, ranks.encode())
    write_atomic(setting.work / where.artifacts, artifacts.encode())
    files = {file.path: file for file in read_tree(setting.work, keep=places.kept_bytes).files}
    files |= {file.path: file for file in read_tree(setting.evidence, keep=places.kept_bytes).files}
    evidence = Evidence(
        plan=plan,
        planned=setting.planned,
        execution_id=setting.execution_id,
        ranks=ranks,
        files=files,
        roots=(setting.work, setting.evidence),
    )
    findings: list[Finding] = []
    computing = recompute(evidence, setting.work)
    while True:
        try:
            findings.append(next(computing))
        except StopIteration as end:
            judged: Judged = end.value
            break
    record = StageRecord(
        stage=stage,
        run_id=setting.run_id,
        execution_id=setting.execution_id,
        validation_plan=FileRef.of(places.PLAN, setting.inputs.raw),
        parent=_parent(setting),
        source_sha256=done.after.source,
        runtime_identity_sha256=done.after.identity,
        hardware_class=plan.hardware_class,
        claim_scope=plan.claim_scope,
        backend=plan.backend,
        world_size=plan.topology.world_size,
        settings=done.settings,
        started_at=done.started_at,
        ended_at=done.ended_at,
        numbers=_reported(judged.numbers),
        ranks=FileRef.of(where.ranks, ranks.encode()),
        artifacts=FileRef.of(where.artifacts, artifacts.encode()),
    )
    references = (FileRef.of(where.record, record.encode()), record.ranks, record.artifacts)
    validation = validation_of(record, references, judged, setting.inputs.sha256)
    write_atomic(setting.work / where.record, record.encode())
    write_atomic(setting.work / where.validation, validation.encode())
    return Bundled(record=record, judged=judged, findings=tuple(findings))


def commit(setting: Setting) -> tuple[str, bytes]:
    """Move the bundle into the evidence directory; returns its seal, not yet written, behind the payload's digest."""
    where, evidence = places.PLACES[setting.stage], setting.evidence
    discard(setting.stage, evidence)
    (evidence / where.tree).parent.mkdir(parents=True, exist_ok=True)
    setting.tree.rename(evidence / where.tree)
    for name in where.bundle:
        (setting.work / name).rename(evidence / name)
    sync_directory(evidence)
    payloads = _payloads(setting)
    parent = _parent(setting)
    record = StageRecord.parse(read_once(evidence / where.record), file=where.record)
    statement = stage_payload(
        stage=setting.stage,
        subjects=[Subject(name=name, sha256=sha256_hex(read_once(evidence / name))) for name in where.bundle],
        execution_id=record.execution_id,
        plan_sha256=setting.inputs.sha256,
        parent=None if parent is None else parent.seal_sha256,
        claim_scope=record.claim_scope,
        hardware_class=record.hardware_class,
        signer=setting.signing.signer.kind,
        log=head_of(payloads),
    )
    write_atomic(evidence / where.proof, log_proof([*payloads, statement.payload]).encode())
    seal = setting.signing.signer.sign_statement(statement.payload)
    shutil.rmtree(setting.work, ignore_errors=True)
    return statement.sha256, seal


def _parent(setting: Setting) -> ParentRef | None:
    name = places.parent_of(setting.stage)
    if name is None:
        return None
    where = places.PLACES[name]
    envelope = parse_bundle(read_once(setting.evidence / where.seal), file=where.seal)
    validation = read_once(setting.evidence / where.validation)
    return ParentRef(stage=name, seal_sha256=sha256_hex(envelope.payload), validation_sha256=sha256_hex(validation))


def _payloads(setting: Setting) -> list[bytes]:
    """What is in the log so far: the plan's statement and the seals of the stages before."""
    names = [places.PLAN_SEAL]
    for stage in places.ORDER[: places.ORDER.index(setting.stage)]:
        names.append(places.PLACES[stage].seal)
    return [parse_bundle(read_once(setting.evidence / name), file=name).payload for name in names]


def _reported(numbers: Sequence[Number]) -> tuple[StageNumber, ...]:
    return tuple(
        StageNumber(name=n.name, value=n.value if n.value is not None and math.isfinite(n.value) else None)
        for n in numbers
    )
