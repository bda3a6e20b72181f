"""`mint2m` that is killed once a thing was created and before the journal says so.

`python drive_unjournalled.py KIND NUMBER ARGUMENTS…` behaves as `mint2m ARGUMENTS…` until the NUMBER-th `created` line
of KIND would be written.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from mint2m.__main__ import main
from mint2m_trainer.cluster.journal import Journal

if __name__ == "__main__":
    kind, left = sys.argv[1], int(sys.argv[2])
    write = Journal.write

    def until(journal: Journal, event: Any, about: Any = None, **named: Any) -> None:
        global left
        if event == "created" and about.kind == kind:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        write(journal, event, about, **named)

    Journal.write = until  # type: ignore[method-assign]
    main(sys.argv[3:])
