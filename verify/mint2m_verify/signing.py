"""Keys and raw signatures: P-256 (ECDSA with SHA-256) and Ed25519, nothing else.

The rule: a key is known by the SHA-256 of its SubjectPublicKeyInfo (DER), never by a name or a file. Names can be
copied; and with two accepted algorithms each signature has exactly one way to be checked, chosen by the key that the
auditor holds and never by what the evidence says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

KeyKind: TypeAlias = Literal["p256", "ed25519"]

#: Where the passphrase of an encrypted key comes from: called only if the key is encrypted, None if there is none.
Passphrase: TypeAlias = Callable[[], bytes | None]

#: A PEM key is a few hundred bytes; anything much longer is another kind of file.
KEY_LIMIT = 64 << 10

_ACCEPTED = "a P-256 or Ed25519 key in PEM"


def public_key_der(key: PublicKey) -> bytes:
    """SubjectPublicKeyInfo of `key`, DER."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_key_pem(key: PublicKey) -> bytes:
    """SubjectPublicKeyInfo of `key`, PEM: what `NAME.pub` holds."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: PublicKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo, lower-case hexadecimal."""
    return hashlib.sha256(public_key_der(key)).hexdigest()


def parse_public_key(raw: bytes, *, file: str) -> PublicKey:
    """The public key in PEM bytes; raises `FindingError` (`key.malformed`, `key.unsupported`)."""
    try:
        key = load_pem_public_key(raw)
    except UnsupportedAlgorithm as fault:
        raise FindingError(found("key.unsupported", file=file, expected=_ACCEPTED, actual=str(fault))) from fault
    except ValueError as fault:
        raise FindingError(found("key.malformed", file=file, expected=_ACCEPTED)) from fault
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise FindingError(found("key.unsupported", file=file, expected=_ACCEPTED, actual=_kind(key)))


def load_public_key(path: Path) -> PublicKey:
    """The public key in the PEM file `path`; raises `FindingError` (`input.missing`, `file.*`, `key.*`)."""
    return parse_public_key(read_named(path, limit=KEY_LIMIT), file=str(path))


def load_private_key(path: Path, passphrase: Passphrase | None = None) -> PrivateKey:
    """The private key in the PEM file `path`; `passphrase` is asked only where the key is encrypted.

    Raises:
        FindingError: `input.missing`, `file.*`, `key.malformed`, `key.unsupported`, `key.passphrase-wrong`, or
            `key.encrypted` for an encrypted key without a passphrase.
    """
    raw = read_named(path, limit=KEY_LIMIT)
    shown = str(path)
    secret: bytes | None = None
    if _is_encrypted(raw):
        secret = None if passphrase is None else passphrase()
        if secret is None:
            raise FindingError(found("key.encrypted", file=shown))
    try:
        key = load_pem_private_key(raw, password=secret)
    except UnsupportedAlgorithm as fault:
        raise FindingError(found("key.unsupported", file=shown, expected=_ACCEPTED, actual=str(fault))) from fault
    except (ValueError, TypeError) as fault:
        # The library says "incorrect password" in words only; a damaged encrypted key looks the same to anyone. It has
        # another type for an empty one.
        id = "key.malformed" if secret is None else "key.passphrase-wrong"
        raise FindingError(found(id, file=shown, expected=_ACCEPTED if secret is None else None)) from fault
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise FindingError(found("key.unsupported", file=shown, expected=_ACCEPTED, actual=_kind(key)))


def describe(path: Path, passphrase: Passphrase | None = None) -> tuple[str, str, str]:
    """Which half the PEM file `path` holds, of what kind, and the key's id."""
    half = "private" if b"PRIVATE KEY" in read_named(path, limit=KEY_LIMIT) else "public"
    key = load_private_key(path, passphrase).public_key() if half == "private" else load_public_key(path)
    return half, kind_words(key), key_id(key)


def kind_words(key: PublicKey) -> str:
    """The kind of a key, for people."""
    return "Ed25519" if isinstance(key, ed25519.Ed25519PublicKey) else "P-256"


def new_private_key(kind: KeyKind = "p256") -> PrivateKey:
    """A fresh key; P-256 is the common denominator of every verifier of these formats."""
    return ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())


def private_key_pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    """PKCS #8 of `key`, PEM; encrypted where there is a passphrase."""
    protection: KeySerializationEncryption = (
        NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


def new_key_pair(name: str, kind: KeyKind = "p256", passphrase: bytes | None = None) -> tuple[Path, Path]:
    """Write `NAME.key` (mode 0600, encrypted where there is a passphrase) and `NAME.pub`; neither may exist.

    Raises:
        FindingError: `file.exists` or `file.unwritable`; a half-made pair is removed again.
    """
    private_path, public_path = Path(f"{name}.key"), Path(f"{name}.pub")
    key = new_private_key(kind)
    create_file(private_path, private_key_pem(key, passphrase), mode=0o600)
    try:
        create_file(public_path, public_key_pem(key.public_key()), mode=0o644)
    except FindingError:
        private_path.unlink()
        raise
    return private_path, public_path


def sign_bytes(message: bytes, key: PrivateKey) -> bytes:
    """The signature of `message`: DER ECDSA with SHA-256, or raw Ed25519.

    ECDSA is deterministic by RFC 6979 where OpenSSL can do that (3.2 and newer), so that the same release is the same
    bytes; elsewhere each signature is another, and as good.
    """
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    try:
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except UnsupportedAlgorithm:
        algorithm = ec.ECDSA(hashes.SHA256())
    return key.sign(message, algorithm)


def verify_bytes(message: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether `signature` is `key`'s over `message`."""
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def create_file(path: Path, raw: bytes, *, mode: int = 0o644) -> None:
    """Write a new file: it appears whole under its name, or not at all, and replaces nothing.

    Raises:
        FindingError: `file.exists` or `file.unwritable`; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            _give_name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except FileExistsError as fault:
        raise FindingError(found("file.exists", file=str(path))) from fault
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(path), actual=fault.strerror)) from fault


def _give_name(temporary: Path, path: Path) -> None:
    """A hard link fails where the name is taken, and a rename does not; some file systems have no links."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        if path.exists() or path.is_symlink():
            raise FileExistsError(path) from None
        temporary.rename(path)


def _is_encrypted(raw: bytes) -> bool:
    """PKCS #8 says so in its label; the older form in a header (RFC 1421)."""
    return b"BEGIN ENCRYPTED PRIVATE KEY" in raw or b"Proc-Type: 4,ENCRYPTED" in raw


def _kind(key: object) -> str:
    curve = getattr(key, "curve", None)
    return type(key).__name__.strip("_") if curve is None else f"an elliptic-curve key on {curve.name}"
