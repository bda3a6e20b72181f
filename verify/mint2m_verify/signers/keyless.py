"""Signs by an identity instead of a key: sigstore-python, with the trust configuration that the caller gives.

The rule: where to ask for certificates, log entries and timestamps, and what their answers must verify against, comes
from one file named by the caller; nothing is fetched to learn it and no cache is read. What comes back is verified
against that file's own trusted root before it is written. The identity token lives for minutes, so it is read when it
is needed; only whether there is one is looked at beforehand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mint2m_verify.canonical import canonical, parse
from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named
from mint2m_verify.signers.signer import SignerKind
from mint2m_verify.signing import PublicKey
from mint2m_verify.sigstore_bundle import (
    Artifact,
    Envelope,
    SignedBundle,
    TrustRoot,
    parse_root,
    read_bundle,
    verify_bundle,
)

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import Signer as LibrarySigner
    from sigstore.sign import SigningContext

#: sigstore-python's own variable for an identity token.
TOKEN_VARIABLE = "SIGSTORE_IDENTITY_TOKEN"

#: Seconds that a service may take to accept a connection, and to answer: a log answers once an entry is in its tree.
PATIENCE = 60.0

_T = TypeVar("_T")

_CONFIG_LIMIT = 4 << 20
_TOKEN_LIMIT = 64 << 10


def keyless_signer(configuration: Path, *, identity_token: Path | None) -> KeylessSigner:
    """A signer by the services that a client trust configuration names.

    Args:
        identity_token: a file with an OpenID Connect token; without it, the environment is looked at, and then whether
            this machine offers one (GitHub Actions and others do).

    Raises:
        FindingError: `input.missing`, `file.*`, `json.*`, `signer.configuration-invalid`, `signer.token-missing`.
    """
    shown = str(configuration)
    raw = read_named(configuration, limit=_CONFIG_LIMIT)
    document = parse(raw, file=shown)
    from sigstore.models import ClientTrustConfig

    trust = _guarded("signer.configuration-invalid", shown, lambda: _usable(ClientTrustConfig.from_json(raw.decode())))
    trusted_root = document.get("trustedRoot") if isinstance(document, dict) else None
    root = parse_root(canonical(trusted_root), name=shown)
    signer = KeylessSigner(configuration=shown, trust=trust, root=root, identity_token=identity_token)
    signer.raw_token()
    return signer


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSigner:
    """Each signature is by a fresh key, for which a certificate is asked with the identity token."""

    configuration: str
    trust: ClientTrustConfig
    root: TrustRoot
    identity_token: Path | None
    kind: SignerKind = "certificate"
    public_key: PublicKey | None = None

    def describe(self) -> str:
        return f"an identity, by the services of {Path(self.configuration).name}"

    def sign_statement(self, payload: bytes) -> bytes:
        from sigstore import dsse

        bundle = self._signed(lambda signer: signer.sign_dsse(dsse.Statement(payload)))
        content = bundle.content
        if not isinstance(content, Envelope) or content.payload != payload:
            raise self._invalid("a bundle over another payload")
        return self._verified(bundle, artifact=None)

    def sign_digest(self, sha256: bytes) -> bytes:
        from sigstore.hashes import Hashed
        from sigstore_models.common.v1 import HashAlgorithm

        hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=sha256)
        bundle = self._signed(lambda signer: signer.sign_artifact(hashed))
        return self._verified(bundle, artifact=Artifact(name=None, sha256=sha256.hex()))

    def sign_artifact(self, raw: bytes) -> bytes:
        return self.sign_digest(hashlib.sha256(raw).digest())

    def raw_token(self) -> str:
        """The identity token as it is found now; raises `FindingError` (`signer.token-missing`) where there is none."""
        if self.identity_token is not None:
            token = read_named(self.identity_token, limit=_TOKEN_LIMIT).decode("ascii", "replace").strip()
        else:
            from sigstore.oidc import detect_credential

            token = os.environ.get(TOKEN_VARIABLE) or (
                _guarded("signer.token-invalid", self.configuration, detect_credential) or ""
            )
        if not token:
            raise FindingError(found("signer.token-missing", file=_shown(self.identity_token)))
        return token

    def _signed(self, sign: Callable[[LibrarySigner], Bundle]) -> SignedBundle:
        """One bundle in RFC 8785 form, read back from exactly the bytes that will be written."""
        from sigstore.oidc import IdentityToken
        from sigstore.sign import SigningContext

        raw_token = self.raw_token()
        token: IdentityToken = _guarded(
            "signer.token-invalid", _shown(self.identity_token) or self.configuration, lambda: IdentityToken(raw_token)
        )

        def obtain() -> bytes:
            with _impatient(SigningContext.from_trust_config(self.trust)).signer(token, cache=True) as signer:
                return sign(signer).to_json().encode()

        raw = canonical(parse(_guarded("signer.refused", self.configuration, obtain), file=self.configuration))
        return read_bundle(raw, file=self.configuration)

    def _verified(self, bundle: SignedBundle, *, artifact: Artifact | None) -> bytes:
        """The bundle's bytes, once they verify as an auditor with this root would verify them."""
        result = verify_bundle(bundle, root=self.root, artifact=artifact)
        for fault in result.findings:
            raise self._invalid(f"{fault.id}: {fault.message}") from FindingError(fault)
        return bundle.raw

    def _invalid(self, why: str) -> FindingError:
        return FindingError(found("signer.result-invalid", file=self.configuration, actual=why))


def _impatient(context: SigningContext) -> SigningContext:
    """`context` itself, whose clients no longer wait for ever for an answer, as the library leaves them to."""
    from requests.adapters import HTTPAdapter

    class Impatient(HTTPAdapter):
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            options["timeout"] = options.get("timeout") or PATIENCE
            return super().send(request, *args, **options)

    for session in (context._fulcio.session, context._rekor._session):  # type: ignore[attr-defined]  # both clients' own
        for scheme in ("https://", "http://"):
            session.mount(scheme, Impatient())
    return context


def _usable(trust: ClientTrustConfig) -> ClientTrustConfig:
    """`trust` itself, once the library has been seen to find in it what it will need."""
    trust.signing_config.get_fulcio()
    trust.signing_config.get_tlogs()
    return trust


def _shown(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _guarded(id: str, file: str, call: Callable[[], _T]) -> _T:
    """`call`'s result; what the library is known to raise is one finding: `id`, or `signer.unreachable`."""
    try:
        return call()
    except _faults() as fault:
        words = f"{type(fault).__name__}: {fault}".rstrip(": ")[:300]
        id = "signer.unreachable" if isinstance(fault, _unreachable()) else id
        raise FindingError(found(id, file=file, actual=words)) from fault


def _unreachable() -> tuple[type[BaseException], ...]:
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout
    from sigstore.errors import NetworkError

    return (NoConnection, Timeout, NetworkError)


def _faults() -> tuple[type[BaseException], ...]:
    from requests.exceptions import RequestException
    from sigstore._internal.fulcio import ExpiredCertificate
    from sigstore._internal.fulcio.client import FulcioClientError
    from sigstore._internal.rekor import RekorClientError
    from sigstore._internal.timestamp import TimestampError
    from sigstore.errors import Error
    from sigstore.oidc import ExpiredIdentity

    services = (RequestException, FulcioClientError, ExpiredCertificate, RekorClientError, TimestampError)
    # The last ones leak from inside: an answer of a service that has not the shape that the library takes for granted.
    return (Error, ExpiredIdentity, *services, ValueError, TypeError, LookupError, AttributeError, AssertionError)
