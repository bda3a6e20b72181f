"""Which signer a command line names, and how its secrets are opened."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from mint2m_verify import signing
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.signers.choose import SignerOptions, key_file_signer
from mint2m_verify.signers.sign_files import sign_files
from mint2m_verify.sigstore_bundle import Artifact, read_bundle, verify_bundle

SECRET = b"correct horse"
Mint2m = Callable[..., subprocess.CompletedProcess[str]]


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(FindingError) as raised:
        call()
    assert raised.value.finding.verdict is Verdict.BLOCKED
    return raised.value.finding.id


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """`plain`, `ed` and `locked` (encrypted), and the passphrase of the last in `secret`."""
    signing.new_key_pair(str(tmp_path / "plain"))
    signing.new_key_pair(str(tmp_path / "ed"), "ed25519")
    signing.new_key_pair(str(tmp_path / "locked"), "p256", SECRET)
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_an_encrypted_pair_is_pkcs8_that_openssl_opens_with_the_passphrase_only(tmp_path: Path, kind: Any) -> None:
    private, public = signing.new_key_pair(str(tmp_path / "k"), kind, SECRET)
    assert private.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600

    def openssl(passphrase: str) -> subprocess.CompletedProcess[bytes]:
        command = ["openssl", "pkey", "-in", str(private), "-pubout", "-passin", f"pass:{passphrase}"]
        return subprocess.run(command, capture_output=True, check=False)

    assert openssl(SECRET.decode()).stdout == public.read_bytes()
    assert openssl("wrong").returncode != 0


def test_a_key_that_openssl_encrypted_is_opened(tmp_path: Path) -> None:
    private, public = signing.new_key_pair(str(tmp_path / "k"))
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", private, "-aes256", "-out", locked, "-passout", f"pass:{SECRET.decode()}"]
    subprocess.run(command, check=True)
    key = signing.load_private_key(locked, lambda: SECRET)
    assert signing.public_key_pem(key.public_key()) == public.read_bytes()


def test_the_older_encrypted_form_is_opened_as_well(tmp_path: Path) -> None:
    key = signing.new_private_key()
    raw = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(SECRET),
    )
    (tmp_path / "k.key").write_bytes(raw)
    assert b"Proc-Type" in raw
    opened = signing.load_private_key(tmp_path / "k.key", lambda: SECRET)
    assert signing.key_id(opened.public_key()) == signing.key_id(key.public_key())
    assert fault(lambda: signing.load_private_key(tmp_path / "k.key")) == "key.encrypted"


def test_a_passphrase_comes_from_its_file_without_the_line_end(keys: Path) -> None:
    for ending in (b"", b"\n", b"\r\n"):
        (keys / "secret").write_bytes(SECRET + ending)
        signer = SignerOptions(key=keys / "locked.key", passphrase_file=keys / "secret").choose()
        assert signer.kind == "managed"
    for wrong in (b" " + SECRET, SECRET + b"\n\n", SECRET.upper()):
        (keys / "secret").write_bytes(wrong)
        options = SignerOptions(key=keys / "locked.key", passphrase_file=keys / "secret")
        assert fault(options.choose) == "key.passphrase-wrong"


def test_a_person_is_asked_only_where_the_key_is_encrypted(keys: Path) -> None:
    asked: list[str] = []

    def ask(wanted: str) -> bytes:
        asked.append(wanted)
        return SECRET

    SignerOptions(key=keys / "plain.key").choose(ask=ask)
    assert asked == []
    SignerOptions(key=keys / "locked.key").choose(ask=ask)
    assert asked == ["passphrase of locked.key"]
    assert fault(lambda: SignerOptions(key=keys / "locked.key").choose()) == "key.encrypted"


def test_a_passphrase_that_opens_nothing_is_refused(keys: Path) -> None:
    options = SignerOptions(key=keys / "plain.key", passphrase_file=keys / "secret")
    assert fault(options.choose) == "key.not-encrypted"
    from mint2m.__main__ import run as command_line

    for name in ("plain.key", "plain.pub"):
        shown = command_line(["keys", "show", str(keys / name), "--passphrase-file", str(keys / "secret")])
        assert shown.verdict is Verdict.BLOCKED and "key.not-encrypted" in shown.text


def test_a_new_file_replaces_nothing_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signing.create_file(tmp_path / "a", b"1", mode=0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert (tmp_path / "a").stat().st_nlink == 1
    assert fault(lambda: signing.create_file(tmp_path / "a", b"2")) == "file.exists"

    def no_links(self: Path, target: Path) -> None:
        raise PermissionError("a file system without links")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    signing.create_file(tmp_path / "b", b"3")
    assert fault(lambda: signing.create_file(tmp_path / "b", b"4")) == "file.exists"
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    assert fault(lambda: signing.create_file(tmp_path / "c", b"5")) == "file.exists"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"1", b"3")


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 1024])
def test_a_passphrase_that_protects_nothing_makes_no_key(mint2m: Mint2m, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    done = mint2m("keys", "new", tmp_path / "k", "--passphrase-file", tmp_path / "secret")
    assert done.returncode == 2 and "key.passphrase-empty" in done.stdout
    assert not (tmp_path / "k.key").exists()


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"key": "plain.key", "uri": "hsm:2"},
        {"key": "plain.key", "sigstore": "config.json"},
        {"key": "plain.key", "private_root": "root"},
        {"key": "plain.key", "public_key": "plain.pub"},
        {"key": "plain.key", "identity": "a@example.org"},
        {"key": "plain.key", "identity_token": "token"},
        {"uri": "file2:plain.key", "issuer": "https://example.org"},
        {"private_root": "root", "identity": "a@example.org"},
        {"private_root": "root", "passphrase_file": "secret", "identity": "a@example.org", "issuer": "https://x"},
        {"passphrase_file": "secret"},
        {"uri": "file2:plain.key", "public_key": "plain.pub", "passphrase_file": "secret"},
    ],
)
def test_exactly_one_signer_is_named_and_no_option_is_passed_over(keys: Path, names: dict[str, str]) -> None:
    words = {"uri", "identity", "issuer"}
    options = SignerOptions(**{name: value if name in words else keys / value for name, value in names.items()})  # type: ignore[arg-type]
    assert fault(options.choose) == "usage.invalid"


def test_a_key_behind_a_file_uri_signs_what_its_public_half_verifies(keys: Path) -> None:
    for name in ("plain", "ed"):
        signer = SignerOptions(uri=f"file2:{keys}/{name}.key", public_key=keys / f"{name}.pub").choose()
        key = signing.load_public_key(keys / f"{name}.pub")
        bundle = read_bundle(signer.sign_artifact(b"abc"), file="b")
        assert signing.verify_bytes(b"abc", bundle.signature, key)


@pytest.mark.parametrize(
    ("uri", "public_key", "expected"),
    [
        ("file2:{keys}/plain.key", None, "signer.public-key-missing"),
        ("awskms:alias/x", None, "signer.public-key-missing"),
        ("gnupg:", None, "signer.uri-unknown"),
        ("plain.key", None, "signer.uri-unknown"),
        ("", None, "signer.uri-unknown"),
        ("file2:{keys}/none.key", "plain.pub", "signer.unavailable"),
        ("file2:{keys}/locked.key", "locked.pub", "signer.unavailable"),
        ("file2:{keys}/plain.key", "ed.pub", "signer.unavailable"),
        ("awskms:alias/x", "plain.pub", "signer.unavailable"),  # boto3 is not installed
        ("azurekms://x", "plain.pub", "signer.unavailable"),
        ("hv:x", "plain.pub", "signer.unavailable"),
    ],
)
def test_a_signer_uri_that_leads_nowhere_is_one_finding(
    keys: Path, uri: str, public_key: str | None, expected: str
) -> None:
    named = None if public_key is None else keys / public_key
    assert fault(SignerOptions(uri=uri.format(keys=keys), public_key=named).choose) == expected


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, keys: Path) -> None:
    monkeypatch.setenv("PYKCS11LIB", str(keys / "module.so"))
    monkeypatch.setattr("securesystemslib.signer._hsm_signer.PKCS11_IMPORT_ERROR", "'python-pkcs11' required")
    with pytest.raises(FindingError) as raised:
        SignerOptions(uri="hsm:2").choose(ask=lambda _: b"1234")
    assert (raised.value.finding.id, raised.value.finding.hint) == ("signer.unavailable", "pip install 'mint2m[hsm]'")


def test_a_key_file_that_is_another_key_than_its_public_half_is_found_out(keys: Path) -> None:
    signing.new_key_pair(str(keys / "other"))
    with pytest.raises(FindingError) as raised:
        SignerOptions(uri=f"file2:{keys}/plain.key", public_key=keys / "other.pub").choose().sign_artifact(b"abc")
    assert raised.value.finding.id == "signer.unavailable"  # the library compares them


def test_a_digest_alone_is_not_signed_by_a_key_that_signs_messages(keys: Path) -> None:
    assert fault(lambda: key_file_signer(keys / "ed.key").sign_digest(bytes(32))) == "signer.needs-bytes"


def test_files_are_signed_each_by_itself(keys: Path) -> None:
    files = [keys / name for name in ("a.txt", "b.bin")]
    for index, file in enumerate(files):
        file.write_bytes(b"x" * index * 3_000_000)
    key = signing.load_public_key(keys / "plain.pub")
    for item in sign_files(files, key_file_signer(keys / "plain.key")):
        assert item.bundle == item.file.with_name(item.file.name + ".sigstore.json")
        bundle = read_bundle(item.bundle.read_bytes(), file="b")
        artifact = Artifact(name=None, sha256=item.sha256)
        assert verify_bundle(bundle, root=None, keys=(key,), artifact=artifact).findings == ()
        assert signing.verify_bytes(item.file.read_bytes(), bundle.signature, key)


def test_no_output_is_replaced_and_no_file_is_signed_beside_one_that_cannot_be(keys: Path) -> None:
    (keys / "a").write_text("a")
    (keys / "b").write_text("b")
    (keys / "b.sigstore.json").write_text("mine")
    signer = key_file_signer(keys / "plain.key")
    assert fault(lambda: sign_files([keys / "a", keys / "b"], signer)) == "file.exists"
    assert (keys / "b.sigstore.json").read_text() == "mine" and not (keys / "a.sigstore.json").exists()
    assert fault(lambda: sign_files([keys / "a", keys / "none"], signer)) == "input.missing"
    assert fault(lambda: sign_files([keys / "a", keys / "a"], signer)) == "usage.invalid"
    assert fault(lambda: sign_files([keys / "a", keys / "b"], signer, output=keys / "out")) == "usage.invalid"
    assert not (keys / "a.sigstore.json").exists()


def test_a_pipe_or_a_directory_is_not_signed(keys: Path) -> None:
    import os

    os.mkfifo(keys / "pipe")
    signer = key_file_signer(keys / "plain.key")
    for path in (keys / "pipe", keys):
        with pytest.raises(FindingError) as raised:
            sign_files([path], signer, output=keys / "out")
        assert raised.value.finding.id in ("file.not-regular", "file.unreadable")
        assert not (keys / "out").exists()


def test_bundles_are_in_their_canonical_form(keys: Path) -> None:
    import rfc8785

    raw = key_file_signer(keys / "plain.key").sign_statement(b"{}")
    assert rfc8785.dumps(json.loads(raw)) == raw


def test_a_key_is_made_encrypted_shown_and_used_by_the_commands(mint2m: Mint2m, keys: Path) -> None:
    made = mint2m("keys", "new", keys / "n", "--type", "ed25519", "--passphrase-file", keys / "secret")
    assert made.returncode == 0 and SECRET.decode() not in made.stdout
    assert mint2m("keys", "show", keys / "n.key", stdin=subprocess.DEVNULL).returncode == 2
    shown = mint2m("keys", "show", keys / "n.key", "--passphrase-file", keys / "secret")
    assert shown.returncode == 0 and "private half, Ed25519" in shown.stdout
    (keys / "a.txt").write_text("abc")
    command = ("sign", "file", keys / "a.txt", "--key", keys / "n.key")
    assert mint2m(*command, stdin=subprocess.DEVNULL).returncode == 2
    done = mint2m(*command, "--passphrase-file", keys / "secret", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["command"]) == (0, "accepted", "sign file")
    assert "a.txt.sigstore.json" in report["requirements"][0]["found"]
    both = mint2m("keys", "new", keys / "m", "--passphrase", "--passphrase-file", keys / "secret")
    nobody = mint2m("keys", "new", keys / "m", "--passphrase", stdin=subprocess.DEVNULL)
    assert (both.returncode, nobody.returncode) == (2, 2) and not (keys / "m.key").exists()
