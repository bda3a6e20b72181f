"""Thirty-two ranks on four hosts against one rank: the same log-probs and the same gradient, verified, in time.

It wants 18 GiB and, of two cores, the better part of twenty minutes, so it runs only where it is asked for by name, and
prints its figures.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import network
import pytest
import ray_hosts
from safetensors.numpy import load_file

from mint2m_trainer.deployments import Packaged, build, packaged_profile
from mint2m_verify.documents import FileRef, RankSessions, Rollout, RunProfile, TrainingFixture
from mint2m_verify.layout import RANK_SESSIONS

WANTED = "MINT2M_THIRTY_TWO_RANKS"

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(WANTED not in os.environ, reason=f"18 GiB and twenty minutes: set {WANTED}=1"),
]

#: Every part of the model, as small as it can be: 32 experts, one a rank.
MODEL = Packaged(
    name="hosts-32",
    world_size=32,
    prompt_tokens=4096,
    chunk_tokens=1024,
    model_config={
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "indexer_types": ["full", "shared"],
        "n_routed_experts": 32,
        "num_attention_heads": 2,
        "max_position_embeddings": 8192,
    },
)
RESPONSES = (tuple(b"yes"), tuple(b"no."))
ADVANTAGES = ((1.0, 0.5, -0.25), (-1.0, 0.75, -0.5))
EACH = 8
LOGPROB, FORCED, FREE = 1e-4, 1e-4, 1e-2
LIMIT_S, VERIFY_S = 20 * 60, 2.0

#: A process that reads and hashes every file and does nothing else.
HASHING = """
import hashlib, os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb") as stream:
            hashlib.file_digest(stream, "sha256").hexdigest()
"""


def profile(world: int) -> RunProfile:
    made = packaged_profile(MODEL)
    return replace(
        made,
        group_size=len(RESPONSES),
        topology=replace(made.topology, world_size=world, context_parallel=world, expert_parallel=world),
        grpo=replace(made.grpo, advantage_source="rollout"),
        timeouts_s=replace(made.timeouts_s, start=1800, phase=1800, cleanup=120),
    )


def prepare(directory: Path, world: int) -> Path:
    """The inputs, with responses of three tokens: too short for an answer, so each token brings its advantage."""
    path = build(directory, MODEL, profile=profile(world))
    inputs = path.parent
    rollout = Rollout.parse((inputs / "rollout.json").read_bytes(), file="rollout.json")
    made = replace(rollout, responses=RESPONSES, rewards=(-1.0, -1.0), advantages=ADVANTAGES).encode()
    (inputs / "rollout.json").write_bytes(made)
    fixture = TrainingFixture.parse((inputs / "fixture.json").read_bytes(), file="fixture.json")
    shape = replace(fixture.shape, response_tokens=tuple(map(len, RESPONSES)))
    bound = replace(fixture, rollout=FileRef.of("rollout.json", made), shape=shape).encode()
    (inputs / "fixture.json").write_bytes(bound)
    value = json.loads(path.read_text())
    value["fixture"]["sha256"] = hashlib.sha256(bound).hexdigest()
    path.write_text(json.dumps(value))
    return path


def over_hosts(path: Path, ray: ray_hosts.RayHosts) -> Path:
    """The same deployment on four hosts."""
    value = json.loads(path.read_text())
    value |= {
        "ray_address": ray.address,
        "node_ips": [host.ip for host in ray.hosts],
        "accelerators_per_node": EACH,
        "image": {"name": "reference", "digest": ray_hosts.IMAGE_DIGEST},
    }
    path.write_text(json.dumps(value))
    return path


def test_thirty_two_ranks_on_four_hosts_make_the_update_of_one_rank(tmp_path: Path) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    began = time.monotonic()
    done = mint2m(
        "run", "--deployment", prepare(tmp_path / "one", 1), "--output", alone, *watched(tmp_path / "one-seen")
    )
    assert done["verdict"] == "accepted", done["findings"]
    figures = {"one rank, s": time.monotonic() - began}

    offers = [ray_hosts.Offer(cpus=EACH, accelerators=EACH)] * 4
    quiet = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
    began = time.monotonic()
    with ray_hosts.running(offers, tmp_path / "ray.log", quiet, patience_s=600) as ray:
        figures["hosts and Ray up, s"] = time.monotonic() - began
        given = over_hosts(prepare(tmp_path / "given", 32), ray)
        began = time.monotonic()
        driver = ray.mint2m("run", "--deployment", given, "--output", out, *watched(tmp_path / "seen"))
        figures["largest memory of a host's ranks, MiB"] = most_memory(ray, driver)
        output, errors = driver.communicate()
        figures["thirty-two ranks, s"] = time.monotonic() - began
        report = json.loads(output)
        assert report["verdict"] == "accepted", (report["findings"], errors[-2000:])
    figures |= phases_of(out)
    began = time.monotonic()
    checked = ray_hosts.verify(out, tmp_path / "out.pub")
    figures["verify run, s"] = time.monotonic() - began
    assert checked["verdict"] == "accepted", checked["findings"]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", HASHING, str(out)], check=True)
    figures["hashing, s"] = time.monotonic() - began

    sessions = RankSessions.parse((out / RANK_SESSIONS).read_bytes(), file=RANK_SESSIONS)
    seen = [(rank.placement.observed_node_ip, rank.placement.observed_slot) for rank in sessions.ranks]
    assert seen == [(host.ip, slot) for host in ray.hosts for slot in range(EACH)]

    figures["largest log-prob difference"] = logprob_difference(alone, out)
    figures["gradient, relative L2"] = gradient_difference(alone, out)
    trace = mint2m("parity", "trace", tmp_path / "one-seen", tmp_path / "seen", "--format", "json")
    figures["choices equal"] = trace["verdict"] == "accepted"
    print(json.dumps(figures, indent=1))
    assert figures["largest log-prob difference"] <= LOGPROB
    # Where every choice of rows and experts is the same, only rounding is left, as if they had been forced.
    assert figures["gradient, relative L2"] <= (FORCED if figures["choices equal"] else FREE), trace["findings"]
    assert figures["thirty-two ranks, s"] <= LIMIT_S
    assert figures["verify run, s"] - figures["hashing, s"] <= VERIFY_S


def watched(place: Path) -> tuple[object, ...]:
    return ("--instruments", place, "--format", "json")


def mint2m(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mint2m", *map(str, words)], capture_output=True, text=True, check=False
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def most_memory(ray: ray_hosts.RayHosts, driver: subprocess.Popen[str]) -> float:
    """The largest sum of proportional set sizes of all processes of a host, looked at every few seconds."""
    most = 0
    while driver.poll() is None:
        for host in ray.hosts:
            most = max(most, sum(pss_kib(pid) for pid in network.processes_on(host, None)))
        time.sleep(5)
    return most / 1024


def pss_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def phases_of(run: Path) -> dict[str, float]:
    """Seconds of each phase on rank 0, by its own clock."""
    session = json.loads((run / RANK_SESSIONS).read_bytes())["ranks"][0]
    seconds = {}
    for record in session["phases"]:
        began, ended = (datetime.fromisoformat(record[name]) for name in ("started_at", "ended_at"))
        seconds[f"{record['phase']}, s"] = (ended - began).total_seconds()
    return seconds


def logprob_difference(left: Path, right: Path) -> float:
    rows = [json.loads((run / "artifacts/scores.json").read_bytes())["responses"] for run in (left, right)]
    pairs = [
        pair for one, other in zip(*rows, strict=True) for pair in zip(one["policy"], other["policy"], strict=True)
    ]
    assert len(pairs) == sum(len(tokens) for tokens in RESPONSES)
    return max(abs(one - other) for one, other in pairs)


def gradient_difference(left: Path, right: Path) -> float:
    """Relative L2 over all tensors, in float64."""
    one, other = (load_file(run / "artifacts/gradient.safetensors") for run in (left, right))
    assert one.keys() == other.keys()
    square = sum(float((tensor.astype("f8") ** 2).sum()) for tensor in one.values())
    apart = sum(float(((tensor.astype("f8") - other[name].astype("f8")) ** 2).sum()) for name, tensor in one.items())
    assert square > 0
    return math.sqrt(apart / square)
