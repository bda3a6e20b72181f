"""`mint2m verify chain DIR`: every stage of a promotion run from its raw artifacts, judged by the plan alone.

The rule: the argument goes along the chain. The plan first, which was signed before anything ran; then each stage: its
seal and bytes, what binds it to plan, parent and execution, its ranks, its numbers again; then the log over all of
them. Every check runs whatever came before, and a stage that rests on a broken one says so, so that the first broken
link stands apart from what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mint2m_verify.anchor import (
    CONSISTENT_MODE,
    Anchor,
    ConsistencyOnly,
    DigestAnchor,
    Expectation,
    KeyAnchor,
    VerifyOptions,
    check_expectations,
    check_outside,
)
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.bindings import Context, check_bound, check_ranks, check_sealed, check_tree
from mint2m_verify.chain.bundle import Bundle, is_present, read_stage, reference
from mint2m_verify.chain.exhibits import chain_exhibits
from mint2m_verify.chain.lock_check import check_planned_lock
from mint2m_verify.chain.log_check import check_logged
from mint2m_verify.chain.numbers import STRENGTH, Number, compare_reported, same_value
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.plan_check import ReadPlan, check_inputs, check_plan, read_plan
from mint2m_verify.chain.recompute.evidence import Evidence
from mint2m_verify.chain.recomputing import recompute, validation_of
from mint2m_verify.chain.vouching import Signers, check_last, check_signed, stage_role
from mint2m_verify.documents.validation import JudgedNumber, StageName, StageValidation
from mint2m_verify.finding import Finding, NamedDigest, Report, Requirement, Standing, Trust, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.grant import check_granted
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.signers import Mode, weakest
from mint2m_verify.seal import short
from mint2m_verify.signing import key_id
from mint2m_verify.vouching import policy_notes
from mint2m_verify.walk import ReadFile, read_tree

_NOT_CHECKED = (
    "that log-probs and gradients come from this model and these prompts (a replay would show that)",
    "when the stages took place: times are the operator's word, order is by parent and log",
    "that each rank ran once, on the hardware that it names (the operator's word)",
)

#: Rows that others look for.
INPUTS = "inputs as planned"
LOCKED = "runtime as locked"
AUTHORIZED = "an authorization grant by whom the policy names"

#: Findings of these kinds leave the anchor without force: no mode and no signer is named beside them.
_NO_FORCE = ("trust.", "signature.", "policy.")


@dataclass(slots=True, kw_only=True)
class _Chain:
    """What is gathered while the stages are gone through, in order."""

    root: Path
    files: Mapping[str, ReadFile]
    plan: ReadPlan
    anchor: Anchor
    signers: Signers
    log: Findings
    bundles: dict[StageName, Bundle] = field(default_factory=dict)
    executions: dict[str, StageName] = field(default_factory=dict)
    numbers: dict[StageName, tuple[Number, ...]] = field(default_factory=dict)
    run_id: str | None = None
    broken: Finding | None = None


def verify_chain(root: Path, anchor: Anchor, options: ChainOptions) -> Report:
    """Everything that can be established offline about the evidence directory `root`.

    Raises:
        FindingError: `root` is no directory, or is larger than the limits.
    """
    at_rest = read_tree(root, keep=places.kept_bytes, progress=options.verify.progress)
    snapshot = at_rest.joined_by(options.verify.proposed)
    files = {file.path: file for file in snapshot.files}
    log = Findings()
    log.add(snapshot.findings)
    for brought in (anchor, options.plan_anchor):
        if brought is not None:
            log.add(check_outside(brought, root, snapshot.files))
    signers = Signers()
    plan = read_plan(files, log, options.plan_anchor or anchor)
    log.judge(
        "validation plan, signed before the run",
        Standing.CHECKED,
        check_plan(plan, files, options.plan_anchor or anchor, signers),
        sources=(places.PLAN,),
    )
    if plan.document is None:
        for stage in places.ORDER:
            log.not_reached(f"{stage}: judged by the plan", (places.PLAN,))
        return _report(root, anchor, options, log, plan, {}, signers)
    log.judge(INPUTS, Standing.CHECKED, check_inputs(plan.document, files))
    if plan.document.runtime_lock is not None:
        log.judge(LOCKED, Standing.CHECKED, check_planned_lock(plan.document, files), sources=(places.PLAN,))
    chain = _Chain(root=root, files=files, plan=plan, anchor=anchor, signers=signers, log=log)
    wanted = _wanted(plan, options.through)
    missing: Finding | None = None
    for stage in wanted:
        if is_present(stage, files):
            _stage(chain, stage)
        else:
            gap = any(is_present(later, files) for later in wanted[wanted.index(stage) :])
            fault = found(
                "chain.stage-gap" if gap else "chain.stage-missing",
                stage=stage,
                file=places.PLACES[stage].record,
                expected=f"{stage}, which the plan requires",
            ).following(missing)
            missing = missing or fault
            chain.broken = chain.broken or (fault if gap else None)
            log.judge(f"{stage}", Standing.CHECKED, _only(fault))
    log.judge("log of all statements", Standing.CHECKED, check_logged(plan, chain.bundles, files, options.known))
    _grant(chain)
    log.judge("no file that nothing binds", Standing.CHECKED, _unlisted(chain, wanted))
    last = [bundle for bundle in chain.bundles.values() if bundle.seal is not None][-1:]
    last_sha256 = last[0].seal.sha256 if last and last[0].seal is not None else None
    standing = Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED
    log.judge("an origin that you can check", standing, _origin(chain, last_sha256))
    _expectations(log, chain, options.verify, last_sha256)
    report = _report(root, anchor, options, log, plan, chain.bundles, signers)
    return replace(report, exhibits=chain_exhibits(wanted, chain.numbers, report.findings))


def _wanted(plan: ReadPlan, through: StageName | None) -> tuple[StageName, ...]:
    required = () if plan.document is None else plan.document.required_stages
    if through is None:
        return tuple(stage for stage in places.ORDER if stage in required)
    return places.ORDER[: places.ORDER.index(through) + 1]


def _only(fault: Finding) -> Check:
    yield fault
    return "absent"


def _stage(chain: _Chain, stage: StageName) -> None:
    """All rows of one stage; the first root finding of the first broken stage becomes the cause of later ones."""
    log, before = chain.log, len(chain.log.findings)
    bundle = read_stage(stage, chain.files, log, chain.anchor)
    parent_name = places.parent_of(stage)
    plan = chain.plan.document
    if plan is None:
        return
    context = Context(
        plan=plan,
        files=chain.files,
        run_id=chain.run_id,
        parent=None if parent_name is None else chain.bundles.get(parent_name),
        executions=dict(chain.executions),
    )
    tree = [path for path in chain.files if path.startswith(bundle.places.tree)]
    sources = (*bundle.places.bundle, bundle.places.seal, *tree)
    log.judge(f"{stage}: sealed", Standing.CHECKED, _sealed(bundle, chain))
    log.judge(
        f"{stage}: raw artifacts", Standing.CHECKED, check_tree(bundle, chain.files), sources=(bundle.places.artifacts,)
    )
    log.judge(f"{stage}: of this plan, parent and run", Standing.CHECKED, check_bound(bundle, context), sources=sources)
    log.judge(f"{stage}: ranks", Standing.CHECKED, check_ranks(bundle, context), sources=sources)
    _numbers(chain, bundle, sources)
    chain.bundles[stage] = bundle
    if bundle.record is not None:
        chain.run_id = chain.run_id or bundle.record.run_id
        chain.executions.setdefault(bundle.record.execution_id, stage)
    new = [fault for fault in log.findings[before:] if fault.cause is None]
    if chain.broken is not None:
        rests = found("chain.rests-on-broken", stage=stage, file=bundle.places.record, cause=chain.broken)
        # A consequence is never worse than what it follows from.
        log.add([replace(rests, verdict=chain.broken.verdict)])
    elif new:
        chain.broken = new[0]


def _sealed(bundle: Bundle, chain: _Chain) -> Check:
    if bundle.signed is not None and bundle.seal is not None:
        yield from check_signed(bundle.signed, chain.anchor, stage_role(bundle.stage), chain.signers, bundle.seal)
    words = yield from check_sealed(bundle, chain.files)
    return words


def _numbers(chain: _Chain, bundle: Bundle, sources: tuple[str, ...]) -> None:
    """One row: the numbers again, against the plan's bounds, the record's and the validation file's."""
    log, stage, plan = chain.log, bundle.stage, chain.plan.document
    planned = None if plan is None else plan.stage(stage)
    required = f"{stage}: numbers again, within the plan's bounds"
    if plan is None or planned is None or bundle.record is None or bundle.ranks is None:
        log.not_reached(required, (places.PLAN, bundle.places.record, bundle.places.ranks))
        return
    evidence = Evidence(
        plan=plan,
        planned=planned,
        execution_id=bundle.record.execution_id,
        ranks=bundle.ranks,
        files=chain.files,
        roots=(chain.root,),
    )
    log.judge(required, Standing.DERIVED, _judged(evidence, bundle, chain), sources=sources)


def _judged(evidence: Evidence, bundle: Bundle, chain: _Chain) -> Check:
    record, where = bundle.record, bundle.places
    judged = yield from recompute(evidence, chain.root)
    chain.numbers[bundle.stage] = judged.numbers
    if record is None:
        return "no record"
    yield from compare_reported(record.numbers, judged.numbers, stage=bundle.stage, file=where.record)
    refs = [reference(path, chain.files) for path in (where.record, where.ranks, where.artifacts)]
    if bundle.validation is not None and refs[0] is not None and refs[1] is not None and refs[2] is not None:
        want = validation_of(record, (refs[0], refs[1], refs[2]), judged, chain.files[places.PLAN].entry.sha256)
        yield from _validation(bundle, want, bundle.validation)
    bounded = sum(item.at_least is not None or item.at_most is not None for item in judged.judged)
    weakest = sum(item.standing == "attested-only" for item in judged.judged)
    return f"{bounded} bounds kept by {len(judged.numbers)} numbers, {weakest} of them attested-only"


def _validation(bundle: Bundle, want: StageValidation, have: StageValidation) -> Iterator[Finding]:
    """The validation file is output: it says what the verifier says, or it is wrong.

    Where the auditor has less at hand than the operator had, a number stands weaker; that has a finding of its own.
    """
    told = {number.name: number for number in have.numbers}
    want = replace(want, numbers=tuple(_as_told(number, told.get(number.name)) for number in want.numbers))
    if want != have:
        yield found(
            "chain.validation-mismatch",
            stage=bundle.stage,
            file=bundle.places.validation,
            expected=want.sha256,
            actual=have.sha256,
        )


def _as_told(number: JudgedNumber, told: JudgedNumber | None) -> JudgedNumber:
    """`number` as another machine tells it, where that is the same number."""
    if told is None:
        return number
    if STRENGTH.index(number.standing) < STRENGTH.index(told.standing):
        number = replace(number, standing=told.standing, holds=told.holds)
    return replace(number, value=told.value) if same_value(number.value, told.value) else number


def _grant(chain: _Chain) -> None:
    """The row of the authorization grant, where a rule of the policy for plan or stages requires one."""
    anchor, rules = chain.anchor, [accepted.rule for accepted in chain.signers.accepted]
    if isinstance(anchor, PolicyAnchor) and any(rule is not None and rule.authorization_required for rule in rules):
        file = chain.files.get(places.GRANT)
        check = check_granted(
            anchor,
            None if file is None else file.raw or b"",
            kind="validation",
            sha256=chain.files[places.PLAN].entry.sha256,
            times=[time for accepted in chain.signers.accepted for time in accepted.times],
            file=places.GRANT,
        )
        chain.log.judge(AUTHORIZED, Standing.CHECKED, check)


def _unlisted(chain: _Chain, wanted: tuple[StageName, ...]) -> Check:
    plan = chain.plan.document
    inputs = set() if plan is None else {ref.path for ref in plan.inputs}
    for path in sorted(chain.files):
        stage = places.stage_of(path)
        known = path in (places.PLAN, places.PLAN_SEAL, places.GRANT) or path in inputs or path.startswith(places.MODEL)
        if not known and (stage is None or stage not in chain.bundles):
            hint = None if stage is None or stage in wanted else f"{stage} is beyond what is asked for"
            yield found("tree.file-unlisted", file=path, actual=f"{chain.files[path].entry.size} bytes", hint=hint)
    return f"{len(chain.files)} files, each bound by plan, seal or manifest"


def _origin(chain: _Chain, last_sha256: str | None) -> Check:
    last = list(chain.bundles)[-1:]
    file = places.PLACES[last[0]].seal if last else places.PLAN_SEAL
    yield from check_last(last_sha256, chain.anchor, file=file)
    match chain.anchor:
        case KeyAnchor():
            return f"key {short(key_id(chain.anchor.key))} over {len(chain.bundles)} seals"
        case PolicyAnchor():
            names = dict.fromkeys(name for accepted in chain.signers.accepted for name in accepted.signers)
            return f"{', '.join(names) or 'nobody'} by policy {chain.anchor.document.name}"
        case DigestAnchor():
            return f"last seal's payload {short(chain.anchor.sha256)}"
        case _:
            return "not asked for"


def _expectations(log: Findings, chain: _Chain, options: VerifyOptions, last_sha256: str | None) -> None:
    plan = chain.plan.document
    nonce = None if options.expect_nonce is None else sha256_hex(options.expect_nonce.encode("utf-8"))
    rows = (
        ("--expect-plan", options.expect_plan, chain.files[places.PLAN].entry.sha256),
        ("--expect-nonce", nonce, None if plan is None else plan.nonce_sha256),
        ("--expect-source", options.expect_source, None if plan is None else plan.source_sha256),
        ("--expect-seal", options.expect_seal, last_sha256),
    )
    wanted = [Expectation(option=o, expected=e, actual=a) for o, e, a in rows if e is not None]
    if wanted:
        log.judge("what you expected", Standing.CHECKED, _expected(wanted))


def _expected(wanted: list[Expectation]) -> Check:
    yield from check_expectations(wanted)
    return ", ".join(item.option.removeprefix("--expect-") for item in wanted)


def _report(
    root: Path,
    anchor: Anchor,
    options: ChainOptions,
    log: Findings,
    plan: ReadPlan,
    bundles: Mapping[StageName, Bundle],
    signers: Signers,
) -> Report:
    stuck = [*log.unreached, *(row.required for row in log.requirements if row.standing is Standing.FAILED)]
    if stuck and not log.findings:
        log.add([found("verify.not-reached", actual=", ".join(stuck))])
    anchored = not any(fault.id.startswith(_NO_FORCE) for fault in log.findings)
    seals = [bundle.seal for bundle in bundles.values() if bundle.seal is not None]
    digests = [NamedDigest(name=f"seal {seal.stage}", sha256=seal.sha256) for seal in seals]
    if plan.document is not None and plan.raw is not None:
        digests.insert(0, NamedDigest(name="plan", sha256=sha256_hex(plan.raw)))
        digests.insert(1, NamedDigest(name="source", sha256=plan.document.source_sha256))
    weak = any(seal.signer == "ephemeral" for seal in seals)
    through = None if not bundles else list(bundles)[-1]
    rows: tuple[Requirement, ...] = log.requirements
    summary = f"{len(bundles)} stages, through {through}" if not log.findings else ""
    return Report(
        subject=str(root),
        command="verify chain",
        requirements=rows,
        findings=log.findings,
        not_checked=(*_NOT_CHECKED, *_notes(anchor, signers)),
        trust=_trust(anchor, tuple(digests), signers, weak=weak, anchored=anchored),
        claim_scope=plan.document.claim_scope
        if plan.document is not None and anchored and not isinstance(anchor, ConsistencyOnly)
        else None,
        evaluated_at=anchor.evaluated_at if isinstance(anchor, PolicyAnchor) else options.verify.at,
        summary=summary,
    )


def _notes(anchor: Anchor, signers: Signers) -> tuple[str, ...]:
    """What the answer about the signers leaves open."""
    if isinstance(anchor, KeyAnchor):
        return ("whether the key was revoked after it was given to you",)
    if isinstance(anchor, DigestAnchor):
        return ("who signed the seals: the digest names their content, not their signers",)
    return tuple(dict.fromkeys(note for accepted in signers.accepted for note in policy_notes(accepted)))


def _trust(anchor: Anchor, digests: tuple[NamedDigest, ...], signers: Signers, *, weak: bool, anchored: bool) -> Trust:
    """`weak`: a seal says itself that its key was made for the run."""
    match anchor:
        case PolicyAnchor():
            modes: list[Mode] = [accepted.mode for accepted in signers.accepted if accepted.mode is not None]
            if modes and weak:
                modes.append("self-asserted")
            names = tuple(dict.fromkeys(name for accepted in signers.accepted for name in accepted.signers))
            mode = weakest(modes) if modes else "none"
            return Trust(
                mode=mode if anchored else "none",
                anchor=f"policy {anchor.document.name}",
                signers=names if anchored else (),
                digests=(NamedDigest(name="policy", sha256=anchor.sha256), *digests),
            )
        case KeyAnchor():
            mine = key_id(anchor.key)
            return Trust(
                mode=("self-asserted" if weak else "managed-key") if anchored else "none",
                anchor=f"key {mine}",
                signers=(mine,) if anchored else (),
                digests=(NamedDigest(name="key", sha256=mine), *digests),
            )
        case DigestAnchor():
            return Trust(mode="digest" if anchored else "none", anchor=f"sha256 {anchor.sha256}", digests=digests)
        case ConsistencyOnly():
            return Trust(mode=CONSISTENT_MODE, digests=digests)
        case _:
            return Trust(digests=digests)
