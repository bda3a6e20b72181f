"""Who answers for a training, and what its report shows; what can be wrong with one has vectors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mint2m_verify.anchor import ConsistencyOnly, DigestAnchor, VerifyOptions, choose, read_key
from mint2m_verify.exhibits import Chain, Table
from mint2m_verify.finding import FindingError, Report, Standing, Verdict
from mint2m_verify.run import verify_run
from mint2m_verify.training.verify import verify_training

sys.path.insert(0, str(Path(__file__).parents[2] / "vectors"))
from maker.cases_training_policy import both, training_rule
from maker.policies import AT, key_signer, may_assert, run_rule
from maker.training_forge import Training

VECTORS = Path(__file__).parents[2] / "vectors"
BASE, KEY = VECTORS / "bases/training", VECTORS / "test-only-keys/release.pub"


def by_key(root: Path = BASE, key: Path = KEY) -> Report:
    return verify_training(root, read_key(key), VerifyOptions())


def by_policy(root: Path, policy: Path) -> Report:
    anchor = choose(policy=policy, key=None, digest=None, consistency_only=False, at=AT)
    return verify_training(root, anchor, VerifyOptions(at=AT))


def statement(report: Report) -> str:
    return next(digest.sha256 for digest in report.trust.digests if digest.name == "training")


def test_a_key_answers_for_every_seal_and_for_the_statement() -> None:
    report = by_key()
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "managed-key")
    assert report.summary == "2 steps, one training"


def test_the_digest_of_the_statement_answers_for_all_that_it_names() -> None:
    right = statement(by_key())
    report = verify_training(BASE, DigestAnchor(sha256=right), VerifyOptions())
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "digest")
    wrong = verify_training(BASE, DigestAnchor(sha256="5" * 64), VerifyOptions())
    assert (wrong.verdict, wrong.findings[0].id) == (Verdict.UNTRUSTED, "trust.digest-mismatch")


def test_consistency_alone_names_no_origin() -> None:
    report = verify_training(BASE, ConsistencyOnly(), VerifyOptions())
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "consistent, origin unknown")
    row = next(row for row in report.requirements if row.required == "one statement over all steps")
    assert row.standing is Standing.UNVERIFIABLE


def test_a_policy_answers_for_every_seal_and_for_the_statement(tmp_path: Path) -> None:
    bar = tmp_path / "policy.json"
    bar.write_text(json.dumps(both()), encoding="utf-8")
    report = by_policy(BASE, bar)
    assert (report.verdict, report.trust.mode, report.trust.signers) == (Verdict.ACCEPTED, "managed-key", ("operator",))
    assert report.trust.anchor == "policy vectors"
    row = next(
        row for row in report.requirements if row.required == "the training's class and scope as the policy has them"
    )
    assert (row.found, row.standing) == ("reference-cpu, reference_cpu_execution", Standing.ATTESTED_ONLY)


def test_a_policy_that_lies_in_the_evidence_is_no_anchor(tmp_path: Path) -> None:
    root = shutil.copytree(BASE, tmp_path / "training")
    (root / "policy.json").write_text(json.dumps(both()), encoding="utf-8")
    report = by_policy(root, root / "policy.json")
    assert (report.verdict, report.trust.mode, report.trust.signers) != (Verdict.ACCEPTED, "managed-key", ("operator",))
    assert "trust.policy-inside-evidence" in {fault.id for fault in report.findings}


def test_an_unfinished_training_is_none_under_a_policy_either(tmp_path: Path) -> None:
    root = shutil.copytree(BASE, tmp_path / "training")
    for path in (root / "training.json", root / "attestations/training.sigstore.json"):
        path.unlink()
    shutil.rmtree(root / "steps/0001")
    bar = tmp_path / "policy.json"
    bar.write_text(json.dumps(both()), encoding="utf-8")
    report = by_policy(root, bar)
    assert (report.verdict, report.trust.mode) == (Verdict.INCOMPLETE, "none")


def test_a_key_that_lies_in_the_evidence_is_no_anchor(tmp_path: Path) -> None:
    root = shutil.copytree(BASE, tmp_path / "training")
    shutil.copyfile(KEY, root / "release.pub")
    report = by_key(root, root / "release.pub")
    assert report.verdict is not Verdict.ACCEPTED
    assert "trust.key-inside-evidence" in {fault.id for fault in report.findings}


@pytest.mark.parametrize(("name", "expected"), [("nowhere", "input.missing"), ("file", "input.not-a-directory")])
def test_what_is_no_directory_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FindingError) as fault:
        by_key(tmp_path / name)
    assert fault.value.finding.id == expected


def test_the_report_shows_each_step_beside_the_others_and_every_requirement_once() -> None:
    tables = {item.title: item for item in by_key().exhibits if isinstance(item, Table)}
    assert [row[:4] for row in tables["Steps"].rows] == [("0", "0", "1", "+0.333"), ("1", "3", "3", "-0.333")]
    required = [row[0] for row in tables["Requirements"].rows]
    assert required.count("each step: run") == 1
    assert len(required) == len(set(required))


def test_a_training_is_verified_without_the_trainer() -> None:
    words = ["verify", "training", str(BASE), "--key", str(KEY)]
    code = (
        "import sys; from mint2m.__main__ import run; outcome = run(sys.argv[1:]); "
        "print({name.split('.')[0] for name in sys.modules} & {'torch', 'ray', 'megatron', 'mint2m_trainer'}); "
        "sys.exit(int(outcome.verdict))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()"), done.stderr


def test_a_run_that_ends_with_its_gradient_is_shown_without_what_only_a_step_leaves() -> None:
    """Drawn as intact links, an adapter and a checkpoint would be there that nobody left."""
    step = VECTORS / "bases/training-prompts/steps/0000"
    names = []
    for folder in ("gradient-0000", "run"):
        report = verify_run(step / folder, read_key(KEY), VerifyOptions())
        assert report.verdict is Verdict.ACCEPTED
        (chain,) = (exhibit for exhibit in report.exhibits if isinstance(exhibit, Chain))
        names.append([link.name for link in chain.links])
    assert names[1] == [*names[0], "checkpoint", "adapter"]


def laid(training: Training, root: Path) -> Path:
    for path, raw in training.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(raw)
    return root


def test_under_a_policy_the_weakest_signature_is_that_of_a_run_where_its_signer_is_weaker(tmp_path: Path) -> None:
    training = Training.of("training")
    training.redo_statement(key="planner")
    names = ("operator", "publisher")
    bar = tmp_path / "policy.json"
    made = both(
        key_signer(names[0], mode="self-asserted"),
        key_signer(names[1], "planner"),
        rules=[run_rule(names[0]), training_rule(names[1])],
        assertions=[may_assert(*names)],
    )
    bar.write_text(json.dumps(made), encoding="utf-8")
    report = by_policy(laid(training, tmp_path / "training"), bar)
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert (report.trust.mode, report.trust.signers) == ("self-asserted", ("publisher",))


def test_a_training_is_worth_no_more_than_a_run_whose_key_was_made_for_it(tmp_path: Path) -> None:
    training = Training.of("training")
    run = training.run(0)
    run.redo_seal(lambda statement: statement["predicate"].update(signer="ephemeral"))
    training.put_run(0, run)
    training.follow()
    report = by_key(laid(training, tmp_path))
    assert (report.verdict, report.trust.mode) == (Verdict.ACCEPTED, "self-asserted")
    assert by_key().trust.mode == "managed-key"


def test_a_directory_that_cannot_be_looked_into_is_an_io_fault_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(FindingError) as caught:
        by_key()
    assert (caught.value.finding.id, caught.value.finding.verdict) == ("file.unreadable", Verdict.IO_ERROR)
