"""Where ranks are: told while they work, and read when some of them are late.

The rule: every rank comes to the same collectives in the same order. So among ranks that have not finished, those with
the fewest calls hold up the others, and where all have the same number none of them is behind: it is the collective
itself that does not end. A rank tells from a thread of its own, since a rank that waits can say nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from mint2m_trainer.cluster.messages import Whereabouts
from mint2m_trainer.comm.ledger import Position

#: Seconds between two words; a diagnosis is this old at most.
INTERVAL_S = 1.0


class Teller:
    """Tells the coordinator where a rank is, whenever that has changed, until it is stopped."""

    def __init__(self, rank: int, position: Callable[[], Position | None], coordinator: Any) -> None:
        self._rank, self._position, self._coordinator = rank, position, coordinator
        self._told: Position | None = None
        self._ended = threading.Event()
        # Not waited for at exit: what it does must never keep a rank alive.
        threading.Thread(target=self._tell, name="whereabouts", daemon=True).start()

    def stop(self) -> None:
        """Say nothing more."""
        self._ended.set()

    def _tell(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            here = self._position()
            if here is None or here == self._told:
                continue
            self._told = here
            self._coordinator.report_where.remote(
                Whereabouts(
                    rank=self._rank,
                    calls=here.calls,
                    operation=here.operation,
                    phase=here.tag.phase,
                    chunk=here.tag.chunk,
                    layer=here.tag.layer,
                )
            )


def diagnosis(late: Sequence[int], words: Sequence[Whereabouts]) -> str:
    """Which of the `late` ranks hold up the others, and in which collective these wait; by the ranks' last words."""
    known = {word.rank: word for word in words if word.rank in late}
    if not known:
        return "none of them has said in which collective it is"
    silent = [rank for rank in late if rank not in known]
    fewest = min(word.calls for word in known.values())
    behind = silent or [rank for rank, word in known.items() if word.calls == fewest]
    ahead = [rank for rank in known if rank not in behind]
    if silent:
        return f"{_ranks(silent)} came to no collective; {_waiting(known, ahead)}"
    if ahead:
        return f"{_ranks(behind)} went no further than {collective(known[behind[0]])}; {_waiting(known, ahead)}"
    return f"{_ranks(behind)} in {collective(known[behind[0]])}"


def _waiting(known: dict[int, Whereabouts], ahead: Sequence[int]) -> str:
    furthest = max((known[rank] for rank in ahead), key=lambda word: word.calls)
    return f"{_ranks(ahead)} in {collective(furthest)}"


def collective(word: Whereabouts) -> str:
    """A collective in words."""
    places = [word.phase]
    places += [f"chunk {word.chunk}"] if word.chunk >= 0 else []
    places += [f"layer {word.layer}"] if word.layer >= 0 else []
    return f"collective {word.calls}, {word.operation} ({', '.join(places)})"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
