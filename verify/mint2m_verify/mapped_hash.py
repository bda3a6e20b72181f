"""SHA-256 of cached bytes where they lie, without a copy.

To hash a file with `pread` every byte is copied out of the page cache first, which costs a tenth of the time. A mapping
needs no copy, but a file that is cut while it is mapped, or a disk that fails, kills whoever reads. So processes of
their own do that, and where one is lost its span is read the slow way, which tells what is wrong.

The rule: nothing here is needed. Where no process can be started, where one is killed, where the span is not all
cached, the answer is None, and the caller reads.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from types import TracebackType

from mint2m_verify.page_cache import is_cached

#: The program of such a process.
_WORKER = Path(__file__).with_name("mapped_hash_worker.py")

#: A span below this takes no longer to read than to ask about.
_LEAST_BYTES = 4 << 20

#: Starting a process takes as long as it gains on so much.
_WORTH_BYTES = 512 << 20

#: How soon a wait sees that nobody wants the answer any more.
_POLL_SECONDS = 0.2

_DIGEST_BYTES = 32


class MappedHashing:
    """As many processes as threads ask at once, once so much is expected that it is worth it; leaving ends them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._all: list[_Process] = []
        self._expected, self._lost = 0, False

    def __enter__(self) -> MappedHashing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()

    def expect(self, size: int) -> None:
        """Files of `size` bytes are going to be hashed; one who exaggerates starts processes in vain."""
        self._expected += size

    def sha256(self, descriptor: int, start: int, length: int, stopped: Event) -> str | None:
        """Lower-case hex of `length` bytes from `start`, a page boundary; None where they must be read.

        Raises:
            CancelledError: `stopped` was set meanwhile.
        """
        if length < _LEAST_BYTES or self._expected < _WORTH_BYTES or self._lost:
            return None
        if not is_cached(descriptor, start, length):
            return None
        try:
            process = self._take()
            digest = process.sha256(descriptor, start, length, stopped)
        except OSError:  # it could not be started, or was killed
            self._lost = True
            return None
        with self._lock:
            self._idle.append(process)
        return digest

    def _take(self) -> _Process:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        process = _Process()
        with self._lock:
            self._all.append(process)
        return process


class _Process:
    """One process, asked by one thread at a time."""

    def __init__(self) -> None:
        import socket  # for large files only: a small verification should not wait for it

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_POLL_SECONDS)
        command = [sys.executable or "", "-I", "-S", str(_WORKER)]
        silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        files = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), *silent]
        try:
            with theirs:  # in a group of its own: an interruption of the terminal's is for who started it
                self.id = os.posix_spawn(command[0], command, os.environ, file_actions=files, setpgroup=0)
        except (OSError, ValueError) as fault:
            self._socket.close()
            raise OSError(f"cannot start {command[0]}") from fault

    def sha256(self, descriptor: int, start: int, length: int, stopped: Event) -> str | None:
        """As of `MappedHashing`; raises `OSError` where the process is gone."""
        import socket

        socket.send_fds(self._socket, [start.to_bytes(8, "little") + length.to_bytes(8, "little")], [descriptor])
        while True:
            try:
                answer = self._socket.recv(_DIGEST_BYTES)
            except TimeoutError:
                if stopped.is_set():
                    raise CancelledError from None
                continue
            if not answer:
                raise BrokenPipeError
            return answer.hex() if len(answer) == _DIGEST_BYTES else None

    def kill(self) -> None:
        """It only reads, so nothing is lost."""
        self._socket.close()
        with suppress(ProcessLookupError):  # somebody else waited for it
            os.kill(self.id, signal.SIGKILL)

    def wait(self) -> None:
        """Until it has gone."""
        with suppress(ChildProcessError):  # somebody else waited for it
            os.waitpid(self.id, 0)
