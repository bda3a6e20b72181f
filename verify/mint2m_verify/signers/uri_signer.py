"""Signers behind a URI: a hardware module (`hsm:`), a file (`file2:`), a cloud's key service; by securesystemslib.

The rule: the library says that its signers may raise anything. What is known of each is caught here by name and becomes
a finding; a PIN is asked for when it is needed, is given to the library, and is cut out of every message. The scheme
`hsm:` is tested against SoftHSM, `file2:` against files; the clouds' are passed through untested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm

from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers.key_signer import KeySigner
from mint2m_verify.signers.passphrase import Ask, checked
from mint2m_verify.signing import PublicKey, load_public_key, parse_public_key

#: What tells the library where the PKCS #11 module of a hardware token lies.
MODULE_VARIABLE = "PYKCS11LIB"

#: Schemes of securesystemslib whose keys can be of an accepted kind.
SCHEMES = ("hsm", "file2", "awskms", "gcpkms", "azurekms", "hv")

#: What libraries below securesystemslib raise, by module: looked up only where that module is loaded anyway.
_LIBRARY_FAULTS = (
    ("securesystemslib.exceptions", "Error"),
    ("pkcs11.exceptions", "PKCS11Error"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
    ("hvac.exceptions", "VaultError"),
    ("requests.exceptions", "RequestException"),
)

_T = TypeVar("_T")


def uri_signer(uri: str, *, public_key: Path | None, ask: Ask) -> KeySigner:
    """The signer that `uri` names; a token's PIN is asked for at once, so that a run is not trained for nothing.

    Args:
        public_key: its public half in PEM; without it, a hardware token is asked for its own.
        ask: for the PIN of a token.

    Raises:
        FindingError: `signer.uri-unknown`, `signer.public-key-missing`, `signer.secret-missing`, `signer.unavailable`
            or `key.*`.
    """
    scheme = uri.partition(":")[0]
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise FindingError(found("signer.uri-unknown", expected=known, actual=uri))
    if scheme == "hsm" and not os.environ.get(MODULE_VARIABLE):
        raise FindingError(
            found("signer.unavailable", file=uri, expected=f"{MODULE_VARIABLE} with the path of a PKCS #11 module")
        )
    secrets = _Secrets(ask=ask)
    if public_key is not None:
        key = load_public_key(public_key)
    elif scheme == "hsm":
        key = _guarded(uri, secrets, lambda: _hardware_key(uri, secrets))
    else:
        raise FindingError(found("signer.public-key-missing", actual=uri))
    if scheme == "hsm":
        secrets.handler("pin")
    sign = _guarded(uri, secrets, lambda: _library_signer(uri, key, secrets))
    return KeySigner(
        kind="managed",
        public_key=key,
        source=uri,
        sign=lambda message: _guarded(uri, secrets, lambda: sign(message)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secrets:
    """Asks for each secret once a process, and knows which words must not be repeated to anybody."""

    ask: Ask
    known: dict[str, str] = field(default_factory=dict)

    def handler(self, wanted: str) -> str:
        """The secret that the library wants; securesystemslib's `SecretsHandler`."""
        if wanted not in self.known:
            secret = self.ask(wanted)
            if secret is None:
                raise FindingError(found("signer.secret-missing", expected=wanted))
            try:
                self.known[wanted] = checked(secret).decode()
            except UnicodeDecodeError:
                raise FindingError(found("signer.secret-missing", expected=f"{wanted} in UTF-8")) from None
        return self.known[wanted]

    def without(self, text: str) -> str:
        for secret in self.known.values():
            text = text.replace(secret, "…")
        return text


def _library_signer(uri: str, key: PublicKey, secrets: _Secrets) -> Callable[[bytes], bytes]:
    from securesystemslib.signer import Signer, SSlibKey  # type: ignore[attr-defined]  # re-exported implicitly

    signer = Signer.from_priv_key_uri(uri, SSlibKey.from_crypto(key), secrets.handler)
    return lambda message: bytes.fromhex(signer.sign(message).signature)


def _hardware_key(uri: str, secrets: _Secrets) -> PublicKey:
    """The public half of a token's key, read from the token; on some, only after the PIN."""
    from securesystemslib.signer import HSMSigner  # type: ignore[attr-defined]  # re-exported implicitly

    parts = urlsplit(uri)
    number = int(parts.path) if parts.path else None
    label = dict(parse_qsl(parts.query)).get("label")
    _, key = HSMSigner.import_(number, label, secrets.handler)
    return parse_public_key(key.keyval["public"].encode(), file=uri)


def _guarded(uri: str, secrets: _Secrets, call: Callable[[], _T]) -> _T:
    """`call`'s result; what it raises is one finding, and no traceback carries the secret on."""
    try:
        return call()
    except FindingError:
        raise
    except _faults() as fault:
        words = f"{type(fault).__name__}: {fault}".rstrip(": ")
        # securesystemslib's word for a package that is not installed.
        extra = "pip install 'mint2m[hsm]'" if type(fault).__name__ == "UnsupportedLibraryError" else None
        actual = secrets.without(words)[:300]
        hint = extra if uri.startswith("hsm:") else None
        raise FindingError(found("signer.unavailable", file=uri, actual=actual, hint=hint)) from None


def _faults() -> tuple[type[BaseException], ...]:
    named = (getattr(sys.modules.get(module), name, None) for module, name in _LIBRARY_FAULTS)
    ours = (OSError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ImportError, RuntimeError)
    return (*ours, UnsupportedAlgorithm, *(fault for fault in named if isinstance(fault, type)))
