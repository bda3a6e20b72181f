"""Thresholds count distinct keys and (issuer, SAN) pairs, never names or signatures: against a count by brute force."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KEYS = ("a", "b", "c")
SANS = tuple(f"https://example.com/acme/{letter}" for letter in "xyz")

#: A signature: by a key of the policy, by a key it does not list, by an identity, or by an identity of nobody's.
SIGNATURES = st.one_of(
    st.tuples(st.just("key"), st.sampled_from([*KEYS, "stranger"])),
    st.tuples(st.just("identity"), st.sampled_from([*SANS, "https://example.com/evil/x"])),
)


@pytest.fixture
def made() -> dict[tuple[str, str], bytes]:
    """Each signature once: certificates take their time."""
    return {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    signatures=st.lists(SIGNATURES, min_size=1, max_size=6),
    threshold=st.integers(1, 5),
    listed=st.lists(st.sampled_from(KEYS), unique=True, min_size=1),
    exact=st.booleans(),
)
def test_the_threshold_is_met_exactly_by_enough_distinct_signers(
    bench: Any,
    made: dict[tuple[str, str], bytes],
    signatures: list[tuple[str, str]],
    threshold: int,
    listed: list[str],
    exact: bool,
) -> None:
    for kind, who in signatures:
        if (kind, who) not in made:
            made[kind, who] = bench.by_key(who) if kind == "key" else bench.by_identity(who)
    signers = [bench.key_signer(f"signer-{name}", name) for name in listed]
    if exact:
        identities = [bench.make.identity_signer(f"id-{san[-1]}", san=san) for san in SANS]
    else:
        identities = [bench.make.identity_signer("id", san="https://example.com/acme/*")]
    known = [*signers, *identities]
    names = [signer["name"] for signer in known]
    policy = bench.make.policy(
        *known, roots=[bench.root_entry()], rules=[bench.make.run_rule(*names, threshold=threshold)]
    )
    # By brute force: who of these signed at all, each once.
    distinct = {("key", who) for kind, who in signatures if kind == "key" and who in listed}
    distinct |= {("identity", who) for kind, who in signatures if kind == "identity" and who in SANS}
    if exact and threshold > len(listed) + len(SANS):
        assert bench.refusal(policy) == ("policy.unsatisfiable", "/rules/0/threshold")
        return
    found, accepted = bench.judge(policy, [made[one] for one in signatures])
    ids = {fault.id for fault in found}
    assert accepted.met == (len(distinct) >= threshold)
    assert ids == (set() if accepted.met else ids & {"policy.threshold-not-met", "policy.signer-unknown"})
    assert accepted.met or "policy.threshold-not-met" in ids
    assert len(accepted.files) == sum(
        (kind == "key" and who in listed) or (kind == "identity" and who in SANS) for kind, who in signatures
    )


def test_two_names_for_one_key_are_refused_before_they_could_count(bench: Any) -> None:
    signers = [bench.key_signer("first", "a"), bench.key_signer("second", "a")]
    policy = bench.make.policy(*signers, rules=[bench.make.run_rule("first", "second", threshold=2)])
    assert bench.refusal(policy) == ("policy.duplicate", "/signers/1/key/sha256")


def test_two_certificates_of_one_identity_are_one_signer(bench: Any) -> None:
    policy = bench.make.policy(
        bench.key_signer("first"),
        bench.make.identity_signer(),
        roots=[bench.root_entry()],
        rules=[bench.make.run_rule("first", "workflow", threshold=2)],
    )
    found, accepted = bench.judge(policy, [bench.by_identity(), bench.by_identity(log="v2")])
    assert [fault.id for fault in found] == ["policy.threshold-not-met"]
    assert not accepted.met
    found, accepted = bench.judge(policy, [bench.by_identity(), bench.by_key("first")])
    assert (found, accepted.met, accepted.mode, accepted.signers) == ([], True, "managed-key", ("workflow", "first"))


def test_no_signature_at_all_meets_no_threshold(bench: Any) -> None:
    found, accepted = bench.judge(bench.make.policy(bench.key_signer("operator")), [])
    assert ([fault.id for fault in found], accepted.met) == (["policy.threshold-not-met"], False)
