"""The statements of a promotion run: plan/v1 by the planner, then one seal/v1 for each stage by the operator.

The rule: a seal names its parent by the digest of the parent's DSSE payload, and the log's head before itself, so a
signature over one stage is a signature over everything that led to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.chain.places import ORDER, PLAN
from mint2m_verify.documents.validation import StageName, ValidationPlan
from mint2m_verify.finding import FindingError, found
from mint2m_verify.runlog import LogHead
from mint2m_verify.statement import (
    SEAL_TYPE,
    STATEMENT_TYPE,
    SealStatement,
    SignerClass,
    StatementReader,
    Subject,
    read_signer,
    read_subjects,
)

PLAN_TYPE = "urn:mint2m:predicate:plan:v1"
KIND = "validation"


def plan_payload(plan: ValidationPlan, raw: bytes) -> bytes:
    """The plan/v1 statement over the plan's file."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": PLAN, "digest": {"sha256": hashlib.sha256(raw).hexdigest()}}],
            "predicateType": PLAN_TYPE,
            "predicate": {"claim_scope": plan.claim_scope, "hardware_class": plan.hardware_class},
        }
    )


def check_plan_payload(payload: bytes, plan: ValidationPlan, raw: bytes, *, file: str) -> None:
    """Refuse a plan statement that is not about this plan; raises `FindingError` (`validation-plan.*`, `json.*`)."""
    parse(payload, file=file, canonical_form=True)
    want = plan_payload(plan, raw)
    if payload != want:
        raise FindingError(
            found(
                "validation-plan.statement-mismatch",
                file=file,
                pointer="/dsseEnvelope/payload",
                expected=f"plan/v1 over {PLAN} {hashlib.sha256(raw).hexdigest()}",
                actual=f"payload {hashlib.sha256(payload).hexdigest()}",
            )
        )


def stage_payload(
    *,
    stage: StageName,
    subjects: Iterable[Subject],
    execution_id: str,
    plan_sha256: str,
    parent: str | None,
    claim_scope: str,
    hardware_class: str,
    signer: SignerClass,
    log: LogHead,
) -> SealStatement:
    """The seal/v1 statement of a stage; raises `FindingError` (`seal.invalid`) for what no reader would accept."""
    document: JsonValue = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": s.name, "digest": {"sha256": s.sha256}} for s in sorted(subjects, key=lambda s: s.name)],
        "predicateType": SEAL_TYPE,
        "predicate": {
            "kind": KIND,
            "stage": stage,
            "execution_id": execution_id,
            "plan_sha256": plan_sha256,
            "parent": parent,
            "claim_scope": claim_scope,
            "hardware_class": hardware_class,
            "signer": signer,
            "log": {"size": log.size, "root": log.root},
        },
    }
    return parse_stage(canonical(document), file="the statement to sign")


def parse_stage(payload: bytes, *, file: str) -> SealStatement:
    """A stage's seal; its bytes must be their own RFC 8785 form. Raises `FindingError` (`json.*`, `seal.invalid`)."""
    reader = StatementReader(fault="seal.invalid", file=file)
    statement = reader.members(
        parse(payload, file=file, canonical_form=True), "", {"_type", "subject", "predicateType", "predicate"}
    )
    reader.constant(statement["_type"], "/_type", STATEMENT_TYPE)
    reader.constant(statement["predicateType"], "/predicateType", SEAL_TYPE)
    names = {"kind", "stage", "execution_id", "plan_sha256", "parent", "claim_scope", "hardware_class", "signer", "log"}
    predicate = reader.members(statement["predicate"], "/predicate", names)
    reader.constant(predicate["kind"], "/predicate/kind", KIND)
    stage = reader.text(predicate["stage"], "/predicate/stage")
    if stage not in ORDER:
        reader.refuse("/predicate/stage", expected=" or ".join(ORDER), actual=stage)
    parent = predicate["parent"]
    log = reader.members(predicate["log"], "/predicate/log", {"size", "root"})
    size = log["size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        reader.refuse("/predicate/log/size", expected="at least 1: the plan is entry 0", actual=repr(size))
    return SealStatement(
        subjects=read_subjects(statement["subject"], reader),
        kind=KIND,
        stage=stage,
        execution_id=reader.digest(predicate["execution_id"], "/predicate/execution_id"),
        plan_sha256=reader.digest(predicate["plan_sha256"], "/predicate/plan_sha256"),
        parent=None if parent is None else reader.digest(parent, "/predicate/parent"),
        claim_scope=reader.label(predicate["claim_scope"], "/predicate/claim_scope"),
        hardware_class=reader.label(predicate["hardware_class"], "/predicate/hardware_class"),
        signer=read_signer(predicate["signer"], reader),
        log_size=size,
        log_root=reader.digest(log["root"], "/predicate/log/root"),
        payload=payload,
    )
