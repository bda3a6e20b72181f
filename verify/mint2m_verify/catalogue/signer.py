"""Findings about whoever is to sign."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="signer.identity-invalid",
        verdict=Verdict.BLOCKED,
        message="the identity is not one that a certificate can carry",
        explanation=(
            "A private root issues certificates to a mail address (`someone@example.org`) or to a URI\n"
            "(`https://example.org/workflow`), with claims under the names that Fulcio gives them. Nothing was signed."
        ),
    ),
    Entry(
        id="signer.private-root-invalid",
        verdict=Verdict.BLOCKED,
        message="the directory is no private root, or not a whole one",
        explanation=(
            "`mint2m trust private-root --output DIR` writes trusted_root.json, log.jsonl and private/. Here a part is missing, is of\n"
            "another root, or is not in the form in which it was written. Nothing was signed."
        ),
    ),
    Entry(
        id="signer.uri-unknown",
        verdict=Verdict.BLOCKED,
        message="the signer URI has an unknown scheme",
        explanation=(
            "Signer URIs are those of securesystemslib: `hsm:2?label=TOKEN` for a PKCS #11 token, `file2:PATH` for a PEM file, and for\n"
            "key services awskms:, gcpkms:, azurekms: and hv:, which are passed through and untested here."
        ),
    ),
    Entry(
        id="signer.public-key-missing",
        verdict=Verdict.BLOCKED,
        message="the signer's public key is not known",
        explanation=(
            "Only a PKCS #11 token is asked for its public half. For every other signer URI, --public-key names it in PEM, and each\n"
            "signature is checked with it before it is written."
        ),
    ),
    Entry(
        id="signer.secret-missing",
        verdict=Verdict.BLOCKED,
        message="the signer needs a secret, and there is none",
        explanation=(
            "A token wants its PIN. It comes from a prompt on a terminal, or from the file that --passphrase-file names; never from\n"
            "the command line and never from the environment."
        ),
        hint="give --passphrase-file, or run it on a terminal",
    ),
    Entry(
        id="signer.unavailable",
        verdict=Verdict.BLOCKED,
        message="the signer cannot be used",
        explanation=(
            "What stands behind the signer URI refused or is not there: the module or the Python package for it is missing, the token\n"
            "or the key on it is another, the PIN is wrong, a service said no. Nothing was signed or written. A token locks itself\n"
            "after a few wrong PINs, so mend the cause before the next try."
        ),
    ),
    Entry(
        id="signer.signature-invalid",
        verdict=Verdict.BLOCKED,
        message="the signer's answer is no signature by the key it should be of",
        explanation=(
            "Every signature is verified with the public half before it is written. This one does not verify: --public-key is of\n"
            "another key, or the device or service signed with another one. Nothing was written."
        ),
    ),
    Entry(
        id="signer.needs-bytes",
        verdict=Verdict.BLOCKED,
        message="this signer cannot sign a digest alone",
        explanation=(
            "Ed25519 signs the message itself, and keys behind a URI hash what they are given. Such a signer needs the whole file in\n"
            "memory; only a P-256 key in a file and certificate signers sign a digest."
        ),
    ),
    Entry(
        id="signer.configuration-invalid",
        verdict=Verdict.BLOCKED,
        message="the Sigstore configuration cannot be used",
        explanation=(
            "--sigstore names a client trust configuration (application/vnd.dev.sigstore.clienttrustconfig.v0.1+json): a trusted root\n"
            "and a signing configuration with a certificate authority and a transparency log that are valid now."
        ),
    ),
    Entry(
        id="signer.token-missing",
        verdict=Verdict.BLOCKED,
        message="there is no identity token to sign with",
        explanation=(
            "Signing by identity needs an OpenID Connect token: in the file that --identity-token names, in SIGSTORE_IDENTITY_TOKEN,\n"
            "or from the machine itself, as GitHub Actions and other CI systems offer it. None of these has one."
        ),
    ),
    Entry(
        id="signer.token-invalid",
        verdict=Verdict.BLOCKED,
        message="the identity token cannot be used",
        explanation="The token is no OpenID Connect token for the audience `sigstore`, or it is not valid now. Tokens live for minutes.",
    ),
    Entry(
        id="signer.unreachable",
        verdict=Verdict.IO_ERROR,
        message="a service that signing needs cannot be reached",
        explanation=(
            "Signing by identity asks the certificate authority, the timestamp authority and the log of its configuration. One of them\n"
            "did not answer. Nothing was written; verification never needs any of them."
        ),
    ),
    Entry(
        id="signer.refused",
        verdict=Verdict.BLOCKED,
        message="a service refused to help with the signature",
        explanation=(
            "The certificate authority did not accept the identity token, the log did not accept the entry, or an answer was not one\n"
            "of its kind. Nothing was written."
        ),
    ),
    Entry(
        id="signer.result-invalid",
        verdict=Verdict.BLOCKED,
        message="the signature does not verify under the root that it was made for",
        explanation=(
            "Every bundle is verified against its own trusted root before it is written: that of the configuration, or the private\n"
            "one's. This one does not verify: the root is of other services or has expired, a timestamp is missing, or a service\n"
            "misbehaves. Nothing was written."
        ),
    ),
)
