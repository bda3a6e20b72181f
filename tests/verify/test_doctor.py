"""The doctor names every blocker, in one order, without importing what it looks for."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from mint2m_trainer.deployments import PACKAGED, build
from mint2m_verify import schema
from mint2m_verify.doctor import examine_checkout, examine_run
from mint2m_verify.doctor.machine import DISABLE_BACKEND, TRAINER_PACKAGES, release
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signers.sign_grant import GrantRequest, sign_grant
from mint2m_verify.signing import new_key_pair
from mint2m_verify.tree import manifest

ROOT = Path(__file__).resolve().parents[2]
ZERO = "0" * 64

#: What a cluster class needs beside the rest, in the doctor's order; the placement is looked at after the first two.
PAPERS = ("image", "runtime-lock", "sbom", "image-provenance", "authorization", "runtime-identity")

#: A digest, of nothing that is here.
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A deployment that passes."""
    return build(tmp_path / "run", PACKAGED["local-8k"])


def change(path: Path, edit: Callable[[dict], object]) -> None:  # type: ignore[type-arg]  # JSON
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def blockers(path: Path, **options: Path | None) -> list[str]:
    examination = examine_run(path, profile=options.get("profile"), output=options.get("output"))
    return [finding.id for finding in examination.findings]


def test_a_complete_deployment_passes_and_carries_its_inputs(deployment: Path) -> None:
    examination = examine_run(deployment, profile=None, output=None)
    assert [finding.id for finding in examination.findings] == []
    assert examination.doctor.status == "passed"
    assert examination.doctor.primary_failure is None
    assert examination.gathered is not None
    assert examination.gathered.inputs is not None


CHANGES: Mapping[str, tuple[Callable[[dict], object], list[str]]] = {  # type: ignore[type-arg]  # JSON
    "kind": (lambda d: d.update(kind="validation"), ["deployment.wrong-kind"]),
    "unknown member": (lambda d: d.update(passed=True), ["deployment.invalid"]),
    "missing member": (lambda d: d.pop("node_ips"), ["deployment.invalid"]),
    "snapshot": (lambda d: d["model"].update(snapshot="nowhere"), ["model.snapshot-missing"]),
    "manifest": (
        lambda d: d["model"].update(model_manifest_sha256=OTHER),
        ["model.manifest-mismatch", "fixture.model-mismatch"],
    ),
    "placement of the class": (
        lambda d: d.update(
            hardware_class="h20-4x8", node_ips=["10.0.0.1"], accelerators_per_node=2, ray_address="10.0.0.1:6379"
        ),
        [
            *(f"{paper}.missing" for paper in PAPERS[:2]),
            "topology.not-of-class",
            *(f"{paper}.missing" for paper in PAPERS[2:]),
        ],
    ),
    "fixture hash": (lambda d: d["fixture"].update(sha256=OTHER), ["fixture.hash-mismatch"]),
    "fixture path": (lambda d: d["fixture"].update(path="nowhere.json"), ["fixture.unreadable"]),
    "revision": (lambda d: d["model"].update(revision="other"), ["fixture.revision-mismatch"]),
    "profile hash": (lambda d: d["profile"].update(sha256=OTHER), ["profile.hash-mismatch"]),
    "no profile": (lambda d: d.update(profile=None), ["profile.missing"]),
    "nodes": (
        lambda d: d.update(node_ips=["10.0.0.1", "10.0.0.2"], ray_address="10.0.0.1:6379"),
        ["topology.mismatch"],
    ),
    "example nodes": (
        lambda d: d.update(node_ips=["192.0.2.1", "10.0.0.2"], ray_address="203.0.113.9:6379"),
        ["topology.placeholder-address", "topology.placeholder-address"],
    ),
    "local nodes": (lambda d: d.update(node_ips=["10.0.0.1"]), ["topology.not-local"]),
    "adapter": (lambda d: d.update(adapter="nowhere"), ["adapter.missing"]),
    "moments": (
        lambda d: d.update(optimizer={"path": "nowhere", "sha256": "1" * 64, "steps": 1}),
        ["optimizer.moments-refused"],
    ),
    "runtime identity": (lambda d: d.update(runtime_identity="nowhere"), ["runtime-identity.missing"]),
    "sbom": (lambda d: d.update(sbom="nowhere"), ["sbom.missing"]),
    "signer": (lambda d: d.update(signer={"kind": "key", "path": "nowhere.key"}), ["signer.unusable"]),
    "image": (lambda d: d.update(image={"name": "i", "digest": f"sha256:{ZERO}"}), ["image.placeholder-digest"]),
    "image that repeats itself": (
        lambda d: d.update(image={"name": "i", "digest": f"sha256:{'ab' * 32}"}),
        ["image.placeholder-digest"],
    ),
    "output": (lambda d: d.update(output_root="profile.json/below-a-file"), ["output.unwritable"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_fault_blocks_under_its_own_id(deployment: Path, name: str) -> None:
    edit, expected = CHANGES[name]
    change(deployment, edit)
    assert [id for id in blockers(deployment) if id in expected] == expected
    assert set(blockers(deployment)) == set(expected)


@pytest.mark.parametrize("model_type", ["deepseek_v3", 7, None])
def test_a_model_of_another_kind_is_told_before_anything_is_planned(deployment: Path, model_type: object) -> None:
    config = deployment.parent / "model" / "config.json"
    value = json.loads(config.read_text())
    value.pop("model_type")
    config.write_text(json.dumps(value | ({} if model_type is None else {"model_type": model_type})))
    digest = manifest("model", config.parent, MODEL_TREE).sha256
    change(deployment, lambda d: d["model"].update(model_manifest_sha256=digest))
    (fault,) = [
        fault for fault in examine_run(deployment, profile=None, output=None).findings if fault.id.startswith("model.")
    ]
    assert (fault.id, fault.pointer) == ("model.type-unsupported", "/model_type")
    assert (fault.expected, fault.actual) == ("glm_moe_dsa", "none" if model_type is None else str(model_type))


def test_moments_are_those_of_the_digest_and_belong_to_an_adapter(deployment: Path) -> None:
    run = ROOT / "tests/vectors/bases/training-carried/steps/0000/run"
    raw = (run / "artifacts/optimizer-after.safetensors").read_bytes()
    (deployment.parent / "moments.safetensors").write_bytes(raw)

    def start(sha256: str) -> dict[str, object]:
        return {"path": "moments.safetensors", "sha256": sha256, "steps": 1}

    for adapter, digest, expected in (
        (None, sha256(raw).hexdigest(), ("/adapter", "null")),
        ("policy", "2" * 64, ("/optimizer/sha256", sha256(raw).hexdigest())),
    ):
        change(deployment, lambda d, a=adapter, s=digest: d.update(adapter=a, optimizer=start(s)))  # type: ignore[misc]
        faults = examine_run(deployment, profile=None, output=None).findings
        told = [(fault.pointer, fault.actual) for fault in faults if fault.id == "optimizer.moments-refused"]
        assert told == [expected]


def test_a_place_in_a_step_is_one_that_can_be_and_its_gradient_that_of_the_digest(deployment: Path) -> None:
    run = ROOT / "tests/vectors/bases/training-carried/steps/0000/run"
    raw = (run / "artifacts/gradient.safetensors").read_bytes()
    (deployment.parent / "earlier.safetensors").write_bytes(raw)
    given = {"path": "earlier.safetensors", "sha256": sha256(raw).hexdigest(), "seal_sha256": "ab" * 32}
    right = {"index": 1, "prompts": 2, "tokens": 10_000, "responses": 4, "gradient": given}
    at = "/accumulation"
    for members, expected in (
        ({}, []),
        ({"index": 0, "gradient": None}, []),
        ({"index": 2}, [f"{at}/index"]),
        ({"index": 0}, [f"{at}/gradient"]),
        ({"gradient": None}, [f"{at}/gradient"]),
        ({"tokens": 1}, [f"{at}/tokens"]),
        ({"responses": 1}, [f"{at}/responses"]),
        ({"responses": 100_000}, [f"{at}/responses"]),
        ({"gradient": {**given, "sha256": "2" * 64}}, [f"{at}/gradient/sha256"]),
        ({"gradient": {**given, "path": "nowhere"}}, [f"{at}/gradient/path"]),
    ):
        change(deployment, lambda d, m=members: d.update(accumulation={**right, **m}))  # type: ignore[misc]
        faults = examine_run(deployment, profile=None, output=None).findings
        assert [fault.id for fault in faults] == ["accumulation.refused"] * len(expected), members
        assert [fault.pointer for fault in faults] == expected


def grant(deployment: Path, signer: Path, **terms: str) -> None:
    """Lay a grant beside the deployment, which names it."""
    change(deployment, lambda d: d.update(authorization_grant="grant.sigstore.json"))
    made = {"not_before": "2020-01-01T00:00:00Z", "not_after": "2090-01-01T00:00:00Z", "reason": "a test"} | terms
    sign_grant(GrantRequest(file=deployment, output=None, **made), key_file_signer(signer))


def test_a_grant_for_this_deployment_and_this_time_is_a_paper(deployment: Path, tmp_path: Path) -> None:
    new_key_pair(str(tmp_path / "grantor"))
    grant(deployment, tmp_path / "grantor.key")
    assert blockers(deployment) == []
    examined = examine_run(deployment, profile=None, output=None)
    assert [row.status for row in examined.doctor.checks if row.id == "authorization"] == ["passed"]


def test_no_file_is_a_grant_by_its_name_and_none_for_another_deployment_or_time(
    deployment: Path, tmp_path: Path
) -> None:
    new_key_pair(str(tmp_path / "grantor"))
    grant(deployment, tmp_path / "grantor.key", not_after="2021-01-01T00:00:00Z")
    assert blockers(deployment) == ["authorization.missing"]
    (deployment.parent / "grant.sigstore.json").unlink()
    grant(deployment, tmp_path / "grantor.key")
    change(deployment, lambda d: d.update(name="another"))
    assert blockers(deployment) == ["authorization.missing"]
    (deployment.parent / "grant.sigstore.json").write_text('{"approved": true}')
    assert blockers(deployment) == ["authorization.missing"]


def test_a_gpu_class_needs_every_paper_and_all_of_them_are_named_at_once(deployment: Path) -> None:
    change(deployment, lambda d: d.update(hardware_class="h20-4x8"))
    assert blockers(deployment) == [
        "image.missing",
        "runtime-lock.missing",
        "topology.not-of-class",
        "sbom.missing",
        "image-provenance.missing",
        "authorization.missing",
        "runtime-identity.missing",
    ]


def test_all_faults_are_reported_and_the_first_is_the_primary_one(deployment: Path) -> None:
    def three(value: dict) -> None:  # type: ignore[type-arg]  # JSON
        value.update(image={"name": "i", "digest": f"sha256:{ZERO}"}, signer={"kind": "key", "path": "no.key"})
        value["fixture"].update(sha256=ZERO)

    change(deployment, three)
    first = examine_run(deployment, profile=None, output=None)
    ids = [finding.id for finding in first.findings]
    assert ids == ["image.placeholder-digest", "fixture.placeholder-hash", "signer.unusable"]
    assert first.doctor.primary_failure == ids[0]
    assert [row.id for row in first.doctor.checks if row.status == "blocked"] == ids
    again = examine_run(deployment, profile=None, output=None)
    assert again.doctor.encode() == first.doctor.encode()


def test_a_changed_weight_blocks(deployment: Path) -> None:
    shard = next((deployment.parent / "model").glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    assert blockers(deployment) == ["model.manifest-mismatch"]


def test_a_profile_that_asks_for_what_is_not_there_blocks(deployment: Path) -> None:
    profile = deployment.parent / "other.json"
    value = json.loads((deployment.parent / "profile.json").read_text())
    value["topology"]["expert_parallel"] = 1
    profile.write_text(json.dumps(value))
    change(deployment, lambda d: d.update(profile=None))
    assert blockers(deployment, profile=profile) == ["profile.unsupported"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v["prefix"].update(route="lse"),
        # 8 experts over 3 ranks
        lambda v: v["topology"].update(world_size=3, context_parallel=3, expert_parallel=3),
    ],
)
def test_a_profile_that_every_rank_would_refuse_blocks_before_ray(
    deployment: Path,
    edit: Callable[[dict], object],  # type: ignore[type-arg]  # JSON
) -> None:
    profile = deployment.parent / "other.json"
    value = json.loads((deployment.parent / "profile.json").read_text())
    edit(value)
    profile.write_text(json.dumps(value))
    world = value["topology"]["world_size"]
    change(deployment, lambda d: d.update(profile=None, accelerators_per_node=world))
    assert "profile.unsupported" in blockers(deployment, profile=profile)


def test_a_snapshot_of_links_is_told_apart_from_one_that_is_not_there(deployment: Path) -> None:
    shard = next((deployment.parent / "model").glob("*.safetensors"))
    shard.rename(deployment.parent / "blob")
    shard.symlink_to(deployment.parent / "blob")
    (fault,) = examine_run(deployment, profile=None, output=None).findings
    assert fault.id == "model.snapshot-missing"
    assert fault.hint is not None
    assert "cp -rL" in fault.hint


def test_a_rank_limit_below_the_byte_plan_blocks_before_anything_is_allocated(deployment: Path) -> None:
    profile = deployment.parent / "other.json"
    value = json.loads((deployment.parent / "profile.json").read_text())
    value["memory"]["rank_bytes"] = 1 << 20
    profile.write_text(json.dumps(value))
    change(deployment, lambda d: d.update(profile=None))
    assert "memory.does-not-fit" in blockers(deployment, profile=profile)


def test_the_profile_on_the_command_line_must_be_the_one_the_deployment_binds(deployment: Path) -> None:
    profile = deployment.parent / "other.json"
    profile.write_text((deployment.parent / "profile.json").read_text() + "\n")
    assert "profile.conflict" in blockers(deployment, profile=profile)


def test_a_backend_that_is_switched_off_blocks(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_BACKEND, "1")
    assert blockers(deployment) == ["backend.unavailable"]


def test_the_package_ranges_are_those_of_the_trainer_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["trainer"]
    wanted = {}
    for need in TRAINER_PACKAGES:
        text = f"{need.distribution}>={'.'.join(map(str, need.least))}"
        wanted[need.distribution] = text + (f",<{'.'.join(map(str, need.below))}" if need.below else "")
    assert set(extra) == set(wanted.values())


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("0.16.1", (0, 16, 1)), ("0.17.0rc1", (0, 17, 0)), ("5", (5,)), ("unknown", ())],
)
def test_release_numbers_leave_suffixes_out(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_the_command_prints_one_valid_document_and_exits_2_when_blocked(deployment: Path) -> None:
    change(deployment, lambda d: d["model"].update(snapshot="nowhere"))
    done = run("doctor", "--scope", "run", "--deployment", str(deployment), "--format", "json")
    value = json.loads(done.stdout)
    assert done.returncode == 2
    assert schema.check(value, "doctor", file="doctor") == ()
    assert value["status"] == "blocked"
    assert value["primary_failure"] == "model.snapshot-missing"


@pytest.mark.parametrize("words", [("doctor", "--scope", "run"), ("plan", "--run-id", "r", "--instance-nonce", "n")])
def test_doctor_and_plan_import_neither_ray_nor_torch_nor_megatron(
    deployment: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    arguments = [*words, "--deployment", str(deployment), "--output", str(tmp_path / "out.json")]
    program = (
        "import sys\nfrom mint2m.__main__ import run\n"
        f"outcome = run({arguments!r})\nassert outcome.verdict == 0, outcome.text\n"
        "heavy = {'ray', 'torch', 'megatron', 'mint2m_trainer'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").is_file()


def test_the_checkout_passes_and_a_broken_schema_blocks(tmp_path: Path) -> None:
    assert [finding.id for finding in examine_checkout(ROOT).findings] == []
    assert [finding.id for finding in examine_checkout(tmp_path).findings] == [
        "checkout.package-missing",
        "checkout.package-missing",
        "checkout.package-missing",
        "checkout.schema-invalid",
        "checkout.constraints-missing",
    ]


def test_scopes_and_options_that_are_missing_are_refused() -> None:
    assert run("doctor", "--scope", "validation").returncode == 2
    assert run("doctor", "--scope", "run").returncode == 2


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint2m", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"NO_COLOR": "1"},
    )
