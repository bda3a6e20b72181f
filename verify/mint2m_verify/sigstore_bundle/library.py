"""What sigstore-python decides, and what it is told.

The rule: the library's own front door, `verify_artifact` and `verify_dsse`, says whether a certificate bundle holds, so
that whatever it learns to refuse is refused here too. It is told less than it would assume: authorities whose window
holds the signing times, each log's key under that log's id alone, and the times that were verified here. So windows
are enforced by construction, and no unknown log id makes it try every key of the root.

`TrustedRoot` is made from the bytes whose digest is reported, not from a path that could lead elsewhere the second
time. Nothing here reads HOME or opens a socket: `Verifier.production` would trust a cache that nobody verified.
"""

from __future__ import annotations

import copy
import logging
from datetime import datetime
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate
from sigstore._internal.sct import verify_sct
from sigstore._internal.timestamp import TimestampSource, TimestampVerificationResult
from sigstore._internal.trust import CTKeyring, Key, Keyring, KeyringPurpose, RekorKeyring
from sigstore._utils import KeyID
from sigstore.errors import VerificationError
from sigstore.hashes import Hashed
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier
from sigstore_models.common.v1 import HashAlgorithm
from sigstore_models.trustroot.v1 import TransparencyLogInstance
from sigstore_models.trustroot.v1 import TrustedRoot as RootModel

from mint2m_verify.sigstore_bundle.boundary import Refusal, guarded
from mint2m_verify.sigstore_bundle.model import Envelope, SignedBundle, SignedTime
from mint2m_verify.sigstore_bundle.root import TrustRoot

# Without a handler the library's warnings would reach stderr by the last resort; findings say what is to be said.
logging.getLogger("sigstore").addHandler(logging.NullHandler())


def root_refusal(root: TrustRoot) -> Refusal | None:
    """Why the library cannot use a root that was read here; None where it can."""
    made = guarded(lambda: _verifier(root, tuple(range(len(root.authorities)))))
    return made if isinstance(made, Refusal) else None


def parsed(bundle: SignedBundle) -> Bundle | Refusal:
    """The bundle as the library reads it."""
    return guarded(lambda: Bundle.from_json(bundle.raw))


def refusal(
    bundle: SignedBundle,
    read: Bundle,
    root: TrustRoot,
    *,
    authorities: tuple[int, ...],
    times: tuple[SignedTime, ...],
    artifact_sha256: str | None,
) -> Refusal | None:
    """Why the library refuses a certificate bundle; None where it accepts it.

    An `intoto` entry is of a kind that the library no longer knows: certificate, times and log are then its word, the
    signature and what the entry is about are left to the caller.

    Args:
        read: the same bundle, from `parsed`.
        authorities: positions in the root of those whose window holds every one of `times`.
        artifact_sha256: of what a message signature is over.
    """

    def decide() -> Refusal | None:
        verifier = _verifier(root, authorities).at(times)
        if bundle.entries[0].kind == "intoto":
            verifier._verify_common_signing_cert(read, _ANYBODY)
        elif isinstance(bundle.content, Envelope):
            kind, payload = verifier.verify_dsse(read, _ANYBODY)
            if (kind, payload) != (bundle.content.payload_type, bundle.content.payload):
                return Refusal(words="the library verified another payload than was read here")
        else:
            digest = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(artifact_sha256 or ""))
            verifier.verify_artifact(digest, read, _ANYBODY)
        return None if verifier.asked else Refusal(words="the library took its times from elsewhere")

    return guarded(decide)


def chain(
    root: TrustRoot, authorities: tuple[int, ...], certificate: Certificate, time: datetime
) -> list[Certificate] | Refusal:
    """Certificates from the issuer of `certificate` to an authority of the root, all valid at `time`."""
    moment = TimestampVerificationResult(source=TimestampSource.TIMESTAMP_AUTHORITY, time=time)
    return guarded(lambda: _verifier(root, authorities)._verify_chain_at_time(certificate, moment))


def sct_refusal(root: TrustRoot, certificate: Certificate, issuers: list[Certificate]) -> Refusal | None:
    """Why the certificate's note of the certificate log does not hold."""
    return guarded(lambda: verify_sct(certificate, issuers, _root(root).ct_keyring(KeyringPurpose.VERIFY)))


class _Anybody:
    """A policy that judges nobody: who may sign is decided elsewhere, by findings that show both sides."""

    def verify(self, cert: Certificate) -> None:
        """Accept; sigstore's own policy of this kind warns that it does."""


_ANYBODY = _Anybody()


class _StrictKeyring(Keyring):
    """Each log's key under the id that the root gives that log. The library's falls back to all keys, by other ids."""

    def __init__(self, logs: list[TransparencyLogInstance]) -> None:
        self._keys: dict[bytes, Key] = {}
        for log in logs:
            try:
                self._keys[log.log_id.key_id] = Key(log.public_key)
            except VerificationError:
                continue  # a kind of key that the library cannot use; entries of that log are refused for it

    def verify(self, *, key_id: KeyID, signature: bytes, data: bytes) -> None:
        key = self._keys.get(key_id)
        if key is None:
            raise VerificationError("no usable key of this log in the trusted root")
        try:
            key.verify(signature, data)
        except InvalidSignature as fault:
            raise VerificationError("not a signature of this log's key") from fault


class _StrictRoot(TrustedRoot):
    """The trusted root with strict keyrings, built once: the library builds one for each bundle."""

    def __init__(self, inner: RootModel) -> None:
        super().__init__(inner)
        self._logs = RekorKeyring(_StrictKeyring(inner.tlogs))
        self._ct_logs = CTKeyring(_StrictKeyring(inner.ctlogs))

    def rekor_keyring(self, purpose: KeyringPurpose) -> RekorKeyring:
        return self._logs

    def ct_keyring(self, purpose: KeyringPurpose) -> CTKeyring:
        return self._ct_logs


class _TimedVerifier(Verifier):
    """The library's verifier, at times that are already verified: `asked` says whether it used them."""

    def __init__(self, *, trusted_root: TrustedRoot) -> None:
        super().__init__(trusted_root=trusted_root)
        self.asked = False
        self._times: list[TimestampVerificationResult] = []

    def at(self, times: tuple[SignedTime, ...]) -> _TimedVerifier:
        """This verifier for one bundle with these times."""
        other = copy.copy(self)
        sources = {
            "timestamp-authority": TimestampSource.TIMESTAMP_AUTHORITY,
            "transparency-log": TimestampSource.TRANSPARENCY_SERVICE,
        }
        other._times = [TimestampVerificationResult(source=sources[time.source], time=time.time) for time in times]
        return other

    def _establish_time(self, bundle: Bundle) -> list[TimestampVerificationResult]:
        self.asked = True
        return self._times


@lru_cache(maxsize=8)
def _root(root: TrustRoot) -> _StrictRoot:
    return _StrictRoot(RootModel.from_json(root.raw))


@lru_cache(maxsize=64)
def _verifier(root: TrustRoot, authorities: tuple[int, ...]) -> _TimedVerifier:
    """A verifier that knows only some of the root's certificate authorities."""
    whole = _root(root)
    some = copy.copy(whole)
    some._inner = whole._inner.model_copy(
        update={"certificate_authorities": [whole._inner.certificate_authorities[n] for n in authorities]}
    )
    return _TimedVerifier(trusted_root=some)
