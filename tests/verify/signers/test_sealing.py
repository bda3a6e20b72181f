"""Seals by every kind of signer, and further signatures over the same payload."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify import layout, signing
from mint2m_verify.anchor import ConsistencyOnly, VerifyOptions, read_key
from mint2m_verify.file_hash import Digests, Work, hash_file
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.run import verify_run
from mint2m_verify.sealing import cosign_run, seal_run, sign_tree
from mint2m_verify.signers.choose import SignerOptions, ephemeral_signer
from mint2m_verify.signers.key_signer import KeySigner, signer_of
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signers.private_root_files import create_private_root
from mint2m_verify.signers.signer import Signer
from mint2m_verify.sigstore_bundle import CertificateSigner, Envelope, parse_root, read_bundle, verify_bundle

WHO, ISSUER = "trainer@example.org", "https://issuer.example.org"
BASE = Path(__file__).parents[2] / "vectors" / "bases" / "run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A genuine run directory without its seal."""
    place = tmp_path / "run"
    shutil.copytree(BASE, place)
    (place / layout.SEAL).unlink()
    return place


def key_signer(kind: signing.KeyKind = "p256") -> KeySigner:
    return signer_of(signing.new_private_key(kind), kind="managed", source="key")


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(FindingError) as raised:
        call()
    return raised.value.finding.id


def payload(run: Path, path: str = layout.SEAL) -> bytes:
    content = read_bundle((run / path).read_bytes(), file=path).content
    assert isinstance(content, Envelope)
    return content.payload


@pytest.mark.parametrize(
    ("signer", "kind"),
    [
        (key_signer("p256"), "managed"),
        (key_signer("ed25519"), "managed"),
        (ephemeral_signer(), "ephemeral"),
        (PrivateRoot.create().signer(WHO, ISSUER), "certificate"),
        (PrivateRoot.create(log_key="ed25519").signer(WHO, ISSUER, log="v2"), "certificate"),
    ],
)
def test_a_seal_says_what_kind_of_signer_made_it(run: Path, signer: Signer, kind: str) -> None:
    assert seal_run(run, signer).verdict is Verdict.ACCEPTED
    assert json.loads(payload(run))["predicate"]["signer"] == kind
    assert verify_run(run, ConsistencyOnly(), VerifyOptions()).verdict is Verdict.ACCEPTED


def test_a_seal_by_a_key_is_accepted_with_that_key_and_no_other(run: Path, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        signing.new_key_pair(str(tmp_path / name))
    signer = signer_of(signing.load_private_key(tmp_path / "mine.key"), kind="managed", source="mine.key")
    report = sign_tree(run, signer, key_file=tmp_path / "mine.key")
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "managed-key")
    for name, verdict in (("mine", Verdict.ACCEPTED), ("other", Verdict.UNTRUSTED)):
        assert verify_run(run, read_key(tmp_path / f"{name}.pub"), VerifyOptions()).verdict is verdict


def test_a_seal_by_a_certificate_names_its_identity_under_its_root(run: Path) -> None:
    root = PrivateRoot.create()
    seal_run(run, root.signer(WHO, ISSUER))
    bundle = read_bundle((run / layout.SEAL).read_bytes(), file="seal")
    result = verify_bundle(bundle, root=parse_root(root.trusted_root(), name="root"))
    assert result.findings == () and result.verified is not None
    assert isinstance(result.verified.signer, CertificateSigner)
    assert (result.verified.signer.san, result.verified.signer.issuer) == (WHO, ISSUER)


def test_further_signers_sign_the_very_payload_of_the_first(run: Path) -> None:
    seal_run(run, PrivateRoot.create().signer(WHO, ISSUER))
    for number in range(2, 10):
        signer = key_signer("ed25519" if number % 2 else "p256")
        place, _ = cosign_run(run, signer)
        assert place == run / f"attestations/seal.{number}.sigstore.json"
        assert payload(run, str(place.relative_to(run))) == payload(run)
        bundle = read_bundle(place.read_bytes(), file="seal")
        assert verify_bundle(bundle, root=None, keys=(signer.public_key,)).findings == ()
    assert fault(lambda: cosign_run(run, key_signer())) == "file.exists"
    assert len(list((run / "attestations").iterdir())) == 9
    assert verify_run(run, ConsistencyOnly(), VerifyOptions()).verdict is Verdict.ACCEPTED


def test_there_is_nothing_to_add_to_without_a_seal_and_no_second_seal(run: Path) -> None:
    assert fault(lambda: cosign_run(run, key_signer())) == "seal.missing"
    seal_run(run, key_signer())
    assert fault(lambda: seal_run(run, key_signer())) == "file.exists"


def test_no_signature_is_left_over_a_run_that_was_changed(run: Path) -> None:
    seal_run(run, key_signer())
    scores = run / layout.SCORES
    scores.write_bytes(scores.read_bytes().replace(b"1", b"2", 1))
    assert fault(lambda: cosign_run(run, key_signer())) == "tree.file-changed"
    assert [path.name for path in (run / "attestations").iterdir()] == ["seal.sigstore.json"]
    (run / layout.SEAL).unlink()
    with pytest.raises(FindingError):
        seal_run(run, key_signer())
    assert not (run / layout.SEAL).exists()


def test_no_log_keeps_a_signature_over_a_run_that_was_changed(run: Path, tmp_path: Path) -> None:
    create_private_root(tmp_path / "root")
    signer = SignerOptions(private_root=tmp_path / "root", identity=WHO, issuer=ISSUER).choose()
    genuine = (run / layout.SCORES).read_bytes()
    (run / layout.SCORES).write_bytes(genuine.replace(b"1", b"2", 1))
    with pytest.raises(FindingError):
        seal_run(run, signer)
    assert (tmp_path / "root" / "log.jsonl").read_bytes() == b""
    (run / layout.SCORES).write_bytes(genuine)
    seal_run(run, key_signer())
    (run / layout.SCORES).write_bytes(genuine.replace(b"1", b"2", 1))
    assert fault(lambda: cosign_run(run, signer)) == "tree.file-changed"
    assert (tmp_path / "root" / "log.jsonl").read_bytes() == b""


def test_a_checkpoint_is_read_once_for_a_key_s_seal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(descriptor: int, status: os.stat_result, work: Work, *, chunks: bool) -> Digests:
        read.append(status.st_ino)
        return hash_file(descriptor, status, work, chunks=chunks)

    monkeypatch.setattr("mint2m_verify.walk.hash_file", counted)
    assert seal_run(run, key_signer()).verdict is Verdict.ACCEPTED
    written = [path.stat().st_ino for path in (run / "checkpoint").iterdir()]
    assert [read.count(inode) for inode in written] == [1] * len(written) != []


def test_an_interrupted_signer_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mint2m_verify.sealing.verify_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seal_run(run, key_signer())
    assert list((run / "attestations").iterdir()) == []


def test_a_killed_signer_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal over a run that nobody judged could pass for one that its signer had accepted."""

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("mint2m_verify.sealing.verify_run", killed)
    process = os.fork()
    if process == 0:
        try:
            seal_run(run, key_signer())
        finally:
            os._exit(0)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    assert not (run / layout.SEAL).exists()


def test_what_the_signer_is_told_is_what_an_auditor_is_told(run: Path, tmp_path: Path) -> None:
    signer = key_signer()
    (tmp_path / "key.pub").write_bytes(signing.public_key_pem(signer.public_key))
    told = seal_run(run, signer, key_file=tmp_path / "key.pub")
    seen = verify_run(run, read_key(tmp_path / "key.pub"), VerifyOptions(whole_digests=True))
    assert (told.verdict, told.requirements, told.trust) == (Verdict.ACCEPTED, seen.requirements, seen.trust)


def test_a_proposed_signature_takes_no_file_s_place(run: Path) -> None:
    seal_run(run, key_signer())
    options = VerifyOptions(proposed={layout.SEAL: b"another"})
    assert fault(lambda: verify_run(run, ConsistencyOnly(), options)) == "file.exists"


def test_a_seal_that_would_be_a_file_too_many_is_not_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mint2m_verify.walk._MAX_FILES", sum(path.is_file() for path in run.rglob("*")))
    assert fault(lambda: seal_run(run, key_signer())) == "tree.too-many"
    assert not (run / layout.SEAL).exists()


def test_a_signer_that_fails_leaves_nothing(run: Path) -> None:
    from datetime import UTC, datetime

    expired = PrivateRoot.create(start=datetime(2001, 1, 1, tzinfo=UTC)).signer(WHO, ISSUER)
    assert fault(lambda: seal_run(run, expired)) == "signer.result-invalid"
    assert not (run / layout.SEAL).exists()
    seal_run(run, key_signer())
    assert fault(lambda: cosign_run(run, expired)) == "signer.result-invalid"
    assert [path.name for path in (run / "attestations").iterdir()] == ["seal.sigstore.json"]


def test_what_is_asked_for_decides_what_is_made(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w")
    signer = key_signer()
    assert fault(lambda: sign_tree(tmp_path / "model", signer)) == "usage.invalid"
    assert fault(lambda: sign_tree(tmp_path / "model", signer, cosign=True)) == "usage.invalid"
    assert fault(lambda: sign_tree(run, signer, cosign=True, output=tmp_path / "o")) == "usage.invalid"
    assert sign_tree(run, signer, output=tmp_path / "o").verdict is Verdict.ACCEPTED  # a run directory's files, too
    assert not (run / layout.SEAL).exists()
