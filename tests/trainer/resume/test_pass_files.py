"""What a rank keeps of a pass: only what was committed counts, and every other byte is refused or cut off."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mint2m_trainer.resume.faults import OtherProgressError, ProgressError
from mint2m_trainer.resume.pass_files import CHUNKS, JOURNAL, PassFiles
from mint2m_trainer.resume.tensor_file import digest_of


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "row 0": torch.randn(3, 5, generator=generator),
        "row 1": torch.randn(3, 5, generator=generator).to(torch.bfloat16),
        "row 2": torch.randn(3, 5, generator=generator, dtype=torch.float64),
        "key 0": torch.empty(0, 4),
        "choice rows 0": torch.arange(6, dtype=torch.int32).view(3, 2) - 1,
        "zero": torch.tensor([-0.0, float("nan")]),
        "one of a column": torch.randn(4, 3, generator=generator)[1:2, 2],
    }


@pytest.fixture
def files(tmp_path: Path) -> Iterator[PassFiles]:
    """Three committed chunks, closed."""
    made = PassFiles(tmp_path / "policy")
    for chunk in range(3):
        made.commit(chunk, tensors(chunk).items())
    made.close()
    yield made
    made.close()


def reopened(tmp_path: Path) -> PassFiles:
    made = PassFiles(tmp_path / "policy")
    made.read()
    return made


def assert_same(found: dict[str, Tensor], due: dict[str, Tensor]) -> None:
    assert list(found) == list(due)
    for name, tensor in due.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert (
            found[name].numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes()
            if (tensor.dtype != torch.bfloat16)
            else torch.equal(found[name], tensor)
        ), name


def test_committed_chunks_come_back_bit_for_bit_in_another_process_s_hands(files: PassFiles, tmp_path: Path) -> None:
    again = reopened(tmp_path)
    assert again.chunks == 3 and again.damaged() is None
    for chunk in range(3):
        assert_same(again.chunk(chunk), tensors(chunk))
    again.close()


@pytest.mark.parametrize("torn", [b'{"chunk":3', b"", b'{"chunk":3,"offset":0,"sha256":"","size":1}'])
def test_a_torn_tail_is_cut_and_the_next_commit_stands_in_its_place(
    files: PassFiles, tmp_path: Path, torn: bytes
) -> None:
    place = tmp_path / "policy"
    with (place / CHUNKS).open("ab") as chunks, (place / JOURNAL).open("ab") as journal:
        chunks.write(b"half of a chunk that was never committed" * 1000)
        journal.write(torn)
    again = reopened(tmp_path)
    assert again.chunks == 3
    again.keep(3)
    again.commit(3, tensors(3).items())
    again.close()
    last = reopened(tmp_path)
    assert last.chunks == 4 and last.damaged() is None
    assert_same(last.chunk(3), tensors(3))
    last.close()


def test_chunks_behind_the_least_of_all_ranks_are_forgotten(files: PassFiles, tmp_path: Path) -> None:
    again = reopened(tmp_path)
    again.keep(1)
    again.commit(1, tensors(9).items())
    again.close()
    last = reopened(tmp_path)
    assert last.chunks == 2 and last.damaged() is None
    assert_same(last.chunk(1), tensors(9))
    last.close()


def test_any_flipped_byte_of_a_chunk_is_found(files: PassFiles, tmp_path: Path) -> None:
    path = tmp_path / "policy" / CHUNKS
    whole = path.read_bytes()
    size = len(whole) // 3
    for at in (0, size - 1, size, size + 57, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        again = reopened(tmp_path)
        assert again.damaged() == at // size
        again.close()
    path.write_bytes(whole[:-1])
    again = reopened(tmp_path)
    assert again.damaged() == 2
    again.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"chunk":1', b'"chunk":2'),
        (b'"chunk":1', b'"chunk":true'),
        (b'"offset":0', b'"offset":1'),
        (b'"size":', b'"size":-'),
        (b'{"chunk":1', b'["chunk":1'),
        (b'"sha256":"', b'"sha256":null,"x":"'),
        (b'"sha256":"', b'"sha256":\r'),
    ],
)
def test_a_whole_line_that_no_commit_writes_is_refused(
    files: PassFiles, tmp_path: Path, old: bytes, new: bytes
) -> None:
    path = tmp_path / "policy" / JOURNAL
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    again = PassFiles(tmp_path / "policy")
    with pytest.raises(ProgressError, match=r"capture\.jsonl, line [123]"):
        again.read()
    again.close()


def test_two_processes_never_share_a_pass(tmp_path: Path) -> None:
    first = PassFiles(tmp_path / "policy")
    with pytest.raises(OtherProgressError, match="another process"):
        PassFiles(tmp_path / "policy")
    first.close()
    PassFiles(tmp_path / "policy").close()


def test_chunks_are_committed_in_order(files: PassFiles, tmp_path: Path) -> None:
    again = reopened(tmp_path)
    with pytest.raises(ProgressError, match="does not follow"):
        again.commit(4, tensors(4).items())
    again.close()


#: Commits chunks under a limit on the size of a file until one does not fit, and prints what happened.
_FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_pass_files import tensors
from mint2m_trainer.resume.pass_files import PassFiles
files = PassFiles(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
done = 0
try:
    while True:
        files.commit(done, tensors(done).items())
        done += 1
except OSError as fault:
    print(done, fault.errno, Path(fault.filename).name)
try:
    files.save_state(1, "00" * 32, [("gradient a", __import__("torch").zeros(4000))])
except OSError as fault:
    print(fault.errno)
"""


def test_a_full_disk_fails_the_commit_and_leaves_the_chunks_before_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "policy"), str(Path(__file__).parent)],
        capture_output=True, text=True, check=False, timeout=120, env=os.environ,
    )  # fmt: skip
    words = done.stdout.split()
    count, fault = int(words[0]), int(words[1])
    assert fault == 27 and words[2] == CHUNKS, done.stderr  # EFBIG
    assert count >= 2 and words[3] == "27"
    again = reopened(tmp_path)
    assert again.chunks == count and again.damaged() is None
    assert again.states() == ()
    again.keep(count)
    again.commit(count, tensors(count).items())
    assert_same(again.chunk(count), tensors(count))
    again.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2500
    assert not list((tmp_path / "policy").glob("*.partial-*"))


def test_a_state_of_the_reverse_pass_comes_back_and_the_one_before_goes_after_it(tmp_path: Path) -> None:
    files = PassFiles(tmp_path / "policy")
    files.save_state(2, "ab" * 32, tensors(2).items())
    files.save_state(10, "ab" * 32, tensors(10).items())
    assert [state.reversed for state in files.states()] == [2, 10]
    files.drop_states(but=10)
    (state,) = files.states()
    assert files.state_holds(state)
    assert state.extent.sha256 == digest_of(tensors(10).items())
    assert_same(dict(files.state_tensors(state)), tensors(10))
    files.close()


def test_a_half_written_state_is_no_state(tmp_path: Path) -> None:
    half = tmp_path / "policy" / "reversed-3.partial-77"
    half.mkdir(parents=True)
    (half / "state.tensors").write_bytes(b"half")
    files = PassFiles(tmp_path / "policy")
    assert files.states() == ()
    assert not half.exists()
    files.close()


def test_a_state_whose_bytes_or_words_changed_is_found(tmp_path: Path) -> None:
    files = PassFiles(tmp_path / "policy")
    files.save_state(2, "ab" * 32, tensors(2).items())
    (state,) = files.states()
    path = tmp_path / "policy/reversed-2/state.tensors"
    whole = path.read_bytes()
    for changed in (bytes([whole[0] ^ 1]) + whole[1:], whole[:-1], whole + b"\0"):
        path.write_bytes(changed)
        assert not files.state_holds(state)
    about = tmp_path / "policy/reversed-2/state.json"
    about.write_bytes(about.read_bytes().replace(b'"reversed":2', b'"reversed":3'))
    with pytest.raises(ProgressError, match=r"reversed-2/state\.json"):
        files.states()
    files.close()
