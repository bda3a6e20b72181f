"""`mint2m verify run DIR`: what a run directory proves to whoever brought the anchor.

The rule: the argument goes from bytes to meaning. First every file is read once and the seal is held against the
anchor and the files; then what binds what; then each number again from its raw artifacts (`run_numbers`). Every check
runs, whatever the earlier ones found, so that one report names all faults; what follows from an earlier one says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_verify import binding, journal_check, layout, receipt_check, sessions
from mint2m_verify.anchor import (
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
from mint2m_verify.documents import Deployment, Doctor, FileRef
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.fixture import FixtureBytes
from mint2m_verify.hashed import committed_by_trees, hashed_notes, hashed_standing
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.recompute.placement import check_placement
from mint2m_verify.run_documents import RunDocuments
from mint2m_verify.run_exhibits import run_exhibits
from mint2m_verify.run_numbers import check_numbers
from mint2m_verify.seal import Seal, SealFiles, check_predicate, check_subjects, counted, megabytes, read_seal
from mint2m_verify.tree import check_manifest, compare, relative, root_digest
from mint2m_verify.verdict import About, finish
from mint2m_verify.vouching import Vouched, judge_grant, judge_policy, vouch
from mint2m_verify.walk import ReadFile, Snapshot, read_tree

_NOT_CHECKED = (
    "that the log-probs and the gradient come from this model and prompt (a replay would show that)",
    "when the run took place: times are the operator's word, order is by sequence",
    "that each rank ran once, on the hardware that it names (the operator's word)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A verified run: the report, and the documents that it was about, as they were read once."""

    report: Report
    documents: RunDocuments


def verify_run(root: Path, anchor: Anchor, options: VerifyOptions) -> Report:
    """Everything that can be established offline about the run directory `root`.

    Raises:
        FindingError: `root` is no directory, or is larger than the limits.
    """
    return examine_run(root, anchor, options).report


def examine_run(root: Path, anchor: Anchor, options: VerifyOptions) -> Examined:
    """As `verify_run`, with the documents for whoever shows them; they are worth what the report says."""
    hashing = options.hashing(committed_by_trees(root))
    at_rest = read_tree(root, keep=layout.kept_bytes, progress=options.progress, hashing=hashing)
    snapshot = at_rest.joined_by(options.proposed)
    files = {file.path: file for file in snapshot.files}
    at_hand = {path: FileRef(path=path, sha256=file.entry.sha256, size=file.entry.size) for path, file in files.items()}
    log = Findings()
    failed = files.get(layout.FAILED_RECEIPT)
    if failed is not None:
        log.because(receipt_check.failure(failed.raw or b"", file=failed.path))
    seal, faults = read_seal(_seal_files(files), anchor)
    vouched = vouch(seal, anchor)
    standing = Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED
    log.judge(_origin_required(anchor), standing, _origin(root, snapshot, anchor, faults, vouched))
    outside = hashed_standing(file for file in snapshot.files if layout.tree_of(file.path) is None)
    partial = _ends_with_gradient(files)
    log.judge(
        "every file outside a tree is sealed", outside, check_subjects(seal, snapshot, ends_with_gradient=partial)
    )
    documents = RunDocuments(files, log)
    notes = [*_NOT_CHECKED, *hashed_notes(snapshot.files), *_trees(log, documents, snapshot, options, partial=partial)]
    if options.checkpoint_may_be_gone:
        at_hand |= _gone(documents, snapshot)
    if any(layout.is_log(path) for path in files):
        notes.append("what the logs of ranks say: no check reads them")
    notes += _bindings(log, documents, snapshot, at_hand)
    _records(log, documents, at_hand, seal)
    deployment = None if documents.deployment is None else documents.deployment.document
    judge_policy(log, anchor, seal, vouched, deployment=deployment, whole=True)
    grant, named = files.get(layout.GRANT), at_hand.get(layout.DEPLOYMENT)
    judge_grant(
        log,
        anchor,
        vouched,
        raw=None if grant is None else grant.raw or b"",
        deployment=None if named is None else named.sha256,
    )
    notes += _earlier(documents)
    notes += _other_prompts(deployment)
    notes += check_numbers(log, documents)
    _expectations(log, documents, options, seal)
    about = About(subject=str(root), command="verify run", not_checked=tuple(notes), digests=_digests(documents))
    report = finish(about, log, anchor, options, seal, vouched)
    sessions = None if documents.sessions is None else documents.sessions.document
    shown = replace(report, exhibits=run_exhibits(sessions, report.findings, ends_with_gradient=partial))
    return Examined(report=shown, documents=documents)


def _seal_files(files: Mapping[str, ReadFile]) -> SealFiles:
    raw = {path: files[path].raw for path in (layout.SEAL, *layout.COSIGNATURES) if path in files}
    others = {path: part for path, part in raw.items() if path != layout.SEAL and part is not None}
    return SealFiles(seal=raw.get(layout.SEAL), cosignatures=others)


def _origin_required(anchor: Anchor) -> str:
    if isinstance(anchor, PolicyAnchor):
        return "signatures that --policy accepts"
    if isinstance(anchor, KeyAnchor):
        return "signature by --key"
    return "seal named by --digest" if isinstance(anchor, DigestAnchor) else "an origin that you can check"


def _origin(root: Path, snapshot: Snapshot, anchor: Anchor, faults: tuple[Finding, ...], vouched: Vouched) -> Check:
    yield from check_outside(anchor, root, snapshot.files)
    yield from faults
    yield from vouched.findings
    return vouched.words


def _ends_with_gradient(files: Mapping[str, ReadFile]) -> bool:
    """Whether the deployment at hand says so; where it cannot be read, the run must have all that an update has."""
    file = files.get(layout.DEPLOYMENT)
    if file is None or file.raw is None:
        return False
    try:
        return Deployment.parse(file.raw, file=file.path, canonical_form=False).ends_with_gradient
    except FindingError:
        return False


def _trees(
    log: Findings, documents: RunDocuments, snapshot: Snapshot, options: VerifyOptions, *, partial: bool
) -> list[str]:
    """Each tree against its manifest; what was not at hand to be compared.

    Args:
        partial: the run ends with its gradient, so that no tree of a step may be there.
    """
    notes = []
    mine = layout.trees(ends_with_gradient=partial)
    if partial:
        log.judge("nothing of a step, which the run does not take", Standing.CHECKED, _no_step(snapshot))
    for place in mine:
        required = f"{place.prefix} as its manifest"
        at_hand = any(file.path.startswith(place.prefix) for file in snapshot.files)
        may_be_gone = place.manifest == layout.CHECKPOINT_MANIFEST and options.checkpoint_may_be_gone
        if documents.manifest(place.manifest) is None:
            log.not_reached(required, (place.manifest,))
        elif (place.optional or may_be_gone) and not at_hand:
            notes.append(f"the files of {place.prefix}: only their manifest is here")
            log.judge(f"{place.manifest} agrees with itself", Standing.CHECKED, _manifest_alone(documents, place))
        else:
            standing = hashed_standing(file for file in snapshot.files if file.path.startswith(place.prefix))
            log.judge(required, standing, _tree(documents, snapshot, place))
    return notes


def _gone(documents: RunDocuments, snapshot: Snapshot) -> dict[str, FileRef]:
    """The files of a checkpoint that is not here, as its manifest names them, for the records that name them too."""
    manifest, folder = documents.manifest(layout.CHECKPOINT_MANIFEST), "checkpoint/"
    if manifest is None or any(file.path.startswith(folder) for file in snapshot.files):
        return {}
    files = ((folder + entry.path, entry) for entry in manifest.document.files)
    return {path: FileRef(path=path, sha256=entry.sha256, size=entry.size) for path, entry in files}


def _no_step(snapshot: Snapshot) -> Check:
    for file in snapshot.files:
        place = layout.tree_of(file.path)
        if place is not None and place.manifest in layout.STEP_FILES:
            yield found("tree.file-unexpected", file=file.path, expected="nothing: the run ends with its gradient")
    return "no checkpoint, no adapter"


def _manifest_alone(documents: RunDocuments, place: layout.TreePlace) -> Check:
    manifest = documents.manifest(place.manifest)
    if manifest is None:
        return "no manifest"
    yield from check_manifest(manifest.document, file=place.manifest)
    return f"{manifest.document.file_count} files named, not at hand"


def _tree(documents: RunDocuments, snapshot: Snapshot, place: layout.TreePlace) -> Check:
    manifest = documents.manifest(place.manifest)
    if manifest is None:
        return "no manifest"
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    want = [replace(entry, path=place.prefix + entry.path) for entry in manifest.document.files]
    have = [file.entry for file in snapshot.files if file.path.startswith(place.prefix)]
    first: Finding | None = None
    for fault in check_manifest(manifest.document, file=place.manifest):
        first = first or fault
        yield fault
    for fault in compare(want, have, committed_by=place.manifest, stage=place.stage, blocked=blocked):
        first = first or fault
        yield fault
    actual = root_digest(relative(have, place.prefix))
    if actual != manifest.document.root_sha256:
        yield found(
            place.root_fault,
            file=place.manifest,
            pointer="/root_sha256",
            expected=manifest.document.root_sha256,
            actual=actual,
            stage=place.stage,
            cause=first,
        )
    return f"{len(have)} files, {megabytes(sum(entry.size for entry in have))}"


def _bindings(log: Findings, documents: RunDocuments, snapshot: Snapshot, at_hand: Mapping[str, FileRef]) -> list[str]:
    """Plan, deployment, profile, fixture and runtime identity among themselves; what could not be compared."""
    plan, deployment, profile = documents.plan, documents.deployment, documents.profile
    fixture, model, identity = documents.fixture, documents.model_manifest, documents.runtime_identity
    notes: list[str] = []
    required = "plan at its address, inputs as planned"
    if plan is not None:
        log.judge(required, Standing.CHECKED, binding.check_plan(plan, at_hand, log.damage))
    else:
        log.not_reached(required, (layout.PLAN,))
    required = "plan follows from its inputs"
    if plan is not None and deployment is not None and profile is not None and identity is not None:
        log.judge(
            required,
            Standing.DERIVED,
            binding.check_plan_inputs(plan, deployment, profile, identity),
            sources=(layout.DEPLOYMENT, layout.PROFILE, layout.RUNTIME_IDENTITY),
        )
    else:
        log.not_reached(required, (layout.PLAN, layout.DEPLOYMENT, layout.PROFILE, layout.RUNTIME_IDENTITY))
    required = "deployment names these inputs"
    if deployment is not None and profile is not None and fixture is not None and model is not None:
        log.judge(
            required,
            Standing.CHECKED,
            binding.check_deployment(deployment, profile, fixture, model),
            sources=(layout.PROFILE, layout.FIXTURE, layout.MODEL_MANIFEST),
        )
    else:
        log.not_reached(required, (layout.DEPLOYMENT, layout.PROFILE, layout.FIXTURE, layout.MODEL_MANIFEST))
    required = "fixture, payload and rollout are one"
    payload, rollout = documents.raw(layout.PAYLOAD), documents.raw(layout.ROLLOUT)
    if (
        deployment is not None
        and profile is not None
        and fixture is not None
        and model is not None
        and payload is not None
        and rollout is not None
    ):
        files = FixtureBytes(
            fixture=fixture.raw,
            payload=payload,
            rollout=rollout,
            parsed_payload=None if documents.payload is None else documents.payload.document,
            parsed_rollout=None if documents.rollout is None else documents.rollout.document,
            fixture_name=layout.FIXTURE,
            payload_name=layout.PAYLOAD,
            rollout_name=layout.ROLLOUT,
        )
        policy = _policy_digest(snapshot)
        log.judge(
            required,
            Standing.CHECKED,
            binding.check_fixture(files, deployment, profile, model, policy),
            sources=(layout.PAYLOAD, layout.ROLLOUT, layout.PROFILE, layout.MODEL_MANIFEST),
        )
    else:
        needs = (layout.DEPLOYMENT, layout.PROFILE, layout.FIXTURE, layout.PAYLOAD, layout.ROLLOUT)
        log.not_reached(required, needs)
    config = documents.raw(layout.MODEL_CONFIG)
    if config is not None and fixture is not None:
        log.judge(
            "the fixture is for the model's vocabulary",
            Standing.CHECKED,
            binding.check_vocabulary(config, fixture),
            sources=(layout.MODEL_CONFIG, layout.FIXTURE),
        )
    return notes


def _policy_digest(snapshot: Snapshot) -> str | None:
    entries = [file.entry for file in snapshot.files if file.path.startswith(layout.ADAPTER_INITIAL)]
    return root_digest(relative(entries, layout.ADAPTER_INITIAL)) if entries else None


def _records(log: Findings, documents: RunDocuments, at_hand: Mapping[str, FileRef], seal: Seal | None) -> None:
    """Doctor, ranks, placement, cleanup and the journal, and that the seal is about this execution."""
    plan, profile, ranks, receipt = documents.plan, documents.profile, documents.sessions, documents.receipt
    doctor, deployment, journal = documents.doctor, documents.deployment, documents.journal
    accumulation = None if deployment is None else deployment.document.accumulation
    partial = deployment is not None and deployment.document.ends_with_gradient
    once = "exactly one finalize and no step" if partial else "exactly one finalize and one step"
    if seal is not None and plan is not None and receipt is not None:
        log.judge(
            "the seal is about this execution",
            Standing.CHECKED,
            check_predicate(seal, plan.document, receipt.document),
            sources=(layout.PLAN, layout.RECEIPT),
        )
    else:
        log.not_reached("the seal is about this execution", (layout.SEAL, layout.PLAN, layout.RECEIPT))
    if doctor is not None:
        log.judge(
            "doctor found nothing in the way",
            Standing.ATTESTED_ONLY,
            check_doctor(doctor.document, _examined(documents)),
            sources=(layout.PROFILE, layout.MODEL_MANIFEST, layout.RUNTIME_IDENTITY),
        )
    else:
        log.not_reached("doctor found nothing in the way", (layout.DOCTOR,))
    needs: tuple[str, ...] = (layout.RANK_SESSIONS, layout.PLAN, layout.PROFILE)
    if ranks is not None and plan is not None and profile is not None:
        world = profile.document.topology.world_size
        log.judge(
            f"{world} rank{'' if world == 1 else 's'}, phases in order",
            Standing.CHECKED,
            sessions.check_ranks(ranks, plan.document, profile.document, accumulation),
            sources=needs,
        )
        log.judge(
            "ranks agree with each other and the plan",
            Standing.CHECKED,
            sessions.check_evidence(ranks.document, plan.document, profile.document, at_hand, log.damage),
            sources=needs,
        )
        log.judge(
            once,
            Standing.ATTESTED_ONLY,
            sessions.check_counts(ranks.document, profile.document),
            sources=needs,
        )
    else:
        for required in ("all ranks, phases in order", "ranks agree", once):
            log.not_reached(required, needs)
    needs = (layout.RANK_SESSIONS, layout.PLAN, layout.PROFILE, layout.DEPLOYMENT)
    if ranks is not None and plan is not None and profile is not None and deployment is not None:
        log.judge(
            "placement planned and observed",
            Standing.ATTESTED_ONLY,
            check_placement(plan.document, deployment.document, profile.document, ranks.document),
            sources=needs,
        )
    else:
        log.not_reached("placement planned and observed", needs)
    needs = (layout.OWNERSHIP, layout.RANK_SESSIONS, layout.PLAN, layout.RECEIPT)
    if journal is not None and ranks is not None and plan is not None:
        # The receipt speaks for the run; records of another execution must not make its own journal look strange.
        execution = (ranks if receipt is None else receipt).document.execution_id
        log.judge(
            "everything owned was found absent",
            Standing.ATTESTED_ONLY,
            journal_check.check_journal(
                journal,
                plan=plan.document,
                execution_id=execution,
                actor_ids={session.actor: session.actor_id for session in ranks.document.ranks},
            ),
            sources=needs,
        )
        log.judge("ranks closed", Standing.ATTESTED_ONLY, sessions.check_cleanup(ranks.document), sources=needs)
    else:
        log.not_reached("everything owned was found absent", needs)
    if receipt is not None:
        log.judge(
            "receipt names the files at hand",
            Standing.CHECKED,
            receipt_check.check_files(receipt.document, at_hand, log.damage),
        )
    else:
        log.not_reached("receipt names the files at hand", (layout.RECEIPT,))


def _earlier(documents: RunDocuments) -> list[str]:
    """Work that another execution did, whose records are not part of this evidence."""
    if documents.sessions is None or documents.profile is None:
        return []
    taken = sessions.earlier_work(documents.sessions.document, documents.profile.document)
    return [] if taken is None else [f"who did what this run took over ({taken}): that execution left no records here"]


def _other_prompts(deployment: Deployment | None) -> list[str]:
    """What the runs of the step's other prompts would show."""
    place = None if deployment is None else deployment.accumulation
    if place is None:
        return []
    others = counted(place.prompts - 1, "other run")
    notes = [f"the step's {others}, and that the counts are of all of them (mint2m verify training)"]
    if place.gradient is not None:
        notes.append("that the gradient which it went on from is theirs")
        notes.append("that its gradient is the sum of that one and its own part (a replay would show that)")
    return notes


def _examined(documents: RunDocuments) -> dict[str, str]:
    """The checks of the doctor that name an input of the run by its digest, and the digest at hand."""
    inputs = {
        "profile": documents.profile,
        "model": documents.model_manifest,
        "runtime-identity": documents.runtime_identity,
    }
    return {id: read.sha256 for id, read in inputs.items() if read is not None}


def check_doctor(doctor: Doctor, examined: Mapping[str, str]) -> Check:
    """The prerequisites were those of this run, each passed; the status is counted, not believed."""
    blocked = [check.id for check in doctor.checks if check.status == "blocked"]
    if doctor.scope != "run":
        yield found("doctor.scope", file=layout.DOCTOR, pointer="/scope", expected="run", actual=doctor.scope)
    told = {check.id: check.actual for check in doctor.checks}
    for id, sha256 in examined.items():
        if sha256 not in (told.get(id) or ""):
            yield found(
                "doctor.scope", file=layout.DOCTOR, pointer="/checks", expected=f"{id} {sha256}", actual=told.get(id)
            )
    if blocked or doctor.status != "passed" or doctor.primary_failure is not None:
        actual = ", ".join(blocked) or f"{doctor.status}, {doctor.primary_failure}"
        yield found(
            "doctor.blocked", file=layout.DOCTOR, pointer="/checks", expected="every check passed", actual=actual
        )
    return f"all {len(doctor.checks)} passed"


def _expectations(log: Findings, documents: RunDocuments, options: VerifyOptions, seal: Seal | None) -> None:
    plan = None if documents.plan is None else documents.plan.document
    nonce = None if options.expect_nonce is None else sha256_hex(options.expect_nonce.encode("utf-8"))
    rows = (
        ("--expect-plan", options.expect_plan, None if plan is None else plan.plan_sha256),
        ("--expect-nonce", nonce, None if plan is None else plan.nonce_sha256),
        ("--expect-source", options.expect_source, None if plan is None else plan.source_sha256),
        ("--expect-seal", options.expect_seal, None if seal is None else seal.statement.sha256),
    )
    wanted = [
        Expectation(option=option, expected=expected, actual=actual)
        for option, expected, actual in rows
        if expected is not None
    ]
    if wanted:
        log.judge("what you expected", Standing.CHECKED, _expected(wanted))


def _expected(wanted: list[Expectation]) -> Check:
    yield from check_expectations(wanted)
    return ", ".join(item.option.removeprefix("--expect-") for item in wanted)


def _digests(documents: RunDocuments) -> tuple[NamedDigest, ...]:
    plan = documents.plan
    if plan is None:
        return ()
    return (
        NamedDigest(name="plan", sha256=plan.document.plan_sha256),
        NamedDigest(name="source", sha256=plan.document.source_sha256),
    )
