"""Whether the cluster's head is still there, asked from the side while a run is on.

The rule: a head that has not answered for `LOST_S` is lost, and nothing is asked of it any more. Ray itself waits a
minute for its head, deaf to signals in most calls, and then ends the driver's process without a word; the run would
have neither a finding nor a failed receipt.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from mint2m_verify.finding import FindingError, found

#: Seconds between two looks.
INTERVAL_S = 2.0

#: Seconds in which a look must be answered.
ANSWER_S = 1.0

#: Seconds without an answer after which the head is lost. A cable that is out for less is no fault.
LOST_S = 10.0

#: How long Ray's own client asks a lost head again before it ends the process, in its words: longer than any take-down.
PATIENCE = ("RAY_gcs_rpc_server_reconnect_timeout_s", "600")


class Pulse:
    """Looks at `address` (HOST:PORT) now and then, as part of the driver's other waiting."""

    def __init__(
        self,
        address: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address, self._clock, self._sleep = address, clock, sleep
        self._looked = clock()
        self._silent: tuple[float, str] | None = None  # since when, and why
        self.lost = False

    def check(self, stage: str | None = None) -> None:
        """Raise `FindingError` (`ray.head-lost`) once the head has been silent for too long."""
        if self._clock() - self._looked >= INTERVAL_S:
            self._look()
            self._raise_if_lost(stage)

    def confirm(self, stage: str | None = None) -> None:
        """Wait until the head answers, or raise as `check` does.

        A lost head takes ranks along, and of those the driver may hear first.
        """
        self.reached()
        self._raise_if_lost(stage)

    def reached(self) -> bool:
        """Whether the head answers; waits until it does or is lost."""
        while not self.lost and not self._look():
            self._sleep(INTERVAL_S)
        return not self.lost

    def _look(self) -> bool:
        self._looked = self._clock()
        why = answer(self._address, ANSWER_S)
        if why is None:
            self._silent = None
            return True
        since = self._looked if self._silent is None else self._silent[0]
        self._silent = since, why
        self.lost = self.lost or self._looked - since >= LOST_S
        return False

    def _raise_if_lost(self, stage: str | None) -> None:
        if self.lost and self._silent is not None:
            since, why = self._silent
            expected = f"the head of the cluster at {self._address} to answer"
            actual = f"{why}, for {self._looked - since:.0f} s"
            raise FindingError(found("ray.head-lost", stage=stage, expected=expected, actual=actual))


def answer(address: str, seconds: float) -> str | None:
    """None where something listens at `address`; else why it does not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError) as fault:
        return str(fault)
    return None
