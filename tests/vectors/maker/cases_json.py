"""Documents that two readers could read differently, or that are no documents of ours."""

from __future__ import annotations

import rfc8785

from maker.case import vector
from maker.forge import SCORES, SESSIONS, Run


def sealed(run: Run, path: str, raw: bytes) -> None:
    """Put bytes in a document's place, bound and sealed like the document."""
    run.files[path] = raw
    run.redo_receipt() if path != "receipt.json" else None
    run.redo_seal()


@vector("json-duplicate-key", "The scores have their loss twice.", "json.duplicate-key")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b'"kl":', b'"loss":0,"kl":', 1))


@vector("json-nan", "A loss is NaN, which compares equal to nothing and unequal to nothing.", "json.not-finite")
def _(run: Run) -> None:
    loss = rfc8785.dumps(run.json(SCORES)["loss"])
    sealed(run, SCORES, run.files[SCORES].replace(b'"loss":' + loss, b'"loss":NaN'))


@vector("json-infinity", "A log-prob overflows to infinity when it is read.", "json.not-finite")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b'"old":[', b'"old":[-1e999,', 1))


@vector("json-byte-order-mark", "A document begins with a byte-order mark.", "json.malformed")
def _(run: Run) -> None:
    sealed(run, SCORES, b"\xef\xbb\xbf" + run.files[SCORES])


@vector("json-not-utf8", "A document in Latin-1.", "json.not-utf8")
def _(run: Run) -> None:
    sealed(run, "doctor.json", run.files["doctor.json"].replace(b"Linux", b"Lin\xfcx"))


@vector("json-lone-surrogate", "A string holds half a surrogate pair, which has no UTF-8 form.", "json.lone-surrogate")
def _(run: Run) -> None:
    sealed(run, "doctor.json", run.files["doctor.json"].replace(b"Linux", b"\\ud800", 1))


@vector("json-too-deep", "Brackets nested past any use, as a parser's stack would not survive.", "json.too-deep")
def _(run: Run) -> None:
    sealed(run, SCORES, b"[" * 3000 + b"]" * 3000)


@vector("json-large-integer", "An integer that a double cannot hold.", "json.integer-too-large")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b'"scored_tokens":18', b'"scored_tokens":9007199254740993'))


@vector("json-huge-integer", "An integer of ten thousand digits.", "json.integer-too-large")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b'"scored_tokens":18', b'"scored_tokens":' + b"9" * 10_000))


@vector("json-not-canonical", "A machine-made document with a space in it.", "json.not-canonical")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b":", b": ", 1))


@vector("json-number-spelling", "The same number in another spelling.", "json.not-canonical")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b'"scored_tokens":18', b'"scored_tokens":18.0'))


@vector("json-negative-zero", "A zero with a sign.", "json.not-canonical")
def _(run: Run) -> None:
    sealed(
        run, "receipt.json", run.files["receipt.json"].replace(b'"max_row_difference":0', b'"max_row_difference":-0')
    )


@vector("json-trailing-newline", "A machine-made document with a line feed after it.", "json.not-canonical")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES] + b"\n")


@vector("json-two-documents", "A second document after the first.", "json.malformed")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES] * 2)


@vector("json-empty-file", "A document of no bytes.", "json.malformed")
def _(run: Run) -> None:
    sealed(run, SCORES, b"")


@vector(
    "json-too-many-members",
    "A list longer than any document of ours.",
    "json.too-many-members",
    base=None,
    command=("schema", "check", "{run}/big.json"),
)
def _(run: Run) -> None:
    run.steps["repeat"] = {"big.json": ["[0", ",0", 8_000_001, "]"]}


@vector(
    "schema-passed-true", "`passed: true` stands in the scores beside a loss that contradicts it.", "schema.invalid"
)
def _(run: Run) -> None:
    scores = run.json(SCORES)
    scores |= {"passed": True, "loss": 99.0}
    sealed(run, SCORES, rfc8785.dumps(scores))


@vector("schema-receipt-passed-true", "`passed: true` in a receipt with two optimizer steps.", "schema.invalid")
def _(run: Run) -> None:
    receipt = run.json("receipt.json")
    receipt |= {"passed": True, "optimizer_steps": 2}
    sealed(run, "receipt.json", rfc8785.dumps(receipt))


@vector("schema-no-rank", "An empty list of ranks: nobody did anything, and nobody disagreed.", "schema.invalid")
def _(run: Run) -> None:
    run.set(SESSIONS, "/ranks", [])
    run.follow(after="manifests")


@vector("schema-no-phase", "A rank with an empty list of phases.", "schema.invalid")
def _(run: Run) -> None:
    run.set(SESSIONS, "/ranks/1/phases", [])
    run.follow(after="manifests")


@vector("schema-no-check", "A doctor that checked nothing and passed.", "schema.invalid")
def _(run: Run) -> None:
    run.set("doctor.json", "/checks", [])
    run.follow(after="records")


@vector("schema-group-of-one", "A group of one response has no advantage.", "schema.invalid")
def _(run: Run) -> None:
    run.set("receipt.json", "/group_size", 1)
    run.redo_seal()


@vector("schema-zero-digest", "A digest of zeros: a placeholder that nobody filled in.", "schema.placeholder")
def _(run: Run) -> None:
    run.set("plan.json", "/model/manifest_sha256", "0" * 64)
    run.redo_address()
    run.follow(after="plan")


@vector("schema-path-outside", "A receipt names a file by a path with `..`.", "schema.invalid")
def _(run: Run) -> None:
    run.set("receipt.json", "/files/gradient/path", "artifacts/../../gradient.safetensors")
    run.redo_seal()


@vector("schema-absolute-path", "A plan names an input by an absolute path.", "schema.invalid")
def _(run: Run) -> None:
    run.set("plan.json", "/inputs/rollout/path", "/etc/passwd")
    run.redo_address()
    run.follow(after="plan")


@vector("schema-other-type", "A genuine document of another type in the scores' place.", "schema.unknown")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files["doctor.json"])


@vector("schema-next-version", "A document of a version that this tool does not know.", "schema.unknown")
def _(run: Run) -> None:
    sealed(run, SCORES, run.files[SCORES].replace(b"mint2m.scores/v1", b"mint2m.scores/v2"))


@vector("schema-boolean-number", "A truth value where a number of steps is asked for.", "schema.invalid")
def _(run: Run) -> None:
    run.set("receipt.json", "/optimizer_steps", True)
    run.redo_seal()


@vector(
    "schema-impossible-group",
    "A profile of nine quadrillion responses: a list that no machine can hold.",
    "schema.invalid",
)
def _(run: Run) -> None:
    run.set("inputs/profile.json", "/group_size", 2**53 - 1)
    run.follow()


@vector("schema-impossible-world", "A profile of 1e300 ranks.", "schema.invalid")
def _(run: Run) -> None:
    run.files["inputs/profile.json"] = run.files["inputs/profile.json"].replace(
        b'"world_size":2', b'"world_size":1e300'
    )
    run.follow(after="execution")


@vector("schema-impossible-phase", "A phase with a number of five thousand digits.", "schema.invalid")
def _(run: Run) -> None:
    run.set(SESSIONS, "/ranks/0/phases/4/phase", "grpo-1" + "0" * 5000)
    run.follow(after="manifests")
