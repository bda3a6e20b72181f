"""`DIR/watch/`: event files for TensorBoard, and a summary of all steps as Markdown and as one HTML page.

The rule: nothing here is evidence. The folder has a name of its own, no seal covers it, and the verifier says that it
did not look there. Each file appears whole or not at all; the event file of a step is written once, under a name that
sorts after those before it, which is how TensorBoard finds what is new.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from mint2m_trainer.online.step_numbers import GROUPS, StepNumbers, read_numbers
from mint2m_trainer.online.summary import html_page, markdown_page
from mint2m_verify.documents.training import TrainingPlan
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, found

FOLDER = "watch"
EVENTS = "tensorboard"

#: The columns of the live table, the widths of their values, and the words of its head.
_COLUMNS = (("row", 5), ("tried", 5), ("reward", 7), ("tokens", 7), ("loss", 9), ("KL", 8), ("clip", 6))
_LAST = (("grad norm", 9), ("time", 7))


class Watch:
    """The steps so far, in order."""

    def __init__(self, root: Path, plan: TrainingPlan) -> None:
        self._root, self._plan = root, plan
        self._place = root / FOLDER
        self._steps: list[StepNumbers] = []
        self._events = importlib.util.find_spec("tensorboard") is not None
        try:
            (self._place / EVENTS).mkdir(parents=True, exist_ok=True)
            for left in self._place.glob(".*"):  # of a process that was killed
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError as fault:
            raise FindingError(found("file.unwritable", file=str(self._place), actual=fault.strerror)) from fault

    def add(self, number: int) -> str:
        """Take the sealed step `number` in; its line of the live table."""
        numbers = read_numbers(self._root, number)
        self._steps.append(numbers)
        if self._events:
            self._write_events(numbers)
        return _line(numbers)

    def publish(self) -> None:
        """Write the summary of all that was taken in."""
        write_atomic(self._place / "summary.md", markdown_page(self._plan, self._steps, events=self._events).encode())
        write_atomic(self._place / "summary.html", html_page(self._plan, self._steps, events=self._events).encode())

    def _write_events(self, numbers: StepNumbers) -> None:
        place = self._place / EVENTS / f"events.out.tfevents.{numbers.step:010d}.mint2m"
        if place.exists():
            return
        from torch.utils.tensorboard import SummaryWriter

        try:
            with tempfile.TemporaryDirectory(prefix=".events-", dir=self._place) as folder:
                writer = SummaryWriter(log_dir=folder)
                for name, value in scalars(numbers):
                    writer.add_scalar(name, value, numbers.step, walltime=numbers.ended)
                writer.close()
                (made,) = Path(folder).iterdir()
                made.replace(place)
        except OSError as fault:
            raise FindingError(found("file.unwritable", file=str(place), actual=fault.strerror)) from fault


def scalars(numbers: StepNumbers) -> tuple[tuple[str, float], ...]:
    """What TensorBoard shows of a step, by tag."""
    drift = () if numbers.kl is None else (("loss/kl", numbers.kl),)
    return (
        ("reward/mean", numbers.reward),
        ("reward/of_all_tried", numbers.sampled),
        ("loss/loss", numbers.loss),
        *drift,
        ("loss/clipped_share", numbers.clipped),
        ("gradient/norm", numbers.gradient_norm),
        ("responses/mean_tokens", numbers.tokens),
        ("search/rows_tried", float(numbers.tried)),
        *((f"seconds/{name}", value) for name, value in zip(GROUPS, numbers.seconds, strict=True)),
    )


def head() -> str:
    """The head of the live table."""
    return "  ".join(f"{name:>{width}}" for name, width in (*_COLUMNS, *_LAST))


def _line(numbers: StepNumbers) -> str:
    drift = "none" if numbers.kl is None else f"{numbers.kl:.2e}"
    values = (
        ",".join(map(str, numbers.rows)),
        str(numbers.tried),
        f"{numbers.reward:+.3f}",
        f"{numbers.tokens:.1f}",
        f"{numbers.loss:.5f}",
        drift,
        f"{numbers.clipped:.1%}",
        f"{numbers.gradient_norm:.4g}",
        f"{numbers.total_seconds:.1f} s",
    )
    widths = (width for _, width in (*_COLUMNS, *_LAST))
    return "  ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
