"""How ranks are asked and ended, on a clock of the test's own: the driver's work grows no faster than their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from mint2m_trainer.cluster import ranks
from mint2m_trainer.cluster.journal import Journal, read
from mint2m_trainer.cluster.messages import RankError
from mint2m_trainer.cluster.ranks import Ranks
from mint2m_trainer.faults import Cause
from mint2m_verify.finding import FindingError

LOOK_S = ranks._POLL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call will return or raise, and when."""

    at: float
    value: Any = None
    fault: Exception | None = None

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(slots=True)
class SlowRay:
    """As much of Ray as `Ranks` needs to ask and to end; `wait` keeps to what Ray's documentation says of it."""

    now: float = 0.0
    done: list[str] = field(default_factory=list)

    def wait(
        self, asked: Sequence[Answer], *, num_returns: int = 1, timeout: float
    ) -> tuple[list[Answer], list[Answer]]:
        times = sorted(answer.at for answer in asked)
        self.now = max(self.now, min(times[num_returns - 1], self.now + timeout))
        ready = [answer for answer in asked if answer.at <= self.now][:num_returns]
        return ready, [answer for answer in asked if answer not in ready]

    def get(self, answer: Answer, **_limit: float) -> Any:
        if answer.fault is not None:
            raise answer.fault
        return answer.value

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        self.done.append(f"kill {actor.name}")

    def get_actor(self, name: str, *, namespace: str) -> None:
        self.done.append(f"look for {name}")
        raise ValueError(name)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowRay:
    made = SlowRay()
    monkeypatch.setattr(ranks, "ray", made)
    monkeypatch.setattr(ranks.time, "monotonic", lambda: made.now)
    return made


def actor(name: str, answer: Answer) -> Any:
    remote = SimpleNamespace(remote=lambda *_: answer)
    return SimpleNamespace(name=name, phase=remote, _actor_id=SimpleNamespace(hex=lambda: "ab" * 16))


def of(answers: Sequence[Answer], journal: Any = None) -> tuple[Ranks, list[str]]:
    """Ranks with these answers, and a list that grows with each call of the coordinator."""
    calls: list[str] = []

    def progress() -> Answer:
        calls.append("progress")
        return Answer(at=0.0, value=())

    planned = [SimpleNamespace(rank=n, actor=f"rank-{n}", node_ip="127.0.0.1") for n in range(len(answers))]
    made = Ranks(
        plan=SimpleNamespace(
            timeouts_s=SimpleNamespace(phase=600, cleanup=60, start=60),
            placement=SimpleNamespace(ranks=planned, coordinator="coordinator", group="group"),
            namespace="space",
        ),  # type: ignore[arg-type]  # as much of a plan as is read
        journal=journal,
        local=True,
        check=lambda: None,
        pulse=SimpleNamespace(check=lambda _stage: None, confirm=lambda _stage: None, reached=lambda: True),  # type: ignore[arg-type]
        coordinator=SimpleNamespace(progress=SimpleNamespace(remote=progress)),
        actors=[actor(f"rank-{n}", answer) for n, answer in enumerate(answers)],
    )
    return made, calls


@pytest.mark.parametrize("count", [2, 8, 32])
def test_the_coordinator_is_asked_once_a_look_however_many_ranks_answer_in_between(slow: SlowRay, count: int) -> None:
    lasts = 1.0
    answers = [Answer(at=lasts * (n + 1) / count, value=f"reply {n}") for n in range(count)]
    made, calls = of(answers)
    assert made.run("bind", lambda _word: None) == tuple(f"reply {n}" for n in range(count))
    assert slow.now == lasts  # nobody waits for the next look once all have answered
    assert len(calls) <= math.ceil(lasts / LOOK_S)


def test_of_answers_seen_in_one_look_the_death_is_told_and_not_what_it_did_to_a_peer(slow: SlowRay) -> None:
    peer = RayTaskError.__new__(RayTaskError)
    peer.cause = RankError(0, "bind", Cause.BUG, "RuntimeError", "connection closed by peer", "")
    answers = [Answer(at=0.01, fault=peer), Answer(at=0.02, fault=ActorDiedError()), Answer(at=0.03, value="reply")]
    made, _ = of([*answers, Answer(at=math.inf)])
    with pytest.raises(FindingError) as caught:
        made.run("bind", lambda _word: None)
    assert caught.value.finding.id == "rank.died"
    assert (caught.value.finding.actual or "").startswith("rank 1")


def test_all_ranks_are_killed_before_any_is_waited_for(slow: SlowRay, tmp_path: Path) -> None:
    place = tmp_path / "ownership.jsonl"
    with Journal.create(place, plan_sha256="1" * 64, execution_id="2" * 64) as journal:
        made, _ = of([Answer(at=0.0)] * 4, journal)
        made.coordinator = None
        journal.write("opened")
        assert made.end() == ()
    assert slow.done[:4] == [f"kill rank-{n}" for n in range(4)]
    assert slow.done[4:] == [f"look for rank-{n}" for n in range(4)]
    absent = [event.resource.name for event in read(place).events if event.event == "absent" and event.resource]
    assert absent == [f"rank-{n}" for n in range(4)]
