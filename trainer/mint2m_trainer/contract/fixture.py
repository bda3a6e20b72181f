"""Builds a training fixture: payload, rollout and the fixture that binds them, adjacent in one directory.

The rule: tokens are the bytes of the text, rewards come from the rule, and the fixture is written last, after the
verifier's own check has accepted all three. So a fixture on disk never names a file that is not there, and never
says what its reader would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.contract.ledger import ledger
from mint2m_verify.documents import FileRef, Rollout, TrainingFixture, TrainingPayload
from mint2m_verify.documents.inputs import Distribution, FixtureModel, FixtureShape
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.fixture import CheckedFixture, Expected, FixtureBytes, check_bytes
from mint2m_verify.rewards import reward

FIXTURE_NAME = "fixture.json"
PAYLOAD_NAME = "payload.json"
ROLLOUT_NAME = "rollout.json"

REWARD_RULE = "answer-exact/v1"

GENERATED = Distribution(
    declaration="project-generated",
    license="Apache-2.0",
    statement="Written by mint2m from a seed; it holds nobody else's text.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked and what was answered: a prompt, its right answer, and the group's responses."""

    prompt: str
    ground_truth: str
    responses: tuple[str, ...]
    distribution: Distribution
    reward_rule: str = REWARD_RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the fixture is for: the model, the adapter (None: a fresh one) and the profile, by hash."""

    revision: str
    manifest_sha256: str
    vocab_size: int
    profile_sha256: str
    policy_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutScores:
    """Log-probs that a sampler gave; [G] rows of R or R - 1 entries. None: the trainer recomputes them."""

    old: tuple[tuple[float, ...], ...] | None = None
    ref: tuple[tuple[float, ...], ...] | None = None


def ledger_task(seed: int, *, tokens: int) -> Task:
    """The generated ledger of exactly `tokens` byte tokens, its question and two responses (`Answer: 2`, `4`)."""
    made = ledger(seed, tokens=tokens)
    return Task(
        prompt=made.text,
        ground_truth=made.ground_truth,
        responses=made.responses,
        distribution=GENERATED,
    )


def text_task(
    text: str, *, question: str, ground_truth: str, responses: Sequence[str], distribution: Distribution
) -> Task:
    """A document of the operator's with a question put after it."""
    return Task(
        prompt=f"{text}\n\n{question}\n",
        ground_truth=ground_truth,
        responses=tuple(responses),
        distribution=distribution,
    )


def build_fixture(directory: Path, task: Task, target: Target, scores: RolloutScores | None = None) -> CheckedFixture:
    """Writes `payload.json`, `rollout.json` and last `fixture.json` into a directory that may hold other files.

    Raises:
        FindingError: `file.exists` where one of the three is there already, or what the verifier refuses in the
            result (`fixture.*`, `schema.*`); then nothing was written.
    """
    return write_fixture(directory, *assemble(task, target, scores))


def write_fixture(directory: Path, files: FixtureBytes, checked: CheckedFixture) -> CheckedFixture:
    """Write the three files of an assembled fixture, the fixture last; raises `FindingError` (`file.exists`)."""
    paths = [directory / name for name in (PAYLOAD_NAME, ROLLOUT_NAME, FIXTURE_NAME)]
    for path in paths:
        if path.exists() or path.is_symlink():
            raise FindingError(found("file.exists", file=str(path)))
    directory.mkdir(parents=True, exist_ok=True)
    for path, raw in zip(paths, (files.payload, files.rollout, files.fixture), strict=True):
        write_atomic(path, raw)
    return checked


def assemble(task: Task, target: Target, scores: RolloutScores | None = None) -> tuple[FixtureBytes, CheckedFixture]:
    """The three documents' bytes, accepted by the verifier's own check; nothing is written."""
    scores = scores or RolloutScores()
    responses = tuple(tuple(text.encode("utf-8")) for text in task.responses)
    payload = TrainingPayload(
        tokenizer="utf8-bytes",
        prompt_text=task.prompt,
        ground_truth=task.ground_truth,
        reward_rule=task.reward_rule,
    )
    rollout = Rollout(
        prompt_tokens=tuple(task.prompt.encode("utf-8")),
        responses=responses,
        rewards=tuple(reward(task.reward_rule, text, task.ground_truth) for text in task.responses),
        old_logprobs=scores.old,
        ref_logprobs=scores.ref,
    )
    return bind(payload, rollout, target, task.distribution)


def bind(
    payload: TrainingPayload, rollout: Rollout, target: Target, distribution: Distribution
) -> tuple[FixtureBytes, CheckedFixture]:
    """The three documents' bytes where the first two are given, accepted by the verifier's own check.

    Raises:
        FindingError: what that check refuses (`fixture.*`, `schema.*`).
    """
    payload_raw, rollout_raw = payload.encode(), rollout.encode()
    fixture = TrainingFixture(
        model=FixtureModel(revision=target.revision, manifest_sha256=target.manifest_sha256),
        policy_sha256=target.policy_sha256,
        profile_sha256=target.profile_sha256,
        distribution=distribution,
        payload=FileRef.of(PAYLOAD_NAME, payload_raw),
        rollout=FileRef.of(ROLLOUT_NAME, rollout_raw),
        shape=FixtureShape(
            vocab_size=target.vocab_size,
            prompt_tokens=len(rollout.prompt_tokens),
            response_tokens=tuple(len(tokens) for tokens in rollout.responses),
        ),
    )
    files = FixtureBytes(fixture=fixture.encode(), payload=payload_raw, rollout=rollout_raw)
    checked, findings = check_bytes(files, Expected())
    if checked is None:
        raise FindingError(findings[0])
    return files, checked
