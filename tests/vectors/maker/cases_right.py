"""What must be accepted: a verifier that refuses everything passes every other vector."""

from __future__ import annotations

import json

from maker.case import VERIFY_RUN, vector
from maker.forge import DEPLOYMENT, NONCE, SEAL, Run, read_base


@vector("right-run", "A real run of two ranks, as it was left.", None, exit=0)
def _(_run: Run) -> None:
    pass


@vector(
    "right-run-one-rank", "A real run of one rank by an operator, signed with P-256.", None, base="run-one-rank", exit=0
)
def _(_run: Run) -> None:
    pass


@vector(
    "right-logs-of-ranks", "Ranks left their logs, sealed like every other file; no check reads them.", None, exit=0
)
def _(run: Run) -> None:
    for rank in (0, 1):
        run.files[f"logs/rank-{rank:04d}.log"] = b"2026-11-30T00:00:00.000Z INFO mint2m.rank: bind begins\n"
    run.redo_seal()


@vector("right-second-execution", "A second execution of the plan of `run`.", None, exit=0)
def _(run: Run) -> None:
    run.files |= read_base("run-again")


@vector(
    "right-consistency-only",
    "A right run, and no origin asked for.",
    None,
    exit=0,
    command=("verify", "run", "{run}", "--consistency-only"),
)
def _(_run: Run) -> None:
    pass


@vector(
    "right-nonce",
    "A right run of the auditor's own nonce.",
    None,
    exit=0,
    command=(*VERIFY_RUN, "--expect-nonce", NONCE),
)
def _(_run: Run) -> None:
    pass


@vector(
    "right-model-elsewhere", "The same run without its copy of the model: its manifest still binds it.", None, exit=0
)
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith("inputs/model/")]:
        del run.files[path]


@vector("right-bundle-indented", "The bundle around the payload may be written in another way.", None, exit=0)
def _(run: Run) -> None:

    run.files[SEAL] = json.dumps(run.json(SEAL), indent=1).encode()


@vector(
    "right-deployment-by-hand",
    "A deployment in a person's own layout, planned and sealed as it is.",
    None,
    exit=0,
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.files[DEPLOYMENT] = run.files[DEPLOYMENT].replace(b"\n", b"\r\n")
    plan = run.json("plan.json")
    plan["inputs"]["deployment"] = run.ref(DEPLOYMENT)
    run.put("plan.json", plan)
    run.redo_address()
    run.follow(after="plan")


@vector(
    "right-checkpoint",
    "`verify checkpoint` on the checkpoint of a right run.",
    None,
    exit=0,
    command=("verify", "checkpoint", "{run}/checkpoint", "--key", "{keys}/{key}.pub"),
)
def _(_run: Run) -> None:
    pass


@vector(
    "right-receipt",
    "`verify receipt` on the receipt of a right run.",
    None,
    exit=0,
    command=("verify", "receipt", "{run}/receipt.json", "--key", "{keys}/{key}.pub"),
)
def _(_run: Run) -> None:
    pass


@vector(
    "right-manifest",
    "`verify manifest` with the seal that names the manifest.",
    None,
    exit=0,
    command=(
        "verify",
        "manifest",
        "{run}/artifacts/adapter-manifest.json",
        "--root",
        "{run}/adapter",
        "--seal",
        "{run}/attestations/seal.sigstore.json",
        "--key",
        "{keys}/{key}.pub",
    ),
)
def _(_run: Run) -> None:
    pass
