"""Evidence that is small to send and would be endless to read: each must be refused in bounded time and memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from mint2m_verify import schema
from mint2m_verify.canonical import parse
from mint2m_verify.finding import FindingError
from mint2m_verify.recompute.tensors import read_tensors
from mint2m_verify.run_documents import read_journal

#: Processor seconds; each of these took minutes, or all memory, before it was bounded.
PATIENCE_S = 20.0


def refused(read: Callable[[], object]) -> str:
    start = time.process_time()
    with pytest.raises(FindingError) as fault:
        read()
    assert time.process_time() - start < PATIENCE_S
    return fault.value.finding.id


def test_one_repeated_key_behind_a_million_others() -> None:
    raw = b"{" + b",".join(b'"%d":0' % number for number in range(1_000_000)) + b',"999999":0}'
    assert refused(lambda: parse(raw, file="f")) == "json.duplicate-key"


def test_a_number_of_ten_million_digits() -> None:
    raw = b"[" + b"1" * 10_000_000 + b".5e-9999999]"
    start = time.process_time()
    parse(raw, file="f")
    assert time.process_time() - start < PATIENCE_S


def test_a_journal_of_line_feeds() -> None:
    start = time.process_time()
    lines, faults = read_journal(b"\n" * 5_000_000, file="f")
    assert (lines, len(faults)) == ((), 100)
    assert time.process_time() - start < PATIENCE_S


def test_a_list_of_a_million_wrong_entries() -> None:
    document = {"schema": "mint2m.rollout/v1", "prompt_tokens": ["x"] * 1_000_000, "responses": [0] * 1_000_000}
    start = time.process_time()
    assert 0 < len(schema.check(document, "rollout", file="f")) <= 100
    assert time.process_time() - start < PATIENCE_S


def test_a_hundred_thousand_entries_that_must_all_differ() -> None:
    document = {"schema": "mint2m.deployment/v1", "node_ips": [str(n) if n % 2 else n for n in range(100_000)]}
    start = time.process_time()
    assert schema.check(document, "deployment", file="f")
    assert time.process_time() - start < PATIENCE_S


def test_a_tensor_of_a_million_axes() -> None:
    header = json.dumps({"t": {"dtype": "F32", "shape": [2**53 - 1] * 1_000_000, "data_offsets": [0, 4]}}).encode()
    raw = len(header).to_bytes(8, "little") + header + bytes(4)
    assert refused(lambda: read_tensors(raw, file="f")) == "tensor.malformed"


@pytest.mark.parametrize("value", ["a" * 64 + "\n", "A" * 64, "a" * 63])
def test_a_digest_is_64_characters_to_the_very_end(value: str) -> None:
    deployment = {"schema": "mint2m.deployment/v1", "fixture": {"path": "p", "sha256": value}}
    found = schema.check(deployment, "deployment", file="f")
    assert "/fixture/sha256" in {fault.pointer for fault in found}


@pytest.mark.parametrize("value", [1e300, 2.0**60, 0.5, True])
def test_an_integer_is_whole_and_exact(value: float) -> None:
    deployment = {"schema": "mint2m.deployment/v1", "accelerators_per_node": value}
    found = schema.check(deployment, "deployment", file="f")
    assert "/accelerators_per_node" in {fault.pointer for fault in found}


@pytest.mark.parametrize("member", ["group_size", "topology/world_size"])
def test_a_profile_of_endless_lists_is_refused_before_they_are_made(member: str) -> None:
    profile: dict[str, object] = {"schema": "mint2m.run-profile/v1", "topology": {"world_size": 2**53 - 1}}
    profile["group_size"] = 2**53 - 1
    found = schema.check(profile, "run-profile", file="f")
    assert f"/{member}" in {fault.pointer for fault in found}
