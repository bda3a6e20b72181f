"""The run log of a chain: the plan, then the seals in promotion order, each with the head before it and proofs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.bundle import Bundle
from mint2m_verify.chain.places import PLACES, PLAN_SEAL
from mint2m_verify.chain.plan_check import ReadPlan
from mint2m_verify.documents.validation import LogProof, ProvenHead, StageName
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check
from mint2m_verify.runlog import (
    LogEntry,
    LogHead,
    check_known,
    check_log,
    consistency_proof,
    consistent,
    head_of,
    included,
    inclusion_proof,
)
from mint2m_verify.seal import short
from mint2m_verify.walk import ReadFile


def check_logged(
    plan: ReadPlan, bundles: Mapping[StageName, Bundle], files: Mapping[str, ReadFile], known: LogHead | None
) -> Check:
    """Every statement continues the log of those before it; the proofs prove it; a head seen before is continued."""
    entries = _entries(plan, bundles)
    yield from check_log(entries)
    yield from _proofs(entries, bundles)
    if known is not None:
        yield from check_known(entries, known)
    head = head_of([entry.payload for entry in entries])
    return f"{head.size} entries, root {short(head.root)}"


def log_proof(payloads: list[bytes]) -> LogProof:
    """What lies beside the last of these payloads."""
    head = head_of(payloads)
    last = len(payloads) - 1
    return LogProof(
        payload_sha256=_digest(payloads[last]),
        index=last,
        head=ProvenHead(size=head.size, root=head.root),
        inclusion=inclusion_proof(last, payloads),
        consistency=consistency_proof(last, payloads) if last else (),
    )


def _entries(plan: ReadPlan, bundles: Mapping[StageName, Bundle]) -> list[LogEntry]:
    entries = []
    if plan.signed is not None:
        payload = plan.signed.payload
        entries.append(LogEntry(name="plan", file=PLAN_SEAL, payload=payload, before=head_of([])))
    for stage, bundle in bundles.items():
        if bundle.seal is not None:
            before = LogHead(size=bundle.seal.log_size, root=bundle.seal.log_root)
            entries.append(LogEntry(name=stage, file=PLACES[stage].seal, payload=bundle.seal.payload, before=before))
    return entries


def _proofs(entries: list[LogEntry], bundles: Mapping[StageName, Bundle]) -> Iterator[Finding]:
    payloads = [entry.payload for entry in entries]
    for place, entry in enumerate(entries):
        bundle = next((item for stage, item in bundles.items() if stage == entry.name), None)
        proof = None if bundle is None else bundle.proof
        if proof is None:
            continue
        path = PLACES[bundle.stage].proof if bundle is not None else ""
        head = LogHead(size=proof.head.size, root=proof.head.root)
        before = head_of(payloads[:place])
        rows = (
            ("/payload_sha256", _digest(entry.payload), proof.payload_sha256),
            ("/index", str(place), str(proof.index)),
            ("/head", str(head_of(payloads[: place + 1])), str(head)),
        )
        for pointer, want, have in rows:
            if want != have:
                yield _invalid(entry, path, pointer, want, have)
        if not included(leaf=entry.payload, index=place, head=head, path=proof.inclusion):
            yield _invalid(entry, path, "/inclusion", "a path from this seal to the head", "another")
        if place and not consistent(old=before, new=head, path=proof.consistency):
            yield _invalid(entry, path, "/consistency", f"a proof that {before.size} entries are continued", "another")


def _invalid(entry: LogEntry, file: str, pointer: str, expected: str, actual: str) -> Finding:
    return found("runlog.proof-invalid", stage=entry.name, file=file, pointer=pointer, expected=expected, actual=actual)


def _digest(payload: bytes) -> str:
    return sha256_hex(payload)
