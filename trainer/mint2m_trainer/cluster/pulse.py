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

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._answered = self._looked = clock()
        self.lost = False

    def check(self, stage: str | None = None) -> None:
        """Raise `FindingError` (`ray.head-lost`) once the head has been silent for too long."""
        now = self._clock()
        if now - self._looked < INTERVAL_S:
            return
        self._looked = now
        silent = answer(self._address, ANSWER_S)
        if silent is None:
            self._answered = self._clock()
        elif now - self._answered >= LOST_S:
            self.lost = True
            expected = f"the head of the cluster at {self._address} to answer"
            actual = f"{silent}, for {now - self._answered:.0f} s"
            raise FindingError(found("ray.head-lost", stage=stage, expected=expected, actual=actual))


def answer(address: str, seconds: float) -> str | None:
    """None where something listens at `address`; else why it does not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError) as fault:
        return str(fault)
    return None
