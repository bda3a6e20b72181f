"""One rank's files of one pass over one prefix: chunks as they were captured, and the state of a reverse pass.

The rule: only what was committed counts. A chunk's tensors are on the disk before its line of the journal is, the line
has their digest, and a line without its newline was never committed. A state of the reverse pass lies in a directory
that gets its name when everything in it is on the disk; the one before it goes only after that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mint2m_trainer.contract.directory import new_directory, write_synced
from mint2m_trainer.resume.faults import OtherProgressError, ProgressError
from mint2m_trainer.resume.tensor_file import Extent, holds, read_tensors, write_all, write_tensors
from mint2m_verify.canonical import canonical, parse
from mint2m_verify.files import read_once, sync_directory
from mint2m_verify.finding import FindingError

#: Tensors of all captured chunks, one chunk after another, and a line for each chunk that is whole.
CHUNKS, JOURNAL = "capture.tensors", "capture.jsonl"

#: A state of the reverse pass: `reversed-N` for N chunks gone through, with these files.
_STATE, _TENSORS, _ABOUT = "reversed-", "state.tensors", "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseState:
    """What a kept state says of itself: chunks gone through, the digest that the pass began from, its tensors."""

    reversed: int
    began_sha256: str
    extent: Extent


class PassFiles:
    """See the module; one process at a time, which is held by a lock on the journal."""

    def __init__(self, folder: Path) -> None:
        """Open or make the folder.

        Raises:
            OtherProgressError: another process works on it.
            OSError: it cannot be written.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._chunks = _open(folder / CHUNKS)
        self._journal = _open(folder / JOURNAL)
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            self.close()
            raise OtherProgressError(
                f"{folder}: another process works on it; `mint2m cleanup` ends the ranks of a driver that was killed"
            ) from fault
        for left in folder.glob(f"{_STATE}*.partial-*"):
            shutil.rmtree(left)
        sync_directory(folder)
        self._extents: list[Extent] = []
        self._lines: list[int] = []  # where each line of the journal ends

    @property
    def chunks(self) -> int:
        """Chunks that were committed, as far as `read` and `commit` know."""
        return len(self._extents)

    def read(self) -> None:
        """Read the journal up to its last whole line; `keep` cuts off what stands behind it.

        Raises:
            ProgressError: a whole line is not what a commit writes.
        """
        *lines, _torn = read_once(self._folder / JOURNAL).split(b"\n")
        self._extents, self._lines = [], []
        at = offset = 0
        for line in lines:
            at += len(line) + 1
            extent = self._extent(line, offset)
            offset += extent.size
            self._extents.append(extent)
            self._lines.append(at)

    def keep(self, count: int) -> None:
        """Forget every chunk from number `count` on, and whatever was never committed."""
        del self._extents[count:], self._lines[count:]
        os.ftruncate(self._journal, self._lines[-1] if self._lines else 0)
        os.fsync(self._journal)
        os.ftruncate(self._chunks, self._end)

    def damaged(self) -> int | None:
        """The first committed chunk whose bytes are not the committed ones, None where all are."""
        return next((number for number, extent in enumerate(self._extents) if not holds(self._chunks, extent)), None)

    def commit(self, chunk: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Keep the next chunk; when this returns it is on the disk. Raises `OSError` with the chunks before it kept."""
        if chunk != len(self._extents):
            raise ProgressError(f"{self._folder}: chunk {chunk} does not follow {len(self._extents)} chunks")
        end = self._lines[-1] if self._lines else 0
        with _naming(self._folder / CHUNKS):
            extent = write_tensors(self._chunks, tensors, offset=self._end)
            os.fsync(self._chunks)
        line = _line(chunk, extent)
        with _naming(self._folder / JOURNAL):
            write_all(self._journal, line, offset=end)
            os.fsync(self._journal)
        self._extents.append(extent)
        self._lines.append(end + len(line))

    def chunk(self, number: int) -> dict[str, Tensor]:
        """The tensors of a committed chunk, by name."""
        return dict(read_tensors(self._chunks, self._extents[number]))

    def states(self) -> tuple[ReverseState, ...]:
        """The kept states of a reverse pass, the furthest last; raises `ProgressError` where one does not say what."""
        return tuple(sorted(map(self._about, self._state_folders()), key=lambda state: state.reversed))

    def state_holds(self, state: ReverseState) -> bool:
        """Whether the tensors of a state are the committed ones."""
        descriptor = _read_only(self._place(state.reversed) / _TENSORS)
        try:
            return holds(descriptor, state.extent) and os.fstat(descriptor).st_size == state.extent.size
        finally:
            os.close(descriptor)

    def state_tensors(self, state: ReverseState) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a state that holds, one at a time."""
        descriptor = _read_only(self._place(state.reversed) / _TENSORS)
        try:
            yield from read_tensors(descriptor, state.extent)
        finally:
            os.close(descriptor)

    def save_state(self, reversed: int, began_sha256: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Keep a state; when this returns it is on the disk. Raises `OSError` with the states before it kept."""
        place = self._place(reversed)
        with _naming(place), new_directory(place) as folder:
            descriptor = os.open(folder / _TENSORS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                extent = write_tensors(descriptor, tensors, offset=0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            about = {"began_sha256": began_sha256, "reversed": reversed, "sha256": extent.sha256, "size": extent.size}
            write_synced(folder / _ABOUT, canonical(about))

    def drop_states(self, *, but: int) -> None:
        """Remove every state but that of `but` chunks."""
        for folder in self._state_folders():
            if folder != self._place(but):
                # Under a name that is no state's: half removed, it must not be taken for one that is damaged.
                shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.partial-{os.getpid()}")))
        sync_directory(self._folder)

    def shown(self, name: str) -> str:
        """A file of this pass as a fault names it: rank, pass and file."""
        return "/".join((*self._folder.parts[-2:], name))

    def close(self) -> None:
        """Give up the lock; harmless twice."""
        for descriptor in (self._chunks, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._chunks = self._journal = -1

    @property
    def _end(self) -> int:
        last = self._extents[-1] if self._extents else Extent(offset=0, size=0, sha256="")
        return last.offset + last.size

    def _extent(self, line: bytes, offset: int) -> Extent:
        where = f"{self.shown(JOURNAL)}, line {len(self._extents) + 1}"
        try:
            value = parse(line, file=where)
        except FindingError as fault:
            raise ProgressError(f"{where}: {fault.finding.id}") from fault
        match value:
            case {"sha256": str(sha256), "size": int(size)} if size > 0:
                extent = Extent(offset=offset, size=size, sha256=sha256)
            case _:
                raise ProgressError(f"{where} is no line of this journal")
        if _line(len(self._extents), extent) != line + b"\n":
            raise ProgressError(f"{where} is not what a commit of chunk {len(self._extents)} writes")
        return extent

    def _place(self, reversed: int) -> Path:
        return self._folder / f"{_STATE}{reversed}"

    def _state_folders(self) -> list[Path]:
        return [path for path in self._folder.glob(f"{_STATE}*") if path.name.removeprefix(_STATE).isdigit()]

    def _about(self, folder: Path) -> ReverseState:
        where = self.shown(f"{folder.name}/{_ABOUT}")
        try:
            value = parse(read_once(folder / _ABOUT), file=where)
        except FindingError as fault:
            raise ProgressError(f"{where}: {fault.finding.id}") from fault
        match value:
            case {"began_sha256": str(began), "reversed": int(count), "sha256": str(sha256), "size": int(size)} if (
                folder == self._place(count)
            ):
                return ReverseState(
                    reversed=count, began_sha256=began, extent=Extent(offset=0, size=size, sha256=sha256)
                )
            case _:
                raise ProgressError(f"{where} is not what keeping a state writes")


def _line(chunk: int, extent: Extent) -> bytes:
    about = {"chunk": chunk, "offset": extent.offset, "sha256": extent.sha256, "size": extent.size}
    return canonical(about) + b"\n"


class _naming:  # noqa: N801 - used like a function
    """Scope in which an `OSError` without a file's name gets one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, fault: BaseException | None, _trace: object) -> None:
        if isinstance(fault, OSError) and fault.filename is None:
            raise OSError(fault.errno or errno.EIO, fault.strerror, str(self._path)) from fault


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read_only(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
