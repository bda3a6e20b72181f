"""`mint2m fixture build`: from the words of a command line to a task, a target and the three files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mint2m_trainer.contract.fixture import FIXTURE_NAME, Target, Task, build_fixture, ledger_task, text_task
from mint2m_trainer.contract.ledger import LedgerError
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Distribution
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.fixture_expectations import expected_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A document of the operator's and everything that makes a task of it."""

    text: Path
    question: str
    answer: str
    responses: tuple[str, ...]
    license: str
    statement: str

    @classmethod
    def of(
        cls,
        text: Path | None,
        question: str | None,
        answer: str | None,
        responses: tuple[str, ...],
        license_: str | None,
        statement: str | None,
    ) -> Self | None:
        """The request, or None for a generated ledger; options that would have no effect are refused.

        Raises:
            FindingError: `usage.invalid` for an incomplete set, `input.missing` for the text.
        """
        needed = {
            "--question": question,
            "--answer": answer,
            "--response": responses or None,
            "--license": license_,
            "--statement": statement,
        }
        given = [name for name, value in needed.items() if value is not None]
        if text is None:
            if given:
                raise FindingError(found("usage.invalid", expected=f"--text with {given[0]}", actual="no --text"))
            return None
        if question is None or answer is None or license_ is None or statement is None or len(responses) < 2:
            raise FindingError(
                found(
                    "usage.invalid",
                    expected="--question, --answer, --license, --statement and two --response with --text",
                    actual=", ".join(given) or "none of them",
                )
            )
        if not text.exists():
            raise FindingError(found("input.missing", file=str(text)))
        return cls(
            text=text, question=question, answer=answer, responses=responses, license=license_, statement=statement
        )

    def task(self) -> Task:
        """The task: the document, the question after it, the answers."""
        raw = read_once(self.text.resolve(), name=str(self.text))
        try:
            document = raw.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise FindingError(found("json.not-utf8", file=str(self.text), actual=str(fault))) from fault
        return text_task(
            document,
            question=self.question,
            ground_truth=self.answer,
            responses=self.responses,
            distribution=Distribution(declaration="operator-owned", license=self.license, statement=self.statement),
        )


def build_from_request(
    output: Path,
    request: TextRequest | None,
    *,
    seed: int,
    model: Path,
    revision: str,
    profile: Path,
    adapter: Path | None,
) -> FileRef:
    """Write the three files and return the fixture's path and digest; raises `FindingError`."""
    expected = expected_of(model=model, revision=revision, profile=profile, adapter=adapter)
    if expected.profile is None or expected.manifest_sha256 is None or expected.profile_sha256 is None:
        raise TypeError("model and profile were given and read")
    try:
        tokens = expected.profile.context.prompt_tokens
        task = ledger_task(seed, tokens=tokens) if request is None else request.task()
    except LedgerError as fault:
        raise FindingError(
            found("fixture.shape-mismatch", pointer="/context/prompt_tokens", actual=str(fault))
        ) from fault
    length = len(task.prompt.encode("utf-8"))
    if length != tokens:
        raise FindingError(
            found(
                "fixture.shape-mismatch",
                pointer="/context/prompt_tokens",
                expected=f"{tokens} byte tokens, from the profile",
                actual=f"{length}, with the question",
            )
        )
    build_fixture(
        output,
        task,
        Target(
            revision=revision,
            manifest_sha256=expected.manifest_sha256,
            vocab_size=expected.vocab_size or 0,
            profile_sha256=expected.profile_sha256,
            policy_sha256=expected.policy_sha256,
        ),
    )
    path = output / FIXTURE_NAME
    return FileRef.of(str(path), read_once(path))
