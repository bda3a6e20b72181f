"""`mint2m parity export` of inputs that cannot be trained on: the rank's words, exit 2, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.parity_request import ExportRequest, export
from mint2m_verify.finding import FindingError, Verdict


@pytest.fixture
def asked(shared: Callable[[str], Path], tmp_path: Path) -> ExportRequest:
    case = shared("oracle") / "indexshare"
    return ExportRequest(
        model=case / "snapshot",
        adapter=case / "adapter",
        rollout=case / "rollout.json",
        output=tmp_path / "out",
        case="ratio1",
        prefix_gradient="exact",
        ranks=1,
        dtype="float32",
        chunk_tokens=32,
        decisions="store",
        constants=None,
    )


def refusal(asked: ExportRequest) -> tuple[str, Verdict, str]:
    with pytest.raises(FindingError) as caught:
        export(asked)
    assert not asked.output.exists()
    finding = caught.value.finding
    return finding.id, finding.verdict, finding.actual or ""


def test_experts_that_do_not_divide_over_the_ranks_are_told_in_the_ranks_words(asked: ExportRequest) -> None:
    id, verdict, actual = refusal(replace(asked, ranks=3))
    assert (id, verdict) == ("rank.input-refused", Verdict.BLOCKED)
    assert "n_routed_experts" in actual
    assert "Traceback" not in actual


def test_an_adapter_of_another_model_is_refused(asked: ExportRequest, tmp_path: Path) -> None:
    other = Path(shutil.copytree(asked.adapter.parents[1] / "yarn" / "adapter", tmp_path / "other"))
    assert refusal(replace(asked, adapter=other))[:2] == ("rank.input-refused", Verdict.BLOCKED)


@pytest.mark.slow  # the rank's words for another fault of the same file
def test_an_adapter_that_cannot_be_read_is_refused(asked: ExportRequest, tmp_path: Path) -> None:
    other = Path(shutil.copytree(asked.adapter, tmp_path / "other"))
    config = other / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    assert refusal(replace(asked, adapter=other))[:2] == ("rank.input-refused", Verdict.BLOCKED)


def test_a_rollout_that_is_no_json_is_the_callers_input(asked: ExportRequest, tmp_path: Path) -> None:
    text = tmp_path / "rollout.json"
    text.write_text("a book")
    assert refusal(replace(asked, rollout=text))[:2] == ("json.malformed", Verdict.BLOCKED)
