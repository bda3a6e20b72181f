"""The operator's cluster that does not answer: told at once, and nothing of the run is left to clean up."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mint2m_trainer.cluster.driver import train
from mint2m_trainer.cluster.journal import read
from mint2m_trainer.deployments import PACKAGED, build
from mint2m_verify.doctor import examine_run
from mint2m_verify.finding import FindingError
from mint2m_verify.plan import build_plan


def test_a_cluster_that_does_not_listen_is_named_and_nothing_stays_owned(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # bound, and nobody listens
        path = build(tmp_path / "prepared", PACKAGED["local-8k"])
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ray_address": address}))
        examination = examine_run(path, profile=None, output=tmp_path / "run")
        assert examination.gathered is not None
        assert examination.gathered.inputs is not None
        plan = build_plan(examination.gathered.inputs, run_id="unreached", instance_nonce="n")
        with pytest.raises(FindingError) as caught:
            train(tmp_path / "run", plan, examination)
    assert caught.value.finding.id == "ray.start-failed"
    assert address in (caught.value.finding.expected or "")
    ledger = read(tmp_path / "run" / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned
