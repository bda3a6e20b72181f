"""Every setting of a run profile that changes the update: the run is real, and the verifier accepts its evidence.

One short prompt, one change each. The verifier recomputes rewards, advantages, losses, clip counts and the optimizer's
step, so acceptance says that trainer and verifier mean the same by the setting.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mint2m_trainer.contract.fixture import RolloutScores, Target, build_fixture, ledger_task
from mint2m_trainer.deployments import PACKAGED, build, packaged_profile
from mint2m_verify.canonical import JsonValue, sha256_hex
from mint2m_verify.documents.inputs import RunProfile

Run = Callable[..., subprocess.CompletedProcess[str]]

PROMPT_TOKENS = 640
CHUNK_TOKENS = 100  # 639 captured tokens: the last chunk is short


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Profile members by pointer, other responses, and how many entries each given row of scores lacks (None: none)."""

    id: str
    changes: tuple[tuple[str, JsonValue], ...] = ()
    responses: tuple[str, ...] | None = None
    missing_scores: int | None = None


def variant(id: str, *changes: tuple[str, JsonValue], **more: object) -> Variant:
    return Variant(id=id, changes=changes, **more)  # type: ignore[arg-type]  # the two other members


VARIANTS = (
    variant("detached", ("/prefix/gradient", "detached")),
    variant("rescored-decisions", ("/prefix/decisions", "rescore")),
    variant("one-chunk", ("/prefix/chunk_tokens", PROMPT_TOKENS)),
    variant("small-chunks", ("/prefix/chunk_tokens", 33)),
    variant("one-rank", ("/topology/world_size", 1)),
    variant("four-ranks", ("/topology/world_size", 4)),
    variant("three-responses", responses=("Answer: 2", "Answer: 4", "No idea.")),
    variant("one-token-responses", responses=("4", "2")),
    variant("equal-rewards", responses=("Answer: 2", "Answer: 3")),
    variant("first-token-not-scored", ("/grpo/old_source", "rollout"), missing_scores=1),
    variant("scores-of-the-rollout", ("/grpo/old_source", "rollout"), missing_scores=0),
    variant("reference-k3", ("/grpo/kl_beta", 0.05), ("/grpo/ref_source", "recompute")),
    variant("reference-k1", ("/grpo/kl_beta", 0.05), ("/grpo/ref_source", "recompute"), ("/grpo/kl_estimator", "k1")),
    variant("reference-k2", ("/grpo/kl_beta", 0.05), ("/grpo/ref_source", "recompute"), ("/grpo/kl_estimator", "k2")),
    variant("dual-clip", ("/grpo/clip_dual", 3.0), ("/grpo/old_source", "rollout"), missing_scores=0),
    variant("sequence-mean", ("/grpo/aggregation", "sequence_mean"), responses=("Answer: 2", "It is 4.", "4")),
    variant(
        "sequence-sum-norm",
        ("/grpo/aggregation", "sequence_sum_norm"),
        ("/grpo/norm_tokens", 16),
        responses=("Answer: 2", "It is 4.", "4"),
    ),
    variant("bfloat16", ("/model/dtype", "bfloat16")),
    variant("float64", ("/model/dtype", "float64"), ("/optimizer/state_dtype", "float64")),
    variant("distributed-optimizer", ("/optimizer/distributed_optimizer", True)),
    variant("attention-only", ("/lora/families", ["attention"])),
    variant("float64-angles", ("/model/rope_angle_dtype", "float64")),
)


def profile_of(wanted: Variant) -> RunProfile:
    value = packaged_profile(PACKAGED["local"]).value()
    responses = wanted.responses or ("", "")
    base: tuple[tuple[str, JsonValue], ...] = (
        ("/context/prompt_tokens", PROMPT_TOKENS),
        ("/prefix/chunk_tokens", CHUNK_TOKENS),
        ("/group_size", len(responses)),
    )
    for pointer, new in (*base, *wanted.changes):
        _, section, *member = pointer.split("/")
        if member:
            inner = value[section]
            assert isinstance(inner, dict)
            assert member[0] in inner, pointer
            inner[member[0]] = new
        else:
            value[section] = new
    topology = value["topology"]
    assert isinstance(topology, dict)
    topology["context_parallel"] = topology["expert_parallel"] = topology["world_size"]
    return RunProfile.parse(json.dumps(value).encode(), file="profile.json", canonical_form=False)


def prepare(root: Path, wanted: Variant) -> Path:
    """A deployment whose fixture has the variant's responses and scores."""
    deployment = build(root, PACKAGED["local"], profile=profile_of(wanted))
    if wanted.responses is None and wanted.missing_scores is None:
        return deployment
    inputs = deployment.parent
    fixture = json.loads((inputs / "fixture.json").read_bytes())
    for name in ("fixture.json", "payload.json", "rollout.json"):
        (inputs / name).unlink()
    task = ledger_task(PACKAGED["local"].ledger_seed, tokens=PROMPT_TOKENS)
    task = replace(task, responses=wanted.responses or task.responses)
    scores = None
    if wanted.missing_scores is not None:
        # Some below and some far above what the policy gives: both clips are at work.
        rows = tuple(
            tuple(-9.0 if index % 2 else -0.5 for index in range(len(text.encode()) - wanted.missing_scores))
            for text in task.responses
        )
        scores = RolloutScores(old=rows)
    target = Target(
        revision=fixture["model"]["revision"],
        manifest_sha256=fixture["model"]["manifest_sha256"],
        vocab_size=fixture["shape"]["vocab_size"],
        profile_sha256=fixture["profile_sha256"],
        policy_sha256=None,
    )
    build_fixture(inputs, task, target, scores)
    named = json.loads(deployment.read_bytes())
    named["fixture"]["sha256"] = sha256_hex((inputs / "fixture.json").read_bytes())
    deployment.write_text(json.dumps(named))
    return deployment


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("wanted", VARIANTS, ids=lambda wanted: wanted.id)
def test_a_run_with_this_setting_is_accepted(mint2m: Run, tmp_path: Path, wanted: Variant) -> None:
    deployment = prepare(tmp_path / "prepared", wanted)
    assert mint2m("keys", "new", tmp_path / "k").returncode == 0
    words = ("run", "--deployment", deployment, "--output", tmp_path / "run", "--key", tmp_path / "k.key")
    done = mint2m(*words, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    done = mint2m("verify", "run", tmp_path / "run", "--key", tmp_path / "k.pub", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "accepted"), report["findings"]
    receipt = json.loads((tmp_path / "run" / "receipt.json").read_bytes())
    assert receipt["optimizer_steps"] == 1
    profile = json.loads((tmp_path / "run" / "inputs" / "profile.json").read_bytes())
    for pointer, value in wanted.changes:
        section, member = pointer.strip("/").split("/")
        assert profile[section][member] == value, "the run is of another setting"
