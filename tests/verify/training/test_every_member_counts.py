"""Every member of a training's own files: change any one, in type or in value, and the training is refused in words."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.finding import Verdict
from mint2m_verify.run import Examined, examine_run
from mint2m_verify.training import places, verify
from mint2m_verify.training.verify import verify_training

VECTORS = Path(__file__).parents[2] / "vectors"
BASE, KEY = VECTORS / "bases/training", VECTORS / "test-only-keys/release.pub"
FILES = (places.PLAN, places.TRAINING, places.PROFILE, places.step_file(0), places.step_file(1))

#: What a value becomes: another type, nothing, too much, or the same kind with another content.
OTHERS: tuple[Any, ...] = (None, True, -1, 2**53 - 1, 0.25, "", "5" * 64, [], {}, [[]], ["x" * 5000])


@cache
def _examined(folder: str) -> Examined:
    return examine_run(BASE / folder, read_key(KEY), VerifyOptions())


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The base, copied; its runs, which are not changed here, are verified once."""
    monkeypatch.setattr(
        verify, "examine_run", lambda root, _anchor, _options: _examined(root.relative_to(tmp_path / "t").as_posix())
    )
    return shutil.copytree(BASE, tmp_path / "t")


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member and entry; of a long list of numbers the ends speak for all."""
    if isinstance(value, dict):
        for name in value:
            yield (*way, name)
            yield from leaves(value[name], (*way, name))
    if isinstance(value, list):
        for index in range(len(value)) if len(value) < 4 else (0, len(value) - 1):
            yield (*way, index)
            yield from leaves(value[index], (*way, index))


@pytest.mark.parametrize("file", FILES)
def test_no_member_can_be_changed_unseen(training: Path, file: str) -> None:
    document = json.loads((training / file).read_bytes())
    tried = 0
    for number, way in enumerate(leaves(document)):
        changed = copy.deepcopy(document)
        part = changed
        for step in way[:-1]:
            part = part[step]
        other = OTHERS[number % len(OTHERS)]
        if part[way[-1]] == other:
            continue
        part[way[-1]] = other
        (training / file).write_bytes(rfc8785.dumps(changed))
        report = verify_training(training, read_key(KEY), VerifyOptions())
        assert report.verdict in (Verdict.FAILED, Verdict.UNTRUSTED), (way, other)
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b"{}", b"null\n", b"{" * 100, b'{"a":1}\n{"a":1}\n'])
@pytest.mark.parametrize("file", [*FILES, places.DATASET, places.STATEMENT])
def test_bytes_that_are_nothing_of_the_kind_are_refused_in_words(training: Path, file: str, raw: bytes) -> None:
    (training / file).write_bytes(raw)
    report = verify_training(training, read_key(KEY), VerifyOptions())
    assert report.verdict in (Verdict.FAILED, Verdict.UNTRUSTED, Verdict.INCOMPLETE), report.findings
