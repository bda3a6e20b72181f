"""From the file that the auditor names to an anchor, or to the reason why the policy cannot be one.

The rule: a policy is refused whole. A fault in one entry is no licence to go on without that entry: what was left out
may have been the demand that the evidence fails. Faults of the policy are the caller's (exit 2); that it has run out,
or that the root beside it is not one of its own, leaves it without force (exit 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mint2m_verify import schema
from mint2m_verify.anchor_file import AnchorFile, read_anchor_file
from mint2m_verify.canonical import JsonValue, Limits, parse, sha256_hex
from mint2m_verify.documents.base import decode
from mint2m_verify.documents.trust_policy import TrustPolicy
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.soundness import faults
from mint2m_verify.signing import parse_public_key
from mint2m_verify.sigstore_bundle.root import ROOT_LIMIT, PackagedRoot, TrustRoot, packaged_root, parse_root
from mint2m_verify.times import parse_time

#: A policy that names dozens of signers is a few kilobytes.
POLICY_LIMIT = 1 << 20
_LIMITS = Limits(size_bytes=POLICY_LIMIT, depth=8, members=100_000)

#: The root that sigstore ships, where the auditor asks for it by this word.
PUBLIC_GOOD: PackagedRoot = "public-good"


def read_policy(path: Path, *, trusted_root: Path | None, at: str | None) -> PolicyAnchor:
    """The policy in `path` as an anchor.

    Args:
        path: its file; may be a link, since the caller chose it.
        trusted_root: the root's file, or the word `public-good`; given exactly where the policy names roots.
        at: the evaluation time, RFC 3339 in UTC; None is now.

    Raises:
        FindingError: `input.missing`, `usage.invalid`, `policy.*` or what is wrong with the root.
    """
    raw, identity = read_anchor_file(path, limit=POLICY_LIMIT, fault="policy.malformed")
    document, wrong = inspect(raw, file=str(path))
    for fault in wrong:
        raise FindingError(fault)
    if document is None:
        raise FindingError(found("policy.malformed", file=str(path)))
    moment = _now() if at is None else _given(at)
    for fault in _validity(document, moment, file=str(path)):
        raise FindingError(fault)
    root, files = _root(document, trusted_root, file=str(path))
    return PolicyAnchor(
        path=path,
        document=document,
        sha256=sha256_hex(raw),
        root=root,
        at=moment,
        keys=tuple(
            parse_public_key(signer.key.pem.encode(), file=str(path))
            for signer in document.signers
            if signer.key is not None
        ),
        files=(identity, *files),
    )


def inspect(raw: bytes, *, file: str) -> tuple[TrustPolicy | None, tuple[Finding, ...]]:
    """The policy in `raw`, and everything that is wrong with it whatever the time and the root."""
    try:
        value = parse(raw, file=file, limits=_LIMITS)
    except FindingError as fault:
        return None, (found("policy.malformed", file=file, expected="strict JSON", actual=_told(fault.finding)),)
    gaps = tuple(_placeholders(value, "", file))
    if gaps:
        return None, gaps
    wrong = tuple(
        found(
            "policy.placeholder" if fault.id == "schema.placeholder" else "policy.invalid",
            file=file,
            pointer=fault.pointer,
            expected=fault.expected,
            actual=fault.actual,
        )
        for fault in schema.check(value, TrustPolicy.NAME, file=file)
    )
    if wrong or not isinstance(value, dict):
        return None, wrong or (found("policy.invalid", file=file, expected="an object"),)
    document = decode(TrustPolicy, {name: member for name, member in value.items() if name != "schema"})
    return document, tuple(faults(document, file=file))


def read_for_showing(path: Path) -> tuple[TrustPolicy | None, tuple[Finding, ...], str]:
    """The policy in `path`, all its faults, and the SHA-256 of its file; raises only where it cannot be opened."""
    raw, _ = read_anchor_file(path, limit=POLICY_LIMIT, fault="policy.malformed")
    document, wrong = inspect(raw, file=str(path))
    return document, wrong, sha256_hex(raw)


def _told(fault: Finding) -> str:
    actual = "" if fault.actual is None else f": {fault.actual}"
    return f"{fault.id}: {fault.message}{actual}"


def _placeholders(value: JsonValue, pointer: str, file: str) -> Iterator[Finding]:
    """Texts in angle brackets: what `mint2m trust init` leaves to be filled in, and no name, time or digest has."""
    if isinstance(value, str) and ("<" in value or ">" in value):
        yield found("policy.placeholder", file=file, pointer=pointer, actual=value[:200])
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _placeholders(member, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}", file)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _placeholders(item, f"{pointer}/{index}", file)


def _now() -> datetime:
    """The end of the running second: what was stamped a moment ago is not signed later than it is judged."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)


def _given(at: str) -> datetime:
    moment = parse_time(at)
    if moment is None:
        raise FindingError(found("usage.invalid", expected="--at like 2026-01-31T12:00:00Z", actual=at))
    return moment


def _validity(policy: TrustPolicy, at: datetime, *, file: str) -> Iterator[Finding]:
    start = None if policy.not_before is None else parse_time(policy.not_before)
    end = parse_time(policy.not_after)
    shown = at.isoformat().replace("+00:00", "Z")
    if start is not None and at < start:
        yield found(
            "policy.not-yet-valid", file=file, pointer="/not_before", expected=f"by {shown}", actual=policy.not_before
        )
    if end is None or at > end:
        yield found(
            "policy.expired", file=file, pointer="/not_after", expected=f"not before {shown}", actual=policy.not_after
        )


def _root(
    policy: TrustPolicy, trusted_root: Path | None, *, file: str
) -> tuple[TrustRoot | None, tuple[AnchorFile, ...]]:
    """The root that was brought and its file; needed exactly where the policy names roots."""
    if not policy.roots:
        if trusted_root is not None:
            expected = "no --trusted-root: the policy names no root"
            raise FindingError(found("usage.invalid", file=file, expected=expected, actual=str(trusted_root)))
        return None, ()
    if trusted_root is None:
        names = " or ".join(root.name for root in policy.roots)
        expected = f"--trusted-root FILE: the policy counts on root {names}"
        raise FindingError(found("usage.invalid", file=file, expected=expected, actual="none"))
    root, files = _brought(trusted_root)
    if all(entry.sha256 != root.sha256 for entry in policy.roots):
        expected = ", ".join(f"{entry.name} {entry.sha256}" for entry in policy.roots)
        raise FindingError(found("policy.root-not-named", file=root.path, expected=expected, actual=root.sha256))
    return root, files


def _brought(place: Path) -> tuple[TrustRoot, tuple[AnchorFile, ...]]:
    if str(place) == PUBLIC_GOOD and not place.exists():
        return packaged_root(PUBLIC_GOOD), ()
    raw, file = read_anchor_file(place, limit=ROOT_LIMIT, fault="sigstore.root-invalid")
    return parse_root(raw, name=str(place)), (file,)
