"""Seals under a policy: damaged bundles, what the seal says of its own signer, and what the report says of it all."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify.finding import Verdict
from mint2m_verify.policy import PolicyAnchor, read_policy
from mint2m_verify.seal import SealFiles, read_seal
from mint2m_verify.vouching import vouch

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
sys.path.insert(0, str(VECTORS))
from maker import forge, policies  # noqa: E402

ROOT = VECTORS / "test-only-keys/private-root"


def anchor(tmp_path: Path, *signers: Any, **changes: Any) -> PolicyAnchor:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policies.policy(*signers, **changes)))
    root = ROOT / "trusted_root.json" if changes.get("roots") else None
    return read_policy(path, trusted_root=root, at=policies.AT)


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """One random change: a bit, a byte less, a byte more, a piece twice, or the end gone."""
    at = draw.randrange(len(raw))
    match draw.randrange(5):
        case 0:
            return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]
        case 1:
            return raw[:at] + raw[at + 1 :]
        case 2:
            return raw[:at] + draw.choice((b"0", b"A", b'"', b"\x00", b",", b"{")) + raw[at:]
        case 3:
            return raw[:at] + raw[at : at + 40] + raw[at:]
        case _:
            return raw[:at]


@pytest.mark.parametrize(("bundle", "rounds"), [("key", 400), ("certificate-v1", 120), ("certificate-v2", 120)])
def test_a_damaged_seal_is_never_a_crash_and_never_vouches_for_another_payload(
    tmp_path: Path, bundle: str, rounds: int
) -> None:
    if bundle == "key":
        raw, judge = forge.read_base("run")[forge.SEAL], anchor(tmp_path)
    else:
        raw = policies.witnessed(bundle)
        judge = anchor(tmp_path, policies.identity_signer(), roots=[policies.root_entry()])
    whole, faults = read_seal(SealFiles(seal=raw, cosignatures={}), judge)
    assert whole is not None and (faults, vouch(whole, judge).findings) == ((), ())
    draw, accepted = random.Random(7), 0
    for _ in range(rounds):
        made = damaged(raw, draw)
        seal, faults = read_seal(SealFiles(seal=made, cosignatures={}), judge)
        told = (*faults, *vouch(seal, judge).findings)
        assert all(fault.verdict is not Verdict.INTERNAL for fault in told)
        if not told:
            assert seal is not None and seal.statement.payload == whole.statement.payload
            accepted += 1
    assert accepted < rounds * 0.05  # a hint in upper case, a member that nobody signs


def test_a_seal_that_calls_its_key_ephemeral_is_self_asserted_whatever_the_policy_calls_the_key(tmp_path: Path) -> None:
    run = forge.Run.of("run")
    run.redo_seal(lambda made: made["predicate"].update(signer="ephemeral"))
    judge = anchor(tmp_path)
    seal, faults = read_seal(SealFiles(seal=run.files[forge.SEAL], cosignatures={}), judge)
    vouched = vouch(seal, judge)
    assert (faults, vouched.findings, vouched.mode) == ((), (), "self-asserted")


def test_the_report_names_signers_policy_root_and_time(tmp_path: Path) -> None:
    run = shutil.copytree(VECTORS / "bases/run", tmp_path / "run")
    shutil.copyfile(ROOT / "certificate-cosigns.sigstore.json", run / "attestations/seal.2.sigstore.json")
    policy = VECTORS / "right-policy-documented/outside/policy.json"
    words = ["verify", "run", str(run), "--policy", str(policy), "--trusted-root", str(ROOT / "trusted_root.json")]
    outcome = command_line([*words, "--at", policies.AT, "--format", "json"])
    report = json.loads(outcome.text)
    assert outcome.verdict == 0
    assert report["trust"]["mode"] == "managed-key"
    assert report["trust"]["signers"] == ["operator", "workflow"]
    assert report["trust"]["anchor"] == "policy acme-2026"
    digests = {item["name"]: item["sha256"] for item in report["trust"]["digests"]}
    assert digests["policy"] == forge.sha256(policy.read_bytes())
    assert digests["trusted-root"] == forge.sha256((ROOT / "trusted_root.json").read_bytes())
    assert report["evaluated_at"] == policies.AT
    notes = "\n".join(report["not_checked"])
    for words_ in ("revoked after the policy was written", "the log shows everybody", "signer's machine"):
        assert words_ in notes
    again = json.loads(command_line([*words, "--at", policies.AT, "--format", "json"]).text)
    assert again == report


def test_without_a_time_the_evaluation_time_is_now_and_is_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policies.policy(not_after="2999-01-01T00:00:00Z")))
    words = ["verify", "run", str(VECTORS / "bases/run"), "--policy", str(path), "--format", "json"]
    report = json.loads(command_line(words).text)
    assert report["exit_code"] == 0
    assert report["evaluated_at"] >= "2026-01-01T00:00:00Z"
