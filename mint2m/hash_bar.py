"""The bar that shows hashing on a terminal; silent everywhere else, so that CI logs hold words only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with what is being done, bytes done and bytes in all.
Advance = Callable[[str, int, int], None]

_INTERVAL = 0.1  # seconds


@contextmanager
def hash_bar() -> Iterator[Advance | None]:
    """What to tell about hashing; None where nobody would see it. The bar is gone when the report is printed."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # imported late: a quiet verification should not pay for it
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("hash", total=None)

        told = 0.0

        def advance(_name: str, done: int, total: int) -> None:
            # Several threads tell of every block; the bar is drawn ten times a second, and must not hold them up.
            nonlocal told
            now = time.monotonic()
            if done >= total or now - told >= _INTERVAL:
                told = now
                progress.update(task, completed=done, total=total)

        yield advance
