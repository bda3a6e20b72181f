"""Checkpoints over one and two ranks: the same bits back, whole or not at all, on every rank.

The ranks work once for all cases; each writes what it saw, and the tests below read that.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mint2m_trainer.optimizer import STANDARD_CONTRACT, AdamWStep

IDENTITIES = {"model_manifest_sha256": "a" * 64, "plan_sha256": "b" * 64}


def held(rank: int, ranks: int, *, seed: int = 0) -> AdamWStep:
    """One dense parameter on every rank, four experts spread over the ranks; gradients ready for a step."""
    generator = torch.Generator().manual_seed(seed)
    named = []
    for name in ("dense", "experts.0", "experts.1", "experts.2", "experts.3"):
        value, grad = (torch.randn(3, 5, generator=generator) for _ in range(2))
        expert = name.startswith("experts")
        if expert and int(name[-1]) * ranks // 4 != rank:
            continue
        p = nn.Parameter(value)
        p.main_grad, p.allreduce = grad, not expert  # type: ignore[attr-defined]
        named.append((name, p))
    return AdamWStep(named, STANDARD_CONTRACT, expert_group=dist.group.WORLD)


def bits(optimizer: AdamWStep) -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    return state | {f"param {name}": p.detach().clone() for name, p in optimizer.params}


def next_step(optimizer: AdamWStep) -> dict[str, torch.Tensor]:
    """One more step with a gradient that only depends on the parameter's name."""
    for name, p in optimizer.params:
        p.main_grad = torch.randn(3, 5, generator=torch.Generator().manual_seed(sum(name.encode())))
    optimizer.begin()
    optimizer.step()
    return bits(optimizer)


def refusal(act: Any) -> str:
    from mint2m_trainer.checkpoint import CheckpointError

    try:
        act()
    except CheckpointError as fault:
        return str(fault)
    return ""


def save_on_rank(rank: int, ranks: int, folder: str) -> None:
    from mint2m_trainer.checkpoint import save_checkpoint

    begin(rank, ranks, folder, "save")
    place = Path(folder)
    optimizer = held(rank, ranks)
    optimizer.step()
    wrote = save_checkpoint(place / "checkpoint", optimizer, IDENTITIES, execution="e1")
    seen: dict[str, Any] = {"files": wrote.files, "hashed": wrote.hashed, "saved": bits(optimizer)}
    seen["children"] = [child.name for child in multiprocessing.active_children()]
    again = held(rank, ranks, seed=1)
    seen["again"] = refusal(lambda: save_checkpoint(place / "checkpoint", again, {}, execution="e2"))

    import mint2m_trainer.checkpoint as module

    plain = module.dist_checkpointing.save

    def full_on_the_last_rank(*args: Any) -> None:
        plain(*args)
        if rank == ranks - 1:
            raise OSError(28, "No space left on device")

    module.dist_checkpointing.save = full_on_the_last_rank
    seen["full"] = refusal(lambda: save_checkpoint(place / "full", again, {}, execution="e3"))
    module.dist_checkpointing.save = plain
    with small_files(1000) if rank == ranks - 1 else nullcontext():
        seen["part"] = refusal(lambda: save_checkpoint(place / "part", again, {}, execution="e4"))
    seen["next"] = next_step(optimizer)
    torch.save(seen, place / f"save-{rank}.pt")
    dist.destroy_process_group()


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """The system refuses to let a file of this process grow beyond `limit` bytes."""
    plain, before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, plain)


def load_on_rank(rank: int, ranks: int, folder: str) -> None:
    from mint2m_trainer.checkpoint import load_checkpoint

    begin(rank, ranks, folder, f"load-{ranks}")
    place = Path(folder) / "checkpoint"
    optimizer = held(rank, ranks, seed=1)
    before = bits(optimizer)
    seen: dict[str, Any] = {}
    seen["other"] = refusal(lambda: load_checkpoint(place, optimizer, expected={"plan_sha256": "c" * 64}))
    seen["none"] = refusal(lambda: load_checkpoint(Path(folder) / "absent", optimizer, expected={}))
    renamed = AdamWStep(
        [(f"{name}x", p) for name, p in optimizer.params], STANDARD_CONTRACT, expert_group=dist.group.WORLD
    )
    seen["names"] = refusal(lambda: load_checkpoint(place, renamed, expected={}))
    seen["untouched"] = all(torch.equal(before[key], value) for key, value in bits(optimizer).items())
    resumed = load_checkpoint(place, optimizer, expected={"model_manifest_sha256": "a" * 64})
    seen |= {"steps": resumed.steps, "identities": dict(resumed.identities), "loaded": bits(optimizer)}
    seen["next"] = next_step(optimizer)
    torch.save(seen, Path(folder) / f"load-{ranks}-{rank}.pt")
    dist.destroy_process_group()


def begin(rank: int, ranks: int, folder: str, name: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{name}", rank=rank, world_size=ranks)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, nursery: Callable[[int], Any]) -> Path:
    """A checkpoint written by two ranks, then loaded by two ranks and by one."""
    folder = tmp_path_factory.mktemp("checkpoint")
    results = tmp_path_factory.mktemp("results")
    for function, ranks in ((save_on_rank, 2), (load_on_rank, 2), (load_on_rank, 1)):
        nursery(ranks).run(function, ranks, (ranks, str(folder)), results, None)
    return folder


def seen(place: Path, name: str) -> dict[str, Any]:
    return torch.load(place / f"{name}.pt", weights_only=False)  # type: ignore[no-any-return]


def saved(place: Path, key: str) -> dict[str, torch.Tensor]:
    return seen(place, "save-0")[key] | seen(place, "save-1")[key]


def test_two_ranks_get_back_the_bits_they_wrote(place: Path) -> None:
    for rank in range(2):
        wrote, read = seen(place, f"save-{rank}")["saved"], seen(place, f"load-2-{rank}")["loaded"]
        assert wrote.keys() == read.keys()
        assert all(torch.equal(wrote[key], read[key]) for key in wrote)


def test_one_rank_loads_the_experts_that_two_ranks_wrote(place: Path) -> None:
    wrote, read = saved(place, "saved"), seen(place, "load-1-0")["loaded"]
    assert wrote.keys() == read.keys()
    assert all(torch.equal(wrote[key], read[key]) for key in wrote)
    assert {f"param experts.{expert}" for expert in range(4)} < read.keys()


def test_the_step_after_resuming_is_the_step_without_stopping(place: Path) -> None:
    for rank in range(2):
        went_on, resumed = seen(place, f"save-{rank}")["next"], seen(place, f"load-2-{rank}")["next"]
        assert all(torch.equal(went_on[key], resumed[key]) for key in went_on)


def test_step_count_and_identities_come_back(place: Path) -> None:
    for name in ("load-2-0", "load-2-1", "load-1-0"):
        assert seen(place, name)["steps"] == 1
        assert seen(place, name)["identities"] == IDENTITIES


def test_every_rank_names_the_same_files_and_they_are_there(place: Path) -> None:
    files = seen(place, "save-0")["files"]
    assert files == seen(place, "save-1")["files"]
    assert sorted(path.name for path in (place / "checkpoint").iterdir()) == list(files)
    assert len(files) >= 3


def test_each_rank_hashed_its_part_as_it_wrote_it(place: Path) -> None:
    """Against a second reading of the files; a part that one rank wrote is told by that rank alone."""
    for rank in range(2):
        hashed = seen(place, f"save-{rank}")["hashed"]
        assert [file.file.path for file in hashed] == [f"__{rank}_0.distcp"]
        for file in hashed:
            path = place / "checkpoint" / file.file.path
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert (file.digests.sha256, file.digests.chunks) == (digest, (digest,))
            assert file.is_of(path.stat())


def test_a_part_that_does_not_fit_fails_all_ranks_and_leaves_nothing(place: Path) -> None:
    for rank in range(2):
        refusal = seen(place, f"save-{rank}")["part"]
        assert "rank 1: StorageError: OSError: [Errno 27] File too large" in refusal
    assert not (place / "part").exists()
    assert [path.name for path in place.iterdir() if "partial" in path.name] == []


def test_a_checkpoint_that_is_there_is_refused_on_every_rank(place: Path) -> None:
    for rank in range(2):
        assert "rank 0: FileExistsError" in seen(place, f"save-{rank}")["again"]
        assert "rank 1" not in seen(place, f"save-{rank}")["again"]


def test_a_full_disk_on_one_rank_fails_all_and_leaves_nothing(place: Path) -> None:
    for rank in range(2):
        assert (
            seen(place, f"save-{rank}")["full"] == "rank 1: StorageError: OSError: [Errno 28] No space left on device"
        )
    assert not (place / "full").exists()
    assert [path.name for path in place.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    ("key", "reason"), [("other", "checkpoint plan_sha256: expected ccc"), ("none", "rank 0: "), ("names", "rank 0: ")]
)
def test_a_checkpoint_of_something_else_changes_nothing(place: Path, key: str, reason: str) -> None:
    for name in ("load-2-0", "load-2-1", "load-1-0"):
        assert seen(place, name)[key].startswith(reason)
        assert seen(place, name)["untouched"]


def test_no_process_of_the_writer_outlives_the_save(place: Path) -> None:
    """megatron keeps one for the next save; a rank that is killed leaves it on the machine for ever."""
    assert [seen(place, f"save-{rank}")["children"] for rank in range(2)] == [[], []]
