"""Advantages by token, which the profile must ask for; and a run that failed and says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import rfc8785

from maker.case import vector
from maker.cases_inputs import PROFILE, ROLLOUT
from maker.forge import MOMENTS, SCORES, SEAL, SESSIONS, Run

BASE = "run-one-rank"


def by_token(run: Run, change: Callable[[list[list[float]]], None] = lambda _values: None) -> None:
    """Each token has its response's advantage, which leaves every loss as it was; `change` is made in the rollout."""
    groups = run.json(SCORES)["advantages"]
    responses = run.json(ROLLOUT)["responses"]
    right = [[float(np.float32(a))] * len(tokens) for a, tokens in zip(groups, responses, strict=True)]
    given = [list(values) for values in right]
    change(given)
    run.set(ROLLOUT, "/advantages", given)
    run.set(PROFILE, "/grpo/advantage_source", "rollout")
    run.set(SCORES, "/advantages", None)
    for g, values in enumerate(right):
        entry = run.json(SCORES)["responses"][g]
        run.set(SCORES, f"/responses/{g}/advantages", values[entry["first_scored"] :])


@vector("advantages-by-token", "One advantage for each token, which the profile asks for.", None, base=BASE, exit=0)
def _(run: Run) -> None:
    by_token(run)
    run.follow()


@vector(
    "advantages-not-permitted",
    "The rollout brings advantages, and the profile does not take them.",
    "fixture.advantages-not-permitted",
    base=BASE,
)
def _(run: Run) -> None:
    responses = run.json(ROLLOUT)["responses"]
    run.set(ROLLOUT, "/advantages", [[1.5] * len(tokens) for tokens in responses])
    run.follow()


@vector(
    "advantages-missing",
    "The profile takes advantages from the rollout, which has none.",
    "fixture.advantages-missing",
    base=BASE,
    also=("grpo.advantage-mismatch",),
)
def _(run: Run) -> None:
    by_token(run)
    run.edit(ROLLOUT, lambda rollout: {name: value for name, value in rollout.items() if name != "advantages"})
    run.follow()


@vector(
    "advantages-too-few", "A response has an advantage less than it has tokens.", "fixture.shape-mismatch", base=BASE
)
def _(run: Run) -> None:
    by_token(run, lambda values: values[1].pop())
    run.follow()


@vector("advantages-nan", "An advantage is NaN.", "json.not-finite", base=BASE)
def _(run: Run) -> None:
    by_token(run)
    first = rfc8785.dumps(run.json(ROLLOUT)["advantages"][0][0])
    run.files[ROLLOUT] = run.files[ROLLOUT].replace(b'"advantages":[[' + first, b'"advantages":[[NaN', 1)
    run.follow()


@vector(
    "advantage-of-a-token",
    "A token was trained with another advantage than the rollout has.",
    "grpo.advantage-mismatch",
    base=BASE,
)
def _(run: Run) -> None:
    by_token(run, lambda values: values[0].__setitem__(-1, 3.0))
    run.follow()


def failed(run: Run) -> None:
    """What a failed run leaves: no receipt, no stepped weights, no seal, and a failed receipt."""
    receipt = run.json("receipt.json")
    failed = {
        "schema": "mint2m.failed-receipt/v1",
        "status": "failed",
        **{name: receipt[name] for name in ("run_id", "plan_sha256", "execution_id", "started_at", "ended_at")},
        "world_size": receipt["world_size"],
        "stopped_in": "checkpoint",
        "completed": run.json("plan.json")["phases"][:-1],
        "finding": {"id": "rank.died", "words": "a rank's process ended; rank 1"},
        "discarded": ["adapter", MOMENTS, "checkpoint"],
        "remaining": [],
    }
    gone = ("receipt.json", SESSIONS, SEAL, MOMENTS)
    for path in [path for path in run.files if path in gone or path.startswith(("adapter/", "checkpoint/"))]:
        del run.files[path]
    for path in [path for path in run.files if path.startswith("artifacts/") and path.endswith("-manifest.json")]:
        del run.files[path]
    run.put("failed-receipt.json", failed)


@vector(
    "failed-run",
    "A rank died in the checkpoint: no receipt, no weights, and the run says that it failed.",
    "receipt.failed",
    also=("tree.file-missing", "seal.missing"),
    command=("verify", "run", "{run}", "--consistency-only"),
)
def _(run: Run) -> None:
    failed(run)


@vector(
    "failed-receipt",
    "The receipt of a run that failed, looked at alone.",
    "receipt.failed",
    command=("verify", "receipt", "{run}/failed-receipt.json", "--consistency-only"),
)
def _(run: Run) -> None:
    failed(run)
