"""Changes to what a promotion chain was planned to be: its plan, the runtime lock in it, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maker.cases_chain import chain, of
from maker.chain_forge import PLAN, PLAN_SEAL
from maker.forge import Run, sha256

# What was to run.


def _locked(run: Run, change: Callable[[dict[str, Any]], None]) -> None:
    """Give the plan a runtime lock of the packages that its identity names."""
    identity = run.json("inputs/runtime-identity.json")
    lock = {
        "schema": "mint2m.runtime-lock/v1",
        "name": "vectors-cpu",
        "environment": "cpu",
        "base_image": {"name": "python", "digest": f"sha256:{sha256(b'base')}"},
        "container_file": {"name": "cpu.Containerfile", "sha256": sha256(b"container file")},
        "python": identity["python"],
        "wheels": [item | {"sha256": [sha256(item["name"].encode())]} for item in identity["packages"]],
        "system_packages": [],
        "drivers": None,
    }
    change(lock)
    of(run).put("inputs/runtime-lock.json", lock)
    of(run).put(PLAN, run.json(PLAN) | {"runtime_lock": run.ref("inputs/runtime-lock.json")})
    of(run).sign_plan()
    of(run).follow()


@chain("lock-unresolved", "The plan binds a lock with an unknown base image.", "validation-plan.lock-unresolved")
def _(run: Run) -> None:
    _locked(run, lambda lock: lock.update(base_image=None))


@chain("lock-of-little", "Lock and identity agree, since neither names torch.", "validation-plan.lock-unresolved")
def _(run: Run) -> None:
    file = "inputs/runtime-identity.json"
    before = sha256(run.files[file])
    run.edit(file, lambda value: value.update(packages=[p for p in value["packages"] if p["name"] != "torch"]))
    after = sha256(run.files[file])
    for path in [path for path in run.files if path.endswith(".json")]:
        run.files[path] = run.files[path].replace(before.encode(), after.encode())
    run.set(PLAN, "/runtime_identity", run.ref(file))
    _locked(run, lambda _lock: None)


@chain("lock-differs", "The plan binds a lock of another version of numpy.", "validation-plan.lock-differs")
def _(run: Run) -> None:
    _locked(run, lambda lock: next(w for w in lock["wheels"] if w["name"] == "numpy").update(version="1.0"))


# The plan: fixed and signed before the run.


@chain("plan-not-signed", "The plan has no statement.", "validation-plan.not-signed")
def _(run: Run) -> None:
    del run.files[PLAN_SEAL]


@chain(
    "plan-changed", "A bound loosened in the plan; its signature is the old one.", "validation-plan.statement-mismatch"
)
def _(run: Run) -> None:
    _loosen(run)


@chain("plan-loosened", "A bound loosened after the run, by the planner's own hand.", "chain.binding-mismatch")
def _(run: Run) -> None:
    _loosen(run)
    of(run).sign_plan()


def _loosen(run: Run) -> None:
    def change(plan: Any) -> None:
        for stage in plan["stages"]:
            for bound in stage["thresholds"]:
                if bound["number"].endswith(".relative_l2"):
                    bound["at_most"] = 1.5

    run.edit(PLAN, change)


@chain("plan-without-a-bound", "A plan that leaves the cosine of a parity stage open.", "validation-plan.unbounded")
def _(run: Run) -> None:
    def change(plan: Any) -> None:
        bounds = plan["stages"][4]["thresholds"]
        bounds[:] = [bound for bound in bounds if bound["number"] != "ratio1.cosine"]

    run.edit(PLAN, change)
    of(run).sign_plan()


@chain("plan-out-of-order", "A plan that wants actor before nccl.", "validation-plan.stages-invalid")
def _(run: Run) -> None:
    def change(plan: Any) -> None:
        for list_ in (plan["required_stages"], plan["stages"]):
            list_[2], list_[3] = list_[3], list_[2]

    run.edit(PLAN, change)
    of(run).sign_plan()


@chain("plan-without-a-fixture", "A parity stage planned without inputs.", "validation-plan.fixture-missing")
def _(run: Run) -> None:
    run.set(PLAN, "/stages/4/fixture", None)
    of(run).sign_plan()


@chain(
    "plan-of-two-ranks-on-the-cluster",
    "All of it claims the cluster, with two ranks, short prompts and a run of the reference class at its end.",
    "validation-plan.wrong-length",
    also=("binding.class-placement", "chain.run-not-planned"),
)
def _(run: Run) -> None:
    of(run).planned_as({"hardware_class": "h20-4x8", "claim_scope": "gradient_parity"})


@chain(
    "plan-of-another-scope",
    "All of it claims the scope of the cluster's two million tokens, and ran in the reference class.",
    "validation-plan.scope-mismatch",
)
def _(run: Run) -> None:
    of(run).planned_as({"claim_scope": "2m_execution_only_not_numerical_correctness"})


@chain("plan-gone", "The plan itself is missing.", "tree.file-missing")
def _(run: Run) -> None:
    del run.files[PLAN]


@chain("input-changed", "A token of a rollout changed after the plan was signed.", "tree.file-changed")
def _(run: Run) -> None:
    run.set("inputs/fixtures/parity-32k/rollout.json", "/prompt_tokens/5", 66)
