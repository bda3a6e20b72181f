"""The closing words of a run: who signed, and the command with which anybody checks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mint2m.outcome import Format
from mint2m.run_texts import run_outcome
from mint2m_trainer.run import RunResult
from mint2m_verify.documents import Plan
from mint2m_verify.finding import Report, Requirement, Standing
from mint2m_verify.signers.signer import SignerKind

BASE = Path(__file__).parents[1] / "vectors" / "bases" / "run"
REPORT = Report(
    subject="out",
    command="run",
    requirements=(Requirement(required="all", found="all", standing=Standing.CHECKED),),
)


def closing(kind: SignerKind, *, public_key: Path | None, signed_by: str) -> str:
    plan = Plan.parse((BASE / "plan.json").read_bytes(), file="plan.json")
    result = RunResult(
        report=REPORT, directory=Path("out"), public_key=public_key, signer=kind, signed_by=signed_by, plan=plan
    )
    return run_outcome(result, (), Format.TEXT).text


def test_a_run_sealed_by_a_key_is_checked_with_its_public_half() -> None:
    text = closing("managed", public_key=Path("my key.pub"), signed_by="4b1d…0077")
    assert "signed by 4b1d…0077." in text
    assert "mint2m verify run out --key 'my key.pub'" in text


def test_a_run_sealed_by_an_identity_is_checked_with_a_policy() -> None:
    text = closing("certificate", public_key=None, signed_by="someone@example.org")
    assert "signed by someone@example.org." in text
    assert "mint2m verify run out --policy POLICY --trusted-root ROOT" in text
    assert "None" not in text


@pytest.mark.parametrize(("kind", "told"), [("ephemeral", True), ("managed", False)])
def test_a_key_made_for_the_run_is_told_as_one(kind: SignerKind, told: bool) -> None:
    text = closing(kind, public_key=Path("out.pub"), signed_by="4b1d…0077")
    assert ("The key was made for this run" in text) == told
