"""The steps of each stage's ranks, by label: known to the driver without what the ranks import."""

from __future__ import annotations

from mint2m_verify.chain.cases import COMPUTATIONS

COLLECTIVES = ("collectives",)
ACTOR = ("materialize",)
PARITY = tuple(f"{case}.{side}" for case, side in COMPUTATIONS)
