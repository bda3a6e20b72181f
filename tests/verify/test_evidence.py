"""Published evidence: bound by one manifest, and no external claim stands higher than its reporter's word."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify.anchor import Anchor, ConsistencyOnly, DigestAnchor, NoAnchor, VerifyOptions, read_key
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.places import NAMED_TOKENS, ORDER
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents.external_claim import ExternalClaim
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.finding import Report, Standing
from mint2m_verify.verify_evidence import MANIFEST, evidence_manifest, verify_evidence

PUBLISHED = Path(__file__).resolve().parents[2] / "evidence"
CLAIMS = sorted(PUBLISHED.glob("external/*.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is published but the chain, which takes seconds to verify."""
    copy = shutil.copytree(PUBLISHED, tmp_path / "evidence", ignore=shutil.ignore_patterns("reference-cpu"))
    rebind(copy)
    return Path(copy)


def verify(root: Path, anchor: Anchor | None = None) -> Report:
    return verify_evidence(root, anchor or ConsistencyOnly(), VerifyOptions())


def rebind(root: Path) -> None:
    (root / MANIFEST).write_bytes(evidence_manifest(root).encode())


def change(path: Path, edit: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def roots(report: Report) -> list[tuple[str, str | None]]:
    return [(fault.id, fault.file) for fault in report.roots]


@pytest.fixture(scope="module")
def published() -> Report:
    """What is published, verified with the digest of its manifest: half a minute, for tests that read the report."""
    return verify(PUBLISHED, DigestAnchor(sha256=sha256_hex((PUBLISHED / MANIFEST).read_bytes())))


def test_what_the_project_publishes_is_bound_by_its_manifest(published: Report) -> None:
    report = published
    assert int(report.verdict) == 0, report.findings
    chain = {row.required: row for row in report.requirements if row.required.startswith("reference-cpu: ")}
    assert chain.pop("reference-cpu: a whole chain, self-asserted").standing is Standing.DERIVED
    assert list(chain) == ["reference-cpu: made by this source"]
    others = {row.standing for row in report.requirements if not row.required.startswith("reference-cpu: ")}
    assert others == {Standing.CHECKED, Standing.ATTESTED_ONLY}


def test_the_published_chain_is_of_the_named_lengths_and_by_the_published_keys() -> None:
    anchor, planner = (read_key(PUBLISHED / "keys" / f"{name}.pub") for name in ("operator", "planner"))
    report = verify_chain(PUBLISHED / "reference-cpu", anchor, ChainOptions(plan_anchor=planner))
    assert int(report.verdict) == 0, report.findings
    plan = ValidationPlan.parse((PUBLISHED / "reference-cpu/validation-plan.json").read_bytes(), file="plan")
    assert plan.required_stages == ORDER
    for stage, tokens in NAMED_TOKENS.items():
        planned = plan.stage(stage)
        assert planned is not None and planned.fixture is not None
        rollout = json.loads((PUBLISHED / "reference-cpu" / planned.fixture.rollout.path).read_bytes())
        assert len(rollout["prompt_tokens"]) == tokens


def test_without_an_anchor_or_with_another_digest_it_is_not_trusted(folder: Path) -> None:
    assert int(verify(folder, NoAnchor()).verdict) == 4
    report = verify(folder, DigestAnchor(sha256="ab" * 32))
    assert roots(report) == [("trust.digest-mismatch", MANIFEST)]
    assert int(report.verdict) == 4


def test_a_missed_bound_is_shown_beside_what_the_reporter_made_of_it(folder: Path) -> None:
    rows = {row.required: row for row in verify(folder).requirements}
    missed = rows["gradient_parity_32k: ratio1.gradient_relative_l2 <= 0.01"]
    assert missed.found == "0.0117068 MISSES the bound published 2026-07-16, though it was reported as passed"
    met = rows["forward_canary_32k: logprob_max_abs <= 0.005"]
    assert "meets the bound" in met.found
    assert missed.standing is met.standing is Standing.ATTESTED_ONLY


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_every_figure_and_bound_stands_in_the_documents_that_it_comes_from(
    shared: Callable[[str], Path], path: Path
) -> None:
    text = "\n".join(seed.read_text(encoding="utf-8") for seed in sorted(shared("seeds").glob("*.txt")))
    numbers = {float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)}
    words = {"no": 0.0, "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0}
    numbers |= {value for word, value in words.items() if re.search(rf"\b{word}\b", text)}
    claim = ExternalClaim.parse(path.read_bytes(), file=path.name, canonical_form=False)
    assert [figure.name for figure in claim.figures if abs(figure.value) not in numbers] == []
    assert [contract.figure for contract in claim.contracts if contract.bound not in numbers] == []


@pytest.mark.parametrize(
    ("edit", "id"),
    [
        (lambda claim: claim.update(source_bound=True), "schema.invalid"),
        (lambda claim: claim.update(name="another"), "evidence.claim-name"),
        (lambda claim: claim["figures"].append(dict(claim["figures"][0], value=0)), "evidence.figure-repeated"),
        (lambda claim: claim["contracts"][0].update(figure="none"), "evidence.figure-unknown"),
        (lambda claim: claim["limitations"].clear(), "schema.invalid"),
        (lambda claim: claim["figures"].clear(), "schema.invalid"),
        (lambda claim: claim["figures"][0].update(value=float("inf")), "json.not-finite"),
        (lambda claim: claim.update(verdict="passed"), "schema.invalid"),
    ],
)
def test_a_claim_that_says_more_than_it_may_is_refused_even_where_the_manifest_binds_it(
    folder: Path, edit: Callable[[dict], object], id: str
) -> None:
    path = folder / "external" / "gradient_parity_32k.json"
    change(path, edit)
    rebind(folder)
    report = verify(folder)
    assert int(report.verdict) == 1
    assert (id, "external/gradient_parity_32k.json") in roots(report)


def test_every_change_to_the_folder_is_named(folder: Path) -> None:
    change(folder / "external" / "online_grpo_2m.json", lambda claim: claim["figures"][0].update(value=1))
    (folder / "external" / "forward_canary_32k.json").unlink()
    (folder / "added.txt").write_text("x")
    (folder / "link").symlink_to("README.md")
    assert set(roots(verify(folder))) == {
        ("tree.file-changed", "external/online_grpo_2m.json"),
        ("tree.file-missing", "external/forward_canary_32k.json"),
        ("tree.file-unlisted", "added.txt"),
        ("tree.symlink", "link"),
    }


def test_no_claims_and_no_manifest_prove_nothing(folder: Path) -> None:
    for path in (folder / "external").iterdir():
        path.unlink()
    rebind(folder)
    assert ("evidence.nothing-published", "external/") in roots(verify(folder))
    (folder / MANIFEST).unlink()
    assert ("file.missing", MANIFEST) in roots(verify(folder))


CHAIN = Path(__file__).resolve().parents[1] / "vectors" / "bases" / "chain"


def test_a_published_chain_is_verified_whole_and_said_to_be_self_asserted(folder: Path) -> None:
    shutil.copytree(CHAIN, folder / "small")
    rebind(folder)
    report = verify(folder)
    assert int(report.verdict) == 0, report.findings
    rows = {row.required: row for row in report.requirements if row.required.startswith("small: ")}
    whole, source = rows["small: a whole chain, self-asserted"], rows["small: made by this source"]
    assert (whole.standing, source.standing) == (Standing.DERIVED, Standing.UNVERIFIABLE)
    assert "its key came with it" in whole.found and "here lies" in source.found


def test_a_published_chain_that_is_bound_as_it_was_forged_is_refused(folder: Path) -> None:
    shutil.copytree(CHAIN, folder / "small")
    change(folder / "small" / "parity-32k.json", lambda document: document["numbers"].pop())
    rebind(folder)
    report = verify(folder)
    assert int(report.verdict) == 1
    assert ("tree.file-changed", "small/parity-32k.json") in roots(report)
