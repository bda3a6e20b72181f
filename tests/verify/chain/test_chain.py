"""A committed chain, read as an auditor does: what is proven, what is not, and what broke first."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import rfc8785

from mint2m_verify.anchor import ConsistencyOnly, DigestAnchor, KeyAnchor, read_key
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.recompute import kernel, scale
from mint2m_verify.chain.recompute.evidence import Evidence
from mint2m_verify.chain.recomputing import recompute
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents.validation import StageName, StageRanks, StageRecord, ValidationPlan
from mint2m_verify.exhibits import Chain as Drawn
from mint2m_verify.exhibits import LinkState, Measures
from mint2m_verify.finding import Finding, Report, Standing, Verdict
from mint2m_verify.findings import drain
from mint2m_verify.render import render
from mint2m_verify.walk import read_tree

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
CHAIN = VECTORS / "bases" / "chain"
KEYS = VECTORS / "test-only-keys"


@pytest.fixture(scope="module")
def anchor() -> KeyAnchor:
    return read_key(KEYS / "release.pub")


@pytest.fixture(scope="module")
def options() -> ChainOptions:
    return ChainOptions(plan_anchor=read_key(KEYS / "planner.pub"))


@pytest.fixture(scope="module")
def accepted(anchor: KeyAnchor, options: ChainOptions) -> Report:
    return verify_chain(CHAIN, anchor, options)


def evidence(stage: StageName, change: Callable[[ValidationPlan], ValidationPlan] = lambda plan: plan) -> Evidence:
    files = {file.path: file for file in read_tree(CHAIN, keep=places.kept_bytes).files}
    plan = change(ValidationPlan.parse((CHAIN / places.PLAN).read_bytes(), file=places.PLAN))
    where = places.PLACES[stage]
    planned = plan.stage(stage)
    assert planned is not None
    return Evidence(
        plan=plan,
        planned=planned,
        execution_id=StageRecord.parse((CHAIN / where.record).read_bytes(), file=where.record).execution_id,
        ranks=StageRanks.parse((CHAIN / where.ranks).read_bytes(), file=where.ranks),
        files=files,
        roots=(CHAIN,),
    )


def test_the_report_shows_the_stages_as_links_and_the_gradient_s_distance_by_family(accepted: Report) -> None:
    drawn = next(item for item in accepted.exhibits if isinstance(item, Drawn))
    assert [link.name for link in drawn.links] == ["plan", *places.ORDER]
    assert {link.state for link in drawn.links} == {LinkState.INTACT}
    for stage, bars in zip(
        ("parity-32k", "parity-64k"), (item for item in accepted.exhibits if isinstance(item, Measures)), strict=True
    ):
        assert bars.title.startswith(stage)
        record = json.loads((CHAIN / places.PLACES[stage].record).read_bytes())  # type: ignore[index]
        said = {number["name"]: number["value"] for number in record["numbers"]}
        assert {row.label: row.value for row in bars.rows} == {
            f"{case} {family}": pytest.approx(said[f"{case}.{family}.relative_l2"], rel=1e-9)
            for case in ("ratio1", "active_clip")
            for family in ("attention", "dense", "shared", "expert", "unembed")
        }


def test_the_drawn_chain_breaks_where_the_first_byte_was_changed(
    tmp_path: Path, anchor: KeyAnchor, options: ChainOptions
) -> None:
    root = shutil.copytree(CHAIN, tmp_path / "chain")
    shard = root / places.PLACES["parity-32k"].tree / "ratio1/exact/rank-0.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    report = verify_chain(root, anchor, options)
    drawn = next(item for item in report.exhibits if isinstance(item, Drawn))
    states = {link.name: link.state for link in drawn.links}
    assert drawn.first_broken is not None and drawn.first_broken.name == "parity-32k"
    assert (states["actor"], states["parity-64k"]) == (LinkState.INTACT, LinkState.FOLLOWS)


def test_the_chain_is_accepted_and_every_stage_has_its_five_rows(accepted: Report) -> None:
    assert accepted.verdict is Verdict.ACCEPTED, accepted.findings
    rows = [row.required for row in accepted.requirements]
    for stage in places.ORDER:
        assert sum(row.startswith(f"{stage}: ") for row in rows) == 5
    standings = {row.standing for row in accepted.requirements}
    assert standings == {Standing.CHECKED, Standing.DERIVED}


def test_the_report_is_the_same_twice_and_says_what_is_not_proven(
    accepted: Report, anchor: KeyAnchor, options: ChainOptions
) -> None:
    again = verify_chain(CHAIN, anchor, options)
    assert again.document() == accepted.document()
    text = render(accepted, "text")
    assert "a replay would show that" in text and "operator's word" in text


def test_the_digest_of_the_last_seal_vouches_for_the_whole_chain(accepted: Report) -> None:
    last = next(d.sha256 for d in accepted.trust.digests if d.name == "seal scale-2m")
    report = verify_chain(CHAIN, DigestAnchor(sha256=last), ChainOptions())
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "digest")


def test_consistency_alone_claims_no_scope() -> None:
    report = verify_chain(CHAIN, ConsistencyOnly(), ChainOptions())
    assert report.verdict is Verdict.ACCEPTED and report.claim_scope is None
    assert report.trust.mode == "consistent, origin unknown"


@pytest.mark.parametrize(
    ("path", "stage", "followers"),
    [
        (f"artifacts/kernel/{kernel.attend_file('plain', 'float32')}", "kernel", 5),
        ("artifacts/parity-32k/ratio1/exact/scores.json", "parity-32k", 2),
        ("nccl-ranks.json", "nccl", 4),
        ("artifacts/scale-2m/run/receipt.json", "scale-2m", 0),
    ],
)
def test_what_broke_first_stands_apart_from_what_follows(
    anchor: KeyAnchor, options: ChainOptions, tmp_path: Path, path: str, stage: str, followers: int
) -> None:
    copy = shutil.copytree(CHAIN, tmp_path / "chain")
    raw = bytearray((copy / path).read_bytes())
    raw[len(raw) // 2] ^= 1
    (copy / path).write_bytes(raw)
    report = verify_chain(copy, anchor, options)
    first: Finding = report.roots[0]
    assert (first.id, first.file, first.stage) == ("tree.file-changed", path, stage)
    assert first.byte_range is not None and first.expected != first.actual
    assert [fault for fault in report.roots if fault is not first] == []
    rests = [fault for fault in report.findings if fault.id == "chain.rests-on-broken"]
    assert len(rests) == followers and all(fault.cause == first for fault in rests)


def test_a_number_that_the_verifier_gives_is_the_one_that_the_stage_reported(accepted: Report) -> None:
    for stage in places.ORDER:
        record = json.loads((CHAIN / places.PLACES[stage].record).read_bytes())
        validation = json.loads((CHAIN / places.PLACES[stage].validation).read_bytes())
        reported = {item["name"]: item["value"] for item in record["numbers"]}
        assert reported == {item["name"]: item["value"] for item in validation["numbers"]}
        assert all(item["holds"] for item in validation["numbers"]) and reported


@pytest.mark.parametrize(
    ("factor", "faults"),
    [(1 - 1e-15, set()), (1 + 1e-15, set()), (1 + 1e-6, {"chain.number-mismatch", "chain.validation-mismatch"})],
)
def test_the_last_bits_of_the_auditor_s_processor_decide_nothing(
    anchor: KeyAnchor, options: ChainOptions, monkeypatch: pytest.MonkeyPatch, factor: float, faults: set[str]
) -> None:
    """Processors with other vector instructions sum in another order; the published chain was refused on such a one."""

    def there(given: Evidence, root: Path) -> Iterator[Finding]:
        judged = yield from recompute(given, root)
        other = [item if item.value is None else replace(item, value=item.value * factor) for item in judged.judged]
        numbers = [item if item.value is None else replace(item, value=item.value * factor) for item in judged.numbers]
        return replace(judged, numbers=tuple(numbers), judged=tuple(other))

    monkeypatch.setattr("mint2m_verify.chain.verify.recompute", there)
    report = verify_chain(CHAIN, anchor, options)
    assert {fault.id for fault in report.findings if fault.cause is None} == faults


def test_a_scale_run_of_another_plan_is_told_member_by_member() -> None:
    other = evidence("scale-2m", lambda plan: replace(plan, source_sha256="ab" * 32))
    faults, _ = drain(scale.recompute(other, CHAIN))
    assert [(f.id, f.pointer) for f in faults] == [("chain.run-not-planned", "/source_sha256")]


def _with_cache(held: Evidence, **members: object) -> Evidence:
    """The evidence with these members of its cache file."""
    path = f"{held.tree}{kernel.CACHE}"
    file = held.files[path]
    raw = rfc8785.dumps(json.loads(file.raw or b"") | members)
    return replace(held, files={**held.files, path: replace(file, raw=raw)})


def test_a_plan_that_needs_a_kernel_cache_refuses_a_run_without_one() -> None:
    needing = evidence("kernel", lambda plan: replace(plan, kernel_cache_required=True))
    faults, _ = drain(kernel.recompute(_with_cache(needing, before=None, after=None, files=0)))
    assert [f.id for f in faults] == ["chain.cache-empty"]


def test_a_plan_of_another_dtype_asks_for_results_in_it() -> None:
    held = evidence("kernel")
    path = next(item.fixture.profile.path for item in held.plan.stages if item.fixture is not None)
    profile = json.loads(held.files[path].raw or b"")
    profile["model"]["dtype"] = "bfloat16"
    raw = replace(held.files[path], raw=rfc8785.dumps(profile))
    faults, _ = drain(kernel.recompute(replace(held, files={**held.files, path: raw})))
    assert {f.id for f in faults} == {"chain.artifact-missing"}
    assert all(".bfloat16." in (f.file or "") for f in faults)


def test_verification_needs_neither_torch_nor_ray(accepted: Report) -> None:
    assert accepted.requirements
    code = (
        "import sys; from pathlib import Path;"
        "from mint2m_verify.chain.verify import verify_chain;"
        "from mint2m_verify.chain.options import ChainOptions;"
        "from mint2m_verify.anchor import ConsistencyOnly;"
        f"r = verify_chain(Path({str(CHAIN)!r}), ConsistencyOnly(), ChainOptions());"
        "sys.exit(int(r.verdict) or bool({'torch', 'ray', 'megatron'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
