"""A private root on disk: the public `trusted_root.json`, the log, and the secret half in `private/`.

The rule: the directory appears whole or not at all, its secrets are readable by their owner only, and its README says
what a signature under it is worth. What is loaded is checked against `trusted_root.json`: keys that are not the ones
which that file publishes would sign what nobody can verify.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mint2m_verify.canonical import parse
from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named, resolve_named
from mint2m_verify.signers.private_authority import CertificateAuthority
from mint2m_verify.signers.private_log import LeavesOnDisk, TransparencyLog
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signers.private_time import TimestampAuthority
from mint2m_verify.signing import PrivateKey, create_file, load_private_key, private_key_pem, public_key_der

TRUSTED_ROOT = "trusted_root.json"
LOG = "log.jsonl"
SECRETS = "private"

_README = """# A private Sigstore root

It is worth exactly as much as whoever holds `private/`: whoever can read that directory can sign as anybody, at any
time, and no log but its own would show it. It is no part of the public Sigstore, and its names end in `.invalid`.

trusted_root.json   public: give it to whoever verifies, who names it in a trust policy by its SHA-256
log.jsonl           public: every entry of the transparency log, one a line, in order
private/            secret: keys of the certificate authority, the two logs and the timestamp authority

mint2m sign file FILE --private-root DIR --identity WHO --issuer URI
"""


def create_private_root(directory: Path) -> PrivateRoot:
    """A fresh root, written to a new `directory`.

    Raises:
        FindingError: `file.exists` or `file.unwritable`; nothing is left behind then.
    """
    if directory.exists() or directory.is_symlink():
        raise FindingError(found("file.exists", file=str(directory)))
    root = PrivateRoot.create()
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        temporary.mkdir(mode=0o755)
        try:
            _write(temporary, root)
            # rename(2) replaces an empty directory that came into being meanwhile, and refuses any other.
            temporary.rename(directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(directory.parent)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(directory), actual=fault.strerror)) from fault
    return root


def load_private_root(directory: Path) -> PrivateRoot:
    """The root in `directory`, whose log goes on where it stopped.

    Raises:
        FindingError: `input.missing`, `file.*`, `json.*`, `key.*`, or `signer.private-root-invalid` where the secrets
            are not those of its `trusted_root.json`.
    """
    place = resolve_named(directory)
    raw = read_named(place / TRUSTED_ROOT, name=str(directory / TRUSTED_ROOT))
    document: Any = parse(raw, file=str(directory / TRUSTED_ROOT), canonical_form=True)
    shown = str(directory)
    (ca,) = _certificates(document, "certificateAuthorities", 1, file=shown)
    tsa, tsa_root = _certificates(document, "timestampAuthorities", 2, file=shown)
    root = PrivateRoot(
        start=ca.not_valid_before_utc,
        authority=CertificateAuthority(
            key=_key(place, "ca", of=ca, file=shown), certificate=ca, ct_key=_key(place, "ct", of=None, file=shown)
        ),
        log=TransparencyLog(
            origin=_origin(document, file=shown),
            key=load_private_key(_secret(place, "log")),
            leaves=LeavesOnDisk(place / LOG),
        ),
        timestamps=TimestampAuthority(key=_key(place, "tsa", of=tsa, file=shown), chain=(tsa, tsa_root)),
    )
    if root.trusted_root() != raw:
        raise _invalid(shown, "the logs' keys in private/ are not those of trusted_root.json")
    return root


def _write(directory: Path, root: PrivateRoot) -> None:
    secrets = directory / SECRETS
    secrets.mkdir(mode=0o700)
    keys: Sequence[tuple[str, PrivateKey]] = (
        ("ca", root.authority.key),
        ("ct", root.authority.ct_key),
        ("log", root.log.key),
        ("tsa", root.timestamps.key),
    )
    for name, key in keys:
        create_file(_secret(directory, name), private_key_pem(key), mode=0o600)
    create_file(directory / TRUSTED_ROOT, root.trusted_root())
    create_file(directory / LOG, b"")
    create_file(directory / "README.md", _README.encode())
    sync_directory(secrets)
    sync_directory(directory)


def _secret(directory: Path, name: str) -> Path:
    return directory / SECRETS / f"{name}.key"


def _key(directory: Path, name: str, *, of: x509.Certificate | None, file: str) -> ec.EllipticCurvePrivateKey:
    path = _secret(directory, name)
    key = load_private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _invalid(file, f"{path.name} is no P-256 key")
    if of is not None:
        certified = of.public_key()
        if not isinstance(certified, ec.EllipticCurvePublicKey) or public_key_der(certified) != public_key_der(
            key.public_key()
        ):
            raise _invalid(file, f"{path.name} is not the key of its certificate in trusted_root.json")
    return key


def _certificates(document: Any, name: str, count: int, *, file: str) -> tuple[x509.Certificate, ...]:
    """The one chain under `name`, which has `count` certificates."""
    try:
        (authority,) = document[name]
        chain = tuple(
            x509.load_der_x509_certificate(base64.b64decode(item["rawBytes"], validate=True))
            for item in authority["certChain"]["certificates"]
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise _invalid(file, f"{name} of trusted_root.json is not one that mint2m writes") from fault
    if len(chain) != count:
        raise _invalid(file, f"{name} of trusted_root.json has {len(chain)} certificates, not {count}")
    return chain


def _origin(document: Any, *, file: str) -> str:
    try:
        (log,) = document["tlogs"]
        return str(log["baseUrl"]).removeprefix("https://")
    except (KeyError, TypeError, ValueError) as fault:
        raise _invalid(file, "tlogs of trusted_root.json is not one that mint2m writes") from fault


def _invalid(file: str, why: str) -> FindingError:
    return FindingError(found("signer.private-root-invalid", file=file, actual=why))
