"""Directories that appear whole or not at all.

The rule: files are written under another name beside the final one, each synced, and the directory is renamed
when it is complete. Without it a reader could find half a snapshot or half an adapter under its final name
after an interruption, with nothing to tell it from a whole one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Yields a directory to fill; leaving without an exception makes it `final`, with one it is removed.

    Raises:
        FileExistsError: `final` exists and is not an empty directory; nothing is overwritten.
    """
    if final.is_symlink() or (final.exists() and (not final.is_dir() or any(final.iterdir()))):
        raise FileExistsError(f"{final} exists and is not an empty directory")
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f"{final.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        for folder, _, _ in os.walk(partial):
            sync_directory(Path(folder))
        partial.rename(final)  # replaces an empty directory, never a full one
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(final.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file that did not exist and waits until it is on disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
