"""Makes the seal of a run directory: what `mint2m run` and `mint2m sign tree` write last; and further signatures of it.

The rule: a signature is written only over a run that verifies with it. The statement names what lies there, the
signature is made, everything is read and checked with it as an auditor will, and only then has it a file; a signer who
is killed meanwhile leaves none. A signature that cannot be forgotten, since a log keeps it, is made after such a check.
A further signer signs the very payload of the first: two signatures over two statements would be two claims, not one
that two made.

The files of a checkpoint are read in that check and not before: a statement names their manifest, which their writers'
digests made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, ConsistencyOnly, KeyAnchor, VerifyOptions
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import Plan, TrainingReceipt
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, Report, found
from mint2m_verify.run import verify_run
from mint2m_verify.signers.signer import Signer
from mint2m_verify.signing import create_file, public_key_pem
from mint2m_verify.statement import BUNDLE_LIMIT, SealStatement, SignerClass, Subject, parse_statement, seal_statement
from mint2m_verify.walk import Hashing, Progress, read_tree

#: What other machines of the signer have read, by path in the tree.
Elsewhere: TypeAlias = Mapping[str, HashedElsewhere]

#: The numbers of further signatures; the first is the seal itself.
COSIGNATURES = range(2, 10)


def statement_of(root: Path, *, signer: SignerClass, elsewhere: Elsewhere | None = None) -> SealStatement:
    """The statement over the run directory as it lies there; every file outside trees and attestations is a subject.

    Raises:
        FindingError: a name that cannot be read, or a plan or receipt that is missing or malformed.
    """
    hashing = Hashing(elsewhere=elsewhere or {}, wanted=_is_subject)
    snapshot = read_tree(root, keep=layout.kept_bytes, hashing=hashing)
    for fault in snapshot.findings:
        raise FindingError(fault)
    raw = {file.path: file.raw for file in snapshot.files}
    plan = Plan.parse(_present(raw.get(layout.PLAN), layout.PLAN), file=layout.PLAN)
    receipt = TrainingReceipt.parse(_present(raw.get(layout.RECEIPT), layout.RECEIPT), file=layout.RECEIPT)
    return seal_statement(
        subjects=(Subject(name=file.path, sha256=file.entry.sha256) for file in snapshot.files),
        execution_id=receipt.execution_id,
        plan_sha256=plan.plan_sha256,
        claim_scope=receipt.claim_scope,
        hardware_class=receipt.hardware_class,
        signer=signer,
    )


def _is_subject(path: str) -> bool:
    return not path.startswith(layout.ATTESTATIONS) and layout.tree_of(path) is None


def seal_run(
    root: Path,
    signer: Signer,
    *,
    key_file: Path | None = None,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
) -> Report:
    """Sign `root` and write its seal; the run must be consistent with itself, and without a seal.

    Args:
        key_file: where the signer's key lies, if it lies in a file.

    Returns:
        What an auditor who trusts this signer would be told.

    Raises:
        FindingError: `file.exists` for a second seal, `signer.*`, or what is wrong with the run; nothing is left then.
    """
    place = root / layout.SEAL
    if place.exists():
        raise FindingError(found("file.exists", file=str(place), hint="--cosign adds a signature to a seal"))
    options = VerifyOptions(progress=progress, elsewhere=elsewhere or {})
    _check_before(root, signer, options)
    statement = statement_of(root, signer=signer.kind, elsewhere=elsewhere)
    bundle = signer.sign_statement(statement.payload)
    return _check_and_write(root, place, bundle, own_anchor(signer, key_file), options)


def cosign_run(
    root: Path, signer: Signer, *, progress: Progress | None = None, elsewhere: Elsewhere | None = None
) -> tuple[Path, Report]:
    """Add `signer`'s signature to the seal of `root`, over the same payload.

    Returns:
        The file that holds it, and what whoever asks for no origin would be told.

    Raises:
        FindingError: `seal.missing`, `file.exists` where all places are taken, `seal.*`, `signer.*`, or what is wrong
            with the run; then nothing is written.
    """
    first = root / layout.SEAL
    if not first.exists():
        raise FindingError(found("seal.missing", file=layout.SEAL))
    raw = read_once(first, name=layout.SEAL, limit=BUNDLE_LIMIT)
    statement = parse_statement(_payload(raw), file=layout.SEAL)
    for place in (root / path for path in layout.COSIGNATURES):
        if not place.exists():
            options = VerifyOptions(progress=progress, elsewhere=elsewhere or {})
            _check_before(root, signer, options)
            bundle = signer.sign_statement(statement.payload)
            return place, _check_and_write(root, place, bundle, ConsistencyOnly(), options)
    most = f"at most {len(layout.COSIGNATURES) + 1} signatures"
    raise FindingError(found("file.exists", file=str(first.parent), expected=most))


def sign_tree(
    root: Path,
    signer: Signer,
    *,
    key_file: Path | None = None,
    output: Path | None = None,
    cosign: bool = False,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
) -> Report:
    """`mint2m sign tree DIR`: seal the run, or add to its seal; with `output`, sign the files of any directory.

    What is asked for decides, never what lies there: a seal and a model signature are different claims.

    Args:
        key_file: where the signer's key lies, if it lies in a file.
        output: where to write an OpenSSF model_signing signature.
        elsewhere: what other machines of the signer have read of the tree, by path.

    Returns:
        What an auditor who trusts this signer would be told.
    """
    if output is not None:
        from mint2m_verify.model_signing import sign_and_verify

        if cosign:
            raise FindingError(found("usage.invalid", expected="--cosign or --output", actual="both"))
        return sign_and_verify(root, signer, output, key_file=key_file, progress=progress, elsewhere=elsewhere)
    if not any((root / path).exists() for path in layout.REQUIRED_FILES):
        expected = "a run directory, or --output FILE for the files of any other"
        raise FindingError(found("usage.invalid", expected=expected, actual=str(root)))
    if cosign:
        return cosign_run(root, signer, progress=progress, elsewhere=elsewhere)[1]
    return seal_run(root, signer, key_file=key_file, progress=progress, elsewhere=elsewhere)


def own_anchor(signer: Signer, path: Path | None) -> KeyAnchor | ConsistencyOnly:
    """What a signer can anchor its own seal with: its public key; a certificate vouches only under somebody's policy.

    Args:
        path: where the signer keeps the key; None where it is in no file.
    """
    if signer.public_key is None:
        return ConsistencyOnly()
    place = Path(os.devnull) if path is None else path  # never a file of the evidence
    status = place.resolve().stat()
    return KeyAnchor(
        path=place,
        key=signer.public_key,
        file_sha256=sha256_hex(public_key_pem(signer.public_key)),
        device=status.st_dev,
        inode=status.st_ino,
    )


def _check_before(root: Path, signer: Signer, options: VerifyOptions) -> None:
    """Where a signature cannot be forgotten, since a log keeps it, the run is judged before there is one."""
    if signer.kind != "certificate":
        return
    report = verify_run(root, ConsistencyOnly(), options)
    for fault in report.roots:
        if fault.id != "seal.missing":
            raise FindingError(fault)


def _check_and_write(root: Path, place: Path, bundle: bytes, anchor: Anchor, options: VerifyOptions) -> Report:
    # Whole digests, too: nobody may be able to show a manifest under this signature that contradicts itself.
    proposed = {place.relative_to(root).as_posix(): bundle}
    report = verify_run(root, anchor, replace(options, whole_digests=True, proposed=proposed))
    for fault in report.roots:
        raise FindingError(fault)
    place.parent.mkdir(exist_ok=True)
    create_file(place, bundle)
    return report


def _payload(raw: bytes) -> bytes:
    """What the first signature is over, not yet verified: the signer's own anchor does that, or the auditor's."""
    from mint2m_verify.sigstore_bundle import Envelope, read_bundle

    content = read_bundle(raw, file=layout.SEAL).content
    if not isinstance(content, Envelope):
        raise FindingError(found("seal.bundle-invalid", file=layout.SEAL, expected="a DSSE envelope"))
    return content.payload


def _present(raw: bytes | None, path: str) -> bytes:
    if raw is None:
        raise FindingError(found("file.missing", file=path))
    return raw
