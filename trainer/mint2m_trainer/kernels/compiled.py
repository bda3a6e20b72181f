"""How the CPU kernels are compiled, and where compiled code is kept.

The rule: kept code belongs to exactly one source. numba decides by time and size of the file that a function stands
in, which misses a change in a module that the function uses, and a wheel gives every release the same time. So the
folder is named by a digest over all modules of this package. It lies in the user's cache, readable by the user alone,
never beside the source: an installation may be read-only, and code from a folder that others can write is not loaded.
Where there is no such folder every process compiles for itself, some seconds each.

No fast-math and no threads: results must not depend on either.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit


def _cache_folder() -> Path | None:
    """A private folder for this source's code, or None where none can be had."""
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{module.name}\0".encode() + module.read_bytes() + b"\0")
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(config.CACHE_DIR) if config.CACHE_DIR else (Path(given) if given else Path.home() / ".cache")
        folder = base / "mint2m" / "kernels" / digest.hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
    except (OSError, RuntimeError):  # no home, or a read-only one
        return None
    private = state.st_uid == os.getuid() and not state.st_mode & 0o022
    return folder if private and os.access(folder, os.W_OK) else None


#: Where compiled code of this source lies; None where every process compiles for itself.
FOLDER = _cache_folder()


def compiled(function: Callable[..., Any]) -> Any:
    """`function` compiled for this processor at its first call, or loaded as an earlier process compiled it."""
    before = config.CACHE_DIR
    try:
        if FOLDER is not None:
            config.CACHE_DIR = str(FOLDER)  # read once, here
        return njit(function, nogil=True, cache=FOLDER is not None)
    finally:
        config.CACHE_DIR = before
