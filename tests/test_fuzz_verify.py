"""Random damage: nobody's crash, nobody's hang, and nobody's acceptance.

An outsider changes bytes after sealing. An insider holds the signing key: he changes one value of one document, binds
and seals everything again, and may get away with what the evidence cannot decide. `THEIR_WORD` lists that, so a number
that nothing checks any more fails here. Seeds are explicit; `-m slow` runs many more rounds.
"""

from __future__ import annotations

import base64
import copy
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.anchor import KeyAnchor, VerifyOptions, read_key
from mint2m_verify.finding import FindingError, Report, Verdict
from mint2m_verify.run import verify_run

VECTORS = Path(__file__).with_name("vectors")
sys.path.insert(0, str(VECTORS))  # the forger is a script's module, not a package of the project
from maker import forge  # noqa: E402

SEAL = forge.SEAL

#: Processor time that one verification of these small runs may take; a busy machine does not count.
PATIENCE_S = 10.0

#: What an insider may say as he likes, by document and pointer (`*` is a list index): his word, or another run.
THEIR_WORD = {
    # The doctor, the clock, the processes: told by the operator, and the report says so.
    "doctor.json": r"/tool_version|/checks|/checks/\*/(actual|expected|hint|pointer|id)",
    "receipt.json": r"/(started_at|ended_at)",
    forge.SESSIONS: r"/ranks/\*/(pid|placement/observed_accelerator|phases/\*/(started_at|ended_at|files|files/\*))"
    r"|/ranks/\*/phases/\*/evidence/(page_rows|page_bytes|pages_sha256|forward_nonce|rows_compared|tensors"
    r"|gradient_pages_released|parameters|trainable_parameters|peak_memory_bytes|collectives|ledger_sha256|backend)",
    "ownership.jsonl": r"/\*/(time|detail)|/\*/resource/(pid|start_ticks|node_ip|id)",
    # A plan's estimates and names.
    "plan.json": r"/(nonce_sha256|namespace|memory|ownership/creator)|/memory/\*(/(bytes|category))?"
    r"|/placement/(bundles|coordinator)|/placement/bundles/\*/(cpus|accelerators|resources)"
    r"|/placement/bundles/\*/resources/\*/(name|amount)",
    # Another deployment, profile, fixture or runtime that gives the same numbers is another run, as sealed as this one.
    "inputs/deployment.json": r"/(sbom|image_provenance|authorization_grant|runtime_identity|output_root|signer)"
    r"|/signer/\w+|/(profile|fixture)/path|/profile|/model/snapshot|/adapter",
    "inputs/profile.json": r"/(name|lora|lora/(seed|families)|context/max_response_tokens|timeouts_s/\w+|memory/\w+)"
    r"|/prefix/(decisions|route)|/model/(dtype|rope_angle_dtype)|/optimizer/(min_lr|eps|distributed_optimizer)"
    r"|/grpo/(clip_low|clip_high|clip_dual|kl_beta|kl_estimator|norm_tokens|ref_source|aggregation)",
    "inputs/fixture.json": r"/distribution/\w+|/(payload|rollout)/path|/shape/vocab_size",
    "inputs/payload.json": r"/ground_truth",
    "inputs/rollout.json": r"/(old|ref)_logprobs",
    "inputs/runtime-identity.json": r"/(python|platform)/\w+|/packages(/\*(/\w+)?)?",
    "inputs/model-manifest.json": r".*",  # made right again where the model is at hand; elsewhere only bound
    "artifacts/adapter-manifest.json": r"/tree",
    "artifacts/checkpoint-manifest.json": r"/tree",
    forge.SCORES: r"",
}

Pointer = tuple[str | int, ...]


def anchor(base: str) -> KeyAnchor:
    return read_key(VECTORS / f"test-only-keys/{forge.KEY_OF_BASE[base]}.pub")


def written(files: dict[str, bytes], root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    for path, raw in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(raw)
    return root


def judged(root: Path, base: str) -> Report:
    """A report, in time; a finding that ends the reading is no crash either."""
    start = time.process_time()
    try:
        report = verify_run(root, anchor(base), VerifyOptions())
    except FindingError as fault:
        report = Report(subject="", command="", findings=(fault.finding,))
    assert time.process_time() - start < PATIENCE_S
    assert report.verdict is not Verdict.INTERNAL
    return report


# The outsider


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """One random change of bytes."""
    at, length = draw.randrange(len(raw)), draw.choice((1, 2, 8, 64))
    words = (b"null", b"1e999", b"-0", b"[]", b"{}", b'"', b"\\ud800", b"\x00", b"\xff\xff", b"NaN", b",", b"[" * 40)
    match draw.randrange(7):
        case 0:
            return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]
        case 1:
            return raw[:at] + raw[at + length :]
        case 2:
            return raw[:at] + raw[at : at + length] + raw[at:]
        case 3:
            return raw[:at] + draw.randbytes(length) + raw[at:]
        case 4:
            return raw[:at] + draw.choice(words) + raw[at + draw.randrange(3) :]
        case 5:
            return raw[:at]
        case _:
            return raw[:at] + bytes(length) + raw[at + length :]


def outsider(base: str, seed: int, rounds: int, place: Path) -> None:
    draw, files = random.Random(seed), forge.read_base(base)
    root = written(files, place / "run")
    small = sorted(path for path in files if not path.startswith(("checkpoint/", "inputs/model/")))
    for number in range(rounds):
        # The seal is the one file that a signature does not cover as bytes: half of the rounds are its.
        path = SEAL if draw.random() < 0.5 else draw.choice(small)
        raw = damaged(files[path], draw)
        if raw == files[path]:
            continue
        (root / path).write_bytes(raw)
        report = judged(root, base)
        if report.verdict is Verdict.ACCEPTED:
            assert path == SEAL, f"round {number} of seed {seed}: {path} was changed and accepted"
            assert payload(raw) == payload(files[SEAL]), f"round {number} of seed {seed}: another payload was accepted"
        (root / path).write_bytes(files[path])


def payload(raw: bytes) -> bytes:
    return base64.b64decode(json.loads(raw)["dsseEnvelope"]["payload"], validate=True)


@pytest.mark.parametrize("base", sorted(forge.KEY_OF_BASE))
def test_changed_bytes_are_never_accepted_and_never_a_crash(base: str, tmp_path: Path) -> None:
    outsider(base, seed=1, rounds=15, place=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("base", sorted(forge.KEY_OF_BASE))
def test_many_changed_bytes_are_never_accepted_and_never_a_crash(base: str, seed: int, tmp_path: Path) -> None:
    outsider(base, seed=seed, rounds=250, place=tmp_path)


# The insider


def values(document: Any, at: Pointer = ()) -> Iterator[tuple[Pointer, Any]]:
    yield at, document
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in items:
        yield from values(value, (*at, name))


def changed(value: Any, draw: random.Random) -> Any:
    """Another value of the same type, mostly, and mostly at an edge."""
    match value:
        case bool():
            return not value
        case int():
            return draw.choice((value + 1, value - 1, 0, -1, 2**53 - 1, value * 2, 1, value + 0.5, 1e300))
        case float():
            return draw.choice((value * 2, -value, 0, value + 1e-3, 1e300, -1e300, value * (1 + 1e-5), -700.0, -1e5))
        case str() if re.fullmatch("[0-9a-f]{64}", value):
            return draw.choice(("1" * 64, "0" * 64, value[::-1], value.upper()))
        case str():
            return draw.choice((f"{value}x", "", f"\u202e{value}", f"../{value}", f"{value}\n", "x" * 5000, value[:-1]))
        case None:
            return draw.choice((0, "x", [], 1.0, "1" * 64))
        case list():
            return draw.choice((value[:-1], value + value[-1:], [], value[::-1], value[1:]))
    names = sorted(value)
    first, second = draw.choice(names), draw.choice(names)
    swapped = {**value, first: value[second], second: value[first]}
    return draw.choice(({n: value[n] for n in names if n != first}, {**value, "passed": True}, swapped, {}))


def insider(base: str, seed: int, rounds: int, place: Path) -> None:
    draw, files = random.Random(seed), forge.read_base(base)
    for number in range(rounds):
        run = forge.Run(base=base, files=dict(files))
        path = draw.choice(sorted(THEIR_WORD))
        document = read(run, path)
        by_name: dict[str, list[tuple[Pointer, Any]]] = {}
        for at, value in values(document):
            by_name.setdefault(shown(at), []).append((at, value))
        at, value = draw.choice(by_name[draw.choice(sorted(by_name))])
        new = changed(copy.deepcopy(value), draw)
        if new == value or not at:
            continue
        put(document, at, new)
        bind(run, path, document)
        if found_at(run, path, at) != new:
            continue  # binding it made it right again
        report = judged(written(run.files, place / "run"), base)
        if report.verdict is Verdict.ACCEPTED:
            told = f"{base}, seed {seed}, round {number}: {path} {shown(at)} from {value!r} to {new!r}"[:300]
            assert re.fullmatch(THEIR_WORD[path], shown(at)), told
            # Where the adapter lay is their word; whether one was given is not.
            assert shown(at) != "/adapter" or isinstance(new, str), told


def read(run: forge.Run, path: str) -> Any:
    return run.journal() if path == "ownership.jsonl" else run.json(path)


def shown(at: Pointer) -> str:
    return "".join(f"/{'*' if isinstance(part, int) else part}" for part in at)


def put(document: Any, at: Pointer, value: Any) -> None:
    for part in at[:-1]:
        document = document[part]
    document[at[-1]] = value


def found_at(run: forge.Run, path: str, at: Pointer) -> Any:
    try:
        document = read(run, path)
        for part in at:
            document = document[part]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return document


#: The stage after which each document is bound; those before it would make its change right again.
BOUND_AFTER = {
    "doctor.json": "records",
    "receipt.json": "receipt",
    "plan.json": "plan",
    "inputs/fixture.json": "inputs",
    "inputs/deployment.json": "inputs",
    forge.SESSIONS: "manifests",
    forge.SCORES: "execution",
    "ownership.jsonl": "execution",
    "artifacts/adapter-manifest.json": "manifests",
    "artifacts/checkpoint-manifest.json": "manifests",
}


def bind(run: forge.Run, path: str, document: Any) -> None:
    """Bind and seal the changed document as far as its new shape allows."""
    if path == "ownership.jsonl":
        run.put_journal(document, chain=False)
    else:
        run.put(path, document)
    try:
        if path == "plan.json":
            run.redo_address()
        if path == "inputs/fixture.json":
            run.redo_deployment()
        run.follow(after=BOUND_AFTER.get(path, ""))
    except (KeyError, TypeError, AttributeError):
        run.files.update({SEAL: forge.read_base(run.base)[SEAL]})  # too broken to bind: it is left unsealed


@pytest.mark.parametrize("base", sorted(forge.KEY_OF_BASE))
def test_a_changed_value_sealed_by_an_insider_is_his_word_or_refused(base: str, tmp_path: Path) -> None:
    insider(base, seed=2, rounds=15, place=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
@pytest.mark.parametrize("base", sorted(forge.KEY_OF_BASE))
def test_many_changed_values_sealed_by_an_insider_are_his_word_or_refused(base: str, seed: int, tmp_path: Path) -> None:
    insider(base, seed=seed, rounds=300, place=tmp_path)
