"""The registry's further rules by cases written out, and users' own rules by entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mint2m_verify import schema
from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.canonical import canonical, parse
from mint2m_verify.finding import FindingError, Standing, Verdict
from mint2m_verify.rewards import RULES, computable, reward
from mint2m_verify.rewards.dapo import final_answer, normalized
from mint2m_verify.run import verify_run


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("4", 1.0),
        (" 4\r\n", 1.0),
        ("Answer: 4", -1.0),
        ("4.0", -1.0),
        ("", -1.0),
        ("\u00a04", -1.0),  # a no-break space is not trimmed
    ],
)
def test_exact_match_takes_the_whole_response(response: str, value: float) -> None:
    assert reward("exact-match/v1", response, "4") == value


@pytest.mark.parametrize(
    ("response", "truth", "value"),
    [
        ("So it is 34.\nAnswer: 34", "34", 1.0),
        ("Answer: 33\nNo.\nanswer :  34 ", "34", 1.0),
        ("Answer: 34\nAnswer: 33", "34", -1.0),
        ("Answer: $34$", "34", 1.0),
        ("Answer: \\boxed{34}", "34", 1.0),
        ("Therefore \\boxed{34}.", "34", 1.0),
        ("First \\boxed{12}, then \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}", 1.0),
        ("Answer: \\frac12", "\\frac{1}{2}", 1.0),
        ("Answer: x = 7", "7", 1.0),
        ("Answer: 1,234", "1234", 1.0),
        ("Answer: 12 meters", "12", 1.0),
        ("Answer: 30^\\circ", "30", 1.0),
        ("Answer: \\text{blue}", "blue", 1.0),
        ("Answer: \\sqrt2", "\\sqrt{2}", 1.0),
        ("Answer: an apple", "apple", 1.0),
        ("The answer is 34", "34", -1.0),
        ("\\boxed{34", "34", -1.0),  # never closed
        ("", "34", -1.0),
        ("Answer: 34\n" + "x" * 300, "34", -1.0),  # beyond the tail
        ("Answer: 34.0", "34", -1.0),
        ("Answer:", "34", -1.0),
    ],
)
def test_the_dapo_rule_compares_normal_forms_of_the_last_answer(response: str, truth: str, value: float) -> None:
    assert reward("dapo-math/v1", response, truth) == value


def test_an_answer_line_comes_before_a_box_and_braces_are_matched() -> None:
    assert final_answer("Answer: 1\n\\boxed{2}") == "1"
    assert final_answer("\\boxed{\\frac{1}{\\sqrt{2}}} and more") == "\\frac{1}{\\sqrt{2}}"
    assert normalized("$\\frac{1}{2}$ hours") == "\\frac{1}{2}"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a package with entry points on the path, as an installer would."""

    def place(name: str, declared: str, source: str) -> None:
        root = tmp_path / name
        (root / f"{name}-1.dist-info").mkdir(parents=True)
        (root / f"{name}.py").write_text(source)
        (root / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (root / f"{name}-1.dist-info" / "entry_points.txt").write_text(f"[mint2m.rewards]\n{declared}\n")
        monkeypatch.syspath_prepend(str(root))
        sys.modules.pop(name, None)

    return place


def test_a_users_own_rule_is_found_by_its_entry_point(install: Callable[..., None]) -> None:
    assert not computable("plugin:half/v1")
    install("half_rewards", "half/v1 = half_rewards:half", "def half(text, truth):\n    return 0.5 * (text == truth)\n")
    assert computable("plugin:half/v1")
    assert reward("plugin:half/v1", "a", "a") == 0.5
    assert not computable("plugin:half/v2")


@pytest.mark.parametrize("source", ["def f(text, truth):\n    return text", "def f(text, truth):\n    return 1 / 0"])
def test_a_rule_that_gives_no_number_is_a_finding(install: Callable[..., None], source: str) -> None:
    install("bad_rewards", "bad/v1 = bad_rewards:f", source)
    with pytest.raises(FindingError) as fault:
        reward("plugin:bad/v1", "a", "a")
    assert fault.value.finding.id == "fixture.reward-rule-failed"


def test_a_rule_that_two_packages_declare_is_nobodys(install: Callable[..., None]) -> None:
    for name in ("one_rewards", "two_rewards"):
        install(name, f"both/v1 = {name}:f", "def f(text, truth):\n    return 1.0\n")
    assert not computable("plugin:both/v1")
    with pytest.raises(FindingError) as fault:
        reward("plugin:both/v1", "a", "a")
    assert fault.value.finding.id == "fixture.reward-rule-absent"


@pytest.mark.parametrize("rule", [*RULES, "plugin:short-answer/v1"])
def test_the_schema_takes_every_rule_of_the_registry_and_plugins(rule: str) -> None:
    payload = {
        "schema": "mint2m.training-payload/v1",
        "tokenizer": "utf8-bytes",
        "prompt_text": "What?",
        "ground_truth": "4",
        "reward_rule": rule,
    }
    assert schema.check(parse(canonical(payload), file="p"), "training-payload", file="p") == ()
    payload["reward_rule"] = rule.replace("/v1", "/v0")
    assert schema.check(parse(canonical(payload), file="p"), "training-payload", file="p") != ()


def test_a_run_under_an_absent_rule_is_accepted_and_its_rewards_are_the_operators_word(
    tmp_path: Path, builder: ModuleType, install: Callable[..., None]
) -> None:
    def plugin(payload: dict[str, object]) -> None:
        payload["reward_rule"] = "plugin:last-digit/v1"

    builder.build_run(tmp_path / "run", edits={"payload": plugin})

    def rewards() -> tuple[Verdict, Standing]:
        report = verify_run(tmp_path / "run", read_key(tmp_path / "run.pub"), VerifyOptions())
        row = next(row for row in report.requirements if row.required == "rewards from the response text")
        return report.verdict, row.standing

    assert rewards() == (Verdict.ACCEPTED, Standing.ATTESTED_ONLY)
    source = "def f(text, truth):\n    return 1.0 if text[-1:] == truth else -1.0\n"
    install("digit_rewards", "last-digit/v1 = digit_rewards:f", source)
    assert rewards() == (Verdict.ACCEPTED, Standing.DERIVED)


def test_an_installed_rule_refuses_rewards_that_it_does_not_give(
    tmp_path: Path, builder: ModuleType, install: Callable[..., None]
) -> None:
    def plugin(payload: dict[str, object]) -> None:
        payload["reward_rule"] = "plugin:all-wrong/v1"

    install("wrong_rewards", "all-wrong/v1 = wrong_rewards:f", "def f(text, truth):\n    return -1.0\n")
    builder.build_run(tmp_path / "run", edits={"payload": plugin})
    report = verify_run(tmp_path / "run", read_key(tmp_path / "run.pub"), VerifyOptions())
    assert report.roots[0].id == "fixture.reward-mismatch"
