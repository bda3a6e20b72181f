"""The run log: an RFC 6962 Merkle tree over the DSSE payloads of one promotion run, in the order they were signed.

The rule: every statement carries the size and root of the log before it, so a statement is also a promise about all
earlier ones. An entry that was replaced, dropped from the middle or moved changes the root that a later signature
covers. What no later signature covers, the tail, can only be missed by whoever knows how long the log must be: from
the terminal stage that is required, or from a head seen before.

Sources: RFC 6962, section 2.1; verification of proofs as in RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mint2m_verify.finding import Finding, found
from mint2m_verify.signers.merkle import inclusion_path, leaf_hash, root_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHead:
    """A log at one size; `root` is lower-case hexadecimal."""

    size: int
    root: str

    def __str__(self) -> str:
        return f"{self.size}:{self.root}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One signed payload and the head that it says the log had before it."""

    name: str
    file: str
    payload: bytes
    before: LogHead


def head_of(payloads: Sequence[bytes]) -> LogHead:
    """The head of the log that holds these payloads, in this order."""
    return LogHead(size=len(payloads), root=root_hash([leaf_hash(payload) for payload in payloads]).hex())


def inclusion_proof(index: int, payloads: Sequence[bytes]) -> tuple[str, ...]:
    """The siblings of leaf `index` up to the root, hexadecimal, lowest first."""
    return tuple(node.hex() for node in inclusion_path(index, [leaf_hash(payload) for payload in payloads]))


def consistency_proof(old_size: int, payloads: Sequence[bytes]) -> tuple[str, ...]:
    """PROOF(old_size, payloads) of RFC 6962, section 2.1.2, hexadecimal; empty where the sizes are equal."""
    if not 0 < old_size <= len(payloads):
        raise ValueError(f"no proof from {old_size} to {len(payloads)} entries")
    leaves = [leaf_hash(payload) for payload in payloads]
    return tuple(node.hex() for node in _subproof(old_size, leaves, whole=True))


def included(*, leaf: bytes, index: int, head: LogHead, path: Sequence[str]) -> bool:
    """Whether `path` shows that the payload `leaf` is entry `index` of the log with this head."""
    nodes = _nodes(path)
    if nodes is None or not 0 <= index < head.size:
        return False
    first, last, value = index, head.size - 1, leaf_hash(leaf)
    for node in nodes:
        if last == 0:
            return False
        if first & 1 or first == last:
            value = _node(node, value)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            value = _node(value, node)
        first, last = first >> 1, last >> 1
    return last == 0 and value.hex() == head.root


def consistent(*, old: LogHead, new: LogHead, path: Sequence[str]) -> bool:
    """Whether `path` shows that the log with head `new` begins with the log with head `old`; `old` is not empty."""
    nodes = _nodes(path)
    if nodes is None or not 0 < old.size <= new.size:
        return False
    if old.size == new.size:
        return not nodes and old.root == new.root
    if old.size & (old.size - 1) == 0:  # a whole subtree, whose root the reader has already
        nodes = (bytes.fromhex(old.root), *nodes)
    if not nodes:
        return False
    first, last = old.size - 1, new.size - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    was = now = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if first & 1 or first == last:
            was, now = _node(node, was), _node(node, now)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            now = _node(now, node)
        first, last = first >> 1, last >> 1
    return last == 0 and was.hex() == old.root and now.hex() == new.root


def check_log(entries: Sequence[LogEntry]) -> Iterator[Finding]:
    """Where the heads that the entries carry are not those of the entries before them, in log order.

    The first wrong head is the cause; heads after it cover the same wrong entry and follow from it.
    """
    if not entries:
        yield found("runlog.empty")
    sizes = [entry.before.size for entry in entries]
    if sizes != list(range(len(entries))):
        yield from _misplaced(entries, sizes)
        return
    first: Finding | None = None
    payloads: list[bytes] = []
    for entry in entries:
        want = head_of(payloads)
        if entry.before != want:
            fault = found(
                "runlog.forked",
                stage=entry.name,
                file=entry.file,
                pointer="/predicate/log/root",
                expected=want.root,
                actual=entry.before.root,
                cause=first,
            )
            first = first or fault
            yield fault
        payloads.append(entry.payload)


def check_known(entries: Sequence[LogEntry], known: LogHead) -> Iterator[Finding]:
    """Where this log does not continue the one that the auditor saw before."""
    payloads = [entry.payload for entry in entries]
    if known.size > len(payloads):
        yield found("runlog.cut", pointer="--known-checkpoint", expected=str(known), actual=str(head_of(payloads)))
        return
    have = head_of(payloads[: known.size])
    if have != known:
        yield found("runlog.known-mismatch", pointer="--known-checkpoint", expected=str(known), actual=str(have))


def _misplaced(entries: Sequence[LogEntry], sizes: Sequence[int]) -> Iterator[Finding]:
    """Heads that say another place than the entry has: told apart as moved, or as one missing or added before them."""
    moved = sorted(sizes) == list(range(len(entries)))
    first: Finding | None = None
    for place, entry in enumerate(entries):
        if entry.before.size == place:
            continue
        fault = found(
            "runlog.reordered" if moved else "runlog.entry-missing",
            stage=entry.name,
            file=entry.file,
            pointer="/predicate/log/size",
            expected=str(place),
            actual=str(entry.before.size),
            cause=first,
        )
        first = first or fault
        yield fault


def _subproof(size: int, leaves: Sequence[bytes], *, whole: bool) -> tuple[bytes, ...]:
    if size == len(leaves):
        return () if whole else (root_hash(leaves),)
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    if size <= split:
        return (*_subproof(size, leaves[:split], whole=whole), root_hash(leaves[split:]))
    return (*_subproof(size - split, leaves[split:], whole=False), root_hash(leaves[:split]))


def _nodes(path: Sequence[str]) -> tuple[bytes, ...] | None:
    """The proof's nodes, or None where one is no digest."""
    try:
        nodes = tuple(bytes.fromhex(node) for node in path)
    except ValueError:
        return None
    return nodes if all(len(node) == hashlib.sha256().digest_size for node in nodes) else None


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
