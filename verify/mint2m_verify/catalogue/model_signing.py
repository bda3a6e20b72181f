"""Findings about OpenSSF model signatures."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="model-signature.key-unsupported",
        verdict=Verdict.BLOCKED,
        message="model signatures are made and checked with P-256 keys only",
        explanation=(
            "model_signing refuses Ed25519, and the curves beyond P-256 are not read by every tool that checks these signatures.\n"
            "Nothing was signed or verified. `mint2m keys new NAME` makes a P-256 pair."
        ),
    ),
    Entry(
        id="model-signature.statement-invalid",
        verdict=Verdict.FAILED,
        message="the signed statement has not the shape of a model signature",
        explanation=(
            "The payload should be an in-toto statement with one subject, a serialization and a list of files. A member is missing or\n"
            "of another type, so the list cannot be read."
        ),
    ),
    Entry(
        id="model-signature.type-mismatch",
        verdict=Verdict.FAILED,
        message="what was signed is no model signature v1.0",
        explanation=(
            "The signature may be good, but it is over something else: another kind of statement, or one file. A signature of one kind\n"
            "never stands in for one of another. Signatures of model_signing before 1.0 must be made again."
        ),
    ),
    Entry(
        id="model-signature.method-unsupported",
        verdict=Verdict.INCOMPLETE,
        message="the files were hashed in a way that is not checked here",
        explanation=(
            "Model signatures may list pieces of files, or BLAKE digests. Here only whole files by SHA-256 are checked, which is\n"
            "model_signing's default. Ask for a signature made that way, or check this one with model_signing itself."
        ),
    ),
    Entry(
        id="model-signature.list-invalid",
        verdict=Verdict.FAILED,
        message="the signed list of files is not a proper list",
        explanation=(
            "The list is empty, names a file twice or out of order, or holds a path that leads out of the directory or a digest that\n"
            "is none. Such a list could be read two ways, and its signer cannot be asked which one was meant."
        ),
    ),
    Entry(
        id="model-signature.subject-mismatch",
        verdict=Verdict.FAILED,
        message="the statement contradicts its own list of files",
        explanation=(
            "The subject's digest is computed from the digests of the list, and this one is another. The statement was put together\n"
            "from parts, or made by a tool that follows other rules."
        ),
    ),
    Entry(
        id="model-signature.ignores-more",
        verdict=Verdict.FAILED,
        message="the signer left out more than the usual",
        explanation=(
            "A model signature names paths that it does not cover. Accepted are only git's own files and the signature itself; this one\n"
            "leaves out more, and whatever lies there could be changed by anybody. Have the whole directory signed."
        ),
    ),
)
