"""Runs changed by whoever holds the signing key: hashes, chains and seal are made again over the change.

Each case is a valid run with one change and names a root finding that must come of it; the exit code is 1.
"""

# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.finding import Report, Verdict
from mint2m_verify.run import verify_run


def verify(run: Path) -> Report:
    return verify_run(run, read_key(run.with_name("run.pub")), VerifyOptions())


def ids(report: Report) -> list[str]:
    return [root.id for root in report.roots]


def _set(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return change


def _twice_the_step(ranks: list[Any]) -> None:
    for rank in ranks:
        place = next(i for i, record in enumerate(rank["phases"]) if record["phase"] == "optimizer-step")
        rank["phases"].insert(place, json.loads(json.dumps(rank["phases"][place])))
        for number, record in enumerate(rank["phases"]):
            record["sequence"] = number


def _swap_phases(ranks: list[Any]) -> None:
    records = ranks[1]["phases"]
    records[4], records[5] = records[5], records[4]
    for number, record in enumerate(records):
        record["sequence"] = number


def _scale_gradient(gradient: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor * np.float32(2) for name, tensor in gradient.items()}


def _drop_weight_decay(step: dict[str, Any]) -> None:
    for name, tensor in step["after"].items():
        # The step without its decay: p - lr * wd * p was taken off, so it is put back.
        step["after"][name] = (tensor / np.float32(1 - 1e-4 * 0.1)).astype(np.float32)


def _half_moment(step: dict[str, Any]) -> None:
    name = next(name for name in step["moments"] if name.endswith("exp_avg"))
    step["moments"][name] = step["moments"][name] * np.float32(0.5)


def _one_weight(step: dict[str, Any]) -> None:
    name = next(iter(step["after"]))
    step["after"][name] = step["after"][name].copy()
    step["after"][name][0, 0] += np.float32(1e-6)


def _infinite(step: dict[str, Any]) -> None:
    name = next(iter(step["moments"]))
    step["moments"][name] = step["moments"][name].copy()
    step["moments"][name].flat[0] = np.inf


def _no_absence(events: list[Any]) -> list[Any]:
    return [e for e in events if not (e["event"] == "absent" and e["resource"]["name"] == "run-rank-0001")]


def _no_intent(events: list[Any]) -> list[Any]:
    return [e for e in events if not (e["event"] == "intent" and e["resource"]["kind"] == "ray")]


FORGED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("a plan at another address", {"plan": _set("plan_sha256", value="1" * 64)}, {}, "binding.plan-address"),
    ("a plan with other phases", {"plan": lambda p: p["phases"].remove("finalize")}, {}, "binding.plan-differs"),
    ("a plan that claims more", {"plan": _set("claim_scope", value="gradient_parity")}, {}, "binding.plan-differs"),
    ("a plan with another input", {"plan": _set("inputs", "rollout", "sha256", value="2" * 64)}, {}, "binding.hash-mismatch"),
    ("a plan with a path outside", {"plan": _set("inputs", "rollout", "path", value="../rollout.json")}, {}, "schema.invalid"),
    ("a plan with a placeholder", {"plan": _set("model", "manifest_sha256", value="0" * 64)}, {}, "schema.placeholder"),
    ("a deployment with another fixture", {"deployment": _set("fixture", "sha256", value="3" * 64)}, {}, "binding.deployment-differs"),
    ("a rank on another node", {"plan": _set("placement", "ranks", 1, "slot", value=0)}, {}, "placement.mismatch"),
    ("a rank seen elsewhere", {"sessions": _set(1, "placement", "observed_node_ip", value="127.0.0.2")}, {}, "placement.mismatch"),
    ("a reward that nobody earned", {"rollout": _set("rewards", value=[1, -1])}, {}, "fixture.reward-mismatch"),
    ("a fixture for another profile", {"fixture": _set("profile_sha256", value="4" * 64)}, {}, "fixture.profile-mismatch"),
    ("a missing rank", {"sessions": lambda ranks: ranks[:1]}, {}, "session.rank-missing"),
    ("no rank at all", {"sessions": lambda _ranks: []}, {}, "schema.invalid"),
    ("a rank twice", {"sessions": _set(1, "rank", value=0)}, {}, "session.rank-missing"),
    ("swapped phases", {"sessions": _swap_phases}, {}, "session.phase-order"),
    ("a missing phase", {"sessions": lambda ranks: ranks[0]["phases"].pop(4) and None}, {}, "session.phase-missing"),
    ("two optimizer steps", {"sessions": _twice_the_step}, {}, "session.phase-repeated"),
    ("two steps in one phase", {"sessions": _set(0, "phases", 8, "evidence", "optimizer_steps", value=2)}, {}, "session.ranks-disagree"),
    ("a broken chain", {"chained": _set("ranks", 0, "phases", 3, "previous_sha256", value="5" * 64)}, {}, "session.chain-broken"),
    ("records of another plan", {"chained": _set("plan_sha256", value="6" * 64)}, {}, "session.plan-mismatch"),
    ("records of another execution", {"chained": _set("execution_id", value="7" * 64)}, {}, "session.chain-broken"),
    ("evidence left out", {"sessions": _drop(0, "phases", 3, "evidence", "pages_sha256")}, {}, "session.evidence-missing"),
    ("ranks with different ledgers", {"sessions": _set(1, "phases", 4, "evidence", "ledger_sha256", value="8" * 64)}, {}, "session.ranks-disagree"),
    ("weights that changed", {"sessions": _set(0, "phases", 7, "evidence", "weights_sha256", value="9" * 64)}, {}, "session.weights-changed"),
    ("a rank with other pages", {"sessions": _set(1, "phases", 3, "evidence", "pages_sha256", value="8" * 64)}, {}, "session.ranks-disagree"),
    ("a rank without its share of rows", {"sessions": _set(1, "phases", 3, "evidence", "page_rows", value=1)}, {}, "session.count-mismatch"),
    ("a rank with more than its share of rows", {"sessions": _set(1, "phases", 3, "evidence", "page_rows", value=10**6)}, {}, "session.count-mismatch"),
    ("a rank that released fewer gradient pages", {"sessions": _set(1, "phases", 6, "evidence", "gradient_pages_released", value=1)}, {}, "session.count-mismatch"),
    ("a rank that compared less than its share", {"sessions": _set(1, "phases", 6, "evidence", "rows_compared", value=1)}, {}, "session.count-mismatch"),
    ("a rank that took over chunks alone", {"sessions": _set(1, "phases", 3, "evidence", "resumed_chunks", value=1)}, {}, "session.ranks-disagree"),
    ("no chunk taken over, and said", {"sessions": _set(1, "phases", 3, "evidence", "resumed_chunks", value=0)}, {}, "schema.invalid"),
    ("rows that differ", {"sessions": _set(0, "phases", 6, "evidence", "row_difference", value=1e-3)}, {}, "session.count-mismatch"),
    ("another optimizer", {"sessions": _set(0, "phases", 8, "evidence", "optimizer_contract", "lr", value=1e-3)}, {}, "session.optimizer-contract"),
    ("another source", {"sessions": _set(0, "phases", 0, "evidence", "source_sha256", value="a" * 64)}, {}, "session.identity-mismatch"),
    ("a file that a rank did not write", {"sessions": _set(0, "phases", 9, "files", 0, "sha256", value="b" * 64)}, {}, "session.file-mismatch"),
    ("a rank that was not closed", {"sessions": _set(0, "cleanup", "session_closed", value=False)}, {}, "session.cleanup-incomplete"),
    ("an edited loss of a token", {"scores": _set("responses", 0, "loss", 2, value=0.5)}, {}, "grpo.loss-mismatch"),
    ("an edited total loss", {"scores": _set("loss", value=0.0)}, {}, "grpo.total-loss-mismatch"),
    ("an edited advantage", {"scores": _set("advantages", 1, value=2.0)}, {}, "grpo.advantage-mismatch"),
    ("an edited clip count", {"scores": _set("responses", 1, "clipped_high", value=9)}, {}, "grpo.clip-count-mismatch"),
    ("an edited drift", {"scores": _set("kl", value=0.0)}, {"kl_beta": 0.05}, "grpo.kl-mismatch"),
    ("an old log-prob of nowhere", {"scores": _set("responses", 0, "old", 0, value=-0.25)}, {}, "scores.source-mismatch"),
    ("scores of other tokens", {"scores": _set("responses", 0, "tokens", 0, value=66)}, {}, "scores.tokens-mismatch"),
    ("a ratio beyond all numbers", {"scores": _set("responses", 0, "old", 0, value=-1e300)}, {"old_source": "recompute"}, "grpo.loss-mismatch"),
    ("passed beside contradicting numbers", {"scores": _set("passed", value=True)}, {}, "schema.invalid"),
    ("a gradient of twice the size", {"gradient": _scale_gradient}, {"edits_after_norm": True}, "optimizer.norm-mismatch"),
    ("a step without weight decay", {"step": _drop_weight_decay}, {"weight_decay": 0.1, "gradient_scale": 1e-3}, "optimizer.step-mismatch"),
    ("a weight off by a millionth", {"step": _one_weight}, {}, "optimizer.step-mismatch"),
    ("a moment of half its size", {"step": _half_moment}, {}, "optimizer.moment-mismatch"),
    ("an infinite moment", {"step": _infinite}, {}, "tensor.not-finite"),
    ("something still running", {"journal": _no_absence}, {}, "journal.not-absent"),
    ("a creation without intent", {"journal": _no_intent}, {}, "journal.without-intent"),
    ("an actor that was never created", {"journal": lambda events: [e for e in events if (e["resource"] or {}).get("name") != "run-rank-0001"]}, {}, "journal.not-created"),
    ("an actor under another id", {"journal": _set(8, "resource", "id", value="ab" * 16)}, {}, "journal.actor-mismatch"),
    ("a fresh adapter that is not fresh", {"before": lambda before: {name: tensor + np.float32(0.5) for name, tensor in before.items()}}, {}, "adapter.not-fresh"),
    ("a journal without its closing", {"journal": lambda events: events[:-1]}, {}, "journal.not-closed"),
    ("a journal of another execution", {"journal": _set(4, "execution_id", value="c" * 64)}, {}, "journal.other-run"),
    ("a blocked doctor that passed", {"doctor": _set("checks", 0, "status", value="blocked")}, {}, "doctor.blocked"),
    ("a receipt with two steps", {"receipt": _set("optimizer_steps", value=2)}, {}, "receipt.mismatch"),
    ("a receipt of another loss", {"receipt": _set("loss", value=0.0)}, {}, "receipt.mismatch"),
    ("a receipt of another file", {"receipt": _set("files", "scores", "sha256", value="d" * 64)}, {}, "binding.hash-mismatch"),
    ("a receipt that says no signal", {"receipt": _set("signal", value="no-signal")}, {}, "receipt.mismatch"),
    ("a manifest with another root", {"artifacts/checkpoint-manifest.json": _set("root_sha256", value="e" * 64)}, {}, "manifest.root-mismatch"),
    ("a manifest with a wrong count", {"artifacts/adapter-manifest.json": _set("file_count", value=9)}, {}, "manifest.count-mismatch"),
    ("a sealed file without a place", {"extra": lambda _files: {"inputs/extra.json": b"{}"}}, {}, "tree.file-unexpected"),
    ("a seal of no subject", {"subjects": lambda _subjects: []}, {}, "seal.invalid"),
    ("a seal with subjects out of order", {"subjects": lambda subjects: subjects[::-1]}, {}, "seal.invalid"),
    ("a seal of another kind", {"statement": _set("predicate", "kind", value="validation")}, {}, "seal.invalid"),
    ("a seal about another execution", {"statement": _set("predicate", "execution_id", value="f" * 64)}, {}, "seal.binding-mismatch"),
    ("a seal with a subject too many", {"subjects": lambda s: [*s, {"name": "zz", "digest": {"sha256": "1" * 64}}]}, {}, "tree.file-unexpected"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "changes", "expected"), [case[1:] for case in FORGED], ids=[case[0] for case in FORGED]
)
def test_a_forgery_signed_with_the_right_key_is_refused(
    tmp_path: Path, builder: ModuleType, edits: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    changes = dict(changes)
    run = tmp_path / "run"
    if changes.pop("edits_after_norm", False):
        # The gradient file alone is scaled: norm, step and moments stay those of the true gradient.
        recipe = builder.build_run(run)
        place = run / "artifacts/gradient.safetensors"
        raw = place.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        doubled = (np.frombuffer(raw[start:], "<f4") * np.float32(2)).tobytes()
        place.write_bytes(raw[:start] + doubled)
        builder.reseal(run, recipe)
    else:
        builder.build_run(run, edits=edits, **changes)
    report = verify(run)
    assert expected in ids(report)
    assert report.verdict is Verdict.FAILED
