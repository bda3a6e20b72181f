"""Findings about the seal: its bundle, its statement and what it covers."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="seal.missing",
        verdict=Verdict.FAILED,
        message="the run has no seal",
        explanation=(
            "attestations/seal.sigstore.json is absent, so nothing says which files belong to the run or who answers for them.\n"
            "The run was interrupted before signing, or the seal was removed. `mint2m sign tree DIR --key F` seals a complete run."
        ),
    ),
    Entry(
        id="seal.bundle-invalid",
        verdict=Verdict.FAILED,
        message="the seal's bundle is malformed",
        explanation=(
            "A seal is a Sigstore bundle v0.3 with a public-key hint and a DSSE envelope with exactly one signature, in standard\n"
            "base64. Unknown members, a second signature and other spellings are refused, since tools disagree about them.\n"
            "Nothing in the seal was believed. The pointer says where the bundle departs from its format."
        ),
    ),
    Entry(
        id="seal.invalid",
        verdict=Verdict.FAILED,
        message="the sealed statement is malformed",
        explanation=(
            "The payload must be an in-toto Statement v1 with predicate type urn:mint2m:predicate:seal:v1, kind `training`, stage\n"
            "`run`, and a non-empty list of subjects, sorted, unique, with safe relative paths and one SHA-256 each.\n"
            "A signature over something else, even a valid one, does not seal a run."
        ),
    ),
    Entry(
        id="seal.binding-mismatch",
        verdict=Verdict.FAILED,
        message="the seal is about another run than these files",
        explanation=(
            "The seal's predicate names an execution, plan, claim scope or hardware class, and the files under it name another.\n"
            "The seal of one run was put beside the files of another, or it was made over files that do not belong together."
        ),
    ),
    Entry(
        id="seal.subject-inside-tree",
        verdict=Verdict.FAILED,
        message="the seal names a file that a manifest covers",
        explanation=(
            "Files of checkpoint/, adapter/ and the other trees are covered by their manifests, which the seal names; files of\n"
            "attestations/ are not sealed. A seal that names one of them directly was not made by this tool and could disagree\n"
            "with the manifest."
        ),
    ),
    Entry(
        id="seal.cosignature-differs",
        verdict=Verdict.FAILED,
        message="a co-signature is over another statement than the seal",
        explanation=(
            "attestations/seal.2.sigstore.json and so on are further signatures over the seal's own payload, byte for byte. This one is\n"
            "over something else: of another run, or of this run before it was sealed again."
        ),
    ),
    Entry(
        id="seal.not-a-subject",
        verdict=Verdict.FAILED,
        message="the seal does not name this file",
        explanation=(
            "The seal is genuine and covers other bytes: this file was changed after signing, or is of another run. Take the file\n"
            "from the run directory that the seal belongs to."
        ),
    ),
)
