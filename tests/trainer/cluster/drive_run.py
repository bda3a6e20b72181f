"""`mint2m` with another backend: `python drive_run.py BACKEND ARGUMENTS…` behaves as `mint2m ARGUMENTS…`."""

from __future__ import annotations

import functools
import sys

import mint2m_trainer.run
from mint2m.__main__ import main

if __name__ == "__main__":
    mint2m_trainer.run.run = functools.partial(mint2m_trainer.run.run, backend=sys.argv[1])
    main(sys.argv[2:])
