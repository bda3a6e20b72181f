"""`mint2m verify signature`: other projects' releases, private roots and keys; policies are in tests/verify/policy."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from mint2m.__main__ import run as command_line
from mint2m_verify import schema, signing
from mint2m_verify.sigstore_bundle import packaged_root

GITHUB = "https://token.actions.githubusercontent.com"
PYPI = "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml@refs/tags/v0.0.19"
BCR = "https://github.com/bazel-contrib/publish-to-bcr/.github/workflows/publish.yaml@refs/tags/v0.0.1"
SDIST = "pypi_attestations-0.0.19.tar.gz"

Report = dict[str, Any]


def verify(artifact: object, *bundles: object, **options: object) -> Report:
    """The command's report; keyword arguments are its options."""
    words = ["verify", "signature", str(artifact), "--format", "json"]
    for bundle in bundles:
        words += ["--bundle", str(bundle)]
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    outcome = command_line(words)
    report: Report = json.loads(outcome.text)
    assert schema.check(report, "report", file="report") == ()
    assert report["exit_code"] == int(outcome.verdict)
    return report


def verdict(report: Report) -> tuple[int, list[str]]:
    return report["exit_code"], [finding["id"] for finding in report["findings"]]


def by(identity: str, issuer: str = GITHUB, root: object = "public-good") -> dict[str, object]:
    return {"certificate_identity": identity, "certificate_oidc_issuer": issuer, "trusted_root": root}


@pytest.fixture(scope="module")
def world(shared: Callable[[str], Path]) -> Path:
    return shared("realworld")


def test_both_attestations_of_a_release_on_pypi_verify_offline(world: Path) -> None:
    bundles = [world / f"{SDIST}.{kind}.attestation" for kind in ("publish", "slsa")]
    report = verify(world / SDIST, *bundles, **by(PYPI))
    assert verdict(report) == (0, [])
    assert report["trust"]["mode"] == "public-good"
    assert report["trust"]["signers"] == [f"{PYPI} of {GITHUB}"]
    digests = {item["name"]: item["sha256"] for item in report["trust"]["digests"]}
    assert digests["artifact"] == hashlib.sha256((world / SDIST).read_bytes()).hexdigest()
    assert digests["trusted-root"] == packaged_root("public-good").sha256
    assert "2 of 2" in report["requirements"][0]["found"]


def test_a_provenance_of_another_project_verifies_offline_for_its_exact_signer(world: Path) -> None:
    assert verdict(verify(world / "MODULE.bazel", world / "MODULE.bazel.intoto.jsonl", **by(BCR))) == (0, [])


def test_the_wrong_signer_is_refused_with_both_names(world: Path) -> None:
    report = verify(world / "MODULE.bazel", world / "MODULE-wrong-signer.bazel.intoto.jsonl", **by(BCR))
    assert verdict(report) == (4, ["sigstore.identity-mismatch"])
    finding = report["findings"][0]
    assert finding["expected"] == BCR
    assert finding["actual"].startswith("https://github.com/loosebazooka/")
    assert report["trust"]["mode"] == "none" and report["trust"]["signers"] == []


@pytest.mark.parametrize(
    ("identity", "issuer", "expected"),
    [
        (BCR[:-1] + "2", GITHUB, (4, ["sigstore.identity-mismatch"])),
        (BCR[:-1], GITHUB, (4, ["sigstore.identity-mismatch"])),  # a beginning without its star
        (BCR + "*", GITHUB, (0, [])),
        ("https://github.com/bazel-contrib/*", GITHUB, (0, [])),
        ("https://github.com/bazel-*/publish.yaml@refs/tags/v0.0.1", GITHUB, (4, ["sigstore.identity-mismatch"])),
        (".*", GITHUB, (4, ["sigstore.identity-mismatch"])),
        (BCR.upper(), GITHUB, (4, ["sigstore.identity-mismatch"])),
        (BCR, GITHUB + "/", (4, ["sigstore.issuer-mismatch"])),
        (BCR, "*", (4, ["sigstore.issuer-mismatch"])),
        ("*", GITHUB, (2, ["usage.invalid"])),
    ],
)
def test_identities_match_exactly_or_up_to_one_trailing_star(
    identity: str, issuer: str, expected: tuple[int, list[str]], world: Path
) -> None:
    report = verify(world / "MODULE.bazel", world / "MODULE.bazel.intoto.jsonl", **by(identity, issuer))
    assert verdict(report) == expected


def test_a_renamed_file_is_refused_by_name_and_accepted_by_digest(world: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.bazel"
    renamed.write_bytes((world / "MODULE.bazel").read_bytes())
    bundle = world / "MODULE.bazel.intoto.jsonl"
    assert verdict(verify(renamed, bundle, **by(BCR))) == (1, ["sigstore.subject-name-mismatch"])
    digest = hashlib.sha256(renamed.read_bytes()).hexdigest()
    assert verdict(verify(f"sha256:{digest}", bundle, **by(BCR))) == (0, [])
    assert verdict(verify(f"sha256:{'1' * 64}", bundle, **by(BCR))) == (1, ["sigstore.subject-digest-mismatch"])


def test_a_file_in_another_directory_keeps_its_name(world: Path, tmp_path: Path) -> None:
    (tmp_path / "MODULE.bazel").write_bytes((world / "MODULE.bazel").read_bytes())
    assert verdict(verify(tmp_path / "MODULE.bazel", world / "MODULE.bazel.intoto.jsonl", **by(BCR))) == (0, [])


def test_one_good_bundle_does_not_make_up_for_a_bad_one(world: Path) -> None:
    bundles = [world / "MODULE.bazel.intoto.jsonl", world / "MODULE-wrong-signer.bazel.intoto.jsonl"]
    assert verdict(verify(world / "MODULE.bazel", *bundles, **by(BCR))) == (4, ["sigstore.identity-mismatch"])


def test_lines_of_bundles_are_each_verified_and_named_by_their_line(world: Path, tmp_path: Path) -> None:
    lines = [(world / f"{name}.bazel.intoto.jsonl").read_text().strip() for name in ("MODULE", "MODULE-wrong-signer")]
    both = tmp_path / "both.jsonl"
    both.write_text("\n".join([lines[0], "", lines[1]]) + "\n")
    report = verify(world / "MODULE.bazel", both, **by(BCR))
    assert verdict(report) == (4, ["sigstore.identity-mismatch"])
    assert report["findings"][0]["file"] == f"{both}:2"
    both.write_text("\n".join([lines[0]] * 3))
    assert "3 of 3" in verify(world / "MODULE.bazel", both, **by(BCR))["requirements"][0]["found"]


def test_what_a_statement_says_can_be_asked_for(world: Path) -> None:
    slsa = world / f"{SDIST}.slsa.attestation"
    wanted = "https://slsa.dev/provenance/v1"
    assert verdict(verify(world / SDIST, slsa, **by(PYPI), predicate_type=wanted)) == (0, [])
    publish = world / f"{SDIST}.publish.attestation"
    report = verify(world / SDIST, publish, **by(PYPI), predicate_type=wanted)
    assert verdict(report) == (1, ["sigstore.predicate-type-mismatch"])


@pytest.fixture
def place(kit: Any, tmp_path: Path) -> Path:
    """The artifact under its name, the private root and the key's public half."""
    (tmp_path / kit.name).write_bytes(kit.content)
    (tmp_path / "root.json").write_bytes(kit.private.trusted_root())
    (tmp_path / "key.pub").write_bytes(signing.public_key_pem(kit.key.public_key()))
    return tmp_path


def written(place: Path, document: Any) -> Path:
    path = place / "bundle.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("maker", ["blob", "dsse"])
@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_private_root_named_by_its_file_verifies_what_it_signed(maker: str, log: str, kit: Any, place: Path) -> None:
    bundle = written(place, getattr(kit, maker)(log))
    report = verify(place / kit.name, bundle, **by(kit.identity, kit.issuer, place / "root.json"))
    assert verdict(report) == (0, [])
    assert report["trust"]["mode"] == "trusted-root"  # what the root is worth, only a policy's name for it says
    digests = {item["name"]: item["sha256"] for item in report["trust"]["digests"]}
    assert digests["trusted-root"] == hashlib.sha256((place / "root.json").read_bytes()).hexdigest()
    assert ("timestamp-authority" if log == "v2" else "transparency-log") in json.dumps(report["requirements"])


def test_a_private_roots_signature_is_none_of_the_public_ones(kit: Any, place: Path) -> None:
    code, ids = verdict(verify(place / kit.name, written(place, kit.blob()), **by(kit.identity, kit.issuer)))
    assert code == 4
    assert ids == ["sigstore.log-unknown", "sigstore.ct-log-unknown", "sigstore.chain-untrusted"]


@pytest.mark.parametrize("witnessed", [False, True])
@pytest.mark.parametrize("with_root", [False, True])
def test_a_key_verifies_with_and_without_a_log(witnessed: bool, with_root: bool, kit: Any, place: Path) -> None:
    bundle = kit.by_key(payload=kit.statement())
    path = written(place, kit.witnessed(bundle) if witnessed else bundle)
    root = {"trusted_root": place / "root.json"} if with_root else {}
    report = verify(place / kit.name, path, key=place / "key.pub", **root)
    assert verdict(report) == (0, [])
    assert report["trust"]["mode"] == "managed-key"
    times = report["requirements"][-1]["found"]
    assert times.startswith("2026-06-01T12:00:00Z") if witnessed and with_root else times.startswith("not known")
    unread = "log entries and timestamps in the bundle: no trusted root was given"
    assert (unread in report["not_checked"]) == (witnessed and not with_root)


def test_a_keys_false_log_entry_is_refused_where_a_root_is_given(kit: Any, place: Path) -> None:
    good = kit.witnessed(kit.by_key())
    other = kit.witnessed(kit.by_key(payload=kit.statement()))
    mixed = kit.changed(good, "verificationMaterial", "tlogEntries", value=other["verificationMaterial"]["tlogEntries"])
    report = verify(place / kit.name, written(place, mixed), key=place / "key.pub", trusted_root=place / "root.json")
    assert verdict(report) == (1, ["sigstore.log-entry-unsupported"])


def test_a_key_and_a_certificate_do_not_stand_in_for_each_other(kit: Any, place: Path) -> None:
    report = verify(place / kit.name, written(place, kit.blob()), key=place / "key.pub")
    assert verdict(report) == (4, ["signature.not-by-key"])
    bundle = written(place, kit.by_key())
    report = verify(place / kit.name, bundle, **by(kit.identity, kit.issuer, place / "root.json"))
    assert verdict(report) == (4, ["sigstore.not-by-certificate"])


def test_an_ed25519_signature_needs_the_file_and_not_its_digest(kit: Any, place: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    (place / "ed.pub").write_bytes(signing.public_key_pem(key.public_key()))
    bundle = written(place, kit.by_key(key=key))
    assert verdict(verify(place / kit.name, bundle, key=place / "ed.pub")) == (0, [])
    digest = hashlib.sha256(kit.content).hexdigest()
    report = verify(f"sha256:{digest}", bundle, key=place / "ed.pub")
    assert verdict(report) == (2, ["sigstore.artifact-needed"])


def test_a_changed_file_is_refused_and_what_follows_says_so(kit: Any, place: Path) -> None:
    (place / kit.name).write_bytes(kit.content + b"x")
    report = verify(place / kit.name, written(place, kit.by_key()), key=place / "key.pub")
    assert verdict(report) == (1, ["sigstore.artifact-mismatch", "signature.invalid"])
    assert report["findings"][1]["cause"] == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (4, ["trust.no-anchor"])),
        ({"certificate_identity": "x"}, (2, ["usage.invalid"])),
        ({"certificate_oidc_issuer": "x"}, (2, ["usage.invalid"])),
        ({"certificate_identity": "x", "certificate_oidc_issuer": "y"}, (2, ["usage.invalid"])),
        ({"key": "key.pub", "policy": "p"}, (2, ["usage.invalid"])),
        ({"key": "key.pub", "certificate_identity": "x"}, (2, ["usage.invalid"])),
        ({"trusted_root": "root.json"}, (2, ["usage.invalid"])),
        ({"key": "none.pub"}, (2, ["input.missing"])),
        ({"key": "key.pub", "at": "yesterday"}, (2, ["usage.invalid"])),
        ({"key": "key.pub", "trusted_root": "key.pub"}, (2, ["sigstore.root-invalid"])),
    ],
)
def test_no_signer_is_assumed_and_no_option_is_ignored(
    options: dict[str, str], expected: tuple[int, list[str]], kit: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert verdict(verify(kit.name, written(place, kit.by_key()), **options)) == expected


def test_a_file_of_no_bundle_and_a_missing_one_accept_nothing(kit: Any, place: Path) -> None:
    empty = place / "empty.jsonl"
    empty.write_text("\n")
    code, ids = verdict(verify(place / kit.name, empty, key=place / "key.pub"))
    assert (code, ids[0]) == (1, "sigstore.no-bundle")
    assert verdict(verify(place / kit.name, place / "none", key=place / "key.pub")) == (2, ["input.missing"])
    good = written(place, kit.by_key())
    assert verdict(verify(place / kit.name, good, empty, key=place / "key.pub"))[0] == 1


def test_a_pipe_in_place_of_the_file_is_refused_without_waiting(kit: Any, place: Path) -> None:
    os.mkfifo(place / "pipe")
    code, ids = verdict(verify(place / "pipe", written(place, kit.by_key()), key=place / "key.pub"))
    assert (code, ids) == (1, ["file.not-regular"])


def test_text_says_who_and_when_and_what_is_left_open(kit: Any, place: Path) -> None:
    bundle = written(place, kit.blob())
    words = ["verify", "signature", str(place / kit.name), "--bundle", str(bundle)]
    for option, value in by(kit.identity, kit.issuer, place / "root.json").items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    text = command_line(words).text
    assert text.startswith("ACCEPTED")
    assert kit.identity in text and "2026-06-01T12:00:00Z by transparency-log" in text
    assert "Not checked:" in text and "whether the log shows everybody the same entries" in text


def test_the_digest_of_a_bundles_payload_is_reported(kit: Any, place: Path) -> None:
    document = kit.dsse()
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    bundle = written(place, document)
    report = verify(place / kit.name, bundle, **by(kit.identity, kit.issuer, place / "root.json"))
    digests = {item["name"]: item["sha256"] for item in report["trust"]["digests"]}
    assert digests["payload"] == hashlib.sha256(payload).hexdigest()
