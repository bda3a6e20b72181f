"""A run over four hosts, driven from a fifth: ranks where the plan put them, evidence that the verifier accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import ray_hosts

from mint2m_trainer.cluster.journal import read
from mint2m_verify.documents import RankSessions
from mint2m_verify.layout import RANK_SESSIONS

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_run_over_four_hosts_is_placed_as_planned_and_verified(
    tmp_path: Path, deployment: Callable[..., Path]
) -> None:
    """Nothing but the hosts' own addresses joins them, so a collective over loopback would never end."""
    offers = [ray_hosts.Offer(cpus=1, accelerators=1)] * 4
    with ray_hosts.running(offers, tmp_path / "ray.log", {}) as ray:
        given, out = deployment(tmp_path / "given", ray), tmp_path / "out"
        driver = ray.mint2m("run", "--deployment", given, "--output", out, "--format", "json")
        output, errors = driver.communicate(timeout=400)
        report = json.loads(output)
        assert report["verdict"] == "accepted", (report["findings"], errors)
        left = [line["ip"] for line in ray.alive()]
        assert sorted(left) == sorted(host.ip for host in ray.network.hosts), "the operator's Ray goes on"
    checked = ray_hosts.verify(out, tmp_path / "out.pub")
    assert checked["verdict"] == "accepted", checked["findings"]
    sessions = RankSessions.parse((out / RANK_SESSIONS).read_bytes(), file=RANK_SESSIONS)
    seen = [(rank.placement.planned_node_ip, rank.placement.observed_node_ip) for rank in sessions.ranks]
    assert seen == [(host.ip, host.ip) for host in ray.hosts]
    ledger = read(out / "ownership.jsonl")
    assert ledger.closed
    assert {event.resource.kind for event in ledger.events if event.resource} == {"ray", "placement-group", "actor"}
