"""A hardware module that is none: SoftHSM behind PKCS #11, as `mint2m sign --signer hsm:…` sees it.

Needs Debian's `softhsm2` and the extra `hsm`; nothing is skipped where these are installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mint2m_verify.signers.bundle_form import signed_bytes
from mint2m_verify.signing import key_id, load_public_key
from mint2m_verify.sigstore_bundle import Envelope, read_bundle

PIN = "48151623"
MODULES = (
    Path("/usr/lib/softhsm/libsofthsm2.so"),
    Path("/usr/lib64/softhsm/libsofthsm.so"),
    Path("/usr/local/lib/softhsm/libsofthsm2.so"),
)

#: Makes a P-256 key with id 2 and a P-384 key with id 3, and prints nothing.
MAKE_KEYS = """
import sys
import pkcs11
from pkcs11.util.ec import encode_named_curve_parameters

token = pkcs11.lib(sys.argv[1]).get_token(token_label="mint2m")
with token.open(rw=True, user_pin=sys.argv[2]) as session:
    for number, curve in ((2, "secp256r1"), (3, "secp384r1")):
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC, {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters(curve)}, local=True
        )
        parameters.generate_keypair(store=True, id=bytes([number]), label=curve)
"""

Mint2m = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A fresh token: the environment in which it is found, and a file with its PIN."""

    environment: dict[str, str]
    pin: Path


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Token:
    module = next((path for path in MODULES if path.exists()), None)
    if module is None:
        pytest.skip("SoftHSM is not installed: apt-get install softhsm2")
    if importlib.util.find_spec("pkcs11") is None:
        pytest.skip("python-pkcs11 is not installed: pip install 'mint2m[hsm]'")
    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    environment = {**os.environ, "SOFTHSM2_CONF": str(folder / "softhsm2.conf"), "PYKCS11LIB": str(module)}
    for command in (
        ["softhsm2-util", "--init-token", "--free", "--label", "mint2m", "--pin", PIN, "--so-pin", "123456"],
        [sys.executable, "-c", MAKE_KEYS, str(module), PIN],
    ):
        subprocess.run(command, env=environment, check=True, capture_output=True)
    (folder / "pin").write_text(f"{PIN}\n")
    return Token(environment=environment, pin=folder / "pin")


def finding(done: subprocess.CompletedProcess[str]) -> str:
    """The one finding of a refusal; the PIN is nowhere in what the command said."""
    assert PIN not in done.stdout + done.stderr
    return done.stdout.splitlines()[2].split()[0]


def test_a_token_signs_a_file_that_verifies_with_its_public_key(mint2m: Mint2m, token: Token, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    done = mint2m(
        "sign", "file", tmp_path / "a.txt", "--signer", "hsm:2?label=mint2m", "--passphrase-file", token.pin,
        env=token.environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert PIN not in done.stdout
    bundle = json.loads((tmp_path / "a.txt.sigstore.json").read_bytes())
    public = tmp_path / "token.pub"
    public.write_bytes(token_public_key(token))
    hint = bundle["verificationMaterial"]["publicKey"]["hint"]
    checked = mint2m("verify", "signature", tmp_path / "a.txt", "--bundle", tmp_path / "a.txt.sigstore.json",
                     "--key", public)  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    import base64

    assert base64.b64decode(hint).hex() == key_id(load_public_key(public))
    (tmp_path / "a.txt").write_text("abd")
    refused = mint2m("verify", "signature", tmp_path / "a.txt", "--bundle", tmp_path / "a.txt.sigstore.json",
                     "--key", public)  # fmt: skip
    assert refused.returncode == 1


def token_public_key(token: Token) -> bytes:
    """The public half as OpenSC's or SoftHSM's owner would export it: by PKCS #11, not by our code."""
    code = (
        "import sys, pkcs11, pkcs11.util.ec as ec\n"
        "from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key\n"
        "with pkcs11.lib(sys.argv[1]).get_token(token_label='mint2m').open() as session:\n"
        "    key = session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, id=b'\\x02')\n"
        "    der = ec.encode_ec_public_key(key)\n"
        "pem = load_der_public_key(der).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)\n"
        "sys.stdout.write(pem.decode())\n"
    )
    module = token.environment["PYKCS11LIB"]
    done = subprocess.run([sys.executable, "-c", code, module], env=token.environment, check=True, capture_output=True)
    return done.stdout


def test_a_token_seals_a_run(mint2m: Mint2m, token: Token, tmp_path: Path) -> None:
    import shutil

    base = Path(__file__).parents[2] / "vectors" / "bases" / "run"
    run = tmp_path / "run"
    shutil.copytree(base, run)
    seal = run / "attestations" / "seal.sigstore.json"
    seal.unlink()
    done = mint2m(
        "sign", "tree", run, "--signer", "hsm:2?label=mint2m", "--passphrase-file", token.pin, env=token.environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "token.pub").write_bytes(token_public_key(token))
    content = read_bundle(seal.read_bytes(), file="seal").content
    assert isinstance(content, Envelope)
    assert content.signed_bytes == signed_bytes(content.payload, "application/vnd.in-toto+json")
    assert mint2m("verify", "run", run, "--key", tmp_path / "token.pub").returncode == 0


def test_a_token_signs_a_models_files(mint2m: Mint2m, token: Token, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w" * 1000)
    done = mint2m(
        "sign", "tree", tmp_path / "model", "--output", tmp_path / "model.sig", "--signer", "hsm:2?label=mint2m",
        "--passphrase-file", token.pin, env=token.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("uri", "secret", "expected"),
    [
        ("hsm:2?label=mint2m", "00000000", "signer.unavailable"),
        ("hsm:2?label=another", PIN, "signer.unavailable"),
        ("hsm:7?label=mint2m", PIN, "signer.unavailable"),
        ("hsm:x?label=mint2m", PIN, "signer.unavailable"),
        ("hsm:3?label=mint2m", PIN, "key.unsupported"),
        ("hsm:2?label=mint2m", "", "key.passphrase-empty"),
        ("hsm:2?label=mint2m", None, "signer.secret-missing"),
    ],
)
def test_what_a_token_refuses_is_one_finding_and_nothing_is_written(
    mint2m: Mint2m, token: Token, tmp_path: Path, uri: str, secret: str | None, expected: str
) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "pin").write_text(secret or "")
    options = ["--passphrase-file", tmp_path / "pin"] if secret is not None else []
    done = mint2m(
        "sign", "file", tmp_path / "a.txt", "--signer", uri, *options, env=token.environment, stdin=subprocess.DEVNULL
    )
    assert (finding(done), done.returncode) == (expected, 2)
    assert not (tmp_path / "a.txt.sigstore.json").exists()
    if secret:
        assert secret not in done.stdout + done.stderr


def test_a_public_key_of_another_token_is_found_out(mint2m: Mint2m, token: Token, tmp_path: Path) -> None:
    assert mint2m("keys", "new", tmp_path / "other").returncode == 0
    (tmp_path / "a.txt").write_text("abc")
    done = mint2m(
        "sign", "file", tmp_path / "a.txt", "--signer", "hsm:2?label=mint2m", "--public-key", tmp_path / "other.pub",
        "--passphrase-file", token.pin, env=token.environment,
    )  # fmt: skip
    assert (finding(done), done.returncode) == ("signer.signature-invalid", 2)
    assert not (tmp_path / "a.txt.sigstore.json").exists()


def test_without_a_module_there_is_no_token(mint2m: Mint2m, token: Token, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    for module in (None, str(tmp_path / "none.so"), str(tmp_path / "a.txt")):
        environment = {name: value for name, value in token.environment.items() if name != "PYKCS11LIB"}
        if module is not None:
            environment["PYKCS11LIB"] = module
        done = mint2m(
            "sign", "file", tmp_path / "a.txt", "--signer", "hsm:2", "--passphrase-file", token.pin, env=environment
        )
        assert (finding(done), done.returncode) == ("signer.unavailable", 2)
