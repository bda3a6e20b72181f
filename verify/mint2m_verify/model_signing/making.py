"""Makes a model signature: `mint2m sign tree DIR --key F --output F`.

The rule: what is signed is what model_signing's own verifier will look at with its defaults, so that it accepts what is
signed here; and the signature is checked against the files again before its signer is told that it is there.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from mint2m_verify.anchor import VerifyOptions
from mint2m_verify.finding import FindingError, Report, found
from mint2m_verify.model_signing.check import verify_model
from mint2m_verify.model_signing.files import place_within, read_model
from mint2m_verify.model_signing.form import (
    DEFAULT_IGNORES,
    ModelStatement,
    Resource,
    by_components,
    encode_statement,
)
from mint2m_verify.model_signing.hint import pem_hint
from mint2m_verify.sealing import Elsewhere, own_anchor
from mint2m_verify.signers import bundle_form
from mint2m_verify.signers.bundle_form import STATEMENT_PAYLOAD
from mint2m_verify.signers.key_signer import KeySigner
from mint2m_verify.signers.signer import Signer
from mint2m_verify.signing import create_file
from mint2m_verify.walk import Progress


def sign_model(
    root: Path,
    signer: KeySigner,
    *,
    output: Path,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
) -> bytes:
    """The signature of every file below `root`, as a Sigstore bundle; `output` is where it will lie.

    Raises:
        FindingError: `tree.*`, `input.*`, `model-signature.key-unsupported`, `signer.*`.
    """
    _check_key(signer)
    beside = place_within(root, output)
    ignored = sorted({*DEFAULT_IGNORES, *(() if beside is None else (beside,))})
    model = read_model(root, ignored=ignored, progress=progress, elsewhere=elsewhere)
    for fault in model.findings:
        raise FindingError(fault)
    if not model.files:
        raise FindingError(found("tree.empty", file=str(root)))
    resources = (Resource(path=entry.path, sha256=entry.sha256) for entry in model.entries)
    statement = ModelStatement(
        name=root.resolve().name,
        resources=tuple(sorted(resources, key=lambda resource: by_components(resource.path))),
        ignored=tuple(ignored),
    )
    payload = encode_statement(statement)
    signature = signer.sign_message(bundle_form.signed_bytes(payload, STATEMENT_PAYLOAD))
    return bundle_form.envelope_bundle(
        {"publicKey": {"hint": pem_hint(signer.public_key)}, "tlogEntries": []},
        bundle_form.envelope(payload, STATEMENT_PAYLOAD, signature),
    )


def sign_and_verify(
    root: Path,
    signer: Signer,
    output: Path,
    *,
    key_file: Path | None = None,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
) -> Report:
    """Sign `root`, write the signature to a new file and verify it with the signer's own public key.

    Args:
        key_file: where the signer's key lies, which must not be among the files that are signed.
        elsewhere: what other machines of the signer have read of the tree, by path.

    Raises:
        FindingError: `file.exists`, `file.unwritable`, or as `sign_model`; nothing is left then.
    """
    if output.exists() or output.is_symlink():
        raise FindingError(found("file.exists", file=str(output)))
    if not isinstance(signer, KeySigner):
        raise FindingError(found("model-signature.key-unsupported", actual=signer.describe()))
    create_file(output, sign_model(root, signer, output=output, progress=progress, elsewhere=elsewhere))
    try:
        options = VerifyOptions(progress=progress, elsewhere=elsewhere or {})
        report = verify_model(root, output, own_anchor(signer, key_file), options)
        for fault in report.roots:
            raise FindingError(fault)
    except BaseException:
        output.unlink()  # what its own signer refuses, or has not judged, is nobody's to hold
        raise
    return report


def _check_key(signer: KeySigner) -> None:
    if not isinstance(signer.public_key, ec.EllipticCurvePublicKey):
        raise FindingError(found("model-signature.key-unsupported", actual=signer.describe()))
