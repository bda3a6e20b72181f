"""Every leaf and branch of a sound policy changed: never an exception, and what is still accepted is listed with why.

The evidence stays the same and right throughout: a run by a key and a certificate, a release by the certificate, and a
grant by the key.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.documents.grant import Grant
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.findings import drain
from mint2m_verify.grant import GRANT_TYPE, check_granted, grant_statement
from mint2m_verify.policy import (
    RELEASE,
    TRAINING_RUN,
    check_asserted,
    check_grant,
    check_required,
    check_version,
    judge_signatures,
    read_policy,
)
from mint2m_verify.sigstore_bundle import read_bundle

Pointer = tuple[str | int, ...]

#: Changes after which the policy still accepts the same evidence, by place and kind: each asks for no more than before,
#: or for something else that this evidence has too. Whatever is accepted beyond these is a demand that nobody checks.
STILL_ACCEPTED = {
    # Words for people.
    r"/name (flip|truncate|extend)",
    r"/rules/0/name (flip|truncate|extend)",
    r"/signers/1/name (flip|truncate|extend)",
    r"/signers/1/key/revoked (flip|truncate|extend|star)",
    r"/revoked/0/reason (flip|truncate|extend|star)",
    # The order of a list says nothing.
    r"/.* reverse",
    # A demand taken back.
    r"/not_before null",
    r"/not_after flip",  # 2027 to 3027
    r"/rules/0/threshold less",
    r"/rules/0/(hardware_classes|claim_scopes) null",
    r"/rules/0/requires (empty|0 delete)|/rules/0/requires/0 delete",
    r"/rules/0/authorization_required flip",
    r"/rules/2/name (flip|truncate|extend)",
    r"/rules/1/(minimum_version|maximum_age_days) null",
    r"/rules/1/maximum_age_days (less|more)",
    r"/signers/0/key/(not_before|not_after) null",
    r"/signers/0/key/not_after flip",  # 2026 to 3026
    r"/signers/2/identity/claims (empty|0 delete)|/signers/2/identity/claims/0 delete",
    r"/signers/2/needs/transparency flip",
    # What another signer or digest is, whose signature is not asked for here.
    r"/signers/1 delete",
    r"/revoked empty|/revoked/0 delete|/revoked/0/sha256 flip",
    # The last line feed of a PEM.
    r"/signers/[01]/key/pem truncate",
}


def example(bench: Any) -> Any:
    """The policy of docs/trust.md with this bench's keys and root, and with everything set that can be."""
    text = (Path(__file__).resolve().parents[3] / "docs/trust.md").read_text(encoding="utf-8")
    policy = json.loads(text.split("```json\n")[1].split("```")[0])
    policy["not_before"] = "2026-01-01T00:00:00Z"
    policy["roots"][0]["sha256"] = bench.root_entry()["sha256"]
    for signer in policy["signers"]:
        if signer["key"] is not None:
            signer["key"] |= {name: bench.key_signer(signer["name"])["key"][name] for name in ("sha256", "pem")}
    policy["rules"][0]["claim_scopes"] = ["reference_cpu_execution"]
    policy["assertions"][0]["authorization_grant"] = True
    policy["rules"][0]["authorization_required"] = True
    policy["rules"][0]["requires"] = ["release"]
    policy["rules"].append(
        policy["rules"][0]
        | {"name": "grant", "predicate_type": GRANT_TYPE, "stage": None, "signers": ["operator"], "threshold": 1}
        | {"requires": [], "hardware_classes": None, "claim_scopes": None, "authorization_required": False}
    )
    return policy


def mutants(value: Any, pointer: Pointer = ()) -> Iterator[tuple[Pointer, str, Any]]:
    """Every place of a JSON value with every change that fits it; the change is the new value, or DELETE."""
    if pointer:
        yield pointer, "delete", DELETE
        yield pointer, "null", None
        yield pointer, "retype", 7 if isinstance(value, str | dict | list | bool) or value is None else "seven"
        yield pointer, "retype", [] if isinstance(value, dict) else {}
    match value:
        case bool():
            yield pointer, "flip", not value
        case int():
            yield pointer, "less", value - 1
            yield pointer, "more", value + 1
            yield pointer, "huge", 2**53 - 1
            yield pointer, "negative", -value
            yield pointer, "fraction", value + 0.5
        case str():
            yield pointer, "empty", ""
            yield pointer, "truncate", value[:-1]
            yield pointer, "extend", value + "x"
            yield pointer, "star", value + "*"
            yield pointer, "control", value + "\x00"
            yield pointer, "flip", value[:-1] + chr(ord(value[-1]) ^ 1)
            yield pointer, "flip", chr(ord(value[0]) ^ 1) + value[1:]
            if re.fullmatch("[0-9a-f]{64}", value):  # the others may be no digest any more
                yield pointer, "flip", f"{int(value[0], 16) ^ 1:x}{value[1:]}"
        case list():
            yield pointer, "empty", []
            yield pointer, "double", [*value, *value[:1]]
            yield pointer, "reverse", value[::-1]
            for index, item in enumerate(value):
                yield from mutants(item, (*pointer, index))
        case dict():
            yield pointer, "extend", {**value, "waive": True}
            for name, member in value.items():
                yield from mutants(member, (*pointer, name))


DELETE = object()


def applied(policy: Any, pointer: Pointer, new: Any) -> Any:
    if not pointer:
        return new
    made = copy.deepcopy(policy)
    place = made
    for step in pointer[:-1]:
        place = place[step]
    if new is DELETE:
        del place[pointer[-1]]
    else:
        place[pointer[-1]] = new
    return made


def evidence(bench: Any) -> Evidence:
    release = bench.by_identity(SAN, payload=bench.payload(RELEASE.predicate_type, kind="release"))
    run = (read_bundle(bench.by_key("operator"), file="seal"), read_bundle(bench.by_identity(SAN), file="seal.2"))
    terms = Grant(kind="training", reason="a test", not_before="2026-01-01T00:00:00Z", not_after="2027-01-01T00:00:00Z")
    return (
        run,
        (read_bundle(release, file="release"),),
        bench.by_key("operator", grant_statement(terms, GRANTED).payload),
    )


#: Runs of the operator and the workflow, a release, a grant.
Evidence = tuple[tuple[Any, ...], tuple[Any, ...], bytes]

GRANTED = "ab" * 32
SAN = "https://example.com/acme/runs/.workflows/run.yml@refs/heads/main"


def outcome(bench: Any, policy: Any, bundles: Evidence) -> str:
    """`accepted`, or the ids of what is wrong."""
    path = bench.folder / "policy.json"
    path.write_text(json.dumps(policy))
    try:
        anchor = read_policy(path, trusted_root=bench.root_path, at="2026-07-01T00:00:00Z")
    except FindingError as fault:
        assert fault.finding.verdict in (Verdict.BLOCKED, Verdict.UNTRUSTED), fault.finding
        assert fault.finding.file is not None
        return fault.finding.id
    found, run = drain(judge_signatures(anchor, bundles[0], TRAINING_RUN))
    more, release = drain(judge_signatures(anchor, bundles[1], RELEASE))
    faults = [
        *found,
        *more,
        *check_asserted(
            anchor, run, hardware_class="reference-cpu", claim_scope="reference_cpu_execution", file="seal"
        ),
        *check_grant(anchor, run, grant="grant.json", file="deployment"),
        *drain(check_granted(anchor, bundles[2], kind="training", sha256=GRANTED, times=run.times, file="grant"))[0],
        *check_version(anchor, release, "0.1.0"),
        *check_required(anchor, run, [item.role for item in (run, release) if item.met]),
    ]
    assert bool(faults) or (run.met and release.met)
    return " ".join(dict.fromkeys(fault.id for fault in faults)) or "accepted"


@pytest.fixture
def judged(bench: Any) -> list[tuple[str, str]]:
    """Every mutant by place and kind of change, with what became of it."""
    policy, bundles = example(bench), evidence(bench)
    assert outcome(bench, policy, bundles) == "accepted"
    results = []
    for pointer, kind, new in mutants(policy):
        made = applied(policy, pointer, new)
        if made != policy or repr(made) != repr(policy):  # 1 and True are equal to Python, and not to JSON
            results.append((f"/{'/'.join(map(str, pointer))} {kind}", outcome(bench, made, bundles)))
    return results


def test_a_changed_policy_is_refused_or_asks_no_more(judged: list[tuple[str, str]]) -> None:
    accepted = sorted({place for place, became in judged if became == "accepted"})
    assert [place for place in accepted if not any(re.fullmatch(known, place) for known in STILL_ACCEPTED)] == []
    unused = [known for known in STILL_ACCEPTED if not any(re.fullmatch(known, place) for place in accepted)]
    assert unused == []
    assert len(judged) > 700
    for place, reason in BECOME.items():
        told = [became for name, became in judged if name == place]
        assert any(became.startswith(reason) for became in told), (place, told)


#: What some of them become, beginning with the first reason.
BECOME = {
    "/rules/0/threshold more": "policy.threshold-not-met",
    "/rules/1/threshold less": "policy.vacuous",
    "/signers/0/key/sha256 flip": "policy.key-invalid",
    "/signers/2/identity/san truncate": "policy.signer-unknown",
    "/signers/2/identity/issuer extend": "policy.signer-unknown",
    "/signers/2/identity/issuer star": "policy.too-wide",
    "/signers/2/identity/claims/0/value extend": "policy.claim-mismatch",
    "/signers/2/needs/timestamp flip": "policy.timestamp-missing",
    "/roots/0/sha256 flip": "policy.root-not-named",
    "/assertions/0/signers empty": "policy.unsatisfiable",
    "/rules/0 extend": "policy.invalid",
    "/rules/1/maximum_age_days negative": "policy.invalid",
}


def _bytes(bench: Any, step: int) -> None:
    """Every `step`-th byte of the file flipped, dropped and cut at: never anything but a finding of the caller's."""
    raw = json.dumps(example(bench), indent=1).encode()
    path, refused, count = bench.folder / "policy.json", 0, 0
    for at in range(0, len(raw), step):
        for made in (raw[:at] + bytes([raw[at] ^ 1 << (at % 8)]) + raw[at + 1 :], raw[:at] + raw[at + 1 :], raw[:at]):
            path.write_bytes(made)
            count += 1
            try:
                read_policy(path, trusted_root=bench.root_path, at="2026-07-01T00:00:00Z")
            except FindingError as fault:
                assert fault.finding.verdict in (Verdict.BLOCKED, Verdict.UNTRUSTED), fault.finding
                refused += 1
    assert refused > count * 0.8


def test_a_damaged_file_is_never_a_crash(bench: Any) -> None:
    _bytes(bench, step=17)


@pytest.mark.slow
def test_many_damaged_bytes_are_never_a_crash(bench: Any) -> None:
    _bytes(bench, step=2)
