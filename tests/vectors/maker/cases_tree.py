"""Changes to the finished directory: bytes, names, links and modes that differ from what was sealed."""

from __future__ import annotations

from maker.case import vector
from maker.forge import AFTER, GRADIENT, SCORES, SEAL, Run, sha256

METADATA = "checkpoint/.metadata"


@vector(
    "flipped-byte",
    "One bit of a checkpoint shard was flipped after sealing.",
    "tree.file-changed",
    also=("receipt.checkpoint-root-mismatch",),
)
def _(run: Run) -> None:
    run.flip("checkpoint/__0_0.distcp", 1000)


@vector("flipped-byte-in-gradient", "One bit of the sealed gradient was flipped.", "tree.file-changed")
def _(run: Run) -> None:
    run.flip(GRADIENT, len(run.files[GRADIENT]) - 3)


@vector(
    "flipped-byte-in-adapter",
    "One bit of the trained adapter was flipped.",
    "tree.file-changed",
    also=("receipt.adapter-root-mismatch",),
)
def _(run: Run) -> None:
    run.flip(AFTER, len(run.files[AFTER]) - 2)


@vector(
    "flipped-byte-in-adapter-before",
    "One bit of the adapter before the step was flipped.",
    "tree.file-changed",
    also=("receipt.adapter-before-root-mismatch",),
)
def _(run: Run) -> None:
    path = "artifacts/adapter-before/adapter_model.safetensors"
    run.flip(path, len(run.files[path]) - 2)


@vector(
    "flipped-byte-in-model",
    "One bit of the model inside the run directory was flipped.",
    "tree.file-changed",
    also=("plan.model-root-mismatch",),
)
def _(run: Run) -> None:
    path = next(path for path in run.files if path.startswith("inputs/model/model-00001"))
    run.flip(path, 3000)


@vector("truncated-checkpoint", "A checkpoint shard ends early.", "tree.file-changed")
def _(run: Run) -> None:
    run.files[METADATA] = run.files[METADATA][:100]


@vector("emptied-file", "A sealed file lost all its bytes.", "tree.file-changed")
def _(run: Run) -> None:
    run.files[GRADIENT] = b""


@vector("missing-shard", "A checkpoint shard was removed.", "tree.file-missing")
def _(run: Run) -> None:
    del run.files["checkpoint/__1_0.distcp"]


@vector("missing-receipt", "The receipt was removed.", "tree.file-missing")
def _(run: Run) -> None:
    del run.files["receipt.json"]


@vector("missing-checkpoint", "The whole checkpoint was removed; its manifest is still there.", "tree.file-missing")
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith("checkpoint/")]:
        del run.files[path]


@vector("added-file-in-tree", "A file that no manifest names lies beside the adapter.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.files["adapter/custom_code.so"] = b"import os\n"


@vector("added-file", "A file that nobody sealed lies at the top.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.files["notes.txt"] = b"all good, trust me\n"


@vector("added-attestation", "A second statement lies beside the seal.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.files["attestations/review.json"] = b'{"passed":true}'


@vector("added-empty-file", "An empty file was added; no byte is no excuse.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.files["checkpoint/.keep"] = b""


@vector("renamed-file", "A shard has another name and the same bytes.", "tree.file-renamed")
def _(run: Run) -> None:
    run.steps["rename"] = {"checkpoint/__0_0.distcp": "checkpoint/__7_0.distcp"}


@vector("swapped-shards", "Two shards changed places: the set of digests is the same.", "tree.file-changed")
def _(run: Run) -> None:
    run.steps["rename"] = {
        "checkpoint/__0_0.distcp": "checkpoint/swap",
        "checkpoint/__1_0.distcp": "checkpoint/__0_0.distcp",
        "checkpoint/swap": "checkpoint/__1_0.distcp",
    }


@vector("symlink-in-place-of-file", "A shard is a link to a copy of itself inside the directory.", "tree.symlink")
def _(run: Run) -> None:
    run.steps["rename"] = {"checkpoint/__0_0.distcp": "attestations/shard"}
    run.steps["links"] = {"checkpoint/__0_0.distcp": "../attestations/shard"}


@vector("symlink-to-a-directory", "A directory of inputs is a link that leads outside.", "tree.symlink")
def _(run: Run) -> None:
    run.steps["links"] = {"inputs/adapter-initial": "/etc"}


@vector("symlink-dangling", "A link that leads nowhere; its name has a terminal escape in its target.", "tree.symlink")
def _(run: Run) -> None:
    run.steps["links"] = {"artifacts/latest": "\x1b[2J\u202enowhere"}


@vector("symlink-seal", "The seal is a link.", "seal.missing", also=("tree.symlink",))
def _(run: Run) -> None:
    run.steps["rename"] = {SEAL: "attestations/real.json"}
    run.steps["links"] = {SEAL: "real.json"}


@vector("pipe", "A named pipe that would make a reader wait for ever.", "tree.special-file")
def _(run: Run) -> None:
    run.steps["pipes"] = ["artifacts/stream"]


@vector("pipe-in-place-of-file", "The journal is a named pipe.", "tree.special-file", also=("tree.file-missing",))
def _(run: Run) -> None:
    del run.files["ownership.jsonl"]
    run.steps["pipes"] = ["ownership.jsonl"]


@vector("socket", "A socket among the artifacts.", "tree.special-file")
def _(run: Run) -> None:
    run.steps["sockets"] = ["artifacts/s"]


@vector("executable-shard", "A shard became executable; nothing else changed.", "tree.mode-changed")
def _(run: Run) -> None:
    run.steps["executable"] = ["checkpoint/__0_0.distcp"]


@vector("executable-document", "The plan became executable.", "tree.mode-changed")
def _(run: Run) -> None:
    run.steps["executable"] = ["plan.json"]


@vector("escape-in-file-name", "A file name clears the terminal and writes ACCEPTED.", "tree.name-invalid")
def _(run: Run) -> None:
    run.steps["write"] = {"adapter/\x1b[2J\x1b[1;32mACCEPTED": "x"}


@vector("bidi-in-file-name", "A file name reverses the reading direction.", "tree.file-unlisted")
def _(run: Run) -> None:
    run.steps["write"] = {"adapter/\u202egnp.tnuocca": "x"}


@vector("newline-in-file-name", "A file name with a line feed could forge a line of the report.", "tree.name-invalid")
def _(run: Run) -> None:
    run.steps["write"] = {"inputs/x\n\nACCEPTED  run": "x"}


@vector("file-name-not-nfc", "A file name in decomposed form: equal to the eye, another name.", "tree.name-invalid")
def _(run: Run) -> None:
    run.steps["write"] = {"adapter/e\u0301": "x"}


@vector("file-name-with-backslash", "A file name that is a path on another system.", "tree.name-invalid")
def _(run: Run) -> None:
    run.steps["write"] = {"adapter/..\\..\\evil": "x"}


@vector("file-name-not-utf8", "A file name of bytes that are no UTF-8.", "tree.name-invalid")
def _(run: Run) -> None:
    run.steps["write"] = {"adapter/\udcff\udcfe": "x"}


@vector("too-deep", "Directories nested past any use.", "tree.too-many", exit=5)
def _(run: Run) -> None:
    run.steps["write"] = {"inputs/" + "d/" * 70 + "x": "x"}


@vector("oversized-document", "A document that claims 65 MiB (sparse) where at most 64 are read.", "file.too-large")
def _(run: Run) -> None:
    run.steps["sparse"] = {"artifacts/scores.json": 65 << 20}


@vector(
    "not-a-directory",
    "What is to be verified is a file.",
    "input.not-a-directory",
    command=("verify", "run", "{run}/receipt.json", "--key", "{keys}/{key}.pub"),
    exit=2,
)
def _(_run: Run) -> None:
    pass


@vector(
    "no-such-directory",
    "What is to be verified is not there.",
    "input.missing",
    command=("verify", "run", "{run}/nothing", "--key", "{keys}/{key}.pub"),
    exit=2,
)
def _(_run: Run) -> None:
    pass


@vector(
    "empty-directory",
    "A directory of nothing proves nothing.",
    "seal.missing",
    base=None,
    command=("verify", "run", "{run}", "--key", "{keys}/release.pub"),
    also=("tree.file-missing",),
)
def _(_run: Run) -> None:
    pass


@vector(
    "loss-edited-hash-fixed",
    "A loss was edited and the receipt's digest of it made right, but not the signature.",
    "tree.file-changed",
    also=("grpo.total-loss-mismatch",),
)
def _(run: Run) -> None:
    run.set(SCORES, "/loss", 0.25)
    receipt = run.json("receipt.json")
    receipt["loss"] = 0.25
    receipt["files"]["scores"].update(sha256=sha256(run.files[SCORES]), size=len(run.files[SCORES]))
    run.put("receipt.json", receipt)


# The same questions about one tree and its manifest.

CHECKPOINT = ("verify", "checkpoint", "{run}/checkpoint", "--key", "{keys}/{key}.pub")
MANIFEST = ("verify", "manifest", "{run}/artifacts/adapter-manifest.json", "--root", "{run}/adapter")


@vector("checkpoint-flipped-byte", "`verify checkpoint` on a changed shard.", "tree.file-changed", command=CHECKPOINT)
def _(run: Run) -> None:
    run.flip("checkpoint/__1_0.distcp", 500)


@vector(
    "checkpoint-without-seal",
    "`verify checkpoint` with a key, and no seal that names the manifest.",
    "file.missing",
    command=CHECKPOINT,
    also=("trust.no-seal",),
)
def _(run: Run) -> None:
    del run.files[SEAL]


@vector(
    "checkpoint-manifest-not-sealed",
    "The checkpoint and its manifest were changed together, the seal was not.",
    "seal.not-a-subject",
    command=CHECKPOINT,
)
def _(run: Run) -> None:
    run.files["checkpoint/metadata.json"] += b" "
    run.redo_manifests()


@vector(
    "manifest-is-a-pipe",
    "The manifest given on the command line is a pipe that nobody writes to.",
    "file.not-regular",
    command=(*MANIFEST, "--consistency-only"),
    exit=1,
)
def _(run: Run) -> None:
    del run.files["artifacts/adapter-manifest.json"]
    run.steps["pipes"] = ["artifacts/adapter-manifest.json"]


@vector(
    "manifest-no-anchor",
    "`verify manifest` with nothing of the auditor's.",
    "trust.no-anchor",
    command=MANIFEST,
    exit=4,
)
def _(_run: Run) -> None:
    pass


@vector(
    "manifest-other-digest",
    "`verify manifest` with a digest of something else.",
    "trust.digest-mismatch",
    command=(*MANIFEST, "--digest", "1" * 64),
    exit=4,
)
def _(_run: Run) -> None:
    pass


@vector(
    "manifest-key-without-seal",
    "`verify manifest` with a key and no --seal: nothing is signed.",
    "trust.no-seal",
    command=(*MANIFEST, "--key", "{keys}/{key}.pub"),
    exit=4,
)
def _(_run: Run) -> None:
    pass
