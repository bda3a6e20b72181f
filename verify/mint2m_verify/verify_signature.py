"""`mint2m verify signature FILE --bundle F…`: one artifact against signatures of it, by whoever you say signed.

The rule: every bundle that is brought must hold and must be about this artifact; one that does not is not made up for
by another. Who should have signed comes from the caller: a policy, an identity with the provider that vouches for it,
or a key. An identity counts only under a trusted root, and there is no default one: the caller names its file, or the
word `public-good` for the root that sigstore-python ships.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mint2m_verify.finding import FindingError, NamedDigest, Report, Standing, Trust, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.named_input import read_named
from mint2m_verify.signing import PublicKey, key_id, load_public_key
from mint2m_verify.sigstore_bundle import (
    Artifact,
    CertificateSigner,
    Envelope,
    SignedBundle,
    TrustRoot,
    Verified,
    check_identity,
    load_root,
    packaged_root,
    read_bundles,
    verify_bundle,
)
from mint2m_verify.sigstore_bundle.artifact import named_artifact
from mint2m_verify.sigstore_bundle.reading import FILE_LIMIT
from mint2m_verify.times import parse_time

if TYPE_CHECKING:
    from mint2m_verify.policy.anchor import PolicyAnchor  # loads every document, which only a policy needs

#: The word for the root that the installed sigstore-python ships.
PUBLIC_GOOD = "public-good"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByIdentity:
    """Who should have signed, under which root; `root_name` is the word by which the caller named it, if by one."""

    identity: str
    issuer: str
    root: TrustRoot
    root_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKey:
    """The key that should have signed; with a root, log entries and timestamps of its signatures are verified too."""

    key: PublicKey
    root: TrustRoot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPolicy:
    """A policy says who may sign what."""

    policy: PolicyAnchor


@dataclass(frozen=True, slots=True)
class Nobody:
    """The caller named no signer: nothing can be accepted."""


SignatureAnchor: TypeAlias = ByPolicy | ByIdentity | ByKey | Nobody


def choose_signer(
    *,
    policy: Path | None,
    identity: str | None,
    issuer: str | None,
    key: Path | None,
    trusted_root: Path | None,
    at: str | None,
) -> SignatureAnchor:
    """Who the command line says should have signed; at most one way of saying it.

    Raises:
        FindingError: `usage.invalid`, `input.missing`, `key.*`, `policy.*` or `sigstore.root-invalid`.
    """
    named = identity if identity is not None else issuer
    options = (("--policy", policy), ("--key", key), ("--certificate-identity", named))
    given = [name for name, value in options if value is not None]
    if len(given) > 1:
        raise FindingError(found("usage.invalid", expected="one anchor", actual=" and ".join(given)))
    if policy is not None:
        from mint2m_verify.policy.reading import read_policy

        return ByPolicy(policy=read_policy(policy, trusted_root=trusted_root, at=_time(at)))
    if key is not None:
        return ByKey(key=load_public_key(key), root=None if trusted_root is None else _brought(trusted_root))
    if named is not None:
        return _by_identity(identity, issuer, trusted_root)
    if trusted_root is not None:
        raise FindingError(
            found("usage.invalid", expected="--trusted-root with --policy, --key or --certificate-identity")
        )
    return Nobody()


def _by_identity(identity: str | None, issuer: str | None, trusted_root: Path | None) -> ByIdentity:
    if not identity or not issuer:
        raise FindingError(
            found("usage.invalid", expected="--certificate-identity and --certificate-oidc-issuer together")
        )
    if identity == "*":
        raise FindingError(found("usage.invalid", expected="an identity, or its beginning before `*`", actual="*"))
    if trusted_root is None:
        raise FindingError(
            found(
                "usage.invalid",
                expected="--trusted-root FILE, or --trusted-root public-good for the one that sigstore-python ships",
                actual="no trusted root: an identity is a root's word, and none is assumed",
            )
        )
    root = _brought(trusted_root)
    named = PUBLIC_GOOD if root.path == PUBLIC_GOOD else None
    return ByIdentity(identity=identity, issuer=issuer, root=root, root_name=named)


def verify_signature(
    artifact: str, bundles: Sequence[Path], anchor: SignatureAnchor, *, predicate_type: str | None, at: str | None
) -> Report:
    """Every bundle in the named files against `artifact` and the anchor.

    Args:
        artifact: a path, or `sha256:HEX`.
        bundles: files of bundles, of lines of bundles, or PEP 740 attestations.
        predicate_type: what every bundle must be a statement of, where the caller asks.
        at: evaluation time for the report; a policy has its own.

    Raises:
        FindingError: an input that cannot be opened, or no bundle at all.
    """
    if not bundles:
        raise FindingError(found("usage.invalid", expected="--bundle FILE, at least once", actual="none"))
    subject = named_artifact(artifact)
    log = Findings()
    read: list[SignedBundle] = []
    files = 0
    for path in bundles:
        raw = read_named(path, limit=FILE_LIMIT)
        try:
            read += read_bundles(raw, file=str(path))
            files += 1
        except FindingError as fault:
            log.unreadable(str(path), (fault.finding,))
    if files < len(bundles):
        log.not_reached("every bundle is of its form", [str(path) for path in bundles])
    judged = _judge(log, read, subject, anchor)
    if predicate_type is not None:
        log.judge("says what you asked for", Standing.CHECKED, _predicate(read, predicate_type))
    return _report(artifact, subject, anchor, log, judged, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What came of all bundles: how many hold, who signed, how the caller knows, and what stays open."""

    signers: tuple[str, ...]
    mode: str
    notes: tuple[str, ...]
    digests: tuple[NamedDigest, ...]


def _judge(log: Findings, bundles: Sequence[SignedBundle], artifact: Artifact, anchor: SignatureAnchor) -> _Judged:
    match anchor:
        case ByPolicy():
            return _by_policy(log, bundles, artifact, anchor.policy)
        case Nobody():
            log.judge("a signer whom you named", Standing.CHECKED, _no_anchor())
            return _Judged(signers=(), mode="none", notes=(), digests=())
        case ByIdentity():
            verified = _hold(log, bundles, artifact, anchor.root, ())
            log.judge("signed by --certificate-identity", Standing.CHECKED, _identity(bundles, verified, anchor))
            mode = anchor.root_name or "trusted-root"
        case ByKey():
            verified = _hold(log, bundles, artifact, anchor.root, (anchor.key,))
            log.judge("signed by --key", Standing.CHECKED, _key(bundles, verified, anchor))
            mode = "managed-key"
    log.judge("when it was signed", Standing.CHECKED, _times(bundles, verified))
    return _Judged(
        signers=tuple(dict.fromkeys(_who(item) for item in verified)),
        mode=mode,
        notes=tuple(_open(verified, anchor)),
        digests=tuple(
            NamedDigest(name="payload", sha256=digest)
            for digest in dict.fromkeys(item.payload_sha256 for item in verified[:8])
            if digest is not None
        ),
    )


def _hold(
    log: Findings,
    bundles: Sequence[SignedBundle],
    artifact: Artifact,
    root: TrustRoot | None,
    keys: tuple[PublicKey, ...],
) -> list[Verified]:
    """The bundles that hold; each that does not has said why."""
    verified: list[Verified] = []
    log.judge("every bundle holds and is about it", Standing.CHECKED, _verify(bundles, artifact, root, keys, verified))
    return verified


def _verify(
    bundles: Sequence[SignedBundle],
    artifact: Artifact,
    root: TrustRoot | None,
    keys: tuple[PublicKey, ...],
    verified: list[Verified],
) -> Check:
    for bundle in bundles:
        if keys and bundle.material == "certificate":
            yield found("signature.not-by-key", file=bundle.file, pointer="/verificationMaterial")
            continue
        if not keys and bundle.material == "public-key":
            yield found("sigstore.not-by-certificate", file=bundle.file, pointer="/verificationMaterial")
            continue
        result = verify_bundle(bundle, root=root, keys=keys, artifact=artifact)
        yield from result.findings
        if result.verified is not None:
            verified.append(result.verified)
    if not bundles:
        yield found("sigstore.no-bundle", expected="at least one bundle")
    kinds = dict.fromkeys(_what(item) for item in verified)
    return f"{len(verified)} of {len(bundles)}: {', '.join(kinds)}"[:300]


def _identity(bundles: Sequence[SignedBundle], verified: Sequence[Verified], anchor: ByIdentity) -> Check:
    for item in verified:
        if isinstance(item.signer, CertificateSigner):
            yield from check_identity(
                item.signer, identity=anchor.identity, issuer=anchor.issuer, file=item.bundle.file
            )
    return _counted(bundles, verified, anchor.identity)


def _key(bundles: Sequence[SignedBundle], verified: Sequence[Verified], anchor: ByKey) -> Check:
    yield from ()  # `verify_bundle` takes no other key than this one
    return _counted(bundles, verified, f"key {key_id(anchor.key)}")


def _counted(bundles: Sequence[SignedBundle], verified: Sequence[Verified], who: str) -> str:
    return who if len(verified) == len(bundles) else f"{who}: {len(verified)} of {len(bundles)}"


def _times(bundles: Sequence[SignedBundle], verified: Sequence[Verified]) -> Check:
    yield from ()
    times = sorted({time.time for item in verified for time in item.times})
    if not times:
        return "not known: no signed time"
    first, last = (time.isoformat().replace("+00:00", "Z") for time in (times[0], times[-1]))
    sources = " and ".join(sorted({time.source for item in verified for time in item.times}))
    return f"{first} by {sources}" if first == last else f"{first} to {last} by {sources}"


def _predicate(bundles: Sequence[SignedBundle], wanted: str) -> Check:
    from mint2m_verify.sigstore_bundle.subject import read_statement

    for bundle in bundles:
        if not isinstance(bundle.content, Envelope):
            yield found(
                "sigstore.predicate-type-mismatch", file=bundle.file, expected=wanted, actual="no statement at all"
            )
            continue
        try:
            kind = read_statement(bundle.content, file=bundle.file).predicate_type
        except FindingError as fault:
            yield fault.finding
            continue
        if kind != wanted:
            yield found("sigstore.predicate-type-mismatch", file=bundle.file, expected=wanted, actual=kind[:200])
    return wanted


def _by_policy(log: Findings, bundles: Sequence[SignedBundle], artifact: Artifact, anchor: PolicyAnchor) -> _Judged:
    from mint2m_verify.policy.judge import Accepted, judge_artifact
    from mint2m_verify.policy.signers import weakest
    from mint2m_verify.vouching import policy_notes

    accepted: list[Accepted] = []

    def check() -> Check:
        accepted.extend((yield from judge_artifact(anchor, bundles, artifact, None)))
        return ", ".join(f"{item.role}: {' and '.join(item.signers)}" for item in accepted)[:300]

    log.judge("signatures that --policy accepts", Standing.CHECKED, check())
    modes = [item.mode for item in accepted if item.mode is not None]
    return _Judged(
        signers=tuple(dict.fromkeys(name for item in accepted for name in item.signers)),
        mode=weakest(modes) if modes else "none",
        notes=tuple(dict.fromkeys(note for item in accepted for note in policy_notes(item))),
        digests=(),
    )


def _no_anchor() -> Check:
    yield found("trust.no-anchor", hint="give --policy, --certificate-identity with its issuer and root, or --key")
    return "none"


def _what(item: Verified) -> str:
    return "message signature" if item.statement is None else item.statement.predicate_type


def _who(item: Verified) -> str:
    signer = item.signer
    return f"{signer.san} of {signer.issuer}" if isinstance(signer, CertificateSigner) else signer.spki_sha256


def _open(verified: Sequence[Verified], anchor: ByIdentity | ByKey) -> Iterator[str]:
    """What a signature, verified offline, does not say."""
    yield "what the signed statement claims: a signature shows who said it, not that it is so"
    if isinstance(anchor, ByKey):
        yield "whether the key was revoked after it was given to you"
        if anchor.root is None and any(item.bundle.log_entries or item.bundle.timestamps for item in verified):
            yield "log entries and timestamps in the bundle: no trusted root was given"
        return
    yield "whether the identity was taken over when it signed, or is its owner's still"
    yield "whether the log shows everybody the same entries, and whether anybody watches it"
    if anchor.root_name is not None:
        yield "whether the root is the current one: it is as old as the installed sigstore package"


def _report(
    artifact: str, subject: Artifact, anchor: SignatureAnchor, log: Findings, judged: _Judged, at: str | None
) -> Report:
    failed = [*log.unreached, *(row.required for row in log.requirements if row.standing is Standing.FAILED)]
    if failed and not log.findings:
        log.add([found("verify.not-reached", actual=", ".join(failed))])
    sound = not log.findings
    shown, digests = _anchor_shown(anchor)
    return Report(
        subject=artifact,
        command="verify signature",
        requirements=log.requirements,
        findings=log.findings,
        not_checked=judged.notes,
        trust=Trust(
            mode=judged.mode if sound else "none",
            anchor=shown,
            signers=judged.signers if sound else (),
            digests=(*digests, NamedDigest(name="artifact", sha256=subject.sha256), *judged.digests),
        ),
        evaluated_at=anchor.policy.evaluated_at if isinstance(anchor, ByPolicy) else _time(at),
        summary=f"signed by {', '.join(judged.signers)}, {judged.mode}"[:300] if sound else "",
    )


def _anchor_shown(anchor: SignatureAnchor) -> tuple[str | None, tuple[NamedDigest, ...]]:
    match anchor:
        case ByPolicy():
            policy, root = anchor.policy, anchor.policy.root
            under = () if root is None else (NamedDigest(name="trusted-root", sha256=root.sha256),)
            return f"policy {policy.document.name}", (NamedDigest(name="policy", sha256=policy.sha256), *under)
        case ByIdentity():
            shown = f"identity {anchor.identity} of {anchor.issuer}, trusted root {anchor.root.path}"
            return shown, (NamedDigest(name="trusted-root", sha256=anchor.root.sha256),)
        case ByKey():
            mine = key_id(anchor.key)
            under = () if anchor.root is None else (NamedDigest(name="trusted-root", sha256=anchor.root.sha256),)
            return f"key {mine}", (NamedDigest(name="key", sha256=mine), *under)
        case Nobody():
            return None, ()


def _time(at: str | None) -> str | None:
    """`--at` as given; raises `FindingError` (`usage.invalid`) for what is no time."""
    if at is not None and parse_time(at) is None:
        raise FindingError(found("usage.invalid", expected="--at like 2026-01-31T12:00:00Z", actual=at))
    return at


def _brought(place: Path) -> TrustRoot:
    """The root that the caller named; a file of the word's own name comes first."""
    if str(place) == PUBLIC_GOOD and not place.exists():
        return packaged_root("public-good")
    return load_root(place)
