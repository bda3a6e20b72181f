"""A log entry against the trusted root: inclusion, checkpoint, promise, and the log's window.

The rule: the log is the one whose id the entry names, exactly, and only that log's key counts. sigstore-python tries
every key of the root where an id is unknown, compares a checkpoint's root hash but not its size, and forgives a promise
without its time; each of these is room for an entry that means two things, and each is closed here. Formats: RFC 6962
section 2.1.1 for inclusion, rekor for the signed entry timestamp.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime

from mint2m_verify.canonical import canonical
from mint2m_verify.finding import Finding, found
from mint2m_verify.sigstore_bundle.checkpoint import parse_checkpoint
from mint2m_verify.sigstore_bundle.entry import TIMED_KINDS
from mint2m_verify.sigstore_bundle.log_key import signed_by_log
from mint2m_verify.sigstore_bundle.model import InclusionProof, LogEntry, SignedTime
from mint2m_verify.sigstore_bundle.root import TrustRoot


def check_form(entry: LogEntry, root: TrustRoot, *, file: str) -> Iterator[Finding]:
    """What is wrong with an entry before any of its signatures is looked at: its form, and its place in the tree."""
    where = "/verificationMaterial/tlogEntries/0"
    timed = (entry.kind, entry.version) in TIMED_KINDS
    if (entry.promise is None) != (entry.integrated_time is None) or (entry.promise is not None and not timed):
        yield found(
            "sigstore.promise-incomplete",
            file=file,
            pointer=f"{where}/inclusionPromise",
            expected="a time and the log's promise of it together, of a kind of entry that has them",
            actual=f"{entry.kind} {entry.version}, "
            + ("no time" if entry.integrated_time is None else "a time")
            + (", no promise" if entry.promise is None else ", a promise"),
        )
    log = root.log(entry.log_id)
    if log is None:
        yield found(
            "sigstore.log-unknown",
            file=file,
            pointer=f"{where}/logId/keyId",
            expected="a log of the trusted root",
            actual=entry.log_id.hex(),
        )
    if entry.proof is None:
        yield found("sigstore.inclusion-proof-missing", file=file, pointer=f"{where}/inclusionProof")
        return
    if not timed and entry.log_index != entry.proof.log_index:
        # Nothing signs the outer index of such an entry; of an entry with a promise, the promise does.
        yield found(
            "sigstore.log-index-mismatch",
            file=file,
            pointer=f"{where}/logIndex",
            expected=str(entry.proof.log_index),
            actual=str(entry.log_index),
        )
    computed = _root_of(entry.body, entry.proof)
    if computed != entry.proof.root_hash:
        yield found(
            "sigstore.inclusion-proof-invalid",
            file=file,
            pointer=f"{where}/inclusionProof",
            expected=entry.proof.root_hash.hex(),
            actual="a path of another length" if computed is None else computed.hex(),
        )
    yield from _check_checkpoint_form(entry, entry.proof, f"{where}/inclusionProof/checkpoint", file)


def _check_checkpoint_form(entry: LogEntry, proof: InclusionProof, where: str, file: str) -> Iterator[Finding]:
    if proof.checkpoint is None:
        yield found("sigstore.checkpoint-missing", file=file, pointer=where)
        return
    checkpoint = parse_checkpoint(proof.checkpoint)
    if isinstance(checkpoint, str):
        yield found("sigstore.checkpoint-malformed", file=file, pointer=f"{where}/envelope", actual=checkpoint)
        return
    line = checkpoint.signature_of(entry.log_id)
    if line is None:
        yield found(
            "sigstore.checkpoint-unsigned",
            file=file,
            pointer=f"{where}/envelope",
            expected=f"a signature of log {entry.log_id.hex()}",
            actual=", ".join(sorted({other.name for other in checkpoint.signatures})),
        )
    elif not checkpoint.names_host(line.name):
        yield found(
            "sigstore.checkpoint-name-mismatch",
            file=file,
            pointer=f"{where}/envelope",
            expected=checkpoint.origin,
            actual=line.name,
        )
    if (checkpoint.size, checkpoint.root_hash) != (proof.tree_size, proof.root_hash):
        yield found(
            "sigstore.checkpoint-mismatch",
            file=file,
            pointer=f"{where}/envelope",
            expected=f"{proof.tree_size} entries, root {proof.root_hash.hex()}",
            actual=f"{checkpoint.size} entries, root {checkpoint.root_hash.hex()}",
        )


def check_signatures(entry: LogEntry, root: TrustRoot, *, file: str) -> Iterator[Finding]:
    """The checkpoint's signature and the promise; what `check_form` refused is skipped."""
    where = "/verificationMaterial/tlogEntries/0"
    log = root.log(entry.log_id)
    if entry.proof is not None:
        checkpoint = parse_checkpoint(entry.proof.checkpoint) if entry.proof.checkpoint is not None else ""
        line = None if isinstance(checkpoint, str) else checkpoint.signature_of(entry.log_id)
        if (
            log is not None
            and not isinstance(checkpoint, str)
            and line is not None
            and not signed_by_log(log, line.signature, checkpoint.note)
        ):
            yield found(
                "sigstore.checkpoint-signature-invalid",
                file=file,
                pointer=f"{where}/inclusionProof/checkpoint/envelope",
                expected=f"a signature of {log.url}",
            )
    if log is not None and entry.promise is not None and entry.integrated_time is not None:
        promised = canonical(
            {
                "body": base64.b64encode(entry.body).decode("ascii"),
                "integratedTime": entry.integrated_time,
                "logID": entry.log_id.hex(),
                "logIndex": entry.log_index,
            }
        )
        if not signed_by_log(log, entry.promise, promised):
            yield found(
                "sigstore.promise-invalid",
                file=file,
                pointer=f"{where}/inclusionPromise/signedEntryTimestamp",
                expected=f"a signature of {log.url} over this entry and time",
            )


def check_window(entry: LogEntry, root: TrustRoot, times: tuple[SignedTime, ...], *, file: str) -> Iterator[Finding]:
    """Whether the log counted at every time that is known of this signature."""
    log = root.log(entry.log_id)
    for moment in times:
        if log is not None and not log.window.holds(moment.time):
            yield found(
                "sigstore.log-outside-window",
                file=file,
                pointer="/verificationMaterial/tlogEntries/0/logId/keyId",
                expected=f"{log.url} within {log.window}",
                actual=moment.time.isoformat().replace("+00:00", "Z"),
            )
            return


def integrated_time(entry: LogEntry) -> SignedTime | None:
    """The time that the log promises, as it stands there: `check_signatures` says whether the log signed it."""
    if entry.integrated_time is None or entry.promise is None:
        return None
    return SignedTime(time=datetime.fromtimestamp(entry.integrated_time, tz=UTC), source="transparency-log")


def _root_of(body: bytes, proof: InclusionProof) -> bytes | None:
    """The root hash to which the path leads, by RFC 9162 section 2.1.3.2; None for a path of the wrong length."""
    if proof.log_index >= proof.tree_size:
        return None
    node, last = proof.log_index, proof.tree_size - 1
    value = hashlib.sha256(b"\x00" + body).digest()
    for sibling in proof.hashes:
        if last == 0:
            return None
        if node & 1 or node == last:
            value = hashlib.sha256(b"\x01" + sibling + value).digest()
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            value = hashlib.sha256(b"\x01" + value + sibling).digest()
        node, last = node >> 1, last >> 1
    return value if last == 0 else None
