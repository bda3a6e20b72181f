"""Receipts and manifests that summarize something else than what lies beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.forge import AFTER, BEFORE, DEPLOYMENT, GRADIENT, SESSIONS, TREES, Run, read_base, sha256, tree_root

ONE = "run-one-rank"
PROFILE = "inputs/profile.json"


def receipt(run: Run, change: Callable[[dict[str, Any]], Any]) -> None:
    run.edit("receipt.json", lambda document: change(document) and None)
    run.redo_seal()


@vector("receipt-two-steps", "The receipt says two optimizer steps.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(optimizer_steps=2))


@vector("receipt-other-loss", "The receipt says another loss.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(loss=0.5))


@vector("receipt-no-signal", "The receipt says that the group had no signal.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(signal="no-signal"))


@vector("receipt-detached", "The receipt says that the gradient stopped at the pages.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(prefix_gradient="detached", prefix_backwards=0, max_row_difference=None))


@vector("receipt-gpu-class", "The hardware class was lifted in the receipt alone.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(hardware_class="h20-4x8"))


@vector("receipt-claims-more", "The claim scope was lifted in the receipt alone.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(claim_scope="2m_execution_only_not_numerical_correctness"))


@vector(
    "run-short-for-its-scope",
    "880 tokens on two ranks, as the cluster class's execution.",
    "binding.plan-differs",
    also=("binding.class-placement",),
)
def _(run: Run) -> None:
    _lift(run, "2m_execution_only_not_numerical_correctness")


@vector(
    "rehearsal-on-one-node-of-two",
    "A rehearsal of the cluster class on one node with two accelerators.",
    "binding.class-placement",
)
def _(run: Run) -> None:
    _rehearses(run)
    _lift(run, "topology_rehearsal")


@vector(
    "rehearsal-of-two-ranks-on-four-nodes",
    "A rehearsal of the cluster class that names all its nodes and has ranks on two accelerators of the first.",
    "binding.class-placement",
)
def _(run: Run) -> None:
    _rehearses(run)
    nodes = run.json(DEPLOYMENT)["node_ips"] + ["10.9.0.2", "10.9.0.3", "10.9.0.4"]
    cluster = {"node_ips": nodes, "accelerators_per_node": 8}
    run.edit(DEPLOYMENT, lambda value: value.update(cluster))
    run.edit("plan.json", lambda plan: plan["deployment"].update(cluster))
    _lift(run, "topology_rehearsal")


def _rehearses(run: Run) -> None:
    run.edit(PROFILE, lambda made: made.update(rehearses={"profile_sha256": "7a" * 32, "prompt_tokens": 2_097_152}))


def _lift(run: Run, claim_scope: str) -> None:
    """Lift a run into the cluster class in every document that says its class or follows from it."""
    scope = {"hardware_class": "h20-4x8", "claim_scope": claim_scope}
    digest = "5d" * 32
    image, resource = f"sha256:{digest}", f"mint2m_image_{digest}"
    run.edit(DEPLOYMENT, lambda value: value.update(hardware_class="h20-4x8", image={"name": "site", "digest": image}))
    run.set("inputs/runtime-identity.json", "/image_digest", image)

    def planned(plan: dict[str, Any]) -> None:
        plan["deployment"].update(hardware_class="h20-4x8", image_digest=image, image_resource=resource)
        plan["claim_scope"] = scope["claim_scope"]
        for bundle in plan["placement"]["bundles"]:
            bundle["resources"].append({"name": resource, "amount": 0.001})

    def ran(sessions: dict[str, Any]) -> None:
        for session in sessions["ranks"]:
            session["placement"]["observed_accelerator"] = f"GPU-{session['rank']}"
            identity = sha256(run.files["inputs/runtime-identity.json"])
            session["phases"][0]["evidence"]["runtime_identity_sha256"] = identity

    run.edit("plan.json", planned)
    run.edit(SESSIONS, ran)
    run.edit("receipt.json", lambda made: made.update(scope))
    run.follow()
    run.redo_seal(lambda statement: statement["predicate"].update(scope))


@vector("receipt-longer-prompt", "The receipt says a prompt of two million tokens.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(prompt_tokens=2_097_152, prefix_backwards=8192))


@vector("receipt-actor-remains", "The receipt says that actors remained.", "receipt.mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made["cleanup"].update(actors_absent=False))


@vector("receipt-another-file", "The receipt names another gradient.", "binding.hash-mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made["files"]["gradient"].update(sha256="1" * 64))


@vector("receipt-file-elsewhere", "The receipt names the scores where the gradient belongs.", "binding.path-mismatch")
def _(run: Run) -> None:
    receipt(run, lambda made: made["files"].update(gradient=made["files"]["scores"]))


@vector(
    "receipt-of-another-run",
    "The receipt of another run, sealed with this one.",
    "journal.other-run",
    also=("binding.hash-mismatch", "receipt.mismatch", "receipt.other-run"),
)
def _(run: Run) -> None:

    run.files["receipt.json"] = read_base(ONE)["receipt.json"]
    run.redo_seal()


@vector(
    "receipt-alone-two-steps",
    "`verify receipt` on a sealed receipt that contradicts itself.",
    "receipt.mismatch",
    command=("verify", "receipt", "{run}/receipt.json", "--key", "{keys}/{key}.pub"),
)
def _(run: Run) -> None:
    receipt(run, lambda made: made.update(prefix_backwards=3))


@vector(
    "receipt-alone-not-sealed",
    "`verify receipt` on a receipt that its seal does not name.",
    "seal.not-a-subject",
    command=("verify", "receipt", "{run}/receipt.json", "--key", "{keys}/{key}.pub"),
)
def _(run: Run) -> None:
    run.set("receipt.json", "/loss", 0.5)


@vector(
    "receipt-alone-file-changed",
    "`verify receipt` beside a gradient that was changed.",
    "binding.hash-mismatch",
    command=("verify", "receipt", "{run}/receipt.json", "--consistency-only"),
)
def _(run: Run) -> None:
    run.flip(GRADIENT, 400)


@vector(
    "receipt-alone-file-gone",
    "`verify receipt` beside a gradient that was removed.",
    "binding.file-absent",
    command=("verify", "receipt", "{run}/receipt.json", "--consistency-only"),
)
def _(run: Run) -> None:
    del run.files[GRADIENT]


@vector(
    "receipt-alone-through-a-link",
    "`verify receipt` where the directory of the files that it names is a link.",
    "tree.symlink",
    command=("verify", "receipt", "{run}/receipt.json", "--consistency-only"),
)
def _(run: Run) -> None:
    run.steps["rename"] = {"artifacts": "elsewhere"}
    run.steps["links"] = {"artifacts": "elsewhere"}


# Manifests


def manifest(run: Run, change: Callable[[dict[str, Any]], Any], *, root: bool = True, tree: str = "adapter/") -> None:
    path = TREES[tree]
    run.edit(path, lambda document: change(document) and None)
    if root:
        run.edit(path, lambda document: document.update(root_sha256=tree_root(document["files"])))
    run.follow(after="manifests")


@vector("manifest-other-root", "The root digest is that of another tree.", "manifest.root-mismatch")
def _(run: Run) -> None:
    manifest(run, lambda made: made.update(root_sha256="1" * 64), root=False)


@vector("manifest-other-count", "The manifest counts other files than it lists.", "manifest.count-mismatch")
def _(run: Run) -> None:
    manifest(run, lambda made: made.update(file_count=3))


@vector("manifest-unsorted", "The manifest's files are out of order.", "manifest.not-sorted")
def _(run: Run) -> None:
    manifest(run, lambda made: made["files"].reverse())


@vector("manifest-chunks", "A chunk digest that is not the file's.", "manifest.chunks-invalid")
def _(run: Run) -> None:
    manifest(run, lambda made: made["files"][0].update(chunks=["2" * 64]))


@vector("manifest-no-chunk", "A file without its chunk digest.", "manifest.chunks-invalid")
def _(run: Run) -> None:
    manifest(run, lambda made: made["files"][0].update(chunks=[]))


@vector("manifest-not-nfc", "The manifest names a file in decomposed form.", "manifest.path-invalid")
def _(run: Run) -> None:
    manifest(run, lambda made: made["files"][0].update(path="adapter_confi\u0067\u0301.json"))


@vector("manifest-entry-added", "The manifest names a file that is not there.", "tree.file-missing")
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        extra = {"path": "z.bin", "size": 1, "executable": False, "sha256": "3" * 64, "chunks": ["3" * 64]}
        made["files"].append(extra)
        made.update(file_count=made["file_count"] + 1, total_bytes=made["total_bytes"] + 1)

    manifest(run, change)


@vector("manifest-entry-missing", "The manifest leaves a file of the checkpoint out.", "tree.file-unlisted")
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        entry = made["files"].pop()
        made.update(file_count=made["file_count"] - 1, total_bytes=made["total_bytes"] - entry["size"])

    manifest(run, change, tree="checkpoint/")


@vector("manifest-of-nothing", "A manifest without files.", "schema.invalid")
def _(run: Run) -> None:
    manifest(run, lambda made: made.update(files=[], file_count=0, total_bytes=0))


@vector(
    "manifest-of-the-other-tree", "The manifest of adapter-before in the place of the adapter's.", "tree.file-changed"
)
def _(run: Run) -> None:
    run.files[TREES["adapter/"]] = run.files[TREES["artifacts/adapter-before/"]]
    run.follow(after="manifests")


@vector("manifest-tree-empty", "A tree without a file, and a manifest whose files are gone.", "tree.file-missing")
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith("adapter/")]:
        del run.files[path]
    run.redo_seal()


@vector("adapter-never-written", "An adapter without weights, in tree and manifest alike.", "session.file-missing")
def _(run: Run) -> None:
    del run.files[AFTER]
    run.follow(after="execution")


@vector(
    "fresh-adapter-not-fresh",
    "A fresh adapter whose lora_B is not zero: trained before, unsaid.",
    "adapter.not-fresh",
    also=("session.adapter-mismatch",),
)
def _(run: Run) -> None:
    before = run.tensors(BEFORE)
    before[next(name for name in sorted(before) if ".lora_B." in name)].flat[0] = 0.5
    run.put_tensors(BEFORE, before)
    run.follow(after="execution")
