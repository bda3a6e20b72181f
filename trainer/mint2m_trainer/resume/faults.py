"""Why kept progress cannot be gone on from.

The rule: progress of another run is the operator's to mend, so it is an input; progress that is damaged, or that the
same inputs do not lead to again, is no fault of any input.
"""

from __future__ import annotations

from mint2m_trainer.faults import InputError


class ProgressError(Exception):
    """Kept progress is not what was committed, or this execution does not come to where it began."""


class OtherProgressError(InputError):
    """The folder keeps the progress of something else, or another process works on it."""
