"""Each case is a valid run with one change, and names the root finding and the exit code that must come of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ed25519

from mint2m_verify.anchor import ConsistencyOnly, DigestAnchor, NoAnchor, VerifyOptions, read_key
from mint2m_verify.finding import Report, Standing, Verdict
from mint2m_verify.run import verify_run

OPTIONS = VerifyOptions()
SEAL = "attestations/seal.sigstore.json"


def verify(run: Path) -> Report:
    return verify_run(run, read_key(run.with_name("run.pub")), OPTIONS)


def ids(report: Report) -> list[str]:
    return [root.id for root in report.roots]


@pytest.fixture
def run(tmp_path: Path, builder: ModuleType) -> Path:
    """A fresh valid run; its key is beside it as run.pub."""
    builder.build_run(tmp_path / "run")
    return tmp_path / "run"


def _took_over(captured: int, reversed: int) -> Callable[[Any], None]:
    """Ranks that went on from an earlier execution: these chunks of capture and reverse are not their own work."""

    def change(ranks: Any) -> None:
        for rank in ranks:
            seen = {record["phase"]: record["evidence"] for record in rank["phases"]}
            capture, reverse = seen["capture-prefix"], seen["prefix-backward"]
            own = reverse["chunks"] - reversed
            capture |= {"resumed_chunks": captured} if captured else {}
            reverse |= {"resumed_chunks": reversed} if reversed else {}
            reverse |= {"backward_calls": own}
            if reversed:  # those left are whole chunks of 8 rows, dealt over two ranks
                reverse |= {"rows_compared": 4 * own, "gradient_pages_released": own}

    return change


def test_work_of_an_earlier_execution_is_accepted_and_the_report_says_whose_it_is(
    tmp_path: Path, builder: ModuleType
) -> None:
    whole = builder.build_run(tmp_path / "whole/run")
    chunks = -(-(len(whole.prompt) - 1) // 8)
    builder.build_run(tmp_path / "run", edits={"sessions": _took_over(chunks, 2)})
    report = verify(tmp_path / "run")
    assert report.verdict is Verdict.ACCEPTED, report.findings
    words = f"by an earlier execution: capture-prefix {chunks} of {chunks} chunks, prefix-backward 2 of {chunks} chunks"
    assert any(words in row.found and row.standing is Standing.ATTESTED_ONLY for row in report.requirements)
    assert any(words in note for note in report.not_checked)
    assert not any("earlier" in note for note in verify(tmp_path / "whole/run").not_checked)
    builder.build_run(tmp_path / "all/run", edits={"sessions": _took_over(chunks, chunks)})
    assert verify(tmp_path / "all/run").verdict is Verdict.ACCEPTED


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ranks: _took_over(10**6, 0)(ranks), id="more captured chunks than there are"),
        pytest.param(lambda ranks: ranks[0]["phases"][6]["evidence"].update(resumed_chunks=1), id="counted twice"),
        pytest.param(lambda ranks: ranks[0]["phases"][4]["evidence"].update(resumed_chunks=1), id="of a response"),
        pytest.param(
            lambda ranks: [_took_over(0, 1)(ranks), ranks[0]["phases"][6]["evidence"].update(rows_compared=0)],
            id="and fewer rows than the other chunks have",
        ),
        pytest.param(
            lambda ranks: [_took_over(0, 1)(ranks), ranks[0]["phases"][6]["evidence"].update(rows_compared=10**6)],
            id="and more rows than the other chunks have",
        ),
    ],
)
def test_a_count_of_taken_over_chunks_that_does_not_add_up_is_refused(
    tmp_path: Path, builder: ModuleType, change: Callable[[Any], Any]
) -> None:
    def edit(ranks: Any) -> None:
        for rank in ranks:
            change([rank])

    builder.build_run(tmp_path / "run", edits={"sessions": edit})
    report = verify(tmp_path / "run")
    assert "session.count-mismatch" in ids(report)
    assert report.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"world_size": 1},
        {"world_size": 3},
        {"prefix_gradient": "detached"},
        {"kl_beta": 0.05},
        {"aggregation": "sequence_mean"},
        {"old_source": "recompute"},
        {"gradient_scale": 1e-3},  # clipping inactive
        {"weight_decay": 0.1},
        {"model_outside": True},
        {"seed": 11},
    ],
)
def test_a_run_made_by_torch_and_by_hand_is_accepted(
    tmp_path: Path, builder: ModuleType, changes: dict[str, Any]
) -> None:
    builder.build_run(tmp_path / "run", **changes)
    report = verify(tmp_path / "run")
    assert [(fault.id, fault.pointer, fault.actual) for fault in report.findings] == []
    assert report.verdict is Verdict.ACCEPTED
    assert {row.standing for row in report.requirements} <= {
        Standing.CHECKED,
        Standing.DERIVED,
        Standing.ATTESTED_ONLY,
    }
    assert report.trust.mode == "managed-key"


def test_ed25519_signs_as_well_as_p256(tmp_path: Path, builder: ModuleType) -> None:
    builder.build_run(tmp_path / "run", key=ed25519.Ed25519PrivateKey.generate())
    assert verify(tmp_path / "run").verdict is Verdict.ACCEPTED


def test_an_ephemeral_key_is_called_self_asserted(tmp_path: Path, builder: ModuleType) -> None:
    builder.build_run(tmp_path / "run", signer="ephemeral")
    report = verify(tmp_path / "run")
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "self-asserted")


# Changes to the finished directory, after it was sealed.


def _flip(run: Path) -> None:
    place = run / "checkpoint/__0_0.distcp"
    raw = bytearray(place.read_bytes())
    raw[7] ^= 1
    place.write_bytes(raw)


def _rename(run: Path) -> None:
    (run / "checkpoint/__0_0.distcp").rename(run / "checkpoint/__9_0.distcp")


def _link(run: Path) -> None:
    (run / "checkpoint/__0_0.distcp").unlink()
    (run / "checkpoint/__0_0.distcp").symlink_to(run / "receipt.json")


def _link_directory(run: Path) -> None:
    (run / "inputs/adapter-initial").symlink_to("/etc", target_is_directory=True)


def _pipe(run: Path) -> None:
    os.mkfifo(run / "artifacts/pipe")


def _socket(run: Path) -> None:
    here = Path.cwd()
    os.chdir(run)  # a socket's path is limited to about a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
    finally:
        os.chdir(here)


def _write(path: str, raw: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_bytes(raw)

    return change


def _remove(path: str) -> Callable[[Path], None]:
    return lambda run: (run / path).unlink()


def _swap_seal_bytes(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        bundle = json.loads((run / SEAL).read_bytes())
        change(bundle)
        (run / SEAL).write_bytes(rfc8785.dumps(bundle))

    return apply


def _other_signature(bundle: dict[str, Any]) -> None:
    signature = bundle["dsseEnvelope"]["signatures"][0]["sig"]
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = (
        signature[:20] + ("A" if signature[20] != "A" else "B") + signature[21:]
    )


def _two_signatures(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"] *= 2


AFTER = [
    ("a flipped byte in the checkpoint", _flip, ["tree.file-changed"]),
    ("a flipped byte in a sealed file", _write("artifacts/gradient.safetensors", b"x"), ["tree.file-changed"]),
    ("an added file in a tree", _write("adapter/extra.bin", b"x"), ["tree.file-unlisted"]),
    ("an added file at the top", _write("notes.txt", b"x"), ["tree.file-unlisted"]),
    ("an added file among the attestations", _write("attestations/other.json", b"{}"), ["tree.file-unlisted"]),
    ("a removed file of a tree", _remove("checkpoint/.metadata"), ["tree.file-missing"]),
    ("a removed document", _remove("receipt.json"), ["tree.file-missing"]),
    ("a renamed file", _rename, ["tree.file-renamed"]),
    ("a link in place of a file", _link, ["tree.symlink"]),
    ("a link to a directory", _link_directory, ["tree.symlink"]),
    ("a pipe", _pipe, ["tree.special-file"]),
    ("a socket", _socket, ["tree.special-file"]),
    ("an executable bit in a tree", lambda run: (run / "checkpoint/.metadata").chmod(0o755), ["tree.mode-changed"]),
    ("an executable document", lambda run: (run / "plan.json").chmod(0o755), ["tree.mode-changed"]),
    ("an escape sequence in a name", _write("adapter/\x1b[2Jx", b"x"), ["tree.name-invalid"]),
    ("a name that is not NFC", _write("adapter/e\u0301", b"x"), ["tree.name-invalid"]),
    ("a missing seal", _remove(SEAL), ["seal.missing"]),
    ("a seal that is no JSON", _write(SEAL, b"{"), ["json.malformed"]),
    ("a signature with other bits", _swap_seal_bytes(_other_signature), ["signature.invalid"]),
    ("two signatures", _swap_seal_bytes(_two_signatures), ["seal.bundle-invalid"]),
    (
        "a certificate in place of a key",
        _swap_seal_bytes(lambda b: b["verificationMaterial"].update(certificate={"rawBytes": "AA=="})),
        ["signature.not-by-key"],
    ),
    (
        "an unknown member of the bundle",
        _swap_seal_bytes(lambda b: b.update(passed=True)),
        ["seal.bundle-invalid"],
    ),
    (
        "another payload type",
        _swap_seal_bytes(lambda b: b["dsseEnvelope"].update(payloadType="text/plain")),
        ["seal.bundle-invalid"],
    ),
]


@pytest.mark.parametrize(("change", "expected"), [case[1:] for case in AFTER], ids=[case[0] for case in AFTER])
def test_a_change_after_sealing_is_the_only_cause(
    run: Path, change: Callable[[Path], None], expected: list[str]
) -> None:
    change(run)
    report = verify(run)
    assert ids(report) == expected
    wanted = Verdict.UNTRUSTED if expected == ["signature.not-by-key"] else Verdict.FAILED
    assert report.verdict is wanted


def _set(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


# Anchors.


def test_without_an_anchor_a_right_run_is_not_trusted(run: Path) -> None:
    report = verify_run(run, NoAnchor(), OPTIONS)
    assert (ids(report), report.verdict) == (["trust.no-anchor"], Verdict.UNTRUSTED)


def test_without_an_anchor_a_changed_file_is_still_found(run: Path) -> None:
    _flip(run)
    report = verify_run(run, NoAnchor(), OPTIONS)
    assert set(ids(report)) == {"trust.no-anchor", "tree.file-changed"}
    assert report.verdict is Verdict.FAILED  # 1 is worse than 4


def test_consistency_only_accepts_and_says_that_the_origin_is_unknown(run: Path) -> None:
    report = verify_run(run, ConsistencyOnly(), OPTIONS)
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "consistent, origin unknown")
    assert report.claim_scope is None


def test_consistency_only_does_not_overlook_a_change(run: Path) -> None:
    _flip(run)
    assert verify_run(run, ConsistencyOnly(), OPTIONS).verdict is Verdict.FAILED


def test_another_key_is_untrusted_and_not_a_failure_of_the_evidence(
    tmp_path: Path, run: Path, builder: ModuleType
) -> None:
    other = tmp_path / "other.pub"
    other.write_bytes(builder.public_pem(builder.new_key()))
    report = verify_run(run, read_key(other), OPTIONS)
    assert (ids(report), report.verdict) == (["signature.key-mismatch"], Verdict.UNTRUSTED)


def test_everything_signed_again_under_another_key_is_untrusted(tmp_path: Path, run: Path, builder: ModuleType) -> None:
    trusted = read_key(run.with_name("run.pub"))
    shutil.rmtree(run)
    builder.build_run(run, edits={"scores": _set("responses", 0, "loss", 2, value=0.5)})
    report = verify_run(run, trusted, OPTIONS)
    assert "signature.key-mismatch" in ids(report)
    assert report.verdict is Verdict.FAILED  # the forged loss is a failure by itself
    assert report.trust.signers == ()


def test_a_hint_that_names_your_key_over_a_strangers_signature_is_a_failure(
    run: Path, builder: ModuleType, tmp_path: Path
) -> None:
    trusted = read_key(run.with_name("run.pub"))
    hint = json.loads((run / SEAL).read_bytes())["verificationMaterial"]["publicKey"]["hint"]
    recipe = builder.Recipe(edits={"bundle": _set("verificationMaterial", "publicKey", "hint", value=hint)})
    builder.reseal(run, recipe)
    report = verify_run(run, trusted, OPTIONS)
    assert (ids(report), report.verdict) == (["signature.invalid"], Verdict.FAILED)


@pytest.mark.parametrize("way", ["path", "hard link", "copy"])
def test_a_key_from_inside_the_evidence_is_no_anchor(run: Path, tmp_path: Path, way: str) -> None:
    outside = run.with_name("run.pub")
    inside = run / "inputs/release.pub"
    shutil.copy(outside, inside)
    if way == "hard link":
        outside.unlink()
        os.link(inside, outside)
    key = read_key(inside if way == "path" else outside)
    report = verify_run(run, key, OPTIONS)
    assert "trust.key-inside-evidence" in ids(report)
    assert report.trust.signers == ()
    assert report.verdict in (Verdict.UNTRUSTED, Verdict.FAILED)  # the extra file is a failure as well


def test_the_digest_of_the_payload_is_an_anchor(run: Path, builder: ModuleType) -> None:
    import base64
    import hashlib

    payload = base64.b64decode(json.loads((run / SEAL).read_bytes())["dsseEnvelope"]["payload"])
    digest = hashlib.sha256(payload).hexdigest()
    assert verify_run(run, DigestAnchor(sha256=digest), OPTIONS).verdict is Verdict.ACCEPTED
    other = verify_run(run, DigestAnchor(sha256="1" * 64), OPTIONS)
    assert (ids(other), other.verdict) == (["trust.digest-mismatch"], Verdict.UNTRUSTED)


def test_expectations_name_what_they_missed(run: Path, builder: ModuleType) -> None:
    key = read_key(run.with_name("run.pub"))
    assert verify_run(run, key, VerifyOptions(expect_nonce=builder.NONCE)).verdict is Verdict.ACCEPTED
    report = verify_run(run, key, VerifyOptions(expect_nonce="another", expect_plan="1" * 64))
    assert ids(report) == ["trust.expectation-mismatch"] * 2
    assert report.verdict is Verdict.INCOMPLETE


def test_parts_of_two_executions_do_not_mix(run: Path, tmp_path: Path, builder: ModuleType) -> None:
    recipe = builder.build_run(tmp_path / "second", execution_id="9" * 64)
    shutil.copy(run / "artifacts/rank-sessions.json", tmp_path / "second/artifacts/rank-sessions.json")
    builder.reseal(tmp_path / "second", recipe)
    report = verify_run(tmp_path / "second", read_key(tmp_path / "second.pub"), OPTIONS)
    assert "receipt.other-run" in ids(report)
    assert report.verdict is Verdict.FAILED


def test_what_follows_from_a_changed_file_is_told_as_a_consequence(run: Path) -> None:
    _flip(run)
    report = verify(run)
    (root,) = report.roots
    assert (root.id, root.file, root.stage) == ("tree.file-changed", "checkpoint/__0_0.distcp", "checkpoint")
    assert {fault.id for fault in dict(report.causes())[root]} == {
        "receipt.checkpoint-root-mismatch",
        "session.file-mismatch",
    }


def test_nothing_in_an_edited_run_passes_on_its_own_word(run: Path) -> None:
    """An edited loss whose hash in the receipt was made right, but not the signature."""
    scores = json.loads((run / "artifacts/scores.json").read_bytes())
    scores["loss"] = 0.0
    raw = rfc8785.dumps(scores)
    (run / "artifacts/scores.json").write_bytes(raw)
    receipt = json.loads((run / "receipt.json").read_bytes())
    import hashlib

    receipt["files"]["scores"].update(sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))
    receipt["loss"] = 0.0
    (run / "receipt.json").write_bytes(rfc8785.dumps(receipt))
    report = verify(run)
    assert {(root.id, root.file) for root in report.roots} == {
        ("tree.file-changed", "artifacts/scores.json"),
        ("tree.file-changed", "receipt.json"),
    }
    assert "grpo.total-loss-mismatch" in {fault.id for fault in report.findings}


@pytest.mark.parametrize(
    ("path", "raw", "expected"),
    [
        ("receipt.json", b'{"schema":"mint2m.training-receipt/v1","schema":"x"}', "json.duplicate-key"),
        ("artifacts/scores.json", b'{"loss":NaN}', "json.not-finite"),
        ("plan.json", b"[" * 5000, "json.too-deep"),
        ("doctor.json", b"\xff\xfe", "json.not-utf8"),
        ("inputs/rollout.json", b"{ }", "json.not-canonical"),
        ("ownership.jsonl", b"{}", "journal.cut"),
        ("artifacts/gradient.safetensors", b"\xff" * 40, "tensor.malformed"),
    ],
)
def test_a_malformed_file_is_reported_and_the_rest_still_checked(
    run: Path, builder: ModuleType, path: str, raw: bytes, expected: str
) -> None:
    recipe = builder.Recipe()
    plan = (run / "plan.json").read_bytes()
    (run / path).write_bytes(raw)
    if path == "plan.json":
        report = verify(run)  # the builder's own seal needs a readable plan
    else:
        builder.reseal(run, recipe)
        run.with_name("run.pub").write_bytes(builder.public_pem(recipe.key))
        report = verify(run)
        assert expected in ids(report)
    assert expected in {fault.id for fault in report.findings}
    assert report.verdict is Verdict.FAILED
    assert any(row.standing is Standing.UNVERIFIABLE for row in report.requirements)
    assert plan


def test_a_directory_of_nothing_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    report = verify_run(tmp_path / "empty", ConsistencyOnly(), OPTIONS)
    assert report.verdict is Verdict.FAILED
    assert "seal.missing" in ids(report)


def test_a_flood_of_strange_files_is_counted_and_does_not_drown_the_report(run: Path) -> None:
    (run / "adapter/more").mkdir()
    for number in range(1200):
        (run / f"adapter/more/{number}").write_bytes(b"%d" % number)
    report = verify(run)
    kept = [fault for fault in report.findings if fault.id == "tree.file-unlisted"]
    (rest,) = (fault for fault in report.findings if fault.id == "verify.more-findings")
    assert (len(kept), rest.actual) == (1000, "200 more of tree.file-unlisted")
