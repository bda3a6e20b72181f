"""What the ranks agree on before kept work is used, and the two passes that keep theirs: capture and reverse.

The rule: ranks go on from the same chunk or not at all. Each tells the others how far its own files reach and whether
they hold, all take the least, and a fault of one is raised on every rank: a rank that stopped alone would leave the
others waiting in their next collective.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer import compat
from mint2m_trainer.comm.collectives import collect_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.prefix.decisions import Choice, Decisions
from mint2m_trainer.prefix.layout import Span
from mint2m_trainer.prefix.rows import ChunkRows, RowStore
from mint2m_trainer.resume.faults import ProgressError
from mint2m_trainer.resume.pass_files import CHUNKS, PassFiles, ReverseState
from mint2m_trainer.resume.tensor_file import digest_of

#: A reverse pass keeps its state at most this often, in seconds.
INTERVAL_S = 60.0

#: A state is as large as the gradient pages: the pass spends at most this share of its time on keeping states.
SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChunk:
    """A captured chunk on one rank: its rows and keys, and the choices made for them."""

    rows: ChunkRows
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How a session keeps its work, and how often the reverse pass keeps its state: see the constants."""

    files: PassFiles
    interval_s: float = INTERVAL_S
    share: float = SHARE


class KeptCapture:
    """Chunks of a capture, kept as they are made."""

    def __init__(self, files: PassFiles, comm: Comm, phase: str) -> None:
        self._files, self._comm, self._tag = files, comm, Tag(phase=phase)

    def resume(self, chunks: int) -> int:
        """How many chunks from the first on need not be run again, the same on every rank; a collective.

        Raises:
            ProgressError: on every rank, where the kept chunks of any are not what was committed.
        """
        fault = ""
        try:
            self._files.read()
        except ProgressError as found:
            fault = str(found)
        reach = _told(self._comm, self._tag, "kept", -1 if fault else self._files.chunks)
        for rank, count in enumerate(reach):
            if count < 0 or count > chunks:
                raise ProgressError(
                    fault or f"rank {rank}: its journal of captured chunks has a line that no commit writes"
                )
        self._files.keep(min(reach))
        damaged = self._files.damaged()
        for rank, chunk in enumerate(_told(self._comm, self._tag, "sound", -1 if damaged is None else damaged)):
            if chunk >= 0:
                raise ProgressError(
                    f"rank {rank} chunk {chunk}: {self._shown(rank)} does not hold the bytes that were committed"
                )
        return min(reach)

    def chunk(self, number: int) -> KeptChunk:
        """A chunk that need not be run again."""
        tensors = self._files.chunk(number)
        layers = range(sum(name.startswith(_ROW) for name in tensors))
        return KeptChunk(
            rows=ChunkRows(
                rows=tuple(tensors[f"{_ROW}{layer}"] for layer in layers),
                keys=tuple(tensors.get(f"{_KEY}{layer}") for layer in layers),
            ),
            choices=tuple(_choices(tensors)),
        )

    def commit(self, number: int, chunk: KeptChunk) -> None:
        """Keep a chunk that was run; raises `OSError` with the chunks before it kept."""
        self._files.commit(number, _named(chunk))

    def _shown(self, rank: int) -> str:
        """The chunks' file of another rank: folders of all ranks have one form."""
        _, label, name = self._files.shown(CHUNKS).split("/")
        return f"rank-{rank}/{label}/{name}"


class KeptReverse:
    """The state of a reverse pass, kept every so often: the adapters' gradient so far, and that of the earlier rows."""

    def __init__(
        self,
        keeping: Keeping,
        comm: Comm,
        phase: str,
        *,
        chunks: Sequence[Span],
        store: RowStore,
        decisions: Decisions,
        gradients: Mapping[str, Tensor],
    ) -> None:
        """`gradients` are this rank's adapter gradients by name, where backward adds to them."""
        self._files, self._comm, self._tag = keeping.files, comm, Tag(phase=phase)
        self._chunks, self._store, self._decisions, self._gradients = chunks, store, decisions, gradients
        self._keeping, self._last, self._pause = keeping, time.monotonic(), keeping.interval_s
        self._began = ""

    @torch.no_grad()
    def resume(self) -> int:
        """Put back the furthest state that all ranks keep; how many chunks were gone through there. A collective.

        Raises:
            ProgressError: on every rank, where a state is damaged, or where the pass began from another gradient than
                the one that the replays of this execution left.
        """
        self._began = digest_of(self._tensors())
        state = self._agreed()
        self._files.drop_states(but=-1 if state is None else state.reversed)
        if state is None:
            return 0
        for span in reversed(self._chunks[len(self._chunks) - state.reversed :]):
            for layer in range(self._store.layers):
                self._store.take_grad(layer, span.index)
            self._store.release(span.index)
            self._decisions.drop(span.index)
        self._put_back(state)
        return state.reversed

    def due(self) -> bool:
        """Whether this rank's clock says that a state should be kept; rank 0's word counts."""
        return time.monotonic() - self._last >= self._pause

    @torch.no_grad()
    def save(self, reversed: int) -> None:
        """Keep the state after `reversed` chunks on every rank, then drop the one before; a collective.

        Raises:
            OSError: on a rank that could not write it; ProgressError on the others.
        """
        fault: OSError | None = None
        begun = time.monotonic()
        try:
            self._files.save_state(reversed, self._began, self._tensors())
        except OSError as refused:
            fault = refused
        every = _told(self._comm, self._tag, "saved", 0 if fault is None else 1)
        if fault is not None:
            raise fault
        if any(every):
            raise ProgressError(f"rank {every.index(1)} could not keep the state of the reverse pass")
        self._files.drop_states(but=reversed)
        self._last = time.monotonic()
        self._pause = max(self._keeping.interval_s, (self._last - begun) / self._keeping.share)

    def _agreed(self) -> ReverseState | None:
        """The furthest state that all ranks keep and that holds; None where there is no such state."""
        states: tuple[ReverseState, ...] = ()
        fault = ""
        try:
            states = self._files.states()
        except ProgressError as found:
            fault = str(found)
        # A rank keeps two for the moment between its own save and that of the slowest rank, never more.
        mine = [-1, -1, *(state.reversed for state in states)][-2:]
        every = [_told(self._comm, self._tag, "states", -2 if fault else number) for number in mine]
        faulty = [rank for rank, number in enumerate(every[0]) if number == -2]
        if faulty:
            raise ProgressError(fault or f"rank {faulty[0]} keeps a state of the reverse pass that no save writes")
        kept = [{early, late} for early, late in zip(*every, strict=True)]
        common = set.intersection(*kept) - {-1}
        state = next((state for state in states if common and state.reversed == max(common)), None)
        verdict = _SOUND if state is None else self._verdict(state)
        for rank, word in enumerate(_told(self._comm, self._tag, "sound", verdict)):
            if word != _SOUND:
                raise ProgressError(f"rank {rank}: {_WORDS[word]}")
        return state

    def _verdict(self, state: ReverseState) -> int:
        if state.began_sha256 != self._began:
            return _ELSEWHERE
        sound = state.reversed <= len(self._chunks) and self._files.state_holds(state)
        return _SOUND if sound else _DAMAGED

    def _put_back(self, state: ReverseState) -> None:
        due = dict(self._gradients)

        def pages() -> Iterator[tuple[int, Tensor]]:
            for name, tensor in self._files.state_tensors(state):  # one at a time: together they are the pages again
                if name.startswith(_PAGE):
                    yield int(name.removeprefix(_PAGE)), tensor
                else:
                    due.pop(name.removeprefix(_GRADIENT)).copy_(tensor)

        self._store.put_gradient_pages(pages())
        if due:
            raise ProgressError(f"the kept state lacks the gradient of {sorted(due)[0]}")

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in sorted(self._gradients.items()):
            yield f"{_GRADIENT}{name}", tensor
        for number, page in self._store.gradient_pages():
            yield f"{_PAGE}{number}", page


_ROW, _KEY, _CHOICE = "row ", "key ", "choice "
_GRADIENT, _PAGE = "gradient ", "page "

_SOUND, _ELSEWHERE, _DAMAGED = range(3)
_WORDS = {
    _ELSEWHERE: "the replays of this execution left another gradient than the kept reverse pass began from",
    _DAMAGED: "its kept state of the reverse pass is not what was written",
}


def _told(comm: Comm, tag: Tag, name: str, number: int) -> list[int]:
    """A number of every rank, in order of rank; a collective."""
    mine = torch.tensor([number], dtype=torch.int64, device=compat.device())
    return [int(each) for each in collect_rows(mine, [1] * comm.size, comm, tag, name).tolist()]


def _named(chunk: KeptChunk) -> Iterator[tuple[str, Tensor]]:
    for layer, (row, key) in enumerate(zip(chunk.rows.rows, chunk.rows.keys, strict=True)):
        yield f"{_ROW}{layer}", row
        if key is not None:
            yield f"{_KEY}{layer}", key
    for choice in chunk.choices:
        yield f"{_CHOICE}{choice.kind} {choice.layer}", choice.ids


def _choices(tensors: Mapping[str, Tensor]) -> Iterator[Choice]:
    for name, ids in tensors.items():
        match name.removeprefix(_CHOICE).split(" "):
            case ["rows" | "experts" as kind, layer] if name.startswith(_CHOICE):
                yield Choice(kind=kind, layer=int(layer), ids=ids)
            case _:
                pass
