"""A pass that stops at any chunk and goes on in another session has the gradient of one that never stopped.

To the last bit: the same adapters' gradient, log-probs and digest of pages, whatever the layout, and no chunk that was
committed is run again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.model.policy import Policy
from mint2m_trainer.prefix.session import Session
from mint2m_trainer.resume.faults import ProgressError
from mint2m_trainer.resume.pass_files import CHUNKS, JOURNAL, PassFiles
from mint2m_trainer.resume.passes import Keeping

sys.path.insert(0, str(Path(__file__).parents[1] / "prefix"))  # a rank's process has only this file
from prefix_sessions import RESPONSES, Cut, gradients, policy, session, weighted

#: 36 rows before the last prompt token: chunks of 8, the last of 4.
CHUNK, CHUNK_COUNT, ROWS = 8, 5, 36

CUTS = [
    Cut(chunk=CHUNK, route="fetch", store="memory", decisions="store"),
    Cut(chunk=CHUNK, route="lse", store="mapped", decisions="rescore", page_rows=5),
    Cut(chunk=CHUNK, route="lse", store="memory", decisions="store", page_rows=64),
    Cut(chunk=CHUNK, route="fetch", store="mapped", decisions="rescore"),
]

Result = tuple[dict[str, Tensor], list[Tensor], str]


class StoppedError(Exception):
    """The test's own."""


def stop_at(tokens: int) -> Callable[[int, int], None]:
    """A progress that does not come back once so many tokens are behind."""

    def progress(done: int, _total: int) -> None:
        if done >= tokens:
            raise StoppedError

    return progress


def kept_session(
    comm: Comm, snapshot: Path, cut: Cut, place: Path, interval: float
) -> tuple[Policy, Session, PassFiles]:
    """A session of a new policy that keeps its work below `place`."""
    (place / f"rank-{comm.rank}").mkdir(parents=True, exist_ok=True)
    files = PassFiles(place / f"rank-{comm.rank}" / "policy")
    made = policy(comm, snapshot, dtype="float32")
    keeping = Keeping(files=files, interval_s=interval, share=float("inf"))
    return made, session(made, comm, "exact", cut=cut, keeping=keeping), files


def attempt(
    comm: Comm,
    snapshot: Path,
    cut: Cut,
    place: Path,
    *,
    capture: int = 10**9,
    reverse: int = 10**9,
    interval: float = 0.0,
) -> Result | None:
    """One execution, None where it stopped at so many tokens of capture or reverse."""
    made, run, files = kept_session(comm, snapshot, cut, place, interval)
    try:
        run.capture(stop_at(capture))
        logp = [run.replay(response, weighted).logp for response in range(len(RESPONSES))]
        report = run.reverse(stop_at(reverse))
        assert report.backward_calls + report.resumed_chunks == report.chunks == CHUNK_COUNT
    except StoppedError:
        return None
    finally:
        run.close()
        files.close()
    made.wrapped.finish_grad_sync()
    return dict(made.gradient_tensors("test")), logp, run.pages_sha256()


def uninterrupted(comm: Comm, snapshot: Path, cut: Cut) -> Result:
    made = policy(comm, snapshot, dtype="float32")
    run = session(made, comm, "exact", cut=cut)
    found, logp = gradients(made, run, "exact")
    return found, logp, run.pages_sha256()


def same(found: Result | None, due: Result) -> bool:
    """Bit for bit, and there is something to compare."""
    if found is None or not any(bool(tensor.any()) for tensor in due[0].values()):
        return False
    pairs = [(found[0][name], tensor) for name, tensor in due[0].items()] + list(zip(found[1], due[1], strict=True))
    return (
        found[0].keys() == due[0].keys()
        and found[2] == due[2]
        and all(torch.equal(_bits(a), _bits(b)) for a, b in pairs)
    )


def _bits(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def stopped_everywhere(comm: Comm, snapshot: Path, place: Path, cuts: list[Cut]) -> list[tuple[str, bool, int]]:
    """For each layout and place to stop: whether what went on from there is the same; and the chunks it took over."""
    found = []
    for number, cut in enumerate(cuts):
        due = uninterrupted(comm, snapshot, cut)
        for chunk in range(1, CHUNK_COUNT + 1):
            below = place / f"{number}-capture-{chunk}"
            assert attempt(comm, snapshot, cut, below, capture=min(chunk * CHUNK, ROWS)) is None
            taken = _committed(below, comm)
            again = attempt(comm, snapshot, cut, below)
            found.append((f"{cut} capture {chunk}", same(again, due) and taken == chunk, taken))
            below = place / f"{number}-reverse-{chunk}"
            tokens = ROWS - (CHUNK_COUNT - chunk) * CHUNK
            assert attempt(comm, snapshot, cut, below, reverse=tokens) is None
            states = _states(below, comm)
            again = attempt(comm, snapshot, cut, below)
            found.append((f"{cut} reverse {chunk}", same(again, due) and states == [chunk], chunk))
    return found


def _committed(place: Path, comm: Comm) -> int:
    return len((place / f"rank-{comm.rank}/policy" / JOURNAL).read_bytes().splitlines())


def _states(place: Path, comm: Comm) -> list[int]:
    return [int(path.name.split("-")[1]) for path in (place / f"rank-{comm.rank}/policy").glob("reversed-*")]


@pytest.mark.parametrize(
    ("world", "cuts"),
    [
        (1, CUTS[:1]),
        pytest.param(1, CUTS[1:], marks=pytest.mark.slow),
        pytest.param(2, CUTS, marks=pytest.mark.slow),
    ],
)
def test_a_pass_that_stops_at_any_chunk_goes_on_to_the_same_bits(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, tmp_path: Path, world: int, cuts: list[Cut]
) -> None:
    place = tmp_path / "kept"
    if world == 1:
        results = [stopped_everywhere(single, small_snapshot, place, cuts)]
    else:
        results = ranks(stopped_everywhere, world, small_snapshot, place, cuts)
    for rank in results:
        assert len(rank) == 2 * CHUNK_COUNT * len(cuts)
        assert [words for words, good, _ in rank if not good] == []


def several_attempts(comm: Comm, snapshot: Path, place: Path) -> tuple[bool, list[int], list[int]]:
    cut = CUTS[0]
    due = uninterrupted(comm, snapshot, cut)
    assert attempt(comm, snapshot, cut, place, capture=16) is None
    assert attempt(comm, snapshot, cut, place, capture=32) is None
    assert attempt(comm, snapshot, cut, place, reverse=12) is None  # chunks 4 and 3
    first = _states(place, comm)
    # No state is kept by this one, which therefore goes back to the same place as the one before.
    assert attempt(comm, snapshot, cut, place, reverse=28, interval=1e9) is None
    second = _states(place, comm)
    return same(attempt(comm, snapshot, cut, place), due), first, second


@pytest.mark.parametrize("world", [1, 2])
def test_many_attempts_add_up_and_one_without_a_state_of_its_own_loses_only_its_own_work(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, tmp_path: Path, world: int
) -> None:
    place = tmp_path / "kept"
    if world == 1:
        results = [several_attempts(single, small_snapshot, place)]
    else:
        results = ranks(several_attempts, world, small_snapshot, place)
    assert results == [(True, [2], [2])] * world


def uneven(comm: Comm, snapshot: Path, place: Path) -> tuple[bool, int]:
    """Rank 1 lost its last committed chunk and its last state; rank 0 did not."""
    cut = CUTS[2]
    due = uninterrupted(comm, snapshot, cut)
    assert attempt(comm, snapshot, cut, place, capture=24) is None
    if comm.rank == 1:
        files = PassFiles(place / "rank-1/policy")
        files.read()
        files.keep(2)
        files.close()
    _, run, files = kept_session(comm, snapshot, cut, place, 0.0)
    run.capture()
    taken = run.resumed_chunks
    run.close()
    files.close()
    assert attempt(comm, snapshot, cut, place, reverse=12) is None
    if comm.rank == 1:
        (place / "rank-1/policy/reversed-2").rename(place / "rank-1/policy/reversed-2.partial-1")
    return same(attempt(comm, snapshot, cut, place), due), taken


def test_ranks_go_on_from_what_all_of_them_have(
    ranks: Callable[..., list[Any]], small_snapshot: Path, tmp_path: Path
) -> None:
    assert ranks(uneven, 2, small_snapshot, tmp_path / "kept") == [(True, 2), (True, 2)]


def damaged(comm: Comm, snapshot: Path, place: Path, what: str) -> str:
    """What each rank says where rank 1's files are damaged."""
    cut = CUTS[0]
    assert attempt(comm, snapshot, cut, place, reverse=12) is None
    mine = place / "rank-1/policy"
    if comm.rank == 1:
        path = {"chunk": mine / CHUNKS, "state": mine / "reversed-2/state.tensors"}.get(what)
        if path is not None:
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 4
            path.write_bytes(raw)
        if what == "journal":
            journal = mine / JOURNAL
            journal.write_bytes(journal.read_bytes().replace(b'"chunk":2', b'"chunk":7'))
        about = mine / "reversed-2/state.json"
        if what == "beginning":
            raw = bytearray(about.read_bytes())
            at = raw.index(b'"began_sha256":"') + 16
            raw[at] = ord("0") if raw[at] != ord("0") else ord("1")
            about.write_bytes(raw)
    try:
        attempt(comm, snapshot, cut, place)
    except ProgressError as fault:
        return str(fault)
    return "went on"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("chunk", "rank 1 chunk 2: rank-1/policy/capture.tensors does not hold the bytes"),
        ("journal", "line"),
        ("state", "rank 1: its kept state of the reverse pass is not what was written"),
        ("beginning", "rank 1: the replays of this execution left another gradient"),
    ],
)
def test_damage_on_one_rank_stops_all_of_them_and_says_where(
    ranks: Callable[..., list[Any]], small_snapshot: Path, tmp_path: Path, what: str, words: str
) -> None:
    said = ranks(damaged, 2, small_snapshot, tmp_path / "kept", what)
    assert all(words in each for each in said), said
    if what != "journal":
        assert said[0] == said[1]


def test_another_loss_before_the_reverse_pass_is_refused(single: Comm, small_snapshot: Path, tmp_path: Path) -> None:
    place, cut = tmp_path / "kept", CUTS[0]
    assert attempt(single, small_snapshot, cut, place, reverse=12) is None
    _, run, files = kept_session(single, small_snapshot, cut, place, 0.0)
    run.capture()
    for response in range(len(RESPONSES)):
        run.replay(response, lambda logp, local: weighted(logp * 1.0000001, local))
    with pytest.raises(ProgressError, match="another gradient"):
        run.reverse()
    run.close()
    files.close()


def test_a_detached_pass_keeps_its_capture_too(single: Comm, small_snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    results = []
    for stop in (16, 10**9):
        files = PassFiles(tmp_path / "rank-0" / "policy")
        made = policy(single, small_snapshot, dtype="float32")
        run = session(made, single, "detached", cut=CUTS[0], keeping=Keeping(files=files))
        try:
            run.capture(stop_at(stop))
            results.append((run.resumed_chunks, run.pages_sha256()))
        except StoppedError:
            pass
        finally:
            run.close()
            files.close()
    assert results == [(2, uninterrupted(single, small_snapshot, CUTS[0])[2])]


def test_pages_that_could_not_be_kept_end_the_pass_and_the_chunks_before_them_stay(
    single: Comm, small_snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = uninterrupted(single, small_snapshot, CUTS[0])
    real = PassFiles.commit

    def full(self: PassFiles, chunk: int, tensors: Any) -> None:
        if chunk == 2:
            raise OSError(28, "No space left on device", CHUNKS)
        real(self, chunk, tensors)

    monkeypatch.setattr(PassFiles, "commit", full)
    with pytest.raises(OSError, match="No space"):
        attempt(single, small_snapshot, CUTS[0], tmp_path)
    monkeypatch.setattr(PassFiles, "commit", real)
    assert _committed(tmp_path, single) == 2
    assert same(attempt(single, small_snapshot, CUTS[0], tmp_path), due)
