"""The validation plan: what it must say before anything can be judged by it, who signed it, and its inputs.

The rule: stages, order and which numbers need a bound are fixed by this tool; how tight a bound is, is the planner's
word alone. A plan that leaves a number of a stage open, names its stages out of order or was signed over other bytes
judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mint2m_verify.anchor import Anchor
from mint2m_verify.chain import places
from mint2m_verify.chain.numbers import check_planned
from mint2m_verify.chain.statements import check_plan_payload
from mint2m_verify.chain.vouching import PLAN_ROLE, Signed, Signers, check_signed, read_signed
from mint2m_verify.claim_scopes import CHAIN_SCOPES, ranks_fault
from mint2m_verify.documents.base import decode
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.documents.validation import PlannedStage, ValidationPlan
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.run_documents import read_value
from mint2m_verify.seal import short
from mint2m_verify.tree import check_manifest, compare
from mint2m_verify.walk import ReadFile

#: Stages that compute on a fixture.
_ON_FIXTURES = ("actor", "parity-32k", "parity-64k", "scale-2m")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan, its bytes and its statement; None where it could not be read."""

    document: ValidationPlan | None
    raw: bytes | None
    signed: Signed | None


def read_plan(files: Mapping[str, ReadFile], log: Findings, anchor: Anchor) -> ReadPlan:
    """Read plan and statement; what is wrong with their form goes to `log`."""
    document, raw, signed = None, None, None
    file = files.get(places.PLAN)
    if file is None:
        log.unreadable(places.PLAN, [found("tree.file-missing", file=places.PLAN, expected="a validation plan")])
    elif file.raw is not None:
        value, faults = read_value(ValidationPlan, file.raw, file=places.PLAN, canonical_form=True)
        if value is None:
            log.unreadable(places.PLAN, faults)
        else:
            members = {name: member for name, member in value.items() if name != "schema"}
            document, raw = decode(ValidationPlan, members), file.raw
    sealed = files.get(places.PLAN_SEAL)
    if sealed is not None and sealed.raw is not None:
        try:
            signed = read_signed(sealed.raw, file=places.PLAN_SEAL, anchor=anchor)
        except FindingError as fault:
            log.unreadable(places.PLAN_SEAL, [fault.finding])
    return ReadPlan(document=document, raw=raw, signed=signed)


def check_plan(plan: ReadPlan, files: Mapping[str, ReadFile], anchor: Anchor, signers: Signers) -> Check:
    """The plan's statement is the planner's and about this plan, and the plan can judge."""
    if places.PLAN_SEAL not in files:
        yield found("validation-plan.not-signed", file=places.PLAN_SEAL)
    if plan.document is None or plan.raw is None:
        return "no plan"
    if plan.signed is not None:
        yield from check_signed(plan.signed, anchor, PLAN_ROLE, signers)
        try:
            check_plan_payload(plan.signed.payload, plan.document, plan.raw, file=places.PLAN_SEAL)
        except FindingError as fault:
            yield fault.finding
    yield from check_sound(plan.document)
    bounds = sum(len(item.thresholds) for item in plan.document.stages)
    return f"{plan.document.name}, {len(plan.document.required_stages)} stages, {bounds} bounds"


def check_sound(plan: ValidationPlan) -> Iterator[Finding]:
    """Where a plan cannot judge what it requires."""
    wanted = list(places.ORDER[: len(plan.required_stages)])
    if list(plan.required_stages) != wanted:
        yield found(
            "validation-plan.stages-invalid",
            file=places.PLAN,
            pointer="/required_stages",
            expected=", ".join(wanted),
            actual=", ".join(plan.required_stages),
        )
    planned = [item.stage for item in plan.stages]
    if planned != list(plan.required_stages):
        yield found(
            "validation-plan.stages-invalid",
            file=places.PLAN,
            pointer="/stages",
            expected=", ".join(plan.required_stages),
            actual=", ".join(planned),
        )
    for index, item in enumerate(plan.stages):
        yield from check_planned(item, file=places.PLAN, index=index)
        if (item.fixture is not None) != (item.stage in _ON_FIXTURES):
            yield found(
                "validation-plan.fixture-missing",
                stage=item.stage,
                file=places.PLAN,
                pointer=f"/stages/{index}/fixture",
                expected="a fixture" if item.fixture is None else "null",
            )
        yield from _length(plan, item, index)
    world = plan.topology.world_size
    fault = ranks_fault("binding.class-placement", plan.hardware_class, world, file=places.PLAN)
    if fault is not None:
        yield fault
    scope = CHAIN_SCOPES[plan.hardware_class]
    if plan.claim_scope != scope:
        yield found(
            "validation-plan.scope-mismatch",
            file=places.PLAN,
            pointer="/claim_scope",
            expected=f"{scope}, which a chain of {plan.hardware_class} claims",
            actual=plan.claim_scope,
        )


def _length(plan: ValidationPlan, item: PlannedStage, index: int) -> Iterator[Finding]:
    """On a cluster a stage has the length of its name. The reference class may be shorter, and its plan says so."""
    named = places.NAMED_TOKENS.get(item.stage)
    if plan.hardware_class == "reference-cpu" or named is None:
        return
    for place, bound in enumerate(item.thresholds):
        if bound.number.endswith("prompt_tokens") and (bound.at_least, bound.at_most) != (named, named):
            yield found(
                "validation-plan.wrong-length",
                stage=item.stage,
                file=places.PLAN,
                pointer=f"/stages/{index}/thresholds/{place}",
                expected=f"exactly {named} prompt tokens",
                actual=f"{bound.at_least} to {bound.at_most}",
            )


def check_inputs(plan: ValidationPlan, files: Mapping[str, ReadFile]) -> Check:
    """Every input that the plan names is here, byte for byte; the model too, where it came along."""
    for ref in plan.inputs:
        file = files.get(ref.path)
        if file is None:
            yield found("tree.file-missing", file=ref.path, expected=ref.sha256, hint=f"named by {places.PLAN}")
        elif (file.entry.sha256, file.entry.size) != (ref.sha256, ref.size):
            yield found(
                "tree.file-changed",
                file=ref.path,
                byte_range=(0, max(file.entry.size, ref.size)),
                expected=ref.sha256,
                actual=file.entry.sha256,
                hint=f"committed by {places.PLAN}",
            )
    at_hand = [file.entry for path, file in files.items() if path.startswith(places.MODEL)]
    if at_hand:
        yield from _model(plan, files, at_hand_prefix=places.MODEL)
    words = f"model of {len(at_hand)} files" if at_hand else "the model is not here, only its manifest"
    return f"{len(plan.inputs)} files; {words}"


def _model(plan: ValidationPlan, files: Mapping[str, ReadFile], *, at_hand_prefix: str) -> Iterator[Finding]:
    path = plan.model.manifest.path
    file = files.get(path)
    if file is None or file.raw is None:
        return
    try:
        manifest = ModelManifest.parse(file.raw, file=path)
    except FindingError as fault:
        yield fault.finding
        return
    yield from check_manifest(manifest, file=path)
    want = [replace(entry, path=at_hand_prefix + entry.path) for entry in manifest.files]
    have = [item.entry for name, item in files.items() if name.startswith(at_hand_prefix)]
    yield from compare(want, have, committed_by=path)


def described(plan: ValidationPlan, sha256: str) -> str:
    """A plan in a few words."""
    return f"{plan.name} {short(sha256)}, {', '.join(plan.required_stages)}"
