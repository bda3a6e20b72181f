"""The wheel of a source tree, built by hatchling in this environment without a network.

The rule: the same source and the same hatchling give the same bytes. The time in the wheel is the commit's, and the
build runs in isolated mode, so that nothing of the caller's directory or environment gets in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mint2m_verify.finding import FindingError, found
from mint2m_verify.release import layout


def build_wheel(source: Path, place: Path, *, version: str, epoch: int) -> Path:
    """Build the wheel of `source` into the empty directory `place`; raises `FindingError` (`release.build-failed`)."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place.resolve())],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    made = sorted(path.name for path in place.iterdir())
    want = layout.wheel_name(version).removeprefix(layout.WHEEL)
    if done.returncode != 0 or made != [want]:
        lines = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        actual = lines[-1][:300] if done.returncode and lines else ", ".join(made) or "nothing"
        raise FindingError(found("release.build-failed", expected=want, actual=actual))
    return place / want
