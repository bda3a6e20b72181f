"""Writes verified members to a new directory, which appears whole or not at all.

The rule: members are written below a temporary name beside the place they are for, while they are verified; the name
is given only when everything was, in one step, and only where nothing has it. Whatever ends a verification early takes
the temporary directory along.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, found


class Unpacking:
    """`with Unpacking(target) as place:` makes the temporary directory; `place.publish()` gives it its name."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._place: Path | None = None

    def __enter__(self) -> Self:
        self._refuse_existing()
        try:
            # 0700 by mkdtemp: nobody else can change what is verified before it is published.
            self._place = Path(
                tempfile.mkdtemp(prefix=f".{self._target.name}.", suffix=".partial", dir=self._target.parent)
            )
        except OSError as fault:
            raise self._unwritable(fault) from fault
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    @contextmanager
    def file(self, path: str, *, executable: bool) -> Iterator[BinaryIO]:
        """A new file at the relative `path`, which is one that `Names` took in."""
        if self._place is None:
            raise RuntimeError("there is no directory to unpack into")
        place = self._place / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(place, flags, 0o755 if executable else 0o644)
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
        except OSError as fault:
            raise self._unwritable(fault) from fault

    def publish(self) -> None:
        """Give the directory its name; raises `FindingError` (`file.exists`, `file.unwritable`)."""
        if self._place is None:
            raise RuntimeError("there is nothing to publish")
        self._refuse_existing()
        try:
            # All at once: a thousand small files synced one by one take minutes on a busy disk.
            os.sync()
            self._place.chmod(0o755)
            # A directory is renamed onto nothing but an empty directory, so a rival's files are never replaced.
            self._place.rename(self._target)
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self._place = None
        sync_directory(self._target.parent)

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._target):
            raise FindingError(found("file.exists", file=str(self._target)))

    def _unwritable(self, fault: OSError) -> FindingError:
        return FindingError(found("file.unwritable", file=str(self._target), actual=fault.strerror))
