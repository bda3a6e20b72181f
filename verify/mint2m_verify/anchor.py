"""What the auditor brings: the anchor that a verdict rests on, and what is expected of the evidence.

The rule: acceptance needs something that did not come with the evidence. Without an anchor a run can only be shown
to agree with itself, and anybody can make a run that agrees with itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from mint2m_verify.anchor_file import AnchorFile, check_among, check_below, read_anchor_file
from mint2m_verify.documents import TreeEntry
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.hash_journal import HashJournal
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.signing import KEY_LIMIT, PublicKey, parse_public_key
from mint2m_verify.times import parse_time
from mint2m_verify.walk import Hashing, Progress, ReadFile


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnchor:
    """The public key of whoever should have signed; `device` and `inode` tell the file from others."""

    path: Path
    key: PublicKey
    file_sha256: str
    device: int
    inode: int

    @property
    def files(self) -> tuple[AnchorFile, ...]:
        """What must not lie in the evidence."""
        return (AnchorFile(path=self.path, sha256=self.file_sha256, device=self.device, inode=self.inode),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestAnchor:
    """A SHA-256 that the auditor got another way.

    For a run: of the seal's DSSE payload. For a checkpoint or a manifest: the root digest, or that of the manifest
    file. For a receipt: of its file.
    """

    sha256: str


@dataclass(frozen=True, slots=True)
class NoAnchor:
    """Nothing was brought: every check runs, and the verdict is `trust.no-anchor` at best."""


@dataclass(frozen=True, slots=True)
class ConsistencyOnly:
    """The auditor asked only whether the evidence agrees with itself."""


Anchor: TypeAlias = PolicyAnchor | KeyAnchor | DigestAnchor | NoAnchor | ConsistencyOnly

CONSISTENT_MODE = "consistent, origin unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Expectations and evaluation time; each None expects nothing.

    `expect_nonce` is the nonce itself, whose SHA-256 the plan holds. `at` is recorded in the report; nothing but a
    policy depends on a clock, and a policy's time is its anchor's. `journal` holds digests of an interrupted pass, or
    of earlier ones where the auditor asks for them; `whole_digests` asks for two digests of every large file.
    `elsewhere` is for a signer who checks what other machines of his have read, and `proposed` for one who checks a
    signature before it lies where it belongs, by that place; no verification command sets them.
    `checkpoint_may_be_gone` is for a run of a training whose plan lets old checkpoints go; no command sets it either.
    """

    at: str | None = None
    expect_plan: str | None = None
    expect_nonce: str | None = None
    expect_seal: str | None = None
    expect_source: str | None = None
    progress: Progress | None = None
    journal: HashJournal | None = None
    whole_digests: bool = False
    elsewhere: Mapping[str, HashedElsewhere] = field(default_factory=dict)
    proposed: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint_may_be_gone: bool = False

    def hashing(self, committed: Iterable[TreeEntry]) -> Hashing:
        """How a tree is hashed whose manifest, which the auditor's anchor must vouch for, has these entries."""
        entries = {} if self.whole_digests else {entry.path: entry for entry in committed}
        return Hashing(committed=entries, journal=self.journal, elsewhere=self.elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One --expect option beside what the evidence says."""

    option: str
    expected: str
    actual: str | None


_DIGEST = re.compile(r"[0-9a-f]{64}")


def choose(
    *,
    key: Path | None,
    digest: str | None,
    consistency_only: bool,
    policy: Path | None = None,
    trusted_root: Path | None = None,
    at: str | None = None,
) -> Anchor:
    """The anchor that the command line names; at most one. `trusted_root` and `at` belong to a policy.

    Raises:
        FindingError: `usage.invalid`, `input.missing`, `key.*`, `policy.*` or what is wrong with the root.
    """
    options = (
        ("--policy", policy),
        ("--key", key),
        ("--digest", digest),
        ("--consistency-only", consistency_only or None),
    )
    given = [name for name, value in options if value is not None]
    if len(given) > 1:
        raise FindingError(found("usage.invalid", expected="one anchor", actual=" and ".join(given)))
    if trusted_root is not None and policy is None:
        actual = " and ".join((*given, "--trusted-root"))
        raise FindingError(found("usage.invalid", expected="--trusted-root with --policy", actual=actual))
    if policy is not None:
        from mint2m_verify.policy.reading import read_policy  # a schema and more, which no other anchor needs

        return read_policy(policy, trusted_root=trusted_root, at=time_argument(at, "--at"))
    if key is not None:
        return read_key(key)
    if digest is not None:
        return DigestAnchor(sha256=digest_argument(digest, "--digest"))
    return ConsistencyOnly() if consistency_only else NoAnchor()


def read_key(path: Path) -> KeyAnchor:
    """The public key in `path`, with what tells its file apart from the evidence."""
    raw, file = read_anchor_file(path, limit=KEY_LIMIT, fault="key.malformed")
    return KeyAnchor(
        path=path,
        key=parse_public_key(raw, file=str(path)),
        file_sha256=file.sha256,
        device=file.device,
        inode=file.inode,
    )


def digest_argument(value: str, option: str) -> str:
    """A SHA-256 from the command line; raises `FindingError` (`usage.invalid`)."""
    if _DIGEST.fullmatch(value) is None or set(value) == {"0"}:
        raise FindingError(
            found("usage.invalid", expected=f"{option} with 64 lower-case hexadecimal digits", actual=value)
        )
    return value


def time_argument(value: str | None, option: str) -> str | None:
    """A time from the command line, RFC 3339 in UTC; raises `FindingError` (`usage.invalid`)."""
    if value is None:
        return None
    if parse_time(value) is None:
        raise FindingError(found("usage.invalid", expected=f"{option} like 2026-01-31T12:00:00Z", actual=value))
    return value


def options(
    at: str | None = None,
    expect_plan: str | None = None,
    expect_nonce: str | None = None,
    expect_seal: str | None = None,
    expect_source: str | None = None,
    progress: Progress | None = None,
    journal: HashJournal | None = None,
    whole_digests: bool = False,
) -> VerifyOptions:
    """Options as the command line gives them, each checked; raises `FindingError` (`usage.invalid`)."""
    for value, option in (
        (expect_plan, "--expect-plan"),
        (expect_seal, "--expect-seal"),
        (expect_source, "--expect-source"),
    ):
        if value is not None:
            digest_argument(value, option)
    return VerifyOptions(
        at=time_argument(at, "--at"),
        expect_plan=expect_plan,
        expect_nonce=expect_nonce,
        expect_seal=expect_seal,
        expect_source=expect_source,
        progress=progress,
        journal=journal,
        whole_digests=whole_digests,
    )


def check_outside(anchor: Anchor, root: Path, files: Iterable[ReadFile]) -> Iterator[Finding]:
    """An anchor's file that lies among the files it should vouch for: by path, by hard link or by its bytes."""
    if isinstance(anchor, KeyAnchor | PolicyAnchor):
        first = next(iter(check_among(anchor.files, files, fault=_inside(anchor))), None)
        if first is not None:
            yield first
        else:
            yield from check_outside_of(anchor, root)


def check_outside_of(anchor: Anchor, folder: Path) -> Iterator[Finding]:
    """An anchor's file whose path lies below `folder`, where only a part of the evidence there is looked at."""
    if isinstance(anchor, KeyAnchor | PolicyAnchor):
        yield from check_below(anchor.files, folder, fault=_inside(anchor))


def _inside(anchor: KeyAnchor | PolicyAnchor) -> str:
    return "trust.key-inside-evidence" if isinstance(anchor, KeyAnchor) else "trust.policy-inside-evidence"


def check_expectations(expectations: Iterable[Expectation]) -> Iterator[Finding]:
    """Where the evidence is about something else than the auditor asked for; what it does not say, it does not meet."""
    for item in expectations:
        if item.expected != item.actual:
            actual = item.actual if item.actual is not None else "not in this evidence"
            yield found("trust.expectation-mismatch", pointer=item.option, expected=item.expected, actual=actual)
