"""Findings about Sigstore bundles: form, time, certificate, logs, signature, what was signed, and by whom."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_FORM = (
    "The bundle is refused before any signature in it is looked at: what two tools could read differently could be shown\n"
    "to one and verified by the other. Ask whoever made it for the bundle as the signing tool wrote it."
)
_CHANGED = (
    "Either the bundle was changed after signing, or it was put together from parts of others. Nothing in it is believed.\n"
    "Get the bundle and the file again from where they were published."
)
_ROOT = (
    "Who may issue certificates, keep logs and sign times is the trusted root's word, and the root is yours. If the bundle\n"
    "comes from another Sigstore instance, get that instance's root through a channel that you trust and name it with\n"
    "--trusted-root; do not take it from whoever sent the bundle."
)


def _form(fault: str, message: str, meaning: str) -> Entry:
    return Entry(id=f"sigstore.{fault}", verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_FORM}")


def _changed(fault: str, message: str, meaning: str) -> Entry:
    return Entry(id=f"sigstore.{fault}", verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_CHANGED}")


def _root(fault: str, message: str, meaning: str) -> Entry:
    return Entry(id=f"sigstore.{fault}", verdict=Verdict.UNTRUSTED, message=message, explanation=f"{meaning}\n{_ROOT}")


ENTRIES = (
    # the form of a bundle
    _form(
        "bundle-invalid",
        "not of the form of a Sigstore bundle",
        "A member is missing, unknown, of another type, or too long. Bundles 0.1 to 0.3 and PEP 740 attestations are read.",
    ),
    _form(
        "version-unknown",
        "a bundle of a version that is not known",
        "The bundle's media type names no version from 0.1 to 0.3.",
    ),
    _form(
        "base64-invalid",
        "a value is not base64, or not in its only spelling",
        "Bytes in a bundle are standard base64 with padding, and no stray bits in the last character.",
    ),
    _form(
        "number-invalid",
        "a number is not what its place allows",
        "Numbers in a bundle are strings of decimal digits without sign or leading zeros, as JSON forms of protobuf write them.",
    ),
    _form(
        "material-count",
        "not exactly one of certificate, certificate chain and public key",
        "A bundle says in one way who signed it. With none nobody signed, with two it is for the reader to choose.",
    ),
    _form(
        "content-count",
        "not exactly one of message signature and DSSE envelope",
        "A bundle signs one thing. With none there is nothing to verify, with two it is for the reader to choose.",
    ),
    _form(
        "signature-count",
        "an envelope with no signature, or with several",
        "A DSSE envelope in a bundle has exactly one signature. Co-signatures are bundles of their own.",
    ),
    _form(
        "digest-unsupported",
        "the artifact's digest is not a SHA-256",
        "Signatures are held against the SHA-256 of a file. Other digests are read by other tools only.",
    ),
    _form(
        "certificate-missing",
        "the certificate chain is empty",
        "An older bundle holds its signing certificate first in a chain, and this chain holds none.",
    ),
    _form(
        "no-bundle",
        "no bundle, or too many",
        "A file of bundles holds one document, or one on each line, and at least one: an empty list proves nothing.",
    ),
    _form(
        "bare-envelope",
        "an envelope without a bundle around it",
        "A bare DSSE envelope carries no certificate, no log entry and no time; offline nobody can tell who signed it when.\n"
        "Bundles and lines of bundles are read.",
    ),
    # the trusted root
    Entry(
        id="sigstore.root-needed",
        verdict=Verdict.UNTRUSTED,
        message="a certificate cannot be verified without a trusted root",
        explanation=(
            "The bundle was signed under a certificate, and whether its issuer counts is for a trusted root to say. None was\n"
            "given, and none is assumed. Name the root's file with --trusted-root, or `--trusted-root public-good` for the one\n"
            "that the installed sigstore package ships."
        ),
        hint="give --trusted-root FILE, or --trusted-root public-good",
    ),
    Entry(
        id="sigstore.root-invalid",
        verdict=Verdict.BLOCKED,
        message="the trusted root cannot be used",
        explanation=(
            "The file is not a Sigstore trusted root, version 0.1, or it states something that cannot be: a key without the\n"
            "start of its window, an end before the start, a certificate or key that cannot be read, no authority at all.\n"
            "Nothing was verified with it. Get the root again, through the channel by which you came to trust it."
        ),
    ),
    # what stands for the signer
    _form(
        "certificate-invalid",
        "the certificate is not one that Sigstore issues",
        "It cannot be read, is not for signing code, is an authority's own, or names no identity and no identity provider.",
    ),
    _form(
        "certificate-ambiguous",
        "the certificate names two signers",
        "A certificate with two names or two different issuers could match a policy by one of them and be read by the other.",
    ),
    _form(
        "certificate-unsupported",
        "the certificate's key is of a kind that is not accepted",
        "Signatures under certificates are verified with ECDSA keys on P-256, P-384 and P-521.",
    ),
    _form(
        "chain-not-allowed",
        "the bundle brings certificates that it may not bring",
        "Behind the signing certificate only intermediate authorities of the trusted root may stand. A root certificate in a\n"
        "bundle is an invitation to trust what came with the evidence.",
    ),
    Entry(
        id="sigstore.key-needed",
        verdict=Verdict.UNTRUSTED,
        message="signed with a key, and no key was given",
        explanation=(
            "The bundle was signed with a long-lived key and carries no certificate. A key inside a bundle counts for nothing:\n"
            "the signer's public key must come from you, by --key or by a policy that names it."
        ),
        hint="give the signer's public key with --key, or a policy that names it",
    ),
    Entry(
        id="sigstore.not-by-certificate",
        verdict=Verdict.UNTRUSTED,
        message="signed with a key, not under an identity",
        explanation=(
            "You asked for an identity, and the bundle was signed with a long-lived key: no authority says whose it is. It may be\n"
            "the right signer's key. If you know that key, give it with --key instead of an identity."
        ),
    ),
    Entry(
        id="sigstore.identity-mismatch",
        verdict=Verdict.UNTRUSTED,
        message="signed by another identity",
        explanation=(
            "The signature is genuine, and somebody else's: the certificate names another signer than the one you asked for. For a\n"
            "workflow every part counts, repository, path and ref. Identities match exactly, or up to one trailing `*`."
        ),
    ),
    Entry(
        id="sigstore.issuer-mismatch",
        verdict=Verdict.UNTRUSTED,
        message="another identity provider vouches for the signer",
        explanation=(
            "The same name means another person at another provider, so an identity counts only together with the provider that\n"
            "the certificate names. The providers match exactly."
        ),
    ),
    # time
    Entry(
        id="sigstore.no-signed-time",
        verdict=Verdict.UNTRUSTED,
        message="nothing says when this was signed",
        explanation=(
            "A certificate is valid for minutes, so a signature under it counts only with a time that somebody else signed: the\n"
            "promise of a transparency log, or an RFC 3161 timestamp. This bundle has neither; newer logs sign no time of their\n"
            "own. It may have been stripped: get the bundle again from where it was published."
        ),
    ),
    _form(
        "timestamp-malformed",
        "a timestamp cannot be read",
        "A timestamp is an RFC 3161 response in DER that was granted and holds a token.",
    ),
    _changed(
        "timestamp-mismatch",
        "a timestamp over another signature",
        "The timestamp is about other bytes than this bundle's signature.",
    ),
    _form("timestamp-repeated", "a timestamp is there twice", "The same token twice makes one time look like two."),
    _root(
        "timestamp-untrusted",
        "a timestamp that no authority of the trusted root signed",
        "The token was changed, or it comes from a timestamp authority that the trusted root does not name.",
    ),
    _root(
        "timestamp-certificate-expired",
        "the timestamp authority's certificate was not valid then",
        "The token names a time at which a certificate of that authority's chain had expired, or had not begun.",
    ),
    _root(
        "timestamp-outside-window",
        "the trusted root does not count that timestamp authority at that time",
        "The authority signed a time outside the window in which the trusted root believes it.",
    ),
    # the certificate's standing
    Entry(
        id="sigstore.certificate-expired",
        verdict=Verdict.UNTRUSTED,
        message="signed outside the certificate's lifetime",
        explanation=(
            "A signed time lies before the certificate began or after it ended. Whoever kept the key after that could sign\n"
            "anything with it, so such a signature counts for nothing, even where everything else about it is right."
        ),
    ),
    _root(
        "chain-untrusted",
        "no authority of the trusted root issued the certificate",
        "At the signed time no chain leads from the certificate to an authority that the trusted root names.",
    ),
    _root(
        "authority-outside-window",
        "the trusted root does not count that authority at that time",
        "The certificate's issuer is in the trusted root, but the signing time lies outside the window in which it counts.",
    ),
    _form(
        "sct-missing",
        "no note of a certificate log in the certificate",
        "Sigstore's certificates carry one signed certificate timestamp, the proof that a public log saw them when they were issued.",
    ),
    _root(
        "sct-invalid",
        "the certificate log's note does not hold",
        "The signed certificate timestamp in the certificate is not signed by the log that it names.",
    ),
    _root(
        "ct-log-unknown",
        "a certificate log that the trusted root does not name",
        "The note in the certificate names a log that is not in the trusted root.",
    ),
    _root(
        "ct-log-outside-window",
        "the trusted root does not count that certificate log at that time",
        "The certificate was noted outside the window in which the trusted root believes that log.",
    ),
    # the transparency log
    Entry(
        id="sigstore.log-entry-missing",
        verdict=Verdict.UNTRUSTED,
        message="no transparency log entry",
        explanation=(
            "A signature under a certificate is made in public: its entry in a transparency log is what lets the owner of an\n"
            "identity see signatures that somebody else made in its name. This bundle has none. It may have been stripped."
        ),
    ),
    _form(
        "log-entry-count",
        "more log entries than are verified",
        "One entry is verified; a second one would be read by somebody and verified by nobody.",
    ),
    _form(
        "log-entry-unsupported",
        "a kind of log entry that does not fit",
        "Entries are verified of the kinds hashedrekord 0.0.1 and 0.0.2 for files, dsse 0.0.1, hashedrekord 0.0.2 and intoto 0.0.2\n"
        "for statements.",
    ),
    _changed(
        "log-entry-mismatch",
        "the log entry is about something else",
        "The log did see an entry, but with another signature, another signer or other content than this bundle's.",
    ),
    _root(
        "log-unknown",
        "a transparency log that the trusted root does not name",
        "The entry names a log by an id that is not in the trusted root.",
    ),
    _root(
        "log-outside-window",
        "the trusted root does not count that log at that time",
        "The signing time lies outside the window in which the trusted root believes that log.",
    ),
    _changed(
        "log-index-mismatch",
        "the entry gives its place in the log twice, and differently",
        "The entry's index is not that of its own inclusion proof.",
    ),
    _changed(
        "inclusion-proof-missing",
        "the log entry has no proof of inclusion",
        "Without the path to a root that the log signed, the entry is a claim. Verification is offline: the log is not asked.",
    ),
    _changed(
        "inclusion-proof-invalid",
        "the log entry is not in the tree that its proof shows",
        "The path from the entry does not lead to the root hash that the proof states.",
    ),
    _changed(
        "checkpoint-missing",
        "the inclusion proof has no checkpoint",
        "A proof leads to a root hash, and without a checkpoint no log has signed that hash.",
    ),
    _form(
        "checkpoint-malformed",
        "the checkpoint cannot be read",
        "A checkpoint is a note of origin, size and root hash, a blank line, and signatures, with nothing between.",
    ),
    _changed(
        "checkpoint-unsigned",
        "the checkpoint has no signature of the entry's log",
        "No signature line carries the key id of the log that the entry names.",
    ),
    _changed(
        "checkpoint-name-mismatch",
        "the checkpoint's signature names another host than its origin",
        "The line with the log's key id is signed in the name of another host than the note's.",
    ),
    _changed(
        "checkpoint-signature-invalid",
        "the checkpoint is not signed by its log",
        "The signature is not the log's over this note.",
    ),
    _changed(
        "checkpoint-mismatch",
        "the checkpoint is of another tree than the proof",
        "Size or root hash of the signed checkpoint differ from those of the inclusion proof.",
    ),
    _changed(
        "promise-incomplete",
        "a time without the log's promise, or a promise without its time",
        "The two come together or not at all, and only in kinds of entries that have them: alone, nobody signed the time.",
    ),
    _changed(
        "promise-invalid",
        "the log's promise does not hold",
        "The signed entry timestamp is not the log's over this entry and time.",
    ),
    # what was signed
    _changed(
        "signature-invalid",
        "the signature does not fit",
        "The signature is not the certificate's key's over this content.",
    ),
    _changed(
        "artifact-mismatch",
        "the signature is about another file",
        "The digest that the bundle states is not that of the file at hand. Either the file was changed, or this is another\n"
        "file's bundle.",
    ),
    Entry(
        id="sigstore.artifact-needed",
        verdict=Verdict.BLOCKED,
        message="the signed file itself is needed",
        explanation=(
            "The signature covers a file that is not in the bundle, and the digest given is not enough: an Ed25519 signature\n"
            "covers the bytes themselves, and a bundle that states no digest gives nothing to hold its signature against.\n"
            "Name the file instead of its digest."
        ),
    ),
    Entry(
        id="sigstore.payload-type",
        verdict=Verdict.FAILED,
        message="the envelope holds no in-toto statement",
        explanation=(
            "The signed payload is of another type. Its signer may have meant it for something else entirely, so nothing of it is\n"
            "read as a statement. Only application/vnd.in-toto+json is."
        ),
    ),
    Entry(
        id="sigstore.statement-type",
        verdict=Verdict.FAILED,
        message="not an in-toto statement of version 1",
        explanation=(
            "The payload says that it is another kind of statement. Only https://in-toto.io/Statement/v1 is read: older versions\n"
            "differ in what a subject means."
        ),
    ),
    Entry(
        id="sigstore.statement-invalid",
        verdict=Verdict.FAILED,
        message="the statement is not of its form",
        explanation=(
            "A statement has a predicate type and at least one subject, each with a name and digests. This one was signed as it\n"
            "is, so its signer's tool is at fault; what it means cannot be told."
        ),
    ),
    Entry(
        id="sigstore.predicate-type-mismatch",
        verdict=Verdict.FAILED,
        message="the statement says something else than was asked for",
        explanation=(
            "The statement is genuine, but of another predicate type: a build provenance is no vulnerability report, whoever\n"
            "signed both. Compare the expected and the found type."
        ),
    ),
    _changed(
        "subject-digest-mismatch",
        "no subject of the statement is this file",
        "None of the statement's subjects has the file's SHA-256. Either the file was changed, or this is another file's statement.",
    ),
    Entry(
        id="sigstore.subject-name-mismatch",
        verdict=Verdict.FAILED,
        message="the statement knows this file by another name",
        explanation=(
            "A subject has the file's digest and another file's name. Somebody may be offering one file of a release in place of\n"
            "another; both are signed, and only the name tells them apart. If you renamed the file yourself, verify its digest\n"
            "instead: sha256:HEX in place of the path. Then no name is known and none is compared."
        ),
        hint="give sha256:HEX instead of the path if you renamed the file yourself",
    ),
    Entry(
        id="sigstore.refused",
        verdict=Verdict.FAILED,
        message="sigstore-python refuses the bundle",
        explanation=(
            "Every step that is done here holds, and the library, which verifies each bundle as well, still says no; its own words\n"
            "are the found value. Nothing is accepted that either refuses. Please report such a bundle."
        ),
    ),
)
