"""`mint2m verify receipt F`: one receipt alone, and the files that it names where they are at hand.

The rule: a receipt is a summary. Alone it can be well formed, free of contradiction and sealed; whether its numbers
are those of a run shows only where the run is. What was not looked at is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import (
    Anchor,
    ConsistencyOnly,
    DigestAnchor,
    Expectation,
    KeyAnchor,
    NoAnchor,
    VerifyOptions,
    check_expectations,
    check_outside_of,
)
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import FileRef, TrainingReceipt
from mint2m_verify.documents.base import decode
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.named_input import read_named, resolve_named
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.receipt_check import PLACES, check_files, check_self, failure
from mint2m_verify.run_documents import read_value
from mint2m_verify.seal import Seal, read_beside, read_seal, short
from mint2m_verify.statement import BUNDLE_LIMIT
from mint2m_verify.verdict import About, finish
from mint2m_verify.vouching import Vouched, judge_policy, vouch


def verify_receipt(
    path: Path, root: Path | None, seal_path: Path | None, anchor: Anchor, options: VerifyOptions
) -> Report:
    """The receipt in `path`.

    Args:
        path: the file.
        root: the run directory whose files are held against it; None takes the receipt's own where they lie there.
        seal_path: the seal that names the receipt; None takes the one beside it.
    """
    log = Findings()
    raw = read_named(path, name=path.name)
    base = _run_directory(path, root)
    value, faults = read_value(TrainingReceipt, raw, file=path.name, canonical_form=True)
    if value is None and path.name == layout.FAILED_RECEIPT:
        log.because(failure(raw, file=path.name))
    elif value is None:
        log.unreadable(path.name, faults)
    seal = _seal(path, seal_path, anchor, log)
    vouched = vouch(seal, anchor)
    digest = sha256_hex(raw)
    origin = _origin(path, base, digest, anchor, seal, vouched)
    log.judge("a receipt that you can trust", _standing(anchor), origin)
    judge_policy(log, anchor, seal, vouched, deployment=None, whole=False)
    notes = ["that its numbers are those of a run: this is the receipt alone (mint2m verify run DIR)"]
    if value is None:
        log.not_reached("receipt contradicts itself nowhere", (path.name,))
    else:
        receipt = decode(TrainingReceipt, value)
        log.judge("receipt contradicts itself nowhere", Standing.DERIVED, check_self(receipt))
        notes += _files(log, receipt, base)
        _expected(log, receipt, options, seal)
    about = About(
        subject=str(path),
        command="verify receipt",
        not_checked=tuple(notes),
        digests=(NamedDigest(name="receipt", sha256=digest),),
    )
    return finish(about, log, anchor, options, seal, vouched)


def _seal(path: Path, seal_path: Path | None, anchor: Anchor, log: Findings) -> Seal | None:
    """The seal that was named, or the one of the run directory that the receipt lies in; only some anchors need one."""
    if not isinstance(anchor, KeyAnchor | PolicyAnchor):
        return None
    if seal_path is not None:
        raw = read_named(seal_path, limit=BUNDLE_LIMIT)
        folder = seal_path.resolve().parent
    else:
        folder = path.parent / layout.ATTESTATIONS
        try:
            raw = read_once(path.parent / layout.SEAL, name=layout.SEAL, limit=BUNDLE_LIMIT)
        except FindingError as fault:
            log.unreadable(layout.SEAL, (fault.finding,))
            return None
    files, faults = read_beside(raw, folder)
    log.add(faults)
    seal, faults = read_seal(files, anchor)
    log.add(faults)
    return seal


def _standing(anchor: Anchor) -> Standing:
    return Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED


def _origin(path: Path, base: Path | None, digest: str, anchor: Anchor, seal: Seal | None, vouched: Vouched) -> Check:
    match anchor:
        case DigestAnchor():
            if digest != anchor.sha256:
                yield found("trust.digest-mismatch", file=path.name, expected=anchor.sha256, actual=digest)
            return f"digest {short(digest)}"
        case KeyAnchor() | PolicyAnchor():
            if base is not None:
                yield from check_outside_of(anchor, base)
            if seal is None:
                yield found("trust.no-seal", file=path.name)
                return "no seal"
            yield from vouched.findings
            sealed = {subject.name: subject.sha256 for subject in seal.statement.subjects}
            if sealed.get(layout.RECEIPT) != digest:
                yield found("seal.not-a-subject", file=path.name, actual=digest)
            return vouched.words
        case NoAnchor():
            yield found("trust.no-anchor")
            return "none"
        case ConsistencyOnly():
            return "not asked for"


def _run_directory(path: Path, root: Path | None) -> Path | None:
    """The run directory that was named, or the receipt's own folder where a file that receipts name lies there."""
    if root is not None:
        return resolve_named(root)
    folder = path.resolve().parent
    return folder if any((folder / place).exists() for place in PLACES.values()) else None


def _files(log: Findings, receipt: TrainingReceipt, base: Path | None) -> list[str]:
    """Hold the files at hand against the receipt; in words, where there are none."""
    if base is None:
        return [f"the {len(PLACES)} files that it names: they are not here (give --root DIR)"]
    at_hand, faults = _read_named(base)
    log.add(faults)
    log.judge("receipt names the files at hand", Standing.CHECKED, check_files(receipt, at_hand, log.damage))
    return ["what is in the files that it names"]


def _read_named(base: Path) -> tuple[Mapping[str, FileRef], list[Finding]]:
    at_hand: dict[str, FileRef] = {}
    faults: list[Finding] = []
    for place in PLACES.values():
        try:
            _refuse_link(base, place)
            raw = read_once(base / place, name=place, limit=layout.kept_bytes(place))
        except FindingError as fault:
            if fault.finding.id != "file.missing":
                faults.append(fault.finding)
            continue
        at_hand[place] = FileRef.of(place, raw)
    return at_hand, faults


def _refuse_link(base: Path, place: str) -> None:
    """A directory on the way may not be a link: evidence would borrow files from outside."""
    parent = Path(place).parent
    if (base / parent).is_symlink():
        raise FindingError(found("tree.symlink", file=parent.as_posix()))


def _expected(log: Findings, receipt: TrainingReceipt, options: VerifyOptions, seal: Seal | None) -> None:
    rows = (
        ("--expect-plan", options.expect_plan, receipt.plan_sha256),
        ("--expect-nonce", options.expect_nonce, None),
        ("--expect-source", options.expect_source, None),
        ("--expect-seal", options.expect_seal, None if seal is None else seal.statement.sha256),
    )
    wanted = [Expectation(option=o, expected=e, actual=a) for o, e, a in rows if e is not None]
    if wanted:
        log.judge("what you expected", Standing.CHECKED, _compared(wanted))


def _compared(wanted: list[Expectation]) -> Check:
    yield from check_expectations(wanted)
    return ", ".join(item.option.removeprefix("--expect-") for item in wanted)
