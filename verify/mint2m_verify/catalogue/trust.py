"""Findings about the anchor: what the auditor brought, and whether it can carry a verdict."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="trust.no-anchor",
        verdict=Verdict.UNTRUSTED,
        message="nothing you supplied says who should have signed this",
        explanation=(
            "Evidence can only be believed against something that did not come with it: a public key, or a digest that you\n"
            "got another way. Without one, anybody could have made all of it, consistently.\n"
            "Give --key or --digest. --consistency-only shows that the evidence agrees with itself, and no more."
        ),
        hint="give --key PUB or --digest SHA256; a key found inside the evidence does not count",
    ),
    Entry(
        id="trust.key-inside-evidence",
        verdict=Verdict.UNTRUSTED,
        message="the key lies inside the evidence",
        explanation=(
            "The file given as --key is one of the files under verification: the same path, the same file under another name,\n"
            "or the same bytes. Whoever made the evidence also chose that key, so it proves nothing about who that was.\n"
            "Get the public key through another channel and keep it elsewhere."
        ),
    ),
    Entry(
        id="trust.policy-inside-evidence",
        verdict=Verdict.UNTRUSTED,
        message="the policy or its trusted root lies inside the evidence",
        explanation=(
            "The file given as --policy or --trusted-root is one of the files under verification: the same path, the same file under\n"
            "another name, or the same bytes. Whoever made the evidence also chose that bar. Get policy and root through another channel."
        ),
    ),
    Entry(
        id="trust.digest-mismatch",
        verdict=Verdict.UNTRUSTED,
        message="this is not what your digest names",
        explanation=(
            "The SHA-256 you gave is not that of the evidence at hand. For a run it is the digest of the seal's payload (the\n"
            "report shows it as `seal`), for a checkpoint or manifest the root digest or the digest of the manifest file, for\n"
            "a receipt the digest of its file. Either the digest is for something else, or this is not the thing you were promised."
        ),
    ),
    Entry(
        id="trust.expectation-mismatch",
        verdict=Verdict.INCOMPLETE,
        message="genuine or not, this is not the evidence you asked for",
        explanation=(
            "An --expect option names a plan, nonce, seal or source, and the evidence is about another one. It may be an\n"
            "honest run of something else, or an old run offered again. Compare the expected and the found value."
        ),
    ),
    Entry(
        id="trust.no-seal",
        verdict=Verdict.UNTRUSTED,
        message="no seal says that your key vouches for this file",
        explanation=(
            "A manifest or a receipt carries no signature of its own: the run's seal names it. Without a readable seal a key has\n"
            "nothing to verify. Give --seal attestations/seal.sigstore.json of the run, or --digest with the SHA-256 that you were told."
        ),
        hint="give --seal FILE, or --digest SHA256",
    ),
)
