"""A rank's log tells phases, warnings and faults, and none of the secrets in the rank's environment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mint2m_trainer.cluster.rank_log import RankLog
from mint2m_verify.layout import has_place


def test_phases_warnings_and_faults_are_told_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f00dfeedf00dfeed")
    monkeypatch.setenv("STORE_PASSWORD", "correct horse")
    monkeypatch.setenv("USER_TOKEN", "on")  # too short to be one; it would tear words apart
    log = RankLog(tmp_path, 3)
    with log.around("bind"):
        logging.getLogger("some.library").warning("will be slow")
    with pytest.raises(ValueError, match="correct horse"), log.around("capture-prefix"):
        raise ValueError("refused: correct horse at f00dfeedf00dfeed")
    log.close()
    logging.getLogger("some.library").warning("not any more")
    (path,) = tmp_path.rglob("*.log")
    text = path.read_text()
    assert path.relative_to(tmp_path).as_posix() == "logs/rank-0003.log"
    for words in (
        "bind begins",
        "bind ended after",
        "WARNING some.library: will be slow",
        "capture-prefix failed after",
    ):
        assert text.count(words) == 1, words
    assert "ValueError: refused: [STORE_PASSWORD] at [RAY_AUTH_TOKEN]" in text
    assert "correct horse" not in text
    assert "f00d" not in text
    assert "not any more" not in text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("logs/rank-0003.log", True),
        ("logs/rank-10000.log", True),
        ("logs/rank-3.log", False),
        ("logs/rank-0003.log.1", False),
        ("logs/driver.log", False),
        ("logs/sub/rank-0003.log", False),
    ],
)
def test_a_run_directory_has_a_place_for_logs_of_ranks_only(path: str, expected: bool) -> None:
    assert has_place(path) is expected
