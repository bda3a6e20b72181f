"""A validation deployment that an operator wrote: every fault named by the doctor, and a plan only of a whole one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.stages.packaged_set import PACKAGED_SETS, write_set
from mint2m_trainer.stages.planner import PlanRequest, plan_deployment
from mint2m_trainer.stages.setting import read_inputs
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.places import PLAN
from mint2m_verify.doctor import examine
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.runtime_identity import observe
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signing import new_key_pair

SET = replace(PACKAGED_SETS["local-small"], tokens={"parity-32k": 768, "parity-64k": 1024})
ZERO = "0" * 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(SET, tmp_path_factory.mktemp("set") / "set").parent


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Path:
    """An operator's folder; tests change it."""
    shutil.copytree(made, tmp_path / "site")
    return tmp_path / "site"


def edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def edit_set(site: Path, change: Callable[[Any], object]) -> None:
    """Change the set, and the deployment's digest of it."""
    edit(site / "fixture-set.json", change)
    digest = sha256_hex((site / "fixture-set.json").read_bytes())
    edit(site / "deployment.json", lambda d: d["fixture"].update(sha256=digest))


def edit_profile(site: Path, stage: str, change: Callable[[Any], object]) -> None:
    """Change one case's profile, and every digest of it: an operator who is consistent with himself."""
    path, fixture = site / stage / "profile.json", site / stage / "fixture.json"
    edit(path, change)
    digest, size = sha256_hex(path.read_bytes()), path.stat().st_size
    value = json.loads(fixture.read_bytes()) | {"profile_sha256": digest}
    fixture.write_text(json.dumps(value, separators=(",", ":"), sort_keys=True))

    def follow(value: Any) -> None:
        for case in value["cases"]:
            if case["stage"] == stage:
                case["profile"].update(sha256=digest, size=size)
                case["fixture"].update(sha256=sha256_hex(fixture.read_bytes()), size=fixture.stat().st_size)

    edit_set(site, follow)


def blockers(site: Path) -> list[tuple[str, str | None]]:
    examination = examine("validation", deployment=site / "deployment.json", profile=None, root=site)
    assert examination.doctor.scope == "validation"
    assert all(finding.verdict is Verdict.BLOCKED for finding in examination.findings)
    return [(finding.id, finding.stage) for finding in examination.findings]


CHANGES: Mapping[str, tuple[Callable[[Path], object], list[tuple[str, str | None]]]] = {
    "training": (
        lambda site: edit(site / "deployment.json", lambda d: d.update(kind="training")),
        [("deployment.wrong-kind", None)],
    ),
    "a profile of its own": (
        lambda site: edit(site / "deployment.json", lambda d: d.update(profile={"path": "p", "sha256": "1" * 64})),
        [("deployment.invalid", None)],
    ),
    "no adapter": (
        lambda site: edit(site / "deployment.json", lambda d: d.update(adapter=None)),
        # What is trained is then another policy than the fixtures name.
        [("adapter.missing", None), *(("fixture.policy-mismatch", stage) for stage in ("actor", *SET.tokens))],
    ),
    "placeholder": (
        lambda site: edit(site / "deployment.json", lambda d: d["fixture"].update(sha256=ZERO)),
        [("fixture.placeholder-hash", None)],
    ),
    "another set": (
        lambda site: edit(site / "fixture-set.json", lambda s: s.update(name="other")),
        [("fixture-set.hash-mismatch", None)],
    ),
    "no set": (lambda site: (site / "fixture-set.json").unlink(), [("fixture-set.unreadable", None)]),
    "not a set": (lambda site: edit_set(site, lambda s: s.pop("name")), [("fixture-set.unreadable", None)]),
    "stages in another order": (
        lambda site: edit_set(site, lambda s: s["cases"].reverse()),
        [("fixture-set.stages-invalid", None)],
    ),
    "a stage twice": (
        lambda site: edit_set(site, lambda s: s["cases"].append(s["cases"][-1])),
        [("fixture-set.stages-invalid", None)],
    ),
    "no actor": (
        lambda site: edit_set(site, lambda s: s["cases"].pop(0)),
        [("fixture-set.stages-invalid", None)],
    ),
    "a payload changed": (
        lambda site: (site / "parity-64k/payload.json").write_bytes(b"{}"),
        [("fixture.size-mismatch", "parity-64k"), ("fixture.hash-mismatch", "parity-64k")],
    ),
    "another payload named": (
        lambda site: edit_set(site, lambda s: s["cases"][2]["payload"].update(path="parity-32k/payload.json")),
        [("fixture-set.case-differs", "parity-64k")],
    ),
    "another size named": (
        lambda site: edit_set(site, lambda s: s["cases"][2]["profile"].update(size=1)),
        [("fixture-set.case-differs", "parity-64k")],
    ),
    "a profile changed": (
        lambda site: edit(site / "parity-64k/profile.json", lambda p: p.update(name="other")),
        [("profile.hash-mismatch", "parity-64k")],
    ),
    "another optimizer": (
        lambda site: edit_profile(site, "parity-64k", lambda p: p["optimizer"].update(lr=1.0)),
        [("fixture-set.cases-disagree", "parity-64k")],
    ),
    "a cluster": (
        lambda site: edit(site / "deployment.json", lambda d: d.update(hardware_class="h20-4x8")),
        [
            ("image.missing", None),
            ("runtime-lock.missing", None),
            ("fixture-set.wrong-length", "parity-32k"),
            ("fixture-set.wrong-length", "parity-64k"),
            ("topology.not-of-class", None),
            ("sbom.missing", None),
            ("image-provenance.missing", None),
            ("runtime-identity.missing", None),
        ],
    ),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_doctor_names_every_blocker_and_the_stage_that_it_is_of(site: Path, name: str) -> None:
    change, wanted = CHANGES[name]
    change(site)
    assert blockers(site) == wanted


def test_without_a_deployment_there_is_nothing_to_examine(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as caught:
        examine("validation", deployment=None, profile=None, root=tmp_path)
    assert caught.value.finding.id == "doctor.option-missing"


@pytest.mark.parametrize("beside", [True, False], ids=["a relative path", "an absolute path"])
def test_a_snapshot_comes_along_where_its_path_is_relative(site: Path, tmp_path: Path, beside: bool) -> None:
    if not beside:
        edit(site / "deployment.json", lambda d: d["model"].update(snapshot=str(site / "model")))
    assert blockers(site) == []
    new_key_pair(str(tmp_path / "planner"))
    signer = key_file_signer(tmp_path / "planner.key")
    request = PlanRequest(output=tmp_path / "plan", signer=signer, nonce="once", limit_s=60)
    made = plan_deployment(site / "deployment.json", request)
    assert made.plan.required_stages == ("doctor", "kernel", "nccl", "actor", "parity-32k", "parity-64k")
    assert {stage.limit_s for stage in made.plan.stages} == {60}
    inputs = read_inputs(tmp_path / "plan" / PLAN)  # with every digest that the plan names
    assert inputs.snapshot.resolve() == (tmp_path / "plan/inputs/model" if beside else site / "model").resolve()
    assert (tmp_path / "plan/inputs/model").exists() is beside
    assert blockers(tmp_path / "plan/inputs") == [], "what was brought is a validation deployment again"


@pytest.mark.parametrize("fault", ["a payload changed", "not planned", "no nonce", "occupied"])
def test_a_refused_plan_leaves_nothing(site: Path, tmp_path: Path, fault: str) -> None:
    new_key_pair(str(tmp_path / "planner"))
    request = PlanRequest(output=tmp_path / "plan", signer=key_file_signer(tmp_path / "planner.key"), nonce="once")
    if fault == "a payload changed":
        CHANGES[fault][0](site)
    if fault == "not planned":
        request = replace(request, through="scale-2m")
    if fault == "no nonce":
        request = replace(request, nonce="")
    if fault == "occupied":
        (tmp_path / "plan").mkdir()
        (tmp_path / "plan/note").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FindingError) as caught:
        plan_deployment(site / "deployment.json", request)
    assert caught.value.finding.verdict is Verdict.BLOCKED
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_binds_the_runtime_lock_of_its_deployment(site: Path, tmp_path: Path) -> None:
    here = observe(image_digest=None)
    wheels = [
        {"name": item.name, "version": item.version, "sha256": [sha256_hex(item.name.encode())]}
        for item in here.packages
    ]
    lock = {
        "schema": "mint2m.runtime-lock/v1",
        "name": "lock",
        "environment": "cpu",
        "base_image": {"name": "python", "digest": f"sha256:{sha256_hex(b'base')}"},
        "container_file": {"name": "cpu.Containerfile", "sha256": sha256_hex(b"file")},
        "python": {"implementation": here.python.implementation, "version": here.python.version},
        "wheels": wheels,
        "system_packages": [],
        "drivers": None,
    }
    (site / "lock.json").write_text(json.dumps(lock))
    edit(site / "deployment.json", lambda d: d.update(runtime_lock="lock.json"))
    new_key_pair(str(tmp_path / "planner"))
    request = PlanRequest(
        output=tmp_path / "plan", signer=key_file_signer(tmp_path / "planner.key"), nonce="n", through="nccl"
    )
    plan = plan_deployment(site / "deployment.json", request).plan
    assert plan.runtime_lock is not None and plan.runtime_lock in plan.inputs
    assert (tmp_path / "plan" / plan.runtime_lock.path).read_bytes() == (site / "lock.json").read_bytes()
    own = json.loads((tmp_path / "plan/inputs/deployment.json").read_bytes())
    assert own["runtime_lock"] == "runtime-lock.json"

    edit(site / "lock.json", lambda d: d.update(python=None))
    with pytest.raises(FindingError) as caught:
        plan_deployment(site / "deployment.json", replace(request, output=tmp_path / "other"))
    assert caught.value.finding.id == "runtime-lock.unresolved"
    assert not (tmp_path / "other").exists()
