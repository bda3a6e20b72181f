"""The stages that need no Ray, for real; and every reason not to start, each with exit 2 and nothing left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mint2m_trainer.run import ChosenSigner
from mint2m_trainer.stages import kernel_stage
from mint2m_trainer.stages.packaged_set import PACKAGED_SETS
from mint2m_trainer.stages.planner import PlanRequest, plan_set
from mint2m_trainer.stages.run import StageRequest, run_stage
from mint2m_trainer.stages.setting import PLAN_SEAL, Setting
from mint2m_verify.anchor import KeyAnchor
from mint2m_verify.chain import kernel_cases as cases
from mint2m_verify.chain.kernel_cases import Dtype
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.places import PLACES, PLAN
from mint2m_verify.chain.statements import plan_payload
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents.validation import StageName, ValidationPlan
from mint2m_verify.finding import FindingError, Verdict, found
from mint2m_verify.recompute.tensors import read_tensors
from mint2m_verify.sealing import own_anchor
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signing import new_key_pair

SET = replace(PACKAGED_SETS["local-small"], tokens={"parity-32k": 768})


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An operator's place: a plan, a key, and a new evidence directory."""

    root: Path
    request: StageRequest

    @property
    def plan(self) -> Path:
        return self.request.validation_plan

    @property
    def evidence(self) -> Path:
        return self.request.evidence

    def anchor(self) -> KeyAnchor:
        anchor = own_anchor(self.request.signer.signer, self.request.signer.source)
        assert isinstance(anchor, KeyAnchor)
        return anchor


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed plan with its inputs, made once; tests copy it."""
    folder = tmp_path_factory.mktemp("plan")
    new_key_pair(str(folder / "planner"))
    new_key_pair(str(folder / "operator"))
    signer = key_file_signer(folder / "planner.key")
    plan_set(SET, PlanRequest(output=folder / "plan", signer=signer, nonce="once", through="nccl"))
    return folder


@pytest.fixture
def site(planned: Path, tmp_path: Path) -> Site:
    root = tmp_path / "site"
    shutil.copytree(planned, root)
    return Site(
        root=root,
        request=StageRequest(
            validation_plan=root / "plan" / PLAN,
            run_id=str(uuid.UUID(int=7)),
            evidence=root / "evidence" / "one",
            signer=ChosenSigner(signer=key_file_signer(root / "operator.key"), source=root / "operator.key"),
            plan_key=root / "planner.pub",
        ),
    )


def refused(stage: StageName, request: StageRequest) -> str:
    with pytest.raises(FindingError) as caught:
        run_stage(stage, request)
    assert caught.value.finding.verdict is Verdict.BLOCKED, caught.value.finding
    return caught.value.finding.id


def test_doctor_and_kernel_pass_and_the_chain_through_them_verifies(site: Site) -> None:
    for stage in ("doctor", "kernel"):
        report = run_stage(stage, site.request)  # type: ignore[arg-type]
        assert report.verdict is Verdict.ACCEPTED, report.findings
    report = verify_chain(site.evidence, site.anchor(), ChainOptions(through="kernel", plan_anchor=None))
    assert [fault.id for fault in report.findings] == ["signature.key-mismatch"]  # the planner is another
    assert not list(site.evidence.parent.glob("*.work-*"))
    record = json.loads((site.evidence / PLACES["kernel"].record).read_bytes())
    numbers = record["numbers"]
    assert {item["name"]: item["value"] for item in numbers}["topk.mismatches"] == 0
    cache = json.loads((site.evidence / PLACES["kernel"].tree / "cache.json").read_bytes())
    assert {"name": "kernels.float32", "value": "CpuKernels on cpu"} in record["settings"]  # as `choose_kernels` says
    assert cache["before"] is not None and cache["before"] == cache["after"] and cache["files"] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_kernels_of_another_dtype_are_as_near_to_float64_as_their_results_are_wide(dtype: Dtype) -> None:
    chosen, execution = kernel_stage._choose(dtype), "ab" * 32
    for name, case in cases.TOPK.items():
        right = cases.topk_reference(cases.topk_inputs(name, execution), case.keep)
        have = read_tensors(kernel_stage._topk(chosen, name, execution), file=name)
        assert (have["positions"] == right.positions).all() and (have["scores"] == right.scores).all()
    for name, attend in cases.ATTEND.items():
        exact = cases.attend_reference(cases.attend_inputs(name, execution, dtype), attend)
        have = read_tensors(kernel_stage._attend(chosen, name, execution), file=name)
        for part, scale in (("out", 2.0), ("grad_q", exact.q_terms), ("grad_rows", exact.rows_terms)):
            # bfloat16 has 8 bits: a result is half a unit off, and the gradient starts from a rounded output.
            bound = scale * (2**-7 if dtype == "bfloat16" else 1e-12)
            assert abs(have[part] - getattr(exact, part)).max() <= bound, (name, part)
        np.testing.assert_allclose(have["lse"], exact.lse, rtol=0, atol=1e-4)


def test_a_second_time_is_refused_and_changes_nothing(site: Site) -> None:
    run_stage("doctor", site.request)
    before = {path: path.read_bytes() for path in site.evidence.rglob("*") if path.is_file()}
    assert refused("doctor", site.request) == "stage.repeated"
    assert {path: path.read_bytes() for path in site.evidence.rglob("*") if path.is_file()} == before


def test_a_stage_before_its_parent_is_refused(site: Site) -> None:
    assert refused("kernel", site.request) == "stage.parent-missing"
    run_stage("doctor", site.request)
    assert refused("nccl", site.request) == "stage.parent-missing"


def test_a_stage_that_the_plan_does_not_require_is_refused(site: Site) -> None:
    assert refused("actor", site.request) == "stage.not-planned"


@pytest.mark.parametrize(
    "word", ["", "run-1", "6F2D3C52-5E2B-4A5E-9A53-0D7A5A1F0C11", "6f2d3c525e2b4a5e9a530d7a5a1f0c11"]
)
def test_a_run_id_that_is_no_uuid_is_refused(site: Site, word: str) -> None:
    assert refused("doctor", replace(site.request, run_id=word)) == "stage.run-id-invalid"


def test_a_run_id_of_another_evidence_directory_is_refused(site: Site) -> None:
    run_stage("doctor", site.request)
    assert refused("doctor", replace(site.request, evidence=site.evidence.with_name("two"))) == "stage.run-id-reused"
    other = replace(site.request, evidence=site.evidence.with_name("two"), run_id=str(uuid.UUID(int=8)))
    assert run_stage("doctor", other).verdict is Verdict.ACCEPTED


def test_another_run_id_in_the_same_directory_is_refused(site: Site) -> None:
    run_stage("doctor", site.request)
    assert refused("kernel", replace(site.request, run_id=str(uuid.UUID(int=8)))) == "stage.run-mismatch"


def test_evidence_inside_a_source_checkout_is_refused(site: Site) -> None:
    checkout = site.root / "checkout"
    (checkout / "schemas").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    inside = replace(site.request, evidence=checkout / "out" / "evidence")
    assert refused("doctor", inside) == "output.inside-checkout"
    assert not (checkout / "out").exists()


def test_a_directory_that_holds_another_chain_is_no_place_for_a_doctor(site: Site) -> None:
    (site.evidence / "attestations").mkdir(parents=True)
    (site.evidence / "attestations" / "nccl.sigstore.json").touch()
    assert refused("doctor", site.request) == "output.not-empty"


def _replan(site: Site, change: Callable[[ValidationPlan], ValidationPlan], *, sign: bool = True) -> None:
    plan = change(ValidationPlan.parse(site.plan.read_bytes(), file=PLAN))
    site.plan.write_bytes(plan.encode())
    if sign:
        payload = plan_payload(plan, plan.encode())
        bundle = key_file_signer(site.root / "planner.key").sign_statement(payload)
        (site.plan.parent / PLAN_SEAL).write_bytes(bundle)


def test_a_plan_for_another_source_is_refused(site: Site) -> None:
    _replan(site, lambda plan: replace(plan, source_sha256="ab" * 32))
    assert refused("doctor", site.request) == "stage.source-mismatch"


def test_a_plan_changed_after_it_was_signed_is_refused(site: Site) -> None:
    _replan(site, lambda plan: replace(plan, name="other"), sign=False)
    assert refused("doctor", site.request) == "stage.plan-unsound"


def test_a_plan_signed_by_somebody_else_than_the_planner_is_refused(site: Site) -> None:
    assert refused("doctor", replace(site.request, plan_key=site.root / "operator.pub")) == "stage.plan-unsound"


def test_another_plan_than_the_one_the_run_began_with_is_refused(site: Site) -> None:
    run_stage("doctor", site.request)
    _replan(site, lambda plan: replace(plan, name="other"))
    assert refused("kernel", site.request) == "stage.plan-mismatch"


def test_an_input_that_is_not_the_planned_one_is_refused(site: Site) -> None:
    path = site.plan.parent / "inputs" / "deployment.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert refused("doctor", site.request) == "stage.input-missing"


def test_a_parent_that_was_changed_is_refused(site: Site) -> None:
    run_stage("doctor", site.request)
    record = site.evidence / PLACES["doctor"].ranks
    record.write_bytes(record.read_bytes().replace(b'"slot":0', b'"slot":1'))
    assert refused("kernel", site.request) == "stage.parent-invalid"


def test_leftovers_of_an_interrupted_stage_are_replaced(site: Site) -> None:
    run_stage("doctor", site.request)
    half = site.evidence / PLACES["kernel"].tree
    half.mkdir(parents=True)
    (half / "topk-all-tie.safetensors").write_bytes(b"half")
    (site.evidence / PLACES["kernel"].ranks).write_bytes(b"{")
    assert run_stage("kernel", site.request).verdict is Verdict.ACCEPTED


def test_a_required_kernel_cache_must_be_there_and_filled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage("doctor", site.request)
    monkeypatch.setattr("mint2m_trainer.kernels.compile_cache", lambda *_: None)
    monkeypatch.delenv("TILELANG_CACHE_DIR", raising=False)
    assert refused("kernel", site.request) == "stage.cache-missing"
    empty = site.root / "cache"
    empty.mkdir()
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(empty))
    assert refused("kernel", site.request) == "stage.cache-missing"
    (empty / "kernel.so").write_bytes(b"compiled")
    assert run_stage("kernel", site.request).verdict is Verdict.ACCEPTED


def test_a_kernel_cache_that_changes_during_the_run_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage("doctor", site.request)
    cache = site.root / "cache"
    cache.mkdir()
    (cache / "kernel.so").write_bytes(b"compiled")
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(cache))
    real = kernel_stage._topk

    def compiling(chosen: kernel_stage.Chosen, name: str, execution_id: str) -> bytes:
        if execution_id != kernel_stage._WARMING:
            with (cache / "another.so").open("ab") as file:
                file.write(name.encode())
        return real(chosen, name, execution_id)

    monkeypatch.setattr(kernel_stage, "_topk", compiling)
    assert refused("kernel", site.request) == "stage.changed-while-running"
    assert not (site.evidence / PLACES["kernel"].seal).exists()


def test_a_kernel_that_is_off_does_not_pass_and_keeps_its_artifacts_apart(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from mint2m_trainer.kernels import choose_kernels

    chosen = type(choose_kernels(torch.device("cpu"), torch.float32, 4))
    run_stage("doctor", site.request)
    real = chosen.attend

    def off(self: object, *arguments: object) -> object:
        out, lse = real(self, *arguments)  # type: ignore[arg-type]
        return out * 1.001, lse

    monkeypatch.setattr(chosen, "attend", off)
    report = run_stage("kernel", site.request)
    assert report.verdict is Verdict.FAILED
    assert "chain.threshold-missed" in {fault.id for fault in report.findings}
    assert not (site.evidence / PLACES["kernel"].record).exists()
    assert Path(report.subject).is_dir()
    assert ".refused-kernel-" in report.subject
    assert not list(site.evidence.parent.glob("*.work-*"))


@pytest.mark.parametrize("owned", [True, False], ids=["that still owns something", "that owns nothing"])
def test_the_work_of_an_interrupted_stage_stays_only_with_a_journal(
    site: Site, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    from mint2m_trainer.cluster.journal import Journal, resource

    def interrupted(setting: Setting) -> None:
        setting.tree.mkdir(parents=True)
        with Journal.create(setting.tree / "ownership.jsonl", plan_sha256="ab" * 32, execution_id="cd" * 32) as journal:
            journal.write("opened", detail="mint2m stage kernel")
            ours = resource("process", "a rank", pid=4242, start_ticks=1)
            journal.write("created", ours)
            if not owned:
                journal.write("absent", ours)
        raise FindingError(found("run.interrupted", hint="the journal's"))

    run_stage("doctor", site.request)
    monkeypatch.setattr(kernel_stage, "work", interrupted)
    with pytest.raises(FindingError) as caught:
        run_stage("kernel", site.request)
    assert bool(list(site.evidence.parent.glob("one.work-*"))) is owned
    assert (caught.value.finding.hint == "the journal's") is owned


def test_what_a_killed_driver_left_goes_and_what_a_living_one_works_in_stays(site: Site) -> None:
    from mint2m_trainer.stages.leftovers import working_in

    dead = site.evidence.with_name("one.work-kernel-0123")
    (dead / "artifacts").mkdir(parents=True)
    (dead / "artifacts" / "half").write_bytes(b"half")
    alive, other = site.evidence.with_name("one.work-nccl-4567"), site.evidence.with_name("two.work-nccl-4567")
    other.mkdir()
    with working_in(alive):
        assert run_stage("doctor", site.request).verdict is Verdict.ACCEPTED
        assert (dead.exists(), alive.exists(), other.exists()) == (False, True, True)


def test_the_process_that_a_leftover_s_journal_names_is_ended_before_it_goes(site: Site) -> None:
    from mint2m_trainer.cluster.journal import Journal, resource
    from mint2m_trainer.cluster.process import identify

    dead = site.evidence.with_name("one.work-nccl-0123")
    dead.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        process = identify(rank.pid)
        assert process is not None
        with Journal.create(dead / "ownership.jsonl", plan_sha256="ab" * 32, execution_id="cd" * 32) as journal:
            journal.write("opened", detail="mint2m stage nccl")
            journal.write("created", resource("process", "a rank", pid=process.pid, start_ticks=process.start_ticks))
        assert run_stage("doctor", site.request).verdict is Verdict.ACCEPTED
        assert rank.wait(timeout=60) != 0
    assert not dead.exists()


def test_a_leftover_whose_journal_is_damaged_stays_and_is_named(site: Site) -> None:
    dead = site.evidence.with_name("one.work-nccl-0123")
    dead.mkdir(parents=True)
    (dead / "ownership.jsonl").write_bytes(b"{}\n")
    with pytest.raises(FindingError):
        run_stage("doctor", site.request)
    assert dead.exists()
    assert not site.evidence.exists()
