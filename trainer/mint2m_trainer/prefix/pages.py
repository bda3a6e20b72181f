"""Where the bytes of pages lie: in this process's memory, or in files mapped into it.

A page's bytes are reserved before it is written. A sparse file would take a full disk for a fatal signal at some
later write; reserved, it is an error of the one append that asked for more. A mapped file loses its name as soon as
it is mapped, so that nothing of the prefix is left on the disk however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor


class PageMemory(Protocol):
    """Gives pages; a page is given back by dropping every reference to it."""

    def allocate(self, size: int) -> Tensor:
        """A zeroed page, [size] uint8 on the CPU.

        Raises:
            OSError, RuntimeError: there is no room; nothing was taken then.
        """
        ...

    def close(self) -> None:
        """Give up what the pages shared; harmless twice. Pages still held stay valid."""
        ...


class ProcessMemory:
    """Pages in this process's memory; what is never written is never resident."""

    def allocate(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def close(self) -> None:
        return None


class MappedFiles:
    """Pages in files of a private directory, for prefixes larger than memory.

    `parent` is where the directory is made: the system's temporary directory (`TMPDIR`) where None. It must be on a
    disk; a file system in memory would save nothing.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._folder: Path | None = Path(tempfile.mkdtemp(prefix="mint2m-pages-", dir=parent))  # mode 0700

    def allocate(self, size: int) -> Tensor:
        if self._folder is None:
            raise OSError("the page files were closed")
        path = self._folder / "page"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        finally:
            os.close(descriptor)
            path.unlink()

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.rmdir()
