"""Each fault of a fixture by its own finding: a valid fixture with one change.

The valid fixture is written out here as plain JSON, without the builder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.canonical import canonical
from mint2m_verify.documents import RunProfile
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.fixture import Expected, check_bytes, check_fixture, load_fixture, read_fixture

PROMPT = "Two and two?\n"
PROFILE: dict[str, Any] = {
    "schema": "mint2m.run-profile/v1",
    "name": "p",
    "topology": {
        "world_size": 1,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "context_parallel": 1,
        "expert_parallel": 1,
    },
    "context": {"prompt_tokens": 13, "max_response_tokens": 9},
    "group_size": 2,
    "model": {"dtype": "float32", "rope_angle_dtype": "float32"},
    "lora": {"rank": 2, "alpha": 4, "families": ["attention"], "seed": 0},
    "optimizer": {
        "name": "adam",
        "lr": 1e-4,
        "min_lr": 0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "decoupled_weight_decay": True,
        "clip_grad": 1,
        "schedule": "constant",
        "distributed_optimizer": False,
        "state_dtype": "float32",
    },
    "grpo": {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "clip_dual": None,
        "kl_beta": 0,
        "kl_estimator": "k3",
        "advantage_eps": 1e-6,
        "aggregation": "token_mean",
        "norm_tokens": None,
        "old_source": "recompute",
        "ref_source": "recompute",
    },
    "prefix": {"gradient": "exact", "chunk_tokens": 4, "decisions": "store", "route": "fetch"},
    "memory": {"head_tokens": 16, "query_tile": 16, "expert_tokens": 16, "rank_bytes": None},
    "timeouts_s": {"start": 60, "phase": 60, "cleanup": 60},
}


def write(
    folder: Path,
    *,
    payload: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    fixture: dict[str, Any] | None = None,
) -> Path:
    """A valid fixture with members replaced; its hashes always fit what is written, unless they are replaced too."""
    payload_value = {
        "schema": "mint2m.training-payload/v1",
        "tokenizer": "utf8-bytes",
        "prompt_text": PROMPT,
        "ground_truth": "4",
        "reward_rule": "answer-exact/v1",
        **(payload or {}),
    }
    rollout_value = {
        "schema": "mint2m.rollout/v1",
        "prompt_tokens": list(PROMPT.encode()),
        "responses": [list(b"Answer: 5"), list(b"Answer: 4")],
        "rewards": [-1, 1],
        "old_logprobs": [[-0.5] * 9, [-0.25] * 8],
        "ref_logprobs": None,
        **(rollout or {}),
    }
    refs = {}
    for name, value in (("payload", payload_value), ("rollout", rollout_value)):
        raw = canonical(value)
        (folder / f"{name}.json").write_bytes(raw)
        refs[name] = {"path": f"{name}.json", "sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    fixture_value = {
        "schema": "mint2m.training-fixture/v1",
        "model": {"revision": "r1", "manifest_sha256": "a" * 64},
        "policy_sha256": None,
        "profile_sha256": "b" * 64,
        "distribution": {"declaration": "operator-owned", "license": "none", "statement": "a test"},
        "shape": {"vocab_size": 256, "prompt_tokens": 13, "response_tokens": [9, 9]},
        **refs,
        **(fixture or {}),
    }
    (folder / "fixture.json").write_bytes(canonical(fixture_value))
    return folder / "fixture.json"


def model(*, revision: str = "r1", digest: str = "a") -> dict[str, Any]:
    return {"revision": revision, "manifest_sha256": digest * 64}


def shape(vocab_size: int) -> dict[str, Any]:
    return {"vocab_size": vocab_size, "prompt_tokens": 13, "response_tokens": [9, 9]}


def short_second_response() -> dict[str, Any]:
    return {"responses": [list(b"Answer: 5"), list(b"Answer:4")], "old_logprobs": None}


EXPECTED = Expected(
    revision="r1",
    manifest_sha256="a" * 64,
    profile_sha256="b" * 64,
    profile=RunProfile.parse(json.dumps(PROFILE).encode(), file="profile.json", canonical_form=False),
    vocab_size=256,
    fresh_policy=True,
)


def ids(path: Path, expected: Expected = EXPECTED) -> list[tuple[str, str | None]]:
    report = check_fixture(path, expected)
    assert report.verdict != Verdict.ACCEPTED
    assert all(requirement.standing.value == "failed" for requirement in report.requirements[:1])
    return [(finding.id, finding.pointer) for finding in report.findings]


def test_the_valid_fixture_is_accepted_and_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    report = check_fixture(path, EXPECTED)
    assert (report.verdict, report.findings) == (Verdict.ACCEPTED, ())
    checked = load_fixture(path, EXPECTED)
    assert checked.payload.prompt_text == PROMPT
    assert checked.rollout.rewards == (-1.0, 1.0)


def test_a_byte_changed_after_building_is_a_hash_mismatch_and_the_file_is_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path)
    raw = (tmp_path / "rollout.json").read_bytes()
    (tmp_path / "rollout.json").write_bytes(raw.replace(b'"rewards":[-1,1]', b'"rewards":[+9,9]'))
    assert ids(path) == [("fixture.hash-mismatch", None)]


def test_a_file_cut_short_is_a_size_and_a_hash_mismatch(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "payload.json").write_bytes((tmp_path / "payload.json").read_bytes()[:-5])
    assert ids(path) == [("fixture.size-mismatch", None), ("fixture.hash-mismatch", None)]


@pytest.mark.parametrize("name", ["../rollout.json", "/etc/passwd", "sub/rollout.json", "fixture.json"])
def test_a_path_that_leaves_the_directory_is_never_opened(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mint2m_verify.fixture as module

    path = write(tmp_path, fixture={"rollout": {"path": name, "sha256": "c" * 64, "size": 3}})
    opened: list[str] = []
    plain = module.read_once

    def watched(place: Path, **options: Any) -> bytes:
        opened.append(place.name)
        return plain(place, **options)

    monkeypatch.setattr(module, "read_once", watched)
    report = check_fixture(path, EXPECTED)
    assert report.verdict == Verdict.FAILED
    assert [finding.id.split(".")[0] for finding in report.findings] in (["schema"], ["fixture"])
    assert opened == ["fixture.json"]


@pytest.mark.parametrize("name", ["payload.json", "rollout.json", "fixture.json"])
def test_a_missing_file_or_a_link_is_a_finding(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    (tmp_path / name).rename(tmp_path / "moved")
    if name == path.name:
        with pytest.raises(FindingError) as caught:
            ids(path)  # the caller named it: nothing that was given is at fault
        assert caught.value.finding.id == "input.missing"
    else:
        assert ids(path) == [("file.missing", None)]
    (tmp_path / name).symlink_to("moved")
    assert ids(path) == [("file.not-regular", None)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"fixture": {"model": model(revision="r2")}}, ("fixture.revision-mismatch", "/model/revision")),
        ({"fixture": {"model": model(digest="c")}}, ("fixture.model-mismatch", "/model/manifest_sha256")),
        ({"fixture": {"profile_sha256": "c" * 64}}, ("fixture.profile-mismatch", "/profile_sha256")),
        ({"fixture": {"policy_sha256": "c" * 64}}, ("fixture.policy-mismatch", "/policy_sha256")),
        ({"fixture": {"shape": shape(512)}}, ("fixture.vocabulary-mismatch", "/shape/vocab_size")),
        ({"rollout": short_second_response()}, ("fixture.shape-mismatch", "/responses/1")),
        ({"rollout": {"old_logprobs": [[-0.5] * 9, [-0.5] * 7]}}, ("fixture.shape-mismatch", "/old_logprobs/1")),
        ({"rollout": {"ref_logprobs": [[-0.5] * 9, [-0.5] * 10]}}, ("fixture.shape-mismatch", "/ref_logprobs/1")),
        ({"rollout": {"ref_logprobs": [[-0.5] * 9] * 3}}, ("fixture.shape-mismatch", "/ref_logprobs")),
        ({"rollout": {"old_logprobs": [[-0.5] * 9, [0.25] * 9]}}, ("fixture.logprob-positive", "/old_logprobs/1/0")),
        ({"rollout": {"rewards": [1, 1]}}, ("fixture.reward-mismatch", "/rewards/0")),
        ({"rollout": {"rewards": [-1, 0.5]}}, ("fixture.reward-mismatch", "/rewards/1")),
        ({"payload": {"ground_truth": "5"}}, ("fixture.reward-mismatch", "/rewards/0")),
        ({"payload": {"prompt_text": "Two and one?\n"}}, ("fixture.prompt-not-payload", "/prompt_tokens/8")),
        ({"payload": {"prompt_text": "Two and two??\n"}}, ("fixture.prompt-not-payload", "/prompt_tokens")),
    ],
)  # fmt: skip
def test_one_change_is_one_finding_at_its_place(
    tmp_path: Path, changes: dict[str, dict[str, Any]], found: tuple[str, str]
) -> None:
    assert ids(write(tmp_path, **changes))[:1] == [found]


def test_a_prompt_of_another_length_disagrees_with_shape_and_payload(tmp_path: Path) -> None:
    path = write(tmp_path, rollout={"prompt_tokens": list(PROMPT.encode())[:-1]})
    assert ids(path) == [("fixture.shape-mismatch", "/prompt_tokens"), ("fixture.prompt-not-payload", "/prompt_tokens")]


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    found = ids(write(tmp_path, fixture={"shape": shape(100)}), Expected())
    # The first of `Two and two?` that is 100 or more is `w`, 119; of `Answer: 5` it is `n`, 110.
    assert found == [
        ("fixture.token-outside-vocabulary", "/prompt_tokens/1"),
        ("fixture.token-outside-vocabulary", "/responses/0/1"),
        ("fixture.token-outside-vocabulary", "/responses/1/1"),
    ]


def test_a_response_token_that_is_no_byte_has_no_reward(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        fixture={"shape": shape(1000)},
        rollout={"responses": [[*b"Answer: ", 300], list(b"Answer: 4")]},
    )
    assert ids(path, Expected()) == [("fixture.token-not-byte", "/responses/0")]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"context": {"prompt_tokens": 14, "max_response_tokens": 9}}, "/shape/prompt_tokens"),
        ({"context": {"prompt_tokens": 13, "max_response_tokens": 8}}, "/shape/response_tokens/0"),
        ({"group_size": 3}, "/shape/response_tokens"),
    ],
)
def test_a_fixture_that_does_not_fit_the_profile_is_refused(
    tmp_path: Path, change: dict[str, Any], pointer: str
) -> None:
    profile = RunProfile.parse(json.dumps(PROFILE | change).encode(), file="p", canonical_form=False)
    assert ids(write(tmp_path), Expected(profile=profile))[0] == ("fixture.shape-mismatch", pointer)


def test_what_the_caller_does_not_know_is_said_not_to_be_checked(tmp_path: Path) -> None:
    unchecked = check_fixture(write(tmp_path), Expected()).not_checked
    assert len(unchecked) == 4
    assert len(check_fixture(tmp_path / "fixture.json", EXPECTED).not_checked) == 1


@pytest.mark.parametrize(
    "break_it",
    [
        lambda raw: raw.replace(b'"rewards":[-1,1]', b'"rewards":[NaN,1]'),
        lambda raw: raw.replace(b'"rewards":[-1,1]', b'"rewards":[-1,1],"rewards":[1,-1]'),
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b'"rewards":[-1,1]', b'"rewards":[]'),
    ],
)
def test_a_rollout_that_is_no_document_is_refused_even_where_the_hash_fits(
    tmp_path: Path, break_it: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path)
    broken = break_it((tmp_path / "rollout.json").read_bytes())
    (tmp_path / "rollout.json").write_bytes(broken)
    fixture = json.loads(path.read_text())
    fixture["rollout"] |= {"sha256": hashlib.sha256(broken).hexdigest(), "size": len(broken)}
    path.write_bytes(canonical(fixture))

    report = check_fixture(path, EXPECTED)

    assert report.verdict == Verdict.FAILED
    assert report.findings[0].id.split(".")[0] in ("json", "schema")
    with pytest.raises(FindingError):
        load_fixture(path, EXPECTED)


def test_bytes_given_by_the_caller_are_held_to_bare_names_too(tmp_path: Path) -> None:
    path = write(tmp_path)
    fixture = json.loads(path.read_text())
    fixture["payload"]["path"] = "elsewhere/payload.json"
    files = dataclasses.replace(read_fixture(path), fixture=canonical(fixture))
    checked, findings = check_bytes(files, EXPECTED)
    assert checked is None
    assert [finding.id for finding in findings] == ["fixture.path-not-adjacent"]


def test_the_bytes_hashed_are_the_bytes_parsed(tmp_path: Path) -> None:
    """A file swapped after it was read changes nothing of what was read."""
    path = write(tmp_path)
    files = read_fixture(path)
    (tmp_path / "rollout.json").write_text("swapped")
    assert hashlib.sha256(files.rollout).hexdigest() in files.fixture.decode()
