"""The status page is what the evidence makes it: nothing by hand, and no word of the evidence becomes markup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mint2m_verify.evidence_status import evidence_status
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError
from mint2m_verify.verify_evidence import MANIFEST, evidence_manifest

ROOT = Path(__file__).resolve().parents[2]
CHAIN = ROOT / "tests" / "vectors" / "bases" / "chain"


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """What is published but the chain, which takes seconds to verify."""
    return bind(
        shutil.copytree(ROOT / "evidence", tmp_path / "evidence", ignore=shutil.ignore_patterns("reference-cpu"))
    )


def bind(evidence: Path) -> Path:
    write_atomic(evidence / MANIFEST, evidence_manifest(evidence).encode())
    return evidence


def test_the_committed_page_is_the_one_that_the_evidence_makes() -> None:
    written = (ROOT / "docs" / "status.md").read_text(encoding="utf-8")
    assert written == evidence_status(ROOT / "evidence"), "mint2m evidence status evidence --output docs/status.md"


def test_a_bound_that_is_missed_is_told_beside_what_its_reporter_made_of_it(evidence: Path) -> None:
    lines = evidence_status(evidence).splitlines()
    rows = [line for line in lines if line.startswith("| `ratio1.gradient_relative_l2` | 0.0117068 |")]
    assert [row.endswith("| **misses it**, reported as passed |") for row in rows] == [True]


def test_a_published_chain_is_told_with_its_rows_and_promotes_no_other_class(evidence: Path) -> None:
    shutil.copytree(CHAIN, evidence / "small")
    page = evidence_status(bind(evidence))
    assert "## Chain `small`" in page and "parity-64k: numbers again" in page
    assert "| h20-4x8 | `review_only_not_runnable`" in page


def test_there_is_no_page_about_evidence_that_contradicts_itself(evidence: Path) -> None:
    claim = evidence / "external" / "online_grpo_2m.json"
    claim.write_bytes(claim.read_bytes() + b" ")
    with pytest.raises(FindingError) as caught:
        evidence_status(evidence)
    assert caught.value.finding.id == "tree.file-changed"


def test_words_of_the_evidence_are_no_markup(evidence: Path) -> None:
    claim = evidence / "external" / "online_grpo_2m.json"
    text = claim.read_text(encoding="utf-8").replace('"title": "', '"title": "<b>[x](http://x) | `y` ')
    claim.write_text(text, encoding="utf-8")
    page = evidence_status(bind(evidence))
    assert "\\<b\\>\\[x\\](http://x) \\| \\`y\\`" in page
