"""Changes to the seal, and questions of who vouches for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from maker.case import VERIFY_RUN, vector
from maker.forge import KEYS, SCORES, SEAL, Run, load_key, read_base, sign, text64

Bundle = dict[str, Any]


def bundled(run: Run, change: Callable[[Bundle], None]) -> None:
    """Change the bundle and leave the signature as it is."""
    run.edit(SEAL, change)


def payload_of(base: str) -> bytes:
    return base64.b64decode(json.loads(read_base(base)[SEAL])["dsseEnvelope"]["payload"])


# The envelope: everything outside the payload is malleable, and read strictly all the same.


@vector("seal-missing", "There is no seal.", "seal.missing")
def _(run: Run) -> None:
    del run.files[SEAL]


@vector("seal-oversized", "A seal of 33 MiB.", "json.too-large")
def _(run: Run) -> None:
    run.steps["repeat"] = {SEAL: [" ", " ", 33 << 20, " "]}


@vector("seal-not-json", "The seal is cut in the middle.", "json.malformed")
def _(run: Run) -> None:
    run.files[SEAL] = run.files[SEAL][:-40]


@vector("seal-signature-changed", "One bit of an Ed25519 signature.", "signature.invalid")
def _(run: Run) -> None:
    def change(made: Bundle) -> None:
        raw = bytearray(base64.b64decode(made["dsseEnvelope"]["signatures"][0]["sig"]))
        raw[5] ^= 1
        made["dsseEnvelope"]["signatures"][0]["sig"] = text64(bytes(raw))

    bundled(run, change)


@vector("seal-signature-changed-p256", "One bit of an ECDSA signature.", "signature.invalid", base="run-one-rank")
def _(run: Run) -> None:
    def change(made: Bundle) -> None:
        raw = bytearray(base64.b64decode(made["dsseEnvelope"]["signatures"][0]["sig"]))
        raw[-1] ^= 1
        made["dsseEnvelope"]["signatures"][0]["sig"] = text64(bytes(raw))

    bundled(run, change)


@vector("seal-signature-not-der", "An ECDSA signature that is no DER at all.", "signature.invalid", base="run-one-rank")
def _(run: Run) -> None:
    bundled(run, lambda made: made["dsseEnvelope"]["signatures"][0].update(sig=text64(b"\xff" * 64)))


@vector("seal-signature-stripped", "The signature is gone; the payload is right.", "seal.bundle-invalid")
def _(run: Run) -> None:
    bundled(run, lambda made: made["dsseEnvelope"].update(signatures=[]))


@vector("seal-signature-empty", "The signature is an empty string.", "seal.bundle-invalid")
def _(run: Run) -> None:
    bundled(run, lambda made: made["dsseEnvelope"]["signatures"][0].update(sig=""))


@vector("seal-two-signatures", "Two signatures, the second by a stranger: which one counts?", "seal.bundle-invalid")
def _(run: Run) -> None:
    other = {"keyid": "", "sig": text64(sign(payload_of("run"), load_key("stranger")))}
    bundled(run, lambda made: made["dsseEnvelope"]["signatures"].append(other))


@vector("seal-garbage-base64", "The payload has characters that lax base64 readers skip.", "seal.bundle-invalid")
def _(run: Run) -> None:
    def change(made: Bundle) -> None:
        payload = made["dsseEnvelope"]["payload"]
        made["dsseEnvelope"]["payload"] = f"{payload[:100]}\n*{payload[100:]}"

    bundled(run, change)


@vector(
    "seal-base64-stray-bits",
    "The last base64 character of the signature has stray bits: a second spelling.",
    "seal.bundle-invalid",
)
def _(run: Run) -> None:
    def change(made: Bundle) -> None:
        signature = made["dsseEnvelope"]["signatures"][0]["sig"]  # 64 bytes end in one character of 4 spare bits, ==
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        stray = alphabet[alphabet.index(signature[-3]) + 1]
        made["dsseEnvelope"]["signatures"][0]["sig"] = f"{signature[:-3]}{stray}=="

    bundled(run, change)


@vector("seal-payload-type", "Another payload type than the signed one.", "seal.bundle-invalid")
def _(run: Run) -> None:
    bundled(run, lambda made: made["dsseEnvelope"].update(payloadType="text/plain"))


@vector("seal-unknown-member", "The bundle says that it was verified.", "seal.bundle-invalid")
def _(run: Run) -> None:
    bundled(run, lambda made: made.update(verified=True))


@vector("seal-log-entry", "A transparency log entry that no --key can judge.", "seal.bundle-invalid")
def _(run: Run) -> None:
    bundled(run, lambda made: made["verificationMaterial"].update(tlogEntries=[{"logIndex": "0"}]))


@vector("seal-certificate", "A certificate where a key is asked for.", "signature.not-by-key", exit=4)
def _(run: Run) -> None:
    bundled(run, lambda made: made.update(verificationMaterial={"certificate": {"rawBytes": "AAAA"}}))


@vector("seal-duplicate-key", "The envelope has its payload twice: two readers, two documents.", "json.duplicate-key")
def _(run: Run) -> None:
    raw = run.files[SEAL]
    at = raw.index(b'"payloadType"')
    run.files[SEAL] = raw[:at] + b'"payload":"e30=",' + raw[at:]


@vector(
    "seal-hint-of-release-by-stranger", "A stranger's signature under the hint of the trusted key.", "signature.invalid"
)
def _(run: Run) -> None:
    hint = run.json(SEAL)["verificationMaterial"]["publicKey"]["hint"]
    run.redo_seal(key="stranger", bundled=lambda made: made["verificationMaterial"].update(publicKey={"hint": hint}))


@vector("seal-hint-of-another", "The right signature under the hint of another key.", "signature.hint-mismatch")
def _(run: Run) -> None:
    bundled(run, lambda made: made["verificationMaterial"].update(publicKey={"hint": text64(b"\x01" * 32)}))


@vector(
    "seal-of-another-run",
    "The seal of another run, genuine and by a trusted key.",
    "tree.file-changed",
    command=("verify", "run", "{run}", "--key", "{keys}/release-p256.pub"),
    also=("seal.binding-mismatch",),
)
def _(run: Run) -> None:
    run.files[SEAL] = read_base("run-one-rank")[SEAL]


@vector(
    "seal-of-another-execution",
    "The seal of a second execution of the same plan.",
    "tree.file-changed",
    also=("seal.binding-mismatch",),
)
def _(run: Run) -> None:
    run.files[SEAL] = read_base("run-again")[SEAL]


# The statement: signed with the right key, and wrong.


@vector("statement-other-predicate", "A signed statement of another predicate type.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made.update(predicateType="https://slsa.dev/provenance/v1"))


@vector("statement-other-type", "A signed statement that is no in-toto Statement v1.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made.update(_type="https://in-toto.io/Statement/v0.1"))


@vector("statement-of-a-validation", "A signed seal of another kind of run.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["predicate"].update(kind="validation"))


@vector("statement-no-subject", "A signed statement about nothing.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made.update(subject=[]))


@vector("statement-repeated-subject", "One subject twice.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["subject"].insert(1, made["subject"][0]))


@vector("statement-unsorted", "Subjects out of order.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["subject"].reverse())


@vector("statement-subject-outside", "A subject with `..` in its path.", "seal.invalid")
def _(run: Run) -> None:
    subject = {"name": "../escape", "digest": {"sha256": "1" * 64}}
    run.redo_seal(lambda made: made["subject"].insert(0, subject))


@vector("statement-zero-digest", "A subject with a digest of zeros.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["subject"][0]["digest"].update(sha256="0" * 64))


@vector("statement-second-digest", "A subject with a second, weaker digest.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["subject"][0]["digest"].update(sha1="1" * 40))


@vector("statement-extra-subject", "A subject that is not in the directory.", "tree.file-missing")
def _(run: Run) -> None:
    subject = {"name": "inputs/adapter-initial/extra.bin", "digest": {"sha256": "1" * 64}}
    run.redo_seal(lambda made: (made["subject"].append(subject), made["subject"].sort(key=lambda s: s["name"]))[0])


@vector("statement-missing-subject", "A file that the signed statement leaves out.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made.update(subject=[s for s in made["subject"] if s["name"] != "doctor.json"]))


@vector(
    "statement-subject-in-tree",
    "A subject inside a tree, which only its manifest may cover.",
    "seal.subject-inside-tree",
)
def _(run: Run) -> None:
    subject = {"name": "adapter/adapter_config.json", "digest": {"sha256": "1" * 64}}
    run.redo_seal(lambda made: made["subject"].insert(0, subject))


@vector(
    "statement-sealed-stray-file",
    "A file without a place in the layout, sealed like the others.",
    "tree.file-unexpected",
)
def _(run: Run) -> None:
    run.files["artifacts/verdict.json"] = b'{"passed":true}'
    run.redo_seal()


@vector(
    "log-of-no-rank",
    "A file among the logs of ranks that is none of them, sealed like the others.",
    "tree.file-unexpected",
)
def _(run: Run) -> None:
    run.files["logs/rank-0001.log.old"] = b"bind begins\n"
    run.redo_seal()


@vector("statement-other-execution", "The signed predicate names another execution.", "seal.binding-mismatch")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["predicate"].update(execution_id="a" * 64))


@vector(
    "statement-scope-lifted",
    "The signed predicate claims the two-million scope for a CPU run.",
    "seal.binding-mismatch",
)
def _(run: Run) -> None:
    scope = "2m_execution_only_not_numerical_correctness"
    run.redo_seal(lambda made: made["predicate"].update(claim_scope=scope))


@vector("statement-class-lifted", "The signed predicate claims GPU hardware for a CPU run.", "seal.binding-mismatch")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["predicate"].update(hardware_class="h20-4x8"))


@vector("statement-unknown-member", "The signed predicate says that everything passed.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["predicate"].update(passed=True))


@vector("statement-not-canonical", "The signed payload is not its own RFC 8785 form.", "json.not-canonical")
def _(run: Run) -> None:
    def change(made: Bundle) -> None:
        payload = json.dumps(json.loads(payload_of("run"))).encode()
        made["dsseEnvelope"].update(payload=text64(payload))
        made["dsseEnvelope"]["signatures"][0].update(sig=text64(sign(payload, load_key("release"))))

    bundled(run, change)


@vector("statement-with-parent", "A training run with a parent statement.", "seal.invalid")
def _(run: Run) -> None:
    run.redo_seal(lambda made: made["predicate"].update(parent="1" * 64))


# Who vouches.


@vector(
    "resigned-by-stranger",
    "Everything signed again under a key that the auditor does not trust.",
    "signature.key-mismatch",
    exit=4,
)
def _(run: Run) -> None:
    run.redo_seal(key="stranger")


@vector(
    "forged-and-resigned-by-stranger",
    "A forged loss, consistent throughout, under a key of the forger's.",
    "signature.key-mismatch",
    exit=1,
    also=("grpo.total-loss-mismatch",),
)
def _(run: Run) -> None:
    run.set(SCORES, "/loss", 0.25)
    run.set("receipt.json", "/loss", 0.25)
    run.follow(after="plan")
    run.redo_seal(key="stranger")


@vector(
    "no-anchor",
    "Nothing of the auditor's says who should have signed.",
    "trust.no-anchor",
    command=("verify", "run", "{run}"),
    exit=4,
)
def _(_run: Run) -> None:
    pass


@vector(
    "no-anchor-and-a-flipped-byte",
    "No anchor, and a changed file: the evidence failed by itself.",
    "trust.no-anchor",
    command=("verify", "run", "{run}"),
    exit=1,
    also=("tree.file-changed",),
)
def _(run: Run) -> None:
    run.flip("checkpoint/__0_0.distcp", 9)


@vector(
    "consistency-only-and-a-flipped-byte",
    "Consistency is asked for, and a file was changed.",
    "tree.file-changed",
    command=("verify", "run", "{run}", "--consistency-only"),
)
def _(run: Run) -> None:
    run.flip("checkpoint/__0_0.distcp", 9)


@vector(
    "key-inside-evidence",
    "The key is taken from inside the evidence that it should vouch for.",
    "trust.key-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=("verify", "run", "{run}", "--key", "{run}/attestations/release.pub"),
)
def _(run: Run) -> None:
    run.files["attestations/release.pub"] = (KEYS / "release.pub").read_bytes()


@vector(
    "key-inside-evidence-linked",
    "The key lies outside, but is a hard link to a file of the evidence.",
    "trust.key-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=("verify", "run", "{run}", "--key", "{outside}/mine.pub"),
)
def _(run: Run) -> None:
    run.files["inputs/release.pub"] = (KEYS / "release.pub").read_bytes()
    run.steps["hardlinks_outside"] = {"mine.pub": "inputs/release.pub"}


@vector(
    "key-sealed-inside",
    "The key is a sealed file of the run itself.",
    "trust.key-inside-evidence",
    exit=1,
    also=("tree.file-unexpected",),
    command=("verify", "run", "{run}", "--key", "{run}/inputs/release.pub"),
)
def _(run: Run) -> None:
    run.files["inputs/release.pub"] = (KEYS / "release.pub").read_bytes()
    run.redo_seal()


@vector(
    "other-digest",
    "A digest of another seal.",
    "trust.digest-mismatch",
    exit=4,
    command=("verify", "run", "{run}", "--digest", "1" * 64),
)
def _(_run: Run) -> None:
    pass


@vector(
    "other-plan-expected",
    "The auditor asked for another plan.",
    "trust.expectation-mismatch",
    exit=3,
    command=(*VERIFY_RUN, "--expect-plan", "1" * 64),
)
def _(_run: Run) -> None:
    pass


@vector(
    "other-nonce-expected",
    "The auditor asked for a run of his own nonce: this one is older.",
    "trust.expectation-mismatch",
    exit=3,
    command=(*VERIFY_RUN, "--expect-nonce", "today's nonce"),
)
def _(_run: Run) -> None:
    pass


@vector(
    "two-anchors",
    "A key and a digest together: which one decides?",
    "usage.invalid",
    exit=2,
    command=(*VERIFY_RUN, "--digest", "1" * 64),
)
def _(_run: Run) -> None:
    pass


@vector(
    "key-of-another-kind",
    "The auditor's key file holds a key on an unsupported curve.",
    "key.unsupported",
    exit=2,
    command=("verify", "run", "{run}", "--key", "{run}/p384.pub"),
)
def _(run: Run) -> None:
    run.files["p384.pub"] = (
        b"-----BEGIN PUBLIC KEY-----\n"
        b"MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEqofKIr6LBTeOscce8yCtdG4dO2KLp5uY\n"
        b"WfdB4IJUKjhVAvJdv1UpbDpUXjhydgq3NhfeSpYmLG9dnpi/kpLcKfj0Hb0omhR8\n"
        b"6doxE7XwuMAKYLHOHX6BnXpDHXyQ6g5f\n"
        b"-----END PUBLIC KEY-----\n"
    )


@vector(
    "key-malformed",
    "The auditor's key file is no key.",
    "key.malformed",
    exit=2,
    command=("verify", "run", "{run}", "--key", "{run}/receipt.json"),
)
def _(_run: Run) -> None:
    pass
