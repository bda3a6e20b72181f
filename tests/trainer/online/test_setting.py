"""What an online training refuses before anything is drawn, and what it says where nothing can be learned."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.online import loop
from mint2m_trainer.online.loop import OnlineRequest, online
from mint2m_trainer.online.search import Search, SearchRow, search
from mint2m_trainer.online.setting import read_setting
from mint2m_verify.documents.training import TrainingStep
from mint2m_verify.finding import FindingError
from mint2m_verify.training import places

sys.path.insert(0, str(Path(__file__).parents[2] / "vectors"))
from maker.training_site import GROUP, SAMPLING, Site, build_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An operator's inputs; tests copy what they change."""
    return build_site(tmp_path_factory.mktemp("online") / "site", answered=False)


@pytest.fixture
def changed(site: Site, tmp_path: Path) -> Callable[..., Path]:
    """A deployment beside the site's with members changed; `profile` and `dataset` are new contents of those files."""

    def make(*, profile: dict[str, Any] | None = None, dataset: bytes | None = None, **members: Any) -> Path:
        folder = site.deployment.parent
        value = json.loads(site.deployment.read_bytes())
        for name in ("model", "profile", "dataset"):
            key = "snapshot" if name == "model" else "path"
            value[name][key] = str(folder / value[name][key])
        if profile is not None:
            whole = json.loads((folder / "profile.json").read_bytes())
            for pointer, member in profile.items():
                *way, last = pointer.split("/")
                part = whole
                for step in way:
                    part = part[step]
                part[last] = member
            (tmp_path / "profile.json").write_text(json.dumps(whole))
            value["profile"] = _pinned(tmp_path / "profile.json")
        if dataset is not None:
            (tmp_path / "dataset.jsonl").write_bytes(dataset)
            value["dataset"] = _pinned(tmp_path / "dataset.jsonl")
        (tmp_path / "changed.json").write_text(json.dumps({**value, **members}))
        return tmp_path / "changed.json"

    return make


def _pinned(path: Path) -> dict[str, str]:
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def refusal(path: Path) -> str:
    with pytest.raises(FindingError) as fault:
        read_setting(path, steps=1)
    return fault.value.finding.id


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"topology/world_size": 2}, "online.profile-unsuited"),
        ({"grpo/advantage_source": "rollout"}, "online.profile-unsuited"),
        ({"grpo/kl_beta": 0.1}, "online.profile-unsuited"),
        ({"context/max_response_tokens": 1}, "online.profile-unsuited"),
    ],
)
def test_a_profile_that_cannot_train_what_is_sampled_is_refused(
    changed: Callable[..., Path], profile: dict[str, Any], expected: str
) -> None:
    assert refusal(changed(profile=profile)) == expected


def test_what_the_deployment_pins_must_be_there_as_pinned(site: Site, changed: Callable[..., Path]) -> None:
    assert refusal(changed(profile={"optimizer/lr": 1}).with_name("absent.json")) == "input.missing"
    row = b'{"schema": "mint2m.training-row/v1"}\n'
    path = changed(dataset=row)
    path.with_name("dataset.jsonl").write_bytes(row * 2)
    assert refusal(path) == "online.input-mismatch"
    assert refusal(changed(dataset=row)) == "schema.invalid"
    assert refusal(changed(dataset=b"")) == "training.dataset-empty"
    assert refusal(changed(reward_rule="plugin:nobodys/v1")) == "fixture.reward-rule-absent"
    assert refusal(changed(signing_key="nowhere.key")) == "input.missing"
    model = json.loads(site.deployment.read_bytes())["model"]
    folder = site.deployment.parent
    wrong = {**model, "snapshot": str(folder / "model"), "model_manifest_sha256": "5" * 64}
    assert refusal(changed(model=wrong)) == "online.input-mismatch"


def test_the_plan_is_a_function_of_the_inputs(site: Site) -> None:
    assert read_setting(site.deployment, steps=2).plan == read_setting(site.deployment, steps=2).plan
    assert read_setting(site.deployment, steps=3).plan.steps == 3


def _search(site: Site, world_size: int = 1) -> Search:
    setting = read_setting(site.deployment, steps=1)
    profile = setting.profile
    topology = replace(profile.topology, world_size=world_size, context_parallel=world_size, expert_parallel=world_size)
    return Search(
        profile=replace(profile, topology=topology),
        snapshot=setting.snapshot,
        adapter=None,
        rows=tuple(
            SearchRow(row=n, prompt_tokens=tuple(row.text.encode()), ground_truth="999", seeds=tuple(range(GROUP)))
            for n, row in enumerate(setting.rows)
        ),
        parameters=SAMPLING,
        reward_rule="exact-match/v1",
    )


@pytest.mark.slow
def test_a_search_draws_the_same_again_and_on_two_ranks(site: Site) -> None:
    first, again, two = search(_search(site)), search(_search(site)), search(_search(site, 2))
    assert first == again
    assert len(first) == 4 and not any(attempt.signal for attempt in first)
    for one, other in zip(first, two, strict=True):
        assert [response.tokens for response in one.responses] == [response.tokens for response in other.responses]
        assert len(other.weights_sha256) == 2
        assert one.adapter_sha256 == other.adapter_sha256


def test_a_search_that_finds_nothing_ends_the_training_and_leaves_what_it_drew(
    site: Site, changed: Callable[..., Path], tmp_path: Path
) -> None:
    rows = b"".join((site.deployment.parent / "dataset.jsonl").read_bytes().splitlines(keepends=True)[1:2])
    path = changed(dataset=rows, rows_per_step=2)
    request = OnlineRequest(deployment=path, steps=1, directory=tmp_path / "training", resume=False)
    with pytest.raises(FindingError) as fault:
        online(request)
    assert fault.value.finding.id == "online.search-exhausted"
    step = TrainingStep.parse((tmp_path / "training" / places.step_file(0)).read_bytes(), file="step")
    assert [attempt.row for attempt in step.attempts] == [0, 0]  # the only row, from the first again after the last
    assert not (tmp_path / "training" / places.run_folder(0)).exists()


def test_a_training_goes_on_only_under_its_own_plan_and_in_one_process(
    site: Site, changed: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "training"
    loop._open(root, read_setting(site.deployment, steps=2), resume=False)
    for deployment, steps in ((site.deployment, 3), (changed(seed=8), 2)):
        with pytest.raises(FindingError) as fault:
            online(OnlineRequest(deployment=deployment, steps=steps, directory=root, resume=True))
        assert fault.value.finding.id == "online.plan-differs"
    with pytest.raises(FindingError) as fault:
        online(OnlineRequest(deployment=site.deployment, steps=2, directory=root, resume=False))
    assert fault.value.finding.id == "output.not-empty"
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(FindingError) as fault:
            online(OnlineRequest(deployment=site.deployment, steps=2, directory=root, resume=True))
        assert fault.value.finding.id == "online.in-use"
    finally:
        os.close(descriptor)
