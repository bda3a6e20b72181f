"""What each phase leaves in the run directory, and its removal where the phase was not completed.

The rule: after a failure the run directory holds finished files of completed phases only, and never stepped weights:
an adapter or a checkpoint without the receipt that would bind it must not be there to be picked up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout, phases
from mint2m_verify.files import sync_directory

#: Files and directories of each phase that leaves any, relative to the run directory.
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    phases.MATERIALIZE: ("artifacts/adapter-before",),
    phases.FINALIZE: (layout.GRADIENT, layout.SCORES),
    phases.CHECKPOINT: ("adapter", layout.OPTIMIZER_AFTER, "checkpoint"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Paths, relative to the run directory, that were removed, and those that could not be."""

    removed: tuple[str, ...]
    stayed: tuple[str, ...]


def present(root: Path) -> frozenset[str]:
    """Outputs of any phase that lie below `root` now; asked before the phases, for they are somebody else's."""
    return frozenset(path for paths in OUTPUTS.values() for path in paths if os.path.lexists(root / path))


def discard(root: Path, phase: str, *, but: frozenset[str]) -> Discarded:
    """Remove what `phase` left below `root`, but for what was there before it."""
    removed, stayed = [], []
    for path in OUTPUTS.get(phase, ()):
        place = root / path
        if path in but or not os.path.lexists(place):
            continue
        try:
            if place.is_dir() and not place.is_symlink():
                # Its name goes first: whatever stops the removal, nobody finds a part of it under that name.
                doomed = place.with_name(f"{place.name}.partial-0")
                place.rename(doomed)
                shutil.rmtree(doomed)
            else:
                place.unlink()
            sync_directory(place.parent)
        except OSError:
            stayed.append(path)
        else:
            removed.append(path)
    return Discarded(removed=tuple(removed), stayed=tuple(stayed))
