"""The sigstore-conformance suite's bundles: each gives the right verdict, and each bad one for its own reason.

The table is read off the suite's READMEs, and holds every finding that follows from no other, in order: a bundle that
is refused for another reason than the one it was made for fails here, and so does one that gains or loses a case.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mint2m_verify import conformance
from mint2m_verify.finding import FindingError

IDENTITY = (
    "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon/"
    ".github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
)
ISSUER = "https://token.actions.githubusercontent.com"

#: Case -> the findings that it must give; a case that must verify has none.
REASONS: dict[str, tuple[str, ...]] = {
    "bundle-empty-certificate-chain_fail": ("sigstore.certificate-missing",),
    # A bundle of the staging instance: nobody whom the production root names had a part in it.
    "bundle-from-wrong-instance_fail": (
        "sigstore.log-unknown",
        "sigstore.ct-log-unknown",
        "sigstore.chain-untrusted",
    ),
    "bundle-invalid-base64-signature_fail": ("sigstore.base64-invalid",),
    "bundle-malformed-json_fail": ("json.malformed",),
    "bundle-negative-log-index_fail": ("sigstore.number-invalid",),
    "bundle-unknown-version_fail": ("sigstore.version-unknown",),
    # Brings the intermediate of another place and the root itself; its old proof has no checkpoint either.
    "bundle-with-root-cert_fail": (
        "sigstore.chain-not-allowed",
        "sigstore.chain-not-allowed",
        "sigstore.checkpoint-missing",
    ),
    "bundle-with-sct-with-extensions": (),
    "checkpoint-bad-keyhint_fail": ("sigstore.checkpoint-unsigned",),
    "checkpoint-wrong-roothash_fail": ("sigstore.checkpoint-mismatch",),
    "dsse-invalid-sig_fail": ("sigstore.signature-invalid", "sigstore.log-entry-mismatch"),
    "dsse-mismatch-envelope_fail": ("sigstore.log-entry-mismatch",),
    "dsse-mismatch-sig_fail": ("sigstore.log-entry-mismatch",),
    "happy-path-intoto-in-dsse-v3": (),
    "happy-path-v0.1": (),
    "happy-path-v0.2": (),
    "happy-path-v0.3": (),
    "happy-path-v0.3-new-mediaType": (),
    "inclusion-proof-corrupted-hash_fail": ("sigstore.inclusion-proof-invalid",),
    # The key inside the entry was changed, so the entry is not the one that the log included and promised.
    "incorrect-public-key_fail": (
        "sigstore.inclusion-proof-invalid",
        "sigstore.promise-invalid",
        "sigstore.log-entry-mismatch",
    ),
    "integrated-time-in-future_fail": ("sigstore.certificate-expired",),
    "intoto-expired-certificate_fail": ("sigstore.certificate-expired",),
    "intoto-log-entry-mismatch_fail": ("sigstore.log-entry-mismatch",),
    "intoto-missing-inclusion-proof_fail": ("sigstore.inclusion-proof-missing",),
    "intoto-set-outside-signing-cert-validity_fail": ("sigstore.certificate-expired",),
    "intoto-tsa-timestamp-outside-cert-validity_fail": ("sigstore.certificate-expired",),
    "intoto-with-custom-trust-root": (),
    "invalid-checkpoint-signature_fail": ("sigstore.checkpoint-signature-invalid",),
    "invalid-ct-key_fail": ("sigstore.ct-log-unknown", "sigstore.sct-invalid"),
    "invalid-inclusion-proof_fail": ("sigstore.inclusion-proof-invalid", "sigstore.checkpoint-missing"),
    "managed-key-and-trusted-root": (),
    "managed-key-happy-path": (),
    "managed-key-no-key_fail": ("sigstore.key-needed",),
    # The suite's wrong key is no key at all: its base64 has stray bits, which strict PEM refuses. A sound key of
    # somebody else is in test_key_bundles.py.
    "managed-key-wrong-key_fail": ("key.malformed",),
    "message-digest-mismatch_fail": ("sigstore.artifact-mismatch",),
    "rekor2-checkpoint-cosigned": (),
    "rekor2-checkpoint-missing-log-signature_fail": ("sigstore.checkpoint-malformed",),
    "rekor2-checkpoint-missing-origin_fail": ("sigstore.checkpoint-malformed",),
    "rekor2-checkpoint-missing-root-hash_fail": ("sigstore.checkpoint-malformed",),
    "rekor2-checkpoint-missing-size_fail": ("sigstore.checkpoint-malformed",),
    "rekor2-checkpoint-multiple-cosigs": (),
    "rekor2-checkpoint-no-matching-signature_fail": ("sigstore.checkpoint-signature-invalid",),
    "rekor2-checkpoint-origin-not-first": (),
    "rekor2-checkpoint-two-sigs-cosigned": (),
    "rekor2-checkpoint-two-sigs-from-origin": (),
    "rekor2-dsse-happy-path": (),
    "rekor2-dsse-invalid-sig_fail": ("sigstore.signature-invalid", "sigstore.log-entry-mismatch"),
    "rekor2-dsse-mismatch-envelope_fail": ("sigstore.log-entry-mismatch",),
    "rekor2-dsse-mismatch-sig_fail": ("sigstore.log-entry-mismatch",),
    "rekor2-happy-path": (),
    "rekor2-no-inclusion-proof_fail": ("sigstore.inclusion-proof-missing",),
    "rekor2-no-timestamp_fail": ("sigstore.no-signed-time",),
    "rekor2-timestamp-outside-trust-root-tsa-validity_fail": ("sigstore.timestamp-outside-window",),
    "rekor2-timestamp-outside-tsa-cert-validity_fail": ("sigstore.timestamp-certificate-expired",),
    "rekor2-timestamp-payload-mismatch_fail": ("sigstore.timestamp-mismatch",),
    # This authority's token is not DER (its certificates are a SET out of order), so it is refused before anybody asks
    # whose it is; the next case is the same authority's token without certificates.
    "rekor2-timestamp-untrusted-tsa-with-embedded-cert_fail": ("sigstore.timestamp-malformed",),
    "rekor2-timestamp-untrusted-tsa-without-embedded-cert_fail": ("sigstore.timestamp-untrusted",),
    "rekor2-timestamp-with-embedded-cert": (),
    "rekor2-timestamp-with-expired-cert-chain": (),
    "rekor2-timestamp-with-incorrect-time_fail": ("sigstore.certificate-expired",),
    "rekor2-timestamp-without-embedded-cert": (),
    "set-invalid-signature_fail": ("sigstore.promise-invalid",),
    "signature-mismatch_fail": ("sigstore.signature-invalid", "sigstore.log-entry-mismatch"),
    "trust-root-tlog-missing-validity-start_fail": ("sigstore.root-invalid",),
    "trust-root-tlog-validity-end-inclusive": (),
    "trust-root-tsa-validity-end-inclusive": (),
    "wrong-hashedrekord-artifact_fail": ("sigstore.log-entry-mismatch",),
    "wrong-hashedrekord-cert-and-sig_fail": ("sigstore.log-entry-mismatch",),
    "wrong-hashedrekord-entry_fail": ("sigstore.log-entry-mismatch",),
    "wrong-material_fail": ("sigstore.artifact-mismatch",),
}


def arguments(case: Path, artifact: str) -> Iterator[str]:
    """The command line that the suite's test_bundle.py gives for a case."""
    yield from ("verify-bundle", "--bundle", str(case / "bundle.sigstore.json"))
    if (case / "key.pub").exists():
        yield from ("--key", str(case / "key.pub"))
    else:
        for option, file, usual in (
            ("--certificate-identity", "identity", IDENTITY),
            ("--certificate-oidc-issuer", "issuer", ISSUER),
        ):
            yield from (option, (case / file).read_text().strip() if (case / file).exists() else usual)
    if (case / "trusted_root.json").exists():
        yield from ("--trusted-root", str(case / "trusted_root.json"))
    yield artifact


def findings_of(words: list[str]) -> tuple[str, ...]:
    try:
        found = list(conformance.check(conformance._parser().parse_args(words)))
    except FindingError as fault:
        found = [fault.finding]
    return tuple(finding.id for finding in found if finding.cause is None)


@pytest.fixture(scope="module")
def suite(shared: Callable[[str], Path]) -> Path:
    return shared("conformance") / "bundle-verify"


def artifact_of(case: Path) -> Path:
    return case / "artifact" if (case / "artifact").exists() else case.parent / "a.txt"


def test_the_table_has_exactly_the_cases_of_the_suite(suite: Path) -> None:
    assert sorted(REASONS) == sorted(place.name for place in suite.iterdir() if place.is_dir())
    assert len(REASONS) == 70
    assert [name for name, ids in REASONS.items() if bool(ids) != name.endswith("_fail")] == []


@pytest.mark.parametrize("given", ["path", "digest"])
@pytest.mark.parametrize("name", REASONS)
def test_a_case_verifies_or_fails_for_the_reason_it_was_made_for(name: str, given: str, suite: Path) -> None:
    case = suite / name
    artifact = artifact_of(case)
    digest = f"sha256:{hashlib.sha256(artifact.read_bytes()).hexdigest()}"
    words = list(arguments(case, str(artifact) if given == "path" else digest))
    assert findings_of(words) == REASONS[name]
    assert conformance.main(words) == (1 if name.endswith("_fail") else 0)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mint2m_verify.conformance", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_as_a_process_it_answers_0_or_1_and_tells_the_reason_on_stderr(suite: Path) -> None:
    good, bad = suite / "happy-path-v0.3", suite / "dsse-invalid-sig_fail"
    done = run(*arguments(good, str(artifact_of(good))))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run(*arguments(bad, str(artifact_of(bad))))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sigstore.signature-invalid: ")


def test_staging_is_another_root_than_production(suite: Path) -> None:
    case = suite / "bundle-from-wrong-instance_fail"
    words = list(arguments(case, str(artifact_of(case))))
    assert findings_of(words)[0] == "sigstore.log-unknown"
    assert "sigstore.log-unknown" not in findings_of([words[0], "--staging", *words[1:]])
    assert findings_of([words[0], "--staging", *words[1:]]) == ()


@pytest.mark.parametrize(
    "words",
    [[], ["verify-bundle"], ["sign-bundle", "x"], ["verify-bundle", "--bundle", "/no/such/file", "a"]],
)
def test_whatever_the_client_cannot_do_is_no_acceptance(words: list[str]) -> None:
    assert conformance.main(words) == 1


def test_an_identity_must_be_given_for_a_certificate(suite: Path) -> None:
    case = suite / "happy-path-v0.3"
    words = ["verify-bundle", "--bundle", str(case / "bundle.sigstore.json"), str(artifact_of(case))]
    assert findings_of(words) == ("sigstore.identity-mismatch", "sigstore.issuer-mismatch")
