"""Hashing spread over an operator's machines: `mint2m sign tree DIR --ray ADDRESS`.

The rule: a file is hashed by a machine that has it, and whatever no machine answers for is left to the signer's own
machine, so that a lost machine costs time and never a digest. Work of a machine that is gone is handed out again.

The scheduler knows machines by the protocol below only; `ray_machines` puts a Ray cluster behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mint2m_verify.elsewhere import HashedElsewhere, Listed
from mint2m_verify.walk import Progress

#: Small files travel together: handing out work costs a millisecond or so.
_BATCH_BYTES = 256 << 20
_BATCH_FILES = 256

#: How often a batch is handed out before it is left to the signer's machine.
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files that one machine hashes in one go."""

    files: tuple[Listed, ...]
    tries: int = 0

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a batch: the files that were hashed; `lost` where the work came to nothing."""

    machine: str
    batch: Batch
    hashed: tuple[HashedElsewhere, ...] = ()
    lost: bool = False


class Machines(Protocol):
    """Other machines of the operator, by name."""

    def listings(self, root: Path) -> Mapping[str, tuple[Listed, ...]]:
        """What each machine sees of the tree."""

    def room(self) -> Mapping[str, int]:
        """How many more batches each machine takes now; a machine that is gone is not in it."""

    def hand_out(self, machine: str, root: Path, batch: Batch) -> None:
        """Let `machine` hash `batch`."""

    def next_answer(self) -> Answer:
        """Wait for whichever batch ends first, of those that were handed out."""


@dataclass(slots=True)
class _Shared:
    """Files that the same machines have, as batches from the last to the first."""

    machines: frozenset[str]
    batches: list[Batch] = field(default_factory=list)


def hash_spread(machines: Machines, root: Path, progress: Progress | None = None) -> dict[str, HashedElsewhere]:
    """Digests by path of the files that the machines could hash.

    Where machines see different versions of a file nobody is believed, and it is left out.
    """
    shares = _shares(machines.listings(root))
    total = sum(batch.size for share in shares for batch in share.batches)
    done: dict[str, HashedElsewhere] = {}
    out: dict[int, _Shared] = {}  # by identity of the batch
    read = 0
    while True:
        for share, machine in _matches(shares, machines.room()):
            batch = share.batches.pop()
            out[id(batch)] = share
            machines.hand_out(machine, root, batch)
        if not out:
            return done  # what is left has no machine any more
        answer = machines.next_answer()
        share = out.pop(id(answer.batch))
        if answer.lost:
            again = Batch(files=answer.batch.files, tries=answer.batch.tries + 1)
            if again.tries < _TRIES:
                share.batches.append(again)
            continue
        done |= {hashed.file.path: hashed for hashed in answer.hashed}
        read += answer.batch.size
        if progress is not None:
            progress("hash", read, max(total, read))


def _shares(listings: Mapping[str, Sequence[Listed]]) -> list[_Shared]:
    """Files by the machines that have them, the largest first to be handed out, ties by path."""
    seen: dict[str, dict[Listed, set[str]]] = {}
    for machine, files in listings.items():
        for file in files:
            seen.setdefault(file.path, {}).setdefault(file, set()).add(machine)
    groups: dict[frozenset[str], list[Listed]] = {}
    for versions in seen.values():
        if len(versions) == 1:
            ((file, having),) = versions.items()
            groups.setdefault(frozenset(having), []).append(file)
    return [_Shared(having, _batches(files)) for having, files in groups.items()]


def _batches(files: list[Listed]) -> list[Batch]:
    """In the order in which they are taken off the end: the largest last."""
    batches: list[Batch] = []
    group: list[Listed] = []
    for file in sorted(files, key=lambda file: (file.size, file.path)):
        if group and (len(group) >= _BATCH_FILES or sum(each.size for each in group) + file.size > _BATCH_BYTES):
            batches.append(Batch(files=tuple(group)))
            group = []
        group.append(file)
    return [*batches, Batch(files=tuple(group))]


def _matches(shares: Sequence[_Shared], room: Mapping[str, int]) -> list[tuple[_Shared, str]]:
    """Work for each free place: first what the fewest machines have, then what is largest."""
    free = dict(room)
    matches: list[tuple[_Shared, str]] = []
    taken = {id(share): 0 for share in shares}
    for share in sorted(shares, key=lambda share: len(share.machines)):
        while taken[id(share)] < len(share.batches):
            places = [machine for machine in sorted(share.machines) if free.get(machine, 0) > 0]
            if not places:
                break
            machine = max(places, key=lambda place: free[place])
            free[machine] -= 1
            taken[id(share)] += 1
            matches.append((share, machine))
    return matches
