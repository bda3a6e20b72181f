"""The whole path through the command line: what a run leaves verifies, and what must be refused is refused early."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.deployments import PACKAGED, build, packaged_profile
from mint2m_verify.documents.inputs import RunProfile

Run = Callable[..., subprocess.CompletedProcess[str]]


def tiny(
    *, world_size: int = 2, gradient: str = "exact", kl_beta: float = 0.0, response_tokens: int = 32
) -> RunProfile:
    """The packaged profile with a short prompt."""
    profile = packaged_profile(PACKAGED["local"])
    return replace(
        profile,
        topology=replace(
            profile.topology, world_size=world_size, context_parallel=world_size, expert_parallel=world_size
        ),
        context=replace(profile.context, prompt_tokens=1024, max_response_tokens=response_tokens),
        prefix=replace(profile.prefix, chunk_tokens=256, gradient=gradient),
        grpo=replace(profile.grpo, kl_beta=kl_beta, ref_source="recompute" if kl_beta else "rollout"),
    )


def profile_file(directory: Path, **changes: object) -> Path:
    path = directory / "profile.json"
    path.write_bytes(tiny(**changes).encode())  # type: ignore[arg-type]  # of tiny
    return path


def verify(mint2m: Run, directory: Path, key: Path) -> dict[str, object]:
    done = mint2m("verify", "run", directory, "--key", key, "--format", "json")
    report: dict[str, object] = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    return report


@pytest.mark.ray
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"world_size": 2}, id="two-ranks-exact"),
        pytest.param({"world_size": 1}, id="one-rank-exact", marks=pytest.mark.slow),
        pytest.param({"world_size": 2, "gradient": "detached"}, id="two-ranks-detached", marks=pytest.mark.slow),
        pytest.param({"world_size": 2, "kl_beta": 0.02}, id="recomputed-reference", marks=pytest.mark.slow),
    ],
)
def test_a_run_from_any_folder_is_accepted_by_an_auditor_with_the_key(
    mint2m: Run, tmp_path: Path, changes: dict[str, object]
) -> None:
    profile = profile_file(tmp_path, **changes)
    assert mint2m("keys", "new", "release", cwd=tmp_path).returncode == 0
    done = mint2m(
        *("run", "--deployment", "local", "--profile", profile, "--output", "the run", "--key", "release.key"),
        cwd=tmp_path,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "quiet where stderr is no terminal"
    assert "Check it: mint2m verify run 'the run' --key release.pub" in done.stdout
    report = verify(mint2m, tmp_path / "the run", tmp_path / "release.pub")
    assert report["verdict"] == "accepted", report["findings"]
    assert report["trust"]["mode"] == "managed-key"  # type: ignore[index]  # JSON
    receipt = json.loads((tmp_path / "the run" / "receipt.json").read_bytes())
    detached = changes.get("gradient") == "detached"
    assert receipt["prefix_backwards"] == (0 if detached else 4)  # 1,023 tokens in chunks of 256
    assert receipt["optimizer_steps"] == 1
    assert receipt["cleanup"] == {"actors_absent": True, "coordinator_absent": True, "placement_group_absent": True}
    assert not list(Path(os.environ.get("HOME", "/")).glob(".ray")), "Ray must not leave a token in the home directory"


@pytest.mark.ray
def test_plan_train_and_sign_one_by_one_give_what_run_gives(mint2m: Run, tmp_path: Path) -> None:
    deployment = build(tmp_path / "prepared", PACKAGED["local"], profile=tiny(world_size=1))
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    out.mkdir()
    named = ("--deployment", deployment)
    done = mint2m("plan", *named, "--run-id", "step-by-step", "--instance-nonce", "first", "--output", plan)
    assert done.returncode == 0, done.stdout
    done = mint2m("train", "--plan", plan, "--ownership", out / "ownership.jsonl", *named, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "plan.json").read_bytes() == plan.read_bytes()
    assert (out / "inputs" / "deployment.json").read_bytes() == deployment.read_bytes()
    assert not (out / "inputs" / "model").exists(), "an operator's snapshot is bound by its manifest, not copied"
    assert mint2m("keys", "new", tmp_path / "k").returncode == 0
    done = mint2m("sign", "tree", out, "--key", tmp_path / "k.key")
    assert done.returncode == 0, done.stdout
    report = verify(mint2m, out, tmp_path / "k.pub")
    assert report["verdict"] == "accepted", report["findings"]
    again = mint2m("train", "--plan", plan, "--ownership", out / "ownership.jsonl", *named)
    assert again.returncode == 2
    assert "ownership.exists" in again.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_a_second_update_starts_from_the_adapter_that_the_first_one_left(mint2m: Run, tmp_path: Path) -> None:
    profile = profile_file(tmp_path, world_size=1)
    named = ("--deployment", "local", "--profile", profile)
    assert mint2m("run", *named, "--output", tmp_path / "first", timeout=400).returncode == 0
    inputs = build(tmp_path / "prepared", PACKAGED["local"], profile=tiny(world_size=1)).parent
    for name in ("fixture.json", "payload.json", "rollout.json"):
        (inputs / name).unlink()
    adapter = tmp_path / "first" / "adapter"
    built = mint2m(
        *("fixture", "build", "--output", inputs, "--model", inputs / "model", "--revision", "init-tiny-7"),
        *("--profile", inputs / "profile.json", "--adapter", adapter, "--seed", 3),
    )
    assert built.returncode == 0, built.stdout
    deployment = json.loads((inputs / "deployment.json").read_text())
    deployment["adapter"] = str(adapter)
    deployment["fixture"]["sha256"] = built.stdout.split()[-1]
    (inputs / "deployment.json").write_text(json.dumps(deployment))
    second = tmp_path / "second"
    done = mint2m("run", "--deployment", inputs / "deployment.json", "--output", second, timeout=400)
    assert done.returncode == 0, done.stdout
    weights = "adapter_model.safetensors"
    assert (second / "inputs" / "adapter-initial" / weights).read_bytes() == (adapter / weights).read_bytes()
    assert (second / "artifacts" / "adapter-before" / weights).read_bytes() == (adapter / weights).read_bytes()
    assert verify(mint2m, second, tmp_path / "second.pub")["verdict"] == "accepted"


@pytest.fixture
def prepared(mint2m: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A deployment and its plan."""
    deployment = build(tmp_path / "prepared", PACKAGED["local"], profile=tiny(world_size=1))
    plan = tmp_path / "plan.json"
    words = ("--run-id", "r", "--instance-nonce", "n", "--output", plan)
    assert mint2m("plan", "--deployment", deployment, *words).returncode == 0
    return deployment, plan


def refused(mint2m: Run, tmp_path: Path, deployment: Path, plan: Path, **options: object) -> str:
    """Text of a `train` that must be refused with exit 2 before Ray: nothing was written for it."""
    out = tmp_path / "out"
    out.mkdir()
    done = mint2m(
        "train", "--plan", plan, "--ownership", out / "ownership.jsonl", "--deployment", deployment, **options
    )
    assert done.returncode == 2, done.stdout
    assert not list(out.iterdir()), "refused before the journal, so before Ray"
    return done.stdout


def test_an_altered_plan_is_refused_before_ray(mint2m: Run, tmp_path: Path, prepared: tuple[Path, Path]) -> None:
    deployment, plan = prepared
    raw = plan.read_bytes()
    plan.write_bytes(raw.replace(b'"run_id":"r"', b'"run_id":"s"'))
    assert plan.read_bytes() != raw
    assert "plan.altered" in refused(mint2m, tmp_path, deployment, plan)


@pytest.mark.parametrize(("old", "new", "id"), [(b"{", b"{ ", "json.not-canonical"), (b"}", b"", "json.malformed")])
def test_a_garbled_plan_is_the_operators_input_and_blocks(
    mint2m: Run, tmp_path: Path, prepared: tuple[Path, Path], old: bytes, new: bytes, id: str
) -> None:
    deployment, plan = prepared
    plan.write_bytes(plan.read_bytes().replace(old, new, 1))
    assert id in refused(mint2m, tmp_path, deployment, plan)


def test_an_altered_deployment_is_refused_before_ray(mint2m: Run, tmp_path: Path, prepared: tuple[Path, Path]) -> None:
    deployment, plan = prepared
    deployment.write_text(deployment.read_text() + "\n")
    text = refused(mint2m, tmp_path, deployment, plan)
    assert "plan.inputs-changed" in text
    assert "/inputs/deployment" in text


def test_changed_weights_are_refused_before_ray(mint2m: Run, tmp_path: Path, prepared: tuple[Path, Path]) -> None:
    deployment, plan = prepared
    shard = next((deployment.parent / "model").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    assert "model.manifest-mismatch" in refused(mint2m, tmp_path, deployment, plan)


def test_a_disabled_backend_is_refused_before_ray(mint2m: Run, tmp_path: Path, prepared: tuple[Path, Path]) -> None:
    environment = os.environ | {"MINT2M_DISABLE_BACKEND": "1"}
    text = refused(mint2m, tmp_path, *prepared, env=environment)
    assert "direct_megatron_backend_unavailable" in text


def test_nothing_is_overwritten(mint2m: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    done = mint2m("run", "--deployment", "local", "--output", out)
    assert done.returncode == 2
    assert "output.not-empty" in done.stdout
    assert [path.name for path in out.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "id"), [(("--run-id", "a b"), "plan.run-id-invalid"), (("--instance-nonce", ""), "plan.nonce-empty")]
)
def test_a_label_that_cannot_be_used_is_refused_before_anything_is_made(
    mint2m: Run, tmp_path: Path, words: tuple[str, ...], id: str
) -> None:
    done = mint2m("run", "--deployment", "local", *words, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert id in done.stdout
    assert not (tmp_path / "out").exists()


def test_an_unknown_deployment_is_refused_with_the_names_there_are(mint2m: Run, tmp_path: Path) -> None:
    done = mint2m("run", "--deployment", "lokal", "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "run.deployment-unknown" in done.stdout
    assert "local" in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_key_that_cannot_sign_is_refused_before_training(mint2m: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.key"
    bad.write_text("not a key")
    done = mint2m("run", "--deployment", "local", "--output", tmp_path / "out", "--key", bad)
    assert done.returncode != 0
    assert "key.malformed" in done.stdout
    assert not (tmp_path / "out").exists()
