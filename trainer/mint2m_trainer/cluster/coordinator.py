"""The run's named actor in its namespace: holds the claim on the namespace, the ranks' words of progress
and where they are.

A second driver of the same plan cannot make it, because its name is taken; so two executions of one plan never run in
one namespace at a time. It computes nothing.
"""

from __future__ import annotations

from mint2m_trainer.cluster.messages import Progress, Whereabouts


class Coordinator:
    """Made a Ray actor by the driver, before any rank."""

    def __init__(self, execution_id: str) -> None:
        self._execution_id = execution_id
        self._latest: dict[int, Progress] = {}
        self._where: dict[int, Whereabouts] = {}

    def execution_id(self) -> str:
        """Whose claim this is."""
        return self._execution_id

    def report(self, progress: Progress) -> None:
        """Take a rank's latest word; older ones are dropped."""
        self._latest[progress.rank] = progress

    def report_where(self, where: Whereabouts) -> None:
        """Take a rank's latest collective."""
        self._where[where.rank] = where

    def whereabouts(self) -> tuple[Whereabouts, ...]:
        """The latest collective of every rank that said one, by rank."""
        return tuple(self._where[rank] for rank in sorted(self._where))

    def progress(self) -> tuple[Progress, ...]:
        """The latest word of every rank that said anything, by rank."""
        return tuple(self._latest[rank] for rank in sorted(self._latest))
