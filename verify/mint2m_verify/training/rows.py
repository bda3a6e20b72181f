"""A dataset: JSON lines, one `training-row` each, in the order in which they are trained on."""

from __future__ import annotations

from mint2m_verify.documents.training import TrainingRow
from mint2m_verify.finding import FindingError, found

#: A dataset longer than this is read whole all the same, so it is refused.
DATASET_LIMIT = 1 << 30


def read_rows(raw: bytes, *, file: str) -> tuple[TrainingRow, ...]:
    """Every row; lines may have any spelling, since people write them.

    Raises:
        FindingError: `json.*` or `schema.*` at `FILE:LINE`, `training.dataset-empty`.
    """
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows = tuple(
        TrainingRow.parse(line, file=f"{file}:{number}", canonical_form=False)
        for number, line in enumerate(lines, start=1)
    )
    if not rows:
        raise FindingError(found("training.dataset-empty", file=file))
    return rows
