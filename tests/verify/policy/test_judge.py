"""Signatures under a policy, beyond what the vectors show: roles, borders of windows, artifacts, what is set aside."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from mint2m.__main__ import run as command_line
from mint2m_verify import schema
from mint2m_verify.finding import FindingError
from mint2m_verify.findings import drain
from mint2m_verify.policy import RELEASE, Role, check_version, judge_artifact, read_policy
from mint2m_verify.policy.judge import Accepted
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.sigstore_bundle import Artifact, read_bundle
from mint2m_verify.sigstore_bundle.claims import CLAIM_NAMES, DER_CLAIMS

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
PROVENANCE = "https://slsa.dev/provenance/v1"


def ids(found: Any) -> list[str]:
    return [fault.id for fault in found]


def test_signatures_over_two_statements_do_not_add_up(bench: Any) -> None:
    policy = bench.make.policy(bench.key_signer("one"), bench.key_signer("two"))
    bundles = [bench.by_key("one"), bench.by_key("two", bench.payload(execution_id="other"))]
    found, _ = bench.judge(policy, bundles)
    assert ids(found) == ["policy.payload-differs"]


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"[]",
        b'{"_type":"https://in-toto.io/Statement/v0.1"}',
        rfc8785.dumps({"_type": "https://in-toto.io/Statement/v1", "predicateType": 7, "subject": [], "predicate": {}}),
    ],
)
def test_a_payload_that_is_no_statement_is_told(bench: Any, payload: bytes) -> None:
    found, _ = bench.judge(bench.make.policy(bench.key_signer("one")), [bench.by_key("one", payload)])
    assert "policy.statement-type" in ids(found) or "sigstore.statement-type" in ids(found)


@pytest.mark.parametrize("change", [{"kind": "validation"}, {"stage": "kernel"}, {"kind": None}, {"stage": 7}])
def test_a_statement_of_another_role_is_not_the_one_that_was_asked_for(bench: Any, change: dict[str, Any]) -> None:
    found, _ = bench.judge(bench.make.policy(bench.key_signer("one")), [bench.by_key("one", bench.payload(**change))])
    assert ids(found) == ["policy.statement-type"]


def test_a_key_for_releases_signs_no_run_and_no_provenance(bench: Any) -> None:
    policy = bench.make.policy(
        bench.key_signer("publisher"), rules=[bench.make.release_rule("publisher")], assertions=[]
    )
    found, accepted = bench.judge(policy, [bench.by_key("publisher")])
    assert (ids(found), accepted.met) == (["policy.no-rule"], False)
    release = bench.by_key("publisher", bench.payload(RELEASE.predicate_type, kind="release"))
    found, accepted = bench.judge(policy, [release], role=RELEASE)
    assert (found, accepted.met, accepted.signers) == ([], True, ("publisher",))


def test_an_older_release_than_the_minimum_is_refused(bench: Any) -> None:
    rule = bench.make.release_rule("publisher", minimum_version="1.2.0")
    policy = bench.make.policy(bench.key_signer("publisher"), rules=[rule], assertions=[])
    release = bench.by_key("publisher", bench.payload(RELEASE.predicate_type, kind="release"))
    _, accepted = bench.judge(policy, [release], role=RELEASE)
    anchor = bench.read(policy)
    for version, expected in (("1.2.0", 0), ("1.10.0", 0), ("1.1.9", 1), ("1.2.0rc1", 1), ("latest", 1), ("", 1)):
        assert len(list(check_version(anchor, accepted, version))) == expected, version


@pytest.mark.parametrize(
    ("end", "expected"),
    [("2026-06-01T12:00:00Z", []), ("2026-06-01T11:59:59Z", ["policy.key-expired", "policy.threshold-not-met"])],
)
def test_a_key_counts_until_the_very_second_of_its_end(bench: Any, end: str, expected: list[str]) -> None:
    signer = bench.key_signer("one", roots=["private"], needs={"transparency": True, "timestamp": False}, not_after=end)
    policy = bench.make.policy(signer, roots=[bench.root_entry()])
    signed = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
    logged = bench.root.witness(bench.by_key("one"), bench.key("one").public_key(), now=signed)
    found, _ = bench.judge(policy, [logged])
    assert ids(found) == expected


def test_a_key_that_has_ended_counts_no_more_when_stamped_later(bench: Any) -> None:
    """Whoever stole a key that has ended can have its signature stamped today, and no earlier."""
    signer = bench.key_signer(
        "one", roots=["private"], needs={"transparency": True, "timestamp": True}, not_after="2026-06-02T00:00:00Z"
    )
    policy = bench.make.policy(signer, roots=[bench.root_entry()])
    key = bench.key("one")
    plain = bench.by_key("one")
    late = bench.root.witness(plain, key.public_key(), now=datetime(2026, 6, 3, tzinfo=UTC), timestamp=True)
    found, _ = bench.judge(policy, [late])
    assert ids(found) == ["policy.key-expired", "policy.threshold-not-met"]


def test_a_claimed_log_entry_without_a_root_is_no_time(bench: Any) -> None:
    """A policy of keys alone brings no root: what the bundle claims of logs counts for nothing, and is no fault."""
    signed = datetime(2026, 6, 1, tzinfo=UTC)
    logged = bench.root.witness(bench.by_key("one"), bench.key("one").public_key(), now=signed)
    policy = bench.make.policy(bench.key_signer("one"), rules=[bench.make.run_rule("one", maximum_age_days=60)])
    found, accepted = bench.judge(policy, [logged])
    assert (ids(found), accepted.times, accepted.logged) == (["policy.time-unknown"], (), False)


def test_a_log_entry_of_another_root_is_no_fault_of_a_key_that_needs_none(bench: Any) -> None:
    """The operator may log publicly; an auditor who brings a private root for somebody else does not look at that."""
    elsewhere = PrivateRoot.create(start=datetime(2026, 1, 1, tzinfo=UTC))
    signed = datetime(2026, 6, 1, tzinfo=UTC)
    logged = elsewhere.witness(bench.by_key("one"), bench.key("one").public_key(), now=signed)
    plain = bench.make.policy(bench.key_signer("one"), bench.make.identity_signer(), roots=[bench.root_entry()])
    found, accepted = bench.judge(plain, [logged])
    assert (found, accepted.met, accepted.times, accepted.logged) == ([], True, (), False)
    rooted = bench.key_signer("one", roots=["private"], needs={"transparency": True, "timestamp": False})
    found, accepted = bench.judge(bench.make.policy(rooted, roots=[bench.root_entry()]), [logged])
    assert (ids(found)[0], accepted.met) == ("sigstore.log-unknown", False)


def test_the_mode_is_that_of_the_weakest_signer_and_of_the_policys_word_for_the_root(bench: Any) -> None:
    identity, key = bench.make.identity_signer(), bench.key_signer("one", mode="self-asserted")
    both = bench.make.run_rule("workflow", "one", threshold=2)
    public = bench.root_entry(mode="public-good")
    policy = bench.make.policy(identity, key, roots=[public], rules=[both])
    _, accepted = bench.judge(policy, [bench.by_identity(), bench.by_key("one")])
    assert (accepted.met, accepted.mode) == (True, "self-asserted")
    alone = bench.make.policy(identity, roots=[public])
    assert bench.judge(alone, [bench.by_identity()])[1].mode == "public-good"


def test_an_identity_counts_under_its_own_root_only(bench: Any) -> None:
    other = bench.root_entry(name="other", sha256=hashlib.sha256(b"another root").hexdigest())
    policy = bench.make.policy(
        bench.make.identity_signer(roots=["other"]),
        bench.make.identity_signer("second", san="https://example.com/acme/elsewhere", roots=["private"]),
        roots=[bench.root_entry(), other],
    )
    found, _ = bench.judge(policy, [bench.by_identity()])
    assert ids(found) == ["policy.root-not-for-signer", "policy.threshold-not-met"]


def test_a_certificate_of_another_root_says_so_where_it_is_needed_and_is_set_aside_where_not(bench: Any) -> None:
    elsewhere = PrivateRoot.create(start=datetime(2026, 1, 1, tzinfo=UTC))
    foreign = elsewhere.sign_dsse(
        bench.payload(), bench.make.SAN, bench.make.ISSUER, now=datetime(2026, 6, 1, tzinfo=UTC)
    )
    identity = bench.make.identity_signer()
    found, accepted = bench.judge(bench.make.policy(identity, roots=[bench.root_entry()]), [foreign])
    assert (found[0].id, accepted.met) == ("sigstore.chain-untrusted", False)
    assert {fault.cause for fault in found[1:]} == {found[0]}
    both = bench.make.policy(identity, bench.key_signer("one"), roots=[bench.root_entry()])
    found, accepted = bench.judge(both, [bench.by_key("one"), foreign])
    assert (found, accepted.met, len(accepted.set_aside)) == ([], True, 1)


def test_a_right_signature_is_not_spoilt_by_a_strangers_and_not_saved_by_a_known_one_that_is_wrong(bench: Any) -> None:
    policy = bench.make.policy(bench.key_signer("one"), bench.key_signer("two"))
    found, accepted = bench.judge(policy, [bench.by_key("one"), bench.by_key("stranger")])
    assert (found, accepted.met, len(accepted.set_aside)) == ([], True, 1)
    forged = bench.by_key("two").replace(b'"sig":"', b'"sig":"MEUCIQ', 1)
    with pytest.raises(FindingError):
        bench.judge(policy, [bench.by_key("one"), forged])  # not the only spelling of base64 any more
    other = bench.by_key("two", bench.payload(execution_id="x"))
    swapped = bench.by_key("two").replace(_signature(bench.by_key("two")), _signature(other))
    found, accepted = bench.judge(policy, [bench.by_key("one"), swapped])
    assert (ids(found), accepted.met) == (["signature.invalid"], False)


def _signature(raw: bytes) -> bytes:
    return raw.split(b'"sig":"')[1].split(b'"')[0]


# Any signed file


def artifact(
    bench: Any, policy: Any, bundles: list[bytes], role: Role | None = None
) -> tuple[Any, tuple[Accepted, ...]]:
    parsed = [read_bundle(raw, file=f"bundle {number}") for number, raw in enumerate(bundles)]
    found, accepted = drain(judge_artifact(bench.read(policy), parsed, Artifact.of(b"a", name="a"), role))
    return found, accepted


def file_rule(bench: Any, *signers: str, **changes: Any) -> Any:
    return bench.make.run_rule(
        *signers, **{"name": "file", "predicate_type": "artifact", "kind": None, "stage": None, **changes}
    )


def test_a_plain_file_and_a_statement_about_it_are_two_roles(bench: Any) -> None:
    digest = hashlib.sha256(b"a").digest()
    signed = bench.root.sign_blob(digest, bench.make.SAN, bench.make.ISSUER, now=datetime(2026, 6, 1, tzinfo=UTC))
    stated = bench.by_identity(payload=bench.payload(PROVENANCE))
    provenance = file_rule(bench, "workflow", name="provenance", predicate_type=PROVENANCE)
    whole = bench.make.policy(
        bench.make.identity_signer(),
        roots=[bench.root_entry()],
        rules=[file_rule(bench, "workflow", requires=["provenance"]), provenance],
        assertions=[],
    )
    found, accepted = artifact(bench, whole, [signed, stated])
    assert (list(found), [item.met for item in accepted]) == ([], [True, True])
    found, _ = artifact(bench, whole, [signed])
    assert ids(found) == ["policy.required-missing"]
    found, _ = artifact(bench, whole, [stated], Role(predicate_type="artifact"))
    assert "policy.statement-type" in ids(found)
    only = bench.make.policy(
        bench.make.identity_signer(), roots=[bench.root_entry()], rules=[provenance], assertions=[]
    )
    found, _ = artifact(bench, only, [signed])
    assert ids(found) == ["policy.no-rule"]


def test_every_bundle_that_the_caller_names_must_count(bench: Any) -> None:
    """Beside a run a stranger's signature is set aside; here the caller brought it and is told of it."""
    policy = bench.make.policy(
        bench.key_signer("one"), rules=[file_rule(bench, "one", predicate_type=PROVENANCE)], assertions=[]
    )
    stated = bench.payload(PROVENANCE)
    found, accepted = artifact(bench, policy, [bench.by_key("one", stated)])
    assert (list(found), accepted[0].met) == ([], True)
    found, accepted = artifact(bench, policy, [bench.by_key("one", stated), bench.by_key("stranger", stated)])
    assert (ids(found), accepted[0].met) == (["policy.signer-unknown"], False)


def test_a_revoked_file_is_refused_whoever_signed_it(bench: Any) -> None:
    policy = bench.make.policy(
        bench.key_signer("one"),
        rules=[file_rule(bench, "one", predicate_type=PROVENANCE)],
        assertions=[],
        revoked=[{"sha256": hashlib.sha256(b"a").hexdigest(), "reason": "withdrawn"}],
    )
    found, _ = artifact(bench, policy, [bench.by_key("one", bench.payload(PROVENANCE))])
    assert set(ids(found)) == {"policy.revoked", "policy.threshold-not-met"}


def test_no_bundle_is_no_acceptance(bench: Any) -> None:
    policy = bench.make.policy(bench.key_signer("one"), rules=[file_rule(bench, "one")], assertions=[])
    found, accepted = artifact(bench, policy, [])
    assert (ids(found), accepted) == (["policy.threshold-not-met"], ())


# The borders of what a policy may say


def test_the_policy_may_ask_for_exactly_the_claims_that_are_read_from_certificates() -> None:
    text = json.loads(schema.schema_text("trust-policy"))
    signer = text["properties"]["signers"]["items"]["properties"]
    names = signer["identity"]["properties"]["claims"]["items"]["properties"]["name"]["enum"]
    assert set(names) == set(DER_CLAIMS) <= CLAIM_NAMES


def test_now_is_not_before_what_was_just_signed(bench: Any, tmp_path: Any) -> None:
    """The default evaluation time is the end of the running second: what was signed a moment ago is not of later."""
    policy = bench.make.policy(bench.key_signer("one"), not_after="2999-01-01T00:00:00Z")
    (tmp_path / "p.json").write_text(json.dumps(policy))
    before = datetime.now(UTC)
    anchor = read_policy(tmp_path / "p.json", trusted_root=None, at=None)
    assert before <= anchor.at
    assert anchor.evaluated_at.endswith("Z") and "." not in anchor.evaluated_at


def loaded(*anchor: object) -> list[str]:
    """What verifying the base run under `anchor` loads, of what some anchors never need."""
    code = (
        "import sys\n"
        "from mint2m.__main__ import run\n"
        "outcome = run(sys.argv[1:])\n"
        "assert outcome.verdict == 0, outcome.text\n"
        "known = ('sigstore', 'pydantic', 'mint2m_verify.sigstore_bundle', 'mint2m_verify.policy.judge')\n"
        "print(*[name for name in known if name in sys.modules])"
    )
    words = map(str, ("verify", "run", VECTORS / "bases/run", *anchor))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_key_loads_no_policy_and_a_policy_of_keys_alone_no_sigstore() -> None:
    assert loaded("--key", VECTORS / "test-only-keys/release.pub") == []
    policy = ("--policy", VECTORS / "right-policy/outside/policy.json", "--at", "2026-07-01T00:00:00Z")
    assert loaded(*policy) == ["mint2m_verify.sigstore_bundle", "mint2m_verify.policy.judge"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--key", "{folder}"), "key.malformed"),
        (("--policy", "{folder}"), "policy.malformed"),
        (("--policy", "{policy}", "--trusted-root", "{folder}"), "sigstore.root-invalid"),
        (("--policy", "{policy}", "--trusted-root", "{policy}"), "sigstore.root-invalid"),
    ],
)
def test_an_anchor_that_is_no_file_of_its_kind_is_the_callers_fault(
    tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    policy = VECTORS / "right-policy-certificate/outside/policy.json"
    given = [word.format(folder=tmp_path, policy=policy) for word in words]
    outcome = command_line(["verify", "run", str(VECTORS / "bases/run"), *given, "--at", "2026-07-01T00:00:00Z"])
    assert (int(outcome.verdict), expected in outcome.text) == (2, True)
