"""Makes the seal of a run directory: what `mint2m run` and `mint2m sign tree` write last.

The rule: a signature is given only to a run that verifies. The signer reads and checks everything that an auditor
will, apart from the seal that does not exist yet, and then signs the digests of exactly those bytes.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import ConsistencyOnly, KeyAnchor, VerifyOptions
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import Plan, TrainingReceipt
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, Report, found
from mint2m_verify.run import verify_run
from mint2m_verify.signing import PrivateKey, load_private_key, public_key_pem
from mint2m_verify.statement import SealStatement, SignerClass, Subject, seal_statement, sign
from mint2m_verify.walk import Progress, read_tree


def statement_of(root: Path, *, signer: SignerClass, progress: Progress | None = None) -> SealStatement:
    """The statement over the run directory as it lies there; every file outside trees and attestations is a subject.

    Raises:
        FindingError: a name that cannot be read, or a plan or receipt that is missing or malformed.
    """
    snapshot = read_tree(root, keep=layout.kept_bytes, progress=progress)
    for fault in snapshot.findings:
        raise FindingError(fault)
    raw = {file.path: file.raw for file in snapshot.files}
    plan = Plan.parse(_present(raw.get(layout.PLAN), layout.PLAN), file=layout.PLAN)
    receipt = TrainingReceipt.parse(_present(raw.get(layout.RECEIPT), layout.RECEIPT), file=layout.RECEIPT)
    return seal_statement(
        subjects=(
            Subject(name=file.path, sha256=file.entry.sha256)
            for file in snapshot.files
            if not file.path.startswith(layout.ATTESTATIONS) and layout.tree_of(file.path) is None
        ),
        execution_id=receipt.execution_id,
        plan_sha256=plan.plan_sha256,
        claim_scope=receipt.claim_scope,
        hardware_class=receipt.hardware_class,
        signer=signer,
    )


def seal_run(root: Path, key: PrivateKey, *, signer: SignerClass, progress: Progress | None = None) -> SealStatement:
    """Sign `root` and write its seal; the run must be consistent with itself, and without a seal.

    Raises:
        FindingError: `file.exists` for a second seal, or what is wrong with the run; then nothing is written.
    """
    place = root / layout.SEAL
    if place.exists():
        raise FindingError(found("file.exists", file=str(place)))
    statement = statement_of(root, signer=signer, progress=progress)
    place.parent.mkdir(exist_ok=True)
    write_atomic(place, sign(statement, key))
    report = verify_run(root, ConsistencyOnly(), VerifyOptions(progress=progress))
    for fault in report.roots:
        # The seal is taken back: nobody shall hold a signature over a run that its own signer refuses.
        place.unlink()
        raise FindingError(fault)
    return statement


def seal_run_with_key(root: Path, key_path: Path) -> Report:
    """`mint2m sign tree DIR --key F`: seal the run and verify it with the public half of the same key."""
    key = load_private_key(key_path)
    seal_run(root, key, signer="managed")
    return verify_run(root, own_anchor(key, key_path), VerifyOptions())


def own_anchor(key: PrivateKey, path: Path) -> KeyAnchor:
    """The public half of a signer's own key as an anchor; `path` is where the signer keeps it."""
    status = path.resolve().stat()
    public = key.public_key()
    return KeyAnchor(
        path=path,
        key=public,
        file_sha256=sha256_hex(public_key_pem(public)),
        device=status.st_dev,
        inode=status.st_ino,
    )


def _present(raw: bytes | None, path: str) -> bytes:
    if raw is None:
        raise FindingError(found("file.missing", file=path))
    return raw
