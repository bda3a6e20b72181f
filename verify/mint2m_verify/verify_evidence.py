"""`mint2m verify evidence DIR`: what is published, bound by one manifest, and what each part of it is worth.

The rule: a claim whose raw evidence is elsewhere stays a claim. Its figures are held against the bounds that were
published for them, and the report says which are met and which are missed, whatever the reporter concluded; no row of
it ever stands higher than the reporter's word. A chain is verified whole, but by a key that came the same way: that it
is consistent says nothing of who made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mint2m_verify.anchor import Anchor, ConsistencyOnly, DigestAnchor, NoAnchor, VerifyOptions
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents.external_claim import Contract, ExternalClaim
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.seal import megabytes, short
from mint2m_verify.source import observed_sha256
from mint2m_verify.tree import check_manifest, compare, hash_tree, manifest_of
from mint2m_verify.verdict import About, finish
from mint2m_verify.vouching import Vouched
from mint2m_verify.walk import ReadFile, Snapshot, read_tree

MANIFEST = "manifest.json"
CLAIMS = "external/"

_JSON_LIMIT = 16 << 20

_NOT_CHECKED = (
    "anything that an external claim reports: its raw evidence is not here",
    "that the published bounds are the right ones",
)


def verify_evidence(root: Path, anchor: Anchor, options: VerifyOptions) -> Report:
    """The published evidence below `root`.

    Raises:
        FindingError: `root` is no directory, or is larger than the limits.
    """
    snapshot = read_tree(root, keep=_kept, progress=options.progress)
    files = {file.path: file for file in snapshot.files}
    log = Findings()
    manifest = _manifest(files, log)
    vouched = _vouched(anchor, files.get(MANIFEST), manifest)
    standing = Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED
    log.judge("an origin that you can check", standing, vouched.check())
    if manifest is None:
        log.not_reached("everything published is as the manifest", (MANIFEST,))
    else:
        log.judge("everything published is as the manifest", Standing.CHECKED, _tree(manifest, snapshot))
    claims = [file for file in snapshot.files if file.path.startswith(CLAIMS)]
    if not claims:
        log.add([found("evidence.nothing-published", file=CLAIMS)])
    for file in claims:
        claim = _claim(file, log)
        if claim is not None:
            _judge(claim, file.path, log)
    for name in chains(root):
        _judge_chain(root, name, log)
    digests = () if manifest is None else (NamedDigest(name="manifest", sha256=manifest.root_sha256),)
    about = About(subject=str(root), command="verify evidence", not_checked=_NOT_CHECKED, digests=digests)
    return replace(finish(about, log, anchor, options, None, vouched), comparison=True)


def chains(root: Path) -> tuple[str, ...]:
    """Names of the promotion runs below `root`, each a folder of its own."""
    return tuple(sorted(place.parent.name for place in root.glob(f"*/{places.PLAN}")))


def evidence_manifest(root: Path) -> FileManifest:
    """The manifest that binds everything published below `root` but itself."""
    entries = [entry for entry in hash_tree(root) if entry.path != MANIFEST]
    return manifest_of("file", entries, "evidence")


def _kept(path: str) -> int:
    return _JSON_LIMIT if path.endswith(".json") else 0


def _manifest(files: dict[str, ReadFile], log: Findings) -> FileManifest | None:
    file = files.get(MANIFEST)
    if file is None or file.raw is None:
        log.unreadable(MANIFEST, [found("file.missing", file=MANIFEST)])
        return None
    try:
        return FileManifest.parse(file.raw, file=MANIFEST)
    except FindingError as fault:
        log.unreadable(MANIFEST, [fault.finding])
        return None


def _vouched(anchor: Anchor, file: ReadFile | None, manifest: FileManifest | None) -> Vouched:
    """Published evidence carries no signature of its own: a digest of its manifest is the one anchor."""
    match anchor:
        case DigestAnchor():
            known = set() if file is None or file.raw is None else {sha256_hex(file.raw)}
            known |= set() if manifest is None else {manifest.root_sha256}
            if anchor.sha256 in known:
                return Vouched(findings=(), words="the manifest that your digest names", mode="digest")
            differs = found(
                "trust.digest-mismatch", file=MANIFEST, expected=anchor.sha256, actual=", ".join(sorted(known))
            )
            return Vouched(findings=(differs,), words="another manifest")
        case ConsistencyOnly():
            return Vouched(findings=(), words="not asked for", mode="consistent, origin unknown")
        case NoAnchor():
            return Vouched(findings=(found("trust.no-anchor", hint=_HINT),), words="none")
        case _:
            return Vouched(findings=(found("trust.no-seal", file=MANIFEST, hint=_HINT),), words="no signature")


_HINT = "give --digest with the SHA-256 of manifest.json, or its root, that you got another way"


def _tree(manifest: FileManifest, snapshot: Snapshot) -> Check:
    have = [file.entry for file in snapshot.files if file.path != MANIFEST]
    yield from snapshot.findings
    yield from check_manifest(manifest, file=MANIFEST)
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    yield from compare(manifest.files, have, committed_by=MANIFEST, blocked=blocked)
    return f"{len(have)} files, {megabytes(sum(entry.size for entry in have))}"


def _claim(file: ReadFile, log: Findings) -> ExternalClaim | None:
    if file.raw is None:
        log.add([found("tree.file-unexpected", file=file.path)])
        return None
    try:
        return ExternalClaim.parse(file.raw, file=file.path, canonical_form=False)
    except FindingError as fault:
        log.unreadable(file.path, [fault.finding])
        return None


def _judge(claim: ExternalClaim, path: str, log: Findings) -> None:
    log.judge(f"{claim.name}: figures as reported", Standing.ATTESTED_ONLY, _figures(claim, path), sources=(path,))
    for index, contract in enumerate(claim.contracts):
        required = f"{claim.name}: {contract.figure} {contract.relation} {contract.bound:g}"
        log.judge(required, Standing.ATTESTED_ONLY, _held(claim, contract, index, path), sources=(path,))


def _judge_chain(root: Path, name: str, log: Findings) -> None:
    """A chain by its own key, and whether it was made by the source that lies here."""
    log.judge(f"{name}: a whole chain, self-asserted", Standing.DERIVED, _whole(root / name, name), sources=(MANIFEST,))
    try:
        plan = ValidationPlan.parse(read_once(root / name / places.PLAN), file=f"{name}/{places.PLAN}")
    except FindingError:
        return  # which the chain's own row says
    here = observed_sha256()
    standing = Standing.CHECKED if plan.source_sha256 == here else Standing.UNVERIFIABLE
    log.judge(f"{name}: made by this source", standing, _source(plan.source_sha256, here))


def _whole(chain: Path, name: str) -> Check:
    try:
        report = verify_chain(chain, ConsistencyOnly(), ChainOptions())
    except FindingError as stop:
        yield _below(stop.finding, name)
        return "unreadable"
    for fault in report.findings:
        yield _below(fault, name)
    return f"{report.summary}; its key came with it"


def _below(fault: Finding, folder: str) -> Finding:
    """A chain's finding, its files named from the evidence's root."""
    return replace(
        fault,
        file=folder if fault.file is None else f"{folder}/{fault.file}",
        cause=None if fault.cause is None else _below(fault.cause, folder),
    )


def _source(made_by: str, here: str) -> Check:
    yield from ()
    return f"{short(made_by)}, as here" if made_by == here else f"{short(made_by)}; here lies {short(here)}"


def _figures(claim: ExternalClaim, path: str) -> Check:
    """The claim is about itself once, under its own name."""
    if path != f"{CLAIMS}{claim.name}.json":
        yield found("evidence.claim-name", file=path, pointer="/name", expected=path, actual=claim.name)
    yield from _repeated(claim, path)
    conclusions = [figure.reported_as for figure in claim.figures if figure.reported_as is not None]
    words = [f"{conclusions.count(word)} {word}" for word in ("passed", "failed") if word in conclusions]
    said = f", of which reported {' and '.join(words)}" if words else ""
    return f"{len(claim.figures)} of {claim.reported.date}{said}; not bound to any source tree"


def _repeated(claim: ExternalClaim, path: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, figure in enumerate(claim.figures):
        if figure.name in seen:
            yield found("evidence.figure-repeated", file=path, pointer=f"/figures/{index}/name", actual=figure.name)
        seen.add(figure.name)


def _held(claim: ExternalClaim, contract: Contract, index: int, path: str) -> Check:
    figure = next((figure for figure in claim.figures if figure.name == contract.figure), None)
    if figure is None or isinstance(figure.value, bool):
        yield found("evidence.figure-unknown", file=path, pointer=f"/contracts/{index}/figure", actual=contract.figure)
        return "no such figure"
    met = contract.holds(figure.value)
    word = "meets" if met else "MISSES"
    told = f"{figure.value:g} {word} the bound published {contract.published}"
    if figure.reported_as is not None and (figure.reported_as == "passed") != met:
        told += f", though it was reported as {figure.reported_as}"
    return told
