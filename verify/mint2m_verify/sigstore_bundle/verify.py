"""`verify_bundle`: whether a bundle holds, and who signed it when. Whether that signer may sign is not asked here.

The rule: a bundle is verified whole or not at all. What it carries beyond the signature (a log entry, a timestamp, a
second certificate) is verified too wherever a root is given, since somebody may read it; what is missing is a fact that
`Verified` states, for a policy to judge. Heavy imports wait until there is a certificate or a token.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from mint2m_verify.finding import found
from mint2m_verify.signing import PublicKey
from mint2m_verify.sigstore_bundle.content import Signed, read_content
from mint2m_verify.sigstore_bundle.model import Artifact, Result, SignedBundle
from mint2m_verify.sigstore_bundle.root import TrustRoot


def verify_bundle(
    bundle: SignedBundle,
    *,
    root: TrustRoot | None,
    keys: Sequence[PublicKey] = (),
    artifact: Artifact | None = None,
) -> Result:
    """Verify one bundle, offline. Never raises for evidence, however bad: every reason is a finding.

    Args:
        root: needed for certificates; the log entries and timestamps of a key's bundle are verified against it, and
            without it count for nothing.
        keys: keys that the caller trusts; a key's bundle must be signed by one of them.
        artifact: what the signature should be about. Without it a message signature is held against the digest that
            the bundle itself states.
    """
    signed = read_content(bundle, artifact)
    with warnings.catch_warnings():
        # cryptography warns on stderr of odd certificates, which whoever made the bundle would then write there.
        warnings.simplefilter("ignore")
        return _verify(bundle, root, keys, artifact, signed)


def _verify(
    bundle: SignedBundle,
    root: TrustRoot | None,
    keys: Sequence[PublicKey],
    artifact: Artifact | None,
    signed: Signed,
) -> Result:
    if bundle.material == "public-key":
        from mint2m_verify.sigstore_bundle.key_bundle import verify_key_bundle

        return verify_key_bundle(bundle, root, keys, artifact, signed)
    if root is None:
        return Result(verified=None, findings=(found("sigstore.root-needed", file=bundle.file),))
    from mint2m_verify.sigstore_bundle import no_socket

    no_socket.prepare()
    from mint2m_verify.sigstore_bundle.certificate_bundle import verify_certificate_bundle

    return verify_certificate_bundle(bundle, root, signed)
