"""`mint2m parity export`: one update of any rollout on local processes, written for comparison.

It runs the same `Update` as a real run, phase by phase, one process a rank, so what is compared is what trains.
`ratio1` scores old log-probs itself and has no drift term: every ratio is 1 and the gradient is the plain policy
gradient. `active_clip` takes the rollout's old and reference log-probs, so both clips and the drift are exercised.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.contract.directory import new_directory, write_synced
from mint2m_trainer.local_ranks import free_port, run_ranks
from mint2m_trainer.model.policy import family_of
from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_trainer.peft import WEIGHTS_NAME, read_adapter
from mint2m_trainer.update import RankInputs, Update
from mint2m_verify import layout as places
from mint2m_verify.canonical import canonical, parse
from mint2m_verify.documents import OptimizerContract, Rollout, RunProfile, Scores
from mint2m_verify.documents.inputs import (
    Context,
    GrpoOptions,
    LoraOptions,
    MemoryOptions,
    ModelNumerics,
    PrefixOptions,
    Timeouts,
    Topology,
)
from mint2m_verify.files import read_once

Case = Literal["ratio1", "active_clip"]
Gradient = Literal["exact", "detached", "conventional"]


class ExportError(Exception):
    """The request cannot be exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of the loss and layout that a rollout does not carry."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_beta: float = 0.0
    advantage_eps: float = 1e-6
    chunk_tokens: int = 32
    decisions: Literal["store", "rescore"] = "store"
    ref_source: Literal["rollout", "recompute"] = "rollout"
    route: Literal["fetch", "lse"] = "fetch"
    store: Literal["memory", "mapped"] = "memory"
    page_rows: int | None = None
    optimizer: OptimizerContract = STANDARD_CONTRACT


def oracle_run(
    model_dir: Path,
    adapter_dir: Path,
    rollout: Path,
    case: Case,
    prefix_gradient: Gradient,
    ranks: int,
    dtype: Literal["float32", "float64", "bfloat16"],
    out: Path,
    constants: Constants | None = None,
) -> None:
    """Run one update and write its numbers to `out`, which must not exist.

    Writes `gradients.safetensors` (before clipping), `stepped.safetensors` (the adapter after the step), both by
    PEFT name, `moments.safetensors`, `logprobs.json` and `report.json`.

    Raises:
        ExportError: a member of the request is out of range.
        FileExistsError: `out` exists and is not empty.
    """
    if ranks < 1:
        raise ExportError(f"ranks: expected at least 1, found {ranks}")
    if case not in ("ratio1", "active_clip") or prefix_gradient not in ("exact", "detached", "conventional"):
        raise ExportError(f"no case {case!r} with prefix gradient {prefix_gradient!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before the work, not after it
        raise FileExistsError(f"{out} exists and is not an empty directory")
    with tempfile.TemporaryDirectory(prefix="mint2m-parity-") as folder:
        inputs = export_inputs(
            model_dir, adapter_dir, rollout, case, prefix_gradient, ranks, dtype, Path(folder), constants or Constants()
        )
        run_local(inputs)
        write_export(Path(folder), out, case, prefix_gradient, ranks, dtype)


def export_inputs(
    model_dir: Path,
    adapter_dir: Path,
    rollout: Path,
    case: Case,
    prefix_gradient: Gradient,
    ranks: int,
    dtype: Literal["float32", "float64", "bfloat16"],
    run_dir: Path,
    constants: Constants,
) -> RankInputs:
    """What rank 0 of such an update needs; the others differ in `rank`."""
    given = read_rollout(rollout)
    profile = _profile(given, adapter_dir, case, prefix_gradient, ranks, dtype, constants)
    return RankInputs(
        rank=0,
        world_size=ranks,
        master_address="127.0.0.1",
        master_port=free_port(),
        run_dir=run_dir,
        snapshot=model_dir.resolve(),
        adapter=adapter_dir.resolve(),
        profile=profile,
        rollout=given,
        plan_sha256=profile.sha256,  # there is no plan; the profile says what ran
        execution_id=secrets.token_hex(32),
        image_digest=None,
        baseline=prefix_gradient == "conventional",
    )


def read_rollout(path: Path) -> Rollout:
    """A rollout document; one without its `schema` member, as engines write it, is read as version 1."""
    raw = read_once(path)
    value = parse(raw, file=str(path))
    if isinstance(value, dict) and "schema" not in value:
        raw = canonical({"schema": "mint2m.rollout/v1", **value})
    return Rollout.parse(raw, file=str(path), canonical_form=False)


def run_local(inputs: RankInputs) -> None:
    """Run all phases of an update on `inputs.world_size` local processes; raises `FindingError` (`rank.*`)."""
    on_local_ranks(_every_phase, inputs)


def on_local_ranks(work: Callable[[Update, RankInputs], None], inputs: RankInputs) -> None:
    """Run `work`, a function of a module, on one local process a rank, with the inputs of that rank.

    Raises as `run_local`, where `work` tells of each fault as a `RankError`.
    """
    threads = max((os.cpu_count() or 1) // inputs.world_size, 1)
    given = _Given(work=work, inputs=inputs)
    run_ranks(_rank, given, world_size=inputs.world_size, threads=threads, folder=inputs.run_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What every local process gets: the work, and the inputs of rank 0."""

    work: Callable[[Update, RankInputs], None]
    inputs: RankInputs


def _every_phase(update: Update, inputs: RankInputs) -> None:
    for phase in update.phases:
        with told_as_rank_error(inputs.rank, phase):
            update.run(phase)


def _rank(rank: int, given: _Given) -> None:
    inputs = replace(given.inputs, rank=rank)
    update = Update(inputs)
    try:
        given.work(update, inputs)
    finally:
        update.close()


def _profile(
    rollout: Rollout,
    adapter_dir: Path,
    case: Case,
    prefix_gradient: Gradient,
    ranks: int,
    dtype: Literal["float32", "float64", "bfloat16"],
    constants: Constants,
) -> RunProfile:
    adapter = read_adapter(adapter_dir)
    clip = case == "active_clip"
    contract: Mapping[str, Any] = {
        name: getattr(constants.optimizer, name) for name in constants.optimizer.__dataclass_fields__
    }
    state = "float64" if dtype == "float64" else "float32"
    return RunProfile(
        name="parity",
        topology=Topology(
            world_size=ranks,
            tensor_parallel=1,
            pipeline_parallel=1,
            context_parallel=ranks,
            expert_parallel=ranks,
        ),
        context=Context(prompt_tokens=len(rollout.prompt_tokens), max_response_tokens=max(map(len, rollout.responses))),
        group_size=len(rollout.responses),
        model=ModelNumerics(dtype=dtype, rope_angle_dtype="float32"),
        lora=LoraOptions(
            rank=adapter.rank,
            alpha=adapter.alpha,
            families=tuple(sorted({family_of(module) for module in adapter.modules})),  # type: ignore[arg-type]
            seed=0,
        ),
        optimizer=OptimizerContract(**{**contract, "state_dtype": state}),
        grpo=GrpoOptions(
            clip_low=constants.clip_low,
            clip_high=constants.clip_high,
            clip_dual=None,
            kl_beta=constants.kl_beta if clip else 0.0,
            kl_estimator="k3",
            advantage_eps=constants.advantage_eps,
            aggregation="token_mean",
            norm_tokens=None,
            old_source="rollout" if clip else "recompute",
            ref_source=constants.ref_source,
        ),
        prefix=PrefixOptions(
            gradient="detached" if prefix_gradient == "detached" else "exact",
            chunk_tokens=constants.chunk_tokens,
            decisions=constants.decisions,
            route=constants.route,
        ),
        memory=MemoryOptions(
            head_tokens=1024,
            query_tile=512,
            expert_tokens=4096,
            rank_bytes=None,
            store=constants.store,
            page_rows=constants.page_rows,
        ),
        timeouts_s=Timeouts(start=600, phase=1800, cleanup=60),
    )


def write_export(run_dir: Path, out: Path, case: str, mode: str, ranks: int, dtype: str) -> None:
    """The numbers of a finished update in `run_dir`, as `oracle_run` writes them."""
    scores = Scores.parse((run_dir / places.SCORES).read_bytes(), file=places.SCORES)
    report = {
        "case": case,
        "prefix_gradient": mode,
        "ranks": ranks,
        "dtype": dtype,
        "loss": scores.loss,
        "kl": scores.kl,
        "clipped_low": scores.clipped_low,
        "clipped_high": scores.clipped_high,
        "scored_tokens": scores.scored_tokens,
        "advantages": None if scores.advantages is None else list(scores.advantages),
        "gradient_norm": scores.gradient_norm,
        "clip_coefficient": scores.clip_coefficient,
    }
    logprobs = {"responses": [list(response.policy) for response in scores.responses]}
    with new_directory(out) as folder:
        for name, source in (
            ("gradients.safetensors", places.GRADIENT),
            ("stepped.safetensors", f"adapter/{WEIGHTS_NAME}"),
            ("moments.safetensors", places.OPTIMIZER_AFTER),
        ):
            write_synced(folder / name, (run_dir / source).read_bytes())
        write_synced(folder / "logprobs.json", (json.dumps(logprobs, indent=1) + "\n").encode())
        write_synced(folder / "report.json", (json.dumps(report, indent=1, sort_keys=True) + "\n").encode())
