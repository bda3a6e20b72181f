"""Findings about key files that the user names."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="key.malformed",
        verdict=Verdict.BLOCKED,
        message="the file holds no key that can be read",
        explanation=(
            "Keys are PEM files: `-----BEGIN PUBLIC KEY-----` to verify, `-----BEGIN PRIVATE KEY-----` to sign.\n"
            "This file is something else, is damaged, or is the other half of the pair. Nothing was verified or signed with it.\n"
            "`mint2m keys show FILE` says what a key file holds; `mint2m keys new NAME` makes a pair."
        ),
        hint="name the .pub file to verify, the .key file to sign",
    ),
    Entry(
        id="key.encrypted",
        verdict=Verdict.BLOCKED,
        message="the private key is protected by a passphrase",
        explanation=(
            "Signing runs unattended, so it never asks for a passphrase and takes none from the environment.\n"
            "Decrypt the key into a file that only you can read, or keep it where a signer can use it without a file."
        ),
    ),
    Entry(
        id="key.unsupported",
        verdict=Verdict.BLOCKED,
        message="the key is of a kind that is not accepted",
        explanation=(
            "Accepted are ECDSA keys on P-256 and Ed25519 keys. RSA and other curves are refused: one algorithm for each kind\n"
            "of key leaves no room for a signature that two verifiers judge differently. Make a pair with `mint2m keys new NAME`."
        ),
    ),
)
