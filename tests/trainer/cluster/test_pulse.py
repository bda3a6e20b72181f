"""The head of a cluster is lost after ten silent seconds, not before, and not where it answers again in between."""

from __future__ import annotations

import socket

import pytest

from mint2m_trainer.cluster.pulse import Pulse
from mint2m_verify.finding import FindingError


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def passing(pulse: Pulse, clock: Clock, seconds: int) -> None:
    for _ in range(seconds * 4):
        clock.now += 0.25
        pulse.check()


def test_a_head_that_stops_listening_is_lost_after_ten_seconds() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        pulse = Pulse(address, clock)
        passing(pulse, clock, 60)
    passing(pulse, clock, 9)
    assert not pulse.lost
    with pytest.raises(FindingError) as stopped:
        passing(pulse, clock, 4)
    assert (stopped.value.finding.id, pulse.lost) == ("ray.head-lost", True)
    assert address in (stopped.value.finding.expected or "")


def test_whoever_must_know_waits_until_the_head_answers_or_is_lost() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        pulse = Pulse(f"127.0.0.1:{port}", clock, lambda seconds: setattr(clock, "now", clock.now + seconds))
        assert pulse.reached()
    began = clock.now
    with pytest.raises(FindingError) as stopped:
        pulse.confirm("grpo-0")
    assert (stopped.value.finding.id, stopped.value.finding.stage) == ("ray.head-lost", "grpo-0")
    assert 10 <= clock.now - began <= 14
    assert not pulse.reached()


def test_silence_counts_from_the_first_look_that_met_it() -> None:
    """A driver that was busy for long has not seen the head be silent meanwhile."""
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as head:
        pulse = Pulse(f"127.0.0.1:{head.getsockname()[1]}", clock)
    clock.now += 60
    pulse.check()
    assert not pulse.lost


def test_a_head_that_answers_again_in_time_is_not_lost() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        pulse = Pulse(f"127.0.0.1:{port}", clock)
    passing(pulse, clock, 8)
    with socket.create_server(("127.0.0.1", port)):
        passing(pulse, clock, 4)
    passing(pulse, clock, 9)
    assert not pulse.lost
