"""A rehearsal runs the deployment's own ranks over a short prompt, verifies like a run, and counts as none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_trainer.deployments import PACKAGED, packaged_profile
from mint2m_trainer.rehearsal import rehearsal_profile
from mint2m_verify import layout
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import RunProfile
from mint2m_verify.signing import key_id, new_key_pair, parse_public_key

VECTORS = Path(__file__).parents[2] / "vectors"


def command(*words: str) -> tuple[int, dict[str, Any]]:
    outcome = command_line([*words, "--format", "json"])
    return int(outcome.verdict), json.loads(outcome.text)


def started(*words: str) -> tuple[int, dict[str, Any]]:
    """The same in a process of its own: a second Ray in one process goes by the first one's token."""
    command = [sys.executable, "-m", "mint2m", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_only_what_the_prompt_decides_is_changed() -> None:
    profile = packaged_profile(PACKAGED["local-128k"])
    made = rehearsal_profile(profile, "ab" * 32)
    assert made.rehearses is not None
    assert (made.rehearses.profile_sha256, made.rehearses.prompt_tokens) == ("ab" * 32, 131_072)
    back = replace(made, context=profile.context, grpo=profile.grpo, prefix=profile.prefix, rehearses=None)
    assert back == profile
    assert RunProfile.parse(made.encode(), file="p") == made


@pytest.mark.ray
def test_a_rehearsal_is_verified_like_a_run_and_no_policy_for_runs_takes_it(
    tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    deployment = tiny_deployment(tmp_path / "site")
    real = json.loads(deployment.read_bytes())
    new_key_pair(str(tmp_path / "release"))
    root = tmp_path / "rehearsal"
    words = ("run", "--deployment", str(deployment), "--rehearse", "--key", str(tmp_path / "release.key"))
    code, report = started(*words, "--output", str(root))
    assert code == 0, report
    assert report["claim_scope"] == "topology_rehearsal"
    assert command("verify", "run", str(root), "--key", str(tmp_path / "release.pub"))[0] == 0

    plan, receipt = (json.loads((root / name).read_bytes()) for name in (layout.PLAN, layout.RECEIPT))
    assert plan["claim_scope"] == receipt["claim_scope"] == "topology_rehearsal"
    rehearsed = plan["profile"]["rehearses"]
    profile = (deployment.parent / real["profile"]["path"]).read_bytes()
    assert rehearsed == {"profile_sha256": sha256_hex(profile), "prompt_tokens": 1024}
    assert plan["profile"]["topology"] == json.loads(profile)["topology"]
    own = json.loads((root / layout.DEPLOYMENT).read_bytes())
    same = ("hardware_class", "node_ips", "accelerators_per_node", "image", "ray_address", "name")
    assert {name: own[name] for name in same} == {name: real[name] for name in same}

    def judged(asserted: list[str], asked: list[str] | None) -> tuple[int, str | None]:
        policy = json.loads((VECTORS / "right-policy" / "outside" / "policy.json").read_bytes())
        pem = (tmp_path / "release.pub").read_bytes()
        policy["signers"][0]["key"] |= {"sha256": key_id(parse_public_key(pem, file="pub")), "pem": pem.decode()}
        policy["assertions"][0]["claim_scopes"], policy["rules"][0]["claim_scopes"] = asserted, asked
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        words = ("--policy", str(tmp_path / "policy.json"), "--at", "2026-12-01T00:00:00Z")
        code, report = command("verify", "run", str(root), *words)
        return code, next((finding["id"] for finding in report["findings"]), None)

    run, rehearsal = "reference_cpu_execution", "topology_rehearsal"
    assert judged([run], None) == (4, "policy.assertion-not-allowed")
    assert judged([run, rehearsal], [run]) == (3, "policy.claim-scope")
    assert judged([run, rehearsal], [rehearsal]) == (0, None)


def test_only_a_deployment_file_can_be_rehearsed(tmp_path: Path) -> None:
    code, report = command("run", "--deployment", "local", "--rehearse", "--output", str(tmp_path / "out"))
    assert (code, report["findings"][0]["id"]) == (2, "usage.invalid")
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_of_what_could_not_run_is_blocked_by_the_same_finding(
    tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    deployment = tiny_deployment(tmp_path / "site")
    value = json.loads(deployment.read_bytes())
    value["sbom"] = "nowhere.json"
    deployment.write_text(json.dumps(value))
    code, report = command("run", "--deployment", str(deployment), "--rehearse", "--output", str(tmp_path / "out"))
    assert (code, report["findings"][0]["id"]) == (2, "sbom.missing")
    assert not (tmp_path / "out").exists()
