"""Checks a model signature: `mint2m verify checkpoint DIR --signature F --key PUB`, whoever made it.

The rule: the auditor's key over the statement, then the statement over the files. What the signer left out is refused
where it is more than every signer leaves out: a list of exceptions is the signer's, and could name the file that
matters. What lies there and is left out is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from mint2m_verify.anchor import Anchor, ConsistencyOnly, KeyAnchor, NoAnchor, VerifyOptions, check_outside
from mint2m_verify.documents import TreeEntry
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.hashed import hashed_notes, hashed_standing, hashed_words
from mint2m_verify.model_signing.files import ModelFiles, place_within, read_model
from mint2m_verify.model_signing.form import (
    DEFAULT_IGNORES,
    STATEMENT_LIMIT,
    ModelStatement,
    parse_statement,
    subject_digest,
)
from mint2m_verify.model_signing.hint import pem_hint
from mint2m_verify.named_input import read_named
from mint2m_verify.seal import short
from mint2m_verify.signers.bundle_form import STATEMENT_PAYLOAD
from mint2m_verify.signing import key_id, verify_bytes
from mint2m_verify.sigstore_bundle import Envelope, SignedBundle, read_bundle
from mint2m_verify.tree import compare
from mint2m_verify.verdict import About, finish
from mint2m_verify.vouching import Vouched

#: A bundle is its statement in base64 and little more.
_BUNDLE_LIMIT = 2 * STATEMENT_LIMIT

#: File names that a note of what was left out repeats.
_SHOWN = 5


def verify_model(
    root: Path,
    signature: Path,
    anchor: Anchor,
    options: VerifyOptions,
    *,
    manifest: Path | None = None,
    seal: Path | None = None,
) -> Report:
    """The directory `root` against the model signature in the file `signature`.

    Args:
        manifest, seal: what the caller also named; neither belongs to a model signature, and nothing is passed over.

    Raises:
        FindingError: `usage.invalid` for these or for an anchor that is no key, `model-signature.key-unsupported`,
            `input.*`, `file.*`.
    """
    for option, value in (("--manifest", manifest), ("--seal", seal)):
        if value is not None:
            raise FindingError(found("usage.invalid", expected=f"{option} or --signature", actual="both"))
    if not isinstance(anchor, KeyAnchor | NoAnchor | ConsistencyOnly):
        raise FindingError(found("usage.invalid", expected="--signature with --key"))
    if isinstance(anchor, KeyAnchor) and not isinstance(anchor.key, ec.EllipticCurvePublicKey):
        raise FindingError(found("model-signature.key-unsupported", file=str(anchor.path)))
    log = Findings()
    name = signature.name
    bundle, statement = _read(signature, log)
    vouched = _vouch(bundle, anchor, name)
    required = "a signature that you can trust"
    if bundle is None and isinstance(anchor, KeyAnchor):
        log.not_reached(required, (name,))
    else:
        log.judge(required, _standing(anchor), vouched.check())
    beside = place_within(root, signature)
    own = () if beside is None else (beside,)
    ignored = (*own, *(() if statement is None else statement.ignored))
    model = read_model(
        root, ignored=ignored, progress=options.progress, journal=options.journal, elsewhere=options.elsewhere
    )
    log.add(check_outside(anchor, root, model.files))
    required = "every file as it was signed"
    if statement is None:
        log.add(model.findings)
        log.not_reached(required, (name,))
    else:
        log.judge("nothing of weight is left out", Standing.CHECKED, _check_ignored(statement, own, model, name))
        log.judge(required, hashed_standing(model.files), _compare(statement, model, name))
    about = About(
        subject=str(root),
        command="verify checkpoint",
        not_checked=(*_not_checked(model), *hashed_notes(model.files)),
        digests=() if statement is None else (NamedDigest(name="model", sha256=subject_digest(statement.resources)),),
    )
    return finish(about, log, anchor, options, None, vouched)


def _read(signature: Path, log: Findings) -> tuple[SignedBundle | None, ModelStatement | None]:
    """The bundle and its statement, as far as they can be read."""
    raw = read_named(signature, limit=_BUNDLE_LIMIT)
    name = signature.name
    bundle: SignedBundle | None = None
    try:
        bundle = read_bundle(raw, file=name)
        content = bundle.content
        if not isinstance(content, Envelope) or content.payload_type != STATEMENT_PAYLOAD:
            actual = content.payload_type if isinstance(content, Envelope) else "a signature over one file"
            raise FindingError(
                found("model-signature.type-mismatch", file=name, expected=STATEMENT_PAYLOAD, actual=actual)
            )
        return bundle, parse_statement(content.payload, file=name)
    except FindingError as fault:
        log.unreadable(name, (fault.finding,))
        return bundle, None


def _vouch(bundle: SignedBundle | None, anchor: Anchor, name: str) -> Vouched:
    match anchor:
        case KeyAnchor():
            if bundle is None or not isinstance(bundle.content, Envelope):
                return Vouched(
                    findings=(), words="no signature over a list of files"
                )  # told already, as what it is not
            mine = key_id(anchor.key)
            return Vouched(
                findings=tuple(_check_signature(bundle, bundle.content, anchor)),
                words=f"{short(mine)} over model_signing v1.0",
                mode="managed-key",
                signers=(mine,),
            )
        case NoAnchor():
            return Vouched(findings=(found("trust.no-anchor"),), words="none")
        case _:
            return Vouched(findings=(), words="not asked for")


def _check_signature(bundle: SignedBundle, envelope: Envelope, anchor: KeyAnchor) -> Iterator[Finding]:
    """The one signature against the auditor's key; the hint is only used to say which of two things went wrong."""
    mine = pem_hint(anchor.key)
    if bundle.material != "public-key":
        yield found("signature.not-by-key", file=bundle.file)
        return
    if verify_bytes(envelope.signed_bytes, envelope.signature, anchor.key):
        if bundle.hint not in (None, mine):
            yield found("signature.hint-mismatch", file=bundle.file, expected=mine, actual=bundle.hint)
    elif bundle.hint in (None, mine):
        yield found("signature.invalid", file=bundle.file, expected=f"a signature by key {key_id(anchor.key)}")
    else:
        yield found("signature.key-mismatch", file=bundle.file, expected=f"PEM {mine}", actual=f"PEM {bundle.hint}")


def _check_ignored(statement: ModelStatement, own: tuple[str, ...], model: ModelFiles, name: str) -> Check:
    """Only what every signer leaves out: git's files, and the signature itself."""
    allowed = {*DEFAULT_IGNORES, *own}
    for index, path in enumerate(statement.ignored):
        if path not in allowed:
            yield found(
                "model-signature.ignores-more",
                file=name,
                pointer=f"/predicate/serialization/ignore_paths/{index}",
                expected=", ".join(sorted(allowed)),
                actual=path,
            )
    return f"left out: {len(model.skipped) or 'nothing'}"


def _compare(statement: ModelStatement, model: ModelFiles, name: str) -> Check:
    """The list against the files at hand. The list has no sizes: a file that changed has changed as a whole."""
    blocked = {fault.file: fault for fault in model.findings if fault.file is not None}
    yield from model.findings
    at_hand = {entry.path: entry for entry in model.entries}
    by_digest = {entry.sha256: entry for entry in model.entries}
    wanted: list[TreeEntry] = []
    for resource in statement.resources:
        entry = at_hand.get(resource.path)
        if entry is not None and entry.sha256 != resource.sha256:
            yield found(
                "tree.file-changed",
                file=entry.path,
                byte_range=(0, entry.size),
                expected=resource.sha256,
                actual=f"{entry.sha256} ({entry.size} bytes)",
                hint=f"committed by {name}",
            )
        same = entry or by_digest.get(resource.sha256)
        wanted.append(_as_entry(resource.path, resource.sha256, same))
    yield from compare(wanted, model.entries, committed_by=name, blocked=blocked)
    return f"{len(model.files)} of {len(statement.resources)}, {hashed_words(model.files)}"


def _as_entry(path: str, sha256: str, same: TreeEntry | None) -> TreeEntry:
    """A listed file as a tree entry; what the list does not say is as in the file `same`, and then no difference."""
    if same is None:
        return TreeEntry(path=path, size=0, executable=False, sha256=sha256, chunks=())
    return TreeEntry(path=path, size=same.size, executable=same.executable, sha256=same.sha256, chunks=same.chunks)


def _standing(anchor: Anchor) -> Standing:
    return Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED


def _not_checked(model: ModelFiles) -> tuple[str, ...]:
    notes = [
        "how the files came about: only that they are the files that were signed",
        "which files are executable: model signatures do not say",
        "whether the key was revoked after it was given to you",
    ]
    if model.skipped:
        more = f" and {len(model.skipped) - _SHOWN} more" if len(model.skipped) > _SHOWN else ""
        notes.append(f"files that the signature leaves out: {', '.join(model.skipped[:_SHOWN])}{more}")
    return tuple(notes)
