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
        message="the private key is protected by a passphrase, and there is none",
        explanation=(
            "The passphrase comes from a prompt on a terminal, or from the file that --passphrase-file names; never from the command\n"
            "line and never from the environment, where others could read it. Here there was neither a terminal nor a file."
        ),
        hint="give --passphrase-file, or run it on a terminal",
    ),
    Entry(
        id="key.passphrase-wrong",
        verdict=Verdict.BLOCKED,
        message="the passphrase does not open the private key",
        explanation=(
            "The passphrase is another one, or the key file is damaged; the two cannot be told apart. Of a passphrase file, the last\n"
            "line end is not part of the passphrase, and everything else is."
        ),
    ),
    Entry(
        id="key.passphrase-empty",
        verdict=Verdict.BLOCKED,
        message="the passphrase is empty or too long",
        explanation="An empty passphrase protects nothing. At most 1,023 bytes are accepted, which is what other tools can type in.",
    ),
    Entry(
        id="key.not-encrypted",
        verdict=Verdict.BLOCKED,
        message="a passphrase was given, and the key has none",
        explanation=(
            "The key file lies there without protection, although whoever gave a passphrase thinks otherwise. Nothing was signed.\n"
            "Leave --passphrase-file out, or encrypt the key: openssl pkey -in F -aes256 -out NEW."
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
