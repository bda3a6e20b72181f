"""The packaged sets exercise what their stages must see: both clips act, in plans made today."""

from __future__ import annotations

import json
from pathlib import Path

from mint2m_trainer.parity_export import Constants, oracle_run
from mint2m_trainer.stages.packaged_set import PACKAGED_SETS, write_set


def test_both_clips_act_on_the_small_set_s_tokens(tmp_path: Path) -> None:
    """The plan asks for a token of each; here as the conventional side computes it, on one rank."""
    place = write_set(PACKAGED_SETS["local-small"], tmp_path / "set").parent
    rollout = json.loads((place / "parity-32k/rollout.json").read_bytes())
    rollout["ref_logprobs"] = rollout["old_logprobs"]  # the stage scores its reference again; clips do not ask for it
    (tmp_path / "rollout.json").write_text(json.dumps(rollout))
    grpo = json.loads((place / "parity-32k/profile.json").read_bytes())["grpo"]
    constants = Constants(clip_low=grpo["clip_low"], clip_high=grpo["clip_high"], kl_beta=grpo["kl_beta"])
    out = tmp_path / "out"
    oracle_run(
        place / "model", place / "adapter", tmp_path / "rollout.json", "active_clip", "conventional", 1, "float32", out,
        constants,
    )  # fmt: skip
    report = json.loads((out / "report.json").read_bytes())
    assert report["clipped_low"] >= 1 and report["clipped_high"] >= 1
    assert report["clipped_low"] + report["clipped_high"] < report["scored_tokens"]  # some have a gradient, too
