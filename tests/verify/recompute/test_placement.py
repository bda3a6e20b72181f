"""Accelerators as ranks observed them: one each, and in a class of accelerators one at all, in a named image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_verify import layout
from mint2m_verify.documents import Deployment, Plan, RankSessions, RunProfile
from mint2m_verify.recompute.placement import check_placement

BASE = Path(__file__).parents[2] / "vectors" / "bases" / "run"


def faults(observed: tuple[str, str], *, hardware_class: str = "reference-cpu", image: str | None = None) -> list[str]:
    """Pointers of what is wrong, where the base's two ranks saw `observed`."""

    def read(kind: type, path: str):  # type: ignore[no-untyped-def]  # any document
        return kind.parse((BASE / path).read_bytes(), file=path, canonical_form=False)

    plan, sessions = read(Plan, layout.PLAN), read(RankSessions, layout.RANK_SESSIONS)
    where = replace(plan.deployment, hardware_class=hardware_class, image_digest=image)
    ranks = tuple(
        replace(session, placement=replace(session.placement, observed_accelerator=seen))
        for session, seen in zip(sessions.ranks, observed, strict=True)
    )
    check = check_placement(
        replace(plan, deployment=where),
        read(Deployment, layout.DEPLOYMENT),
        read(RunProfile, layout.PROFILE),
        replace(sessions, ranks=ranks),
    )
    return [str(finding.pointer) for finding in check]


SECOND = "/ranks/1/placement/observed_accelerator"


@pytest.mark.parametrize(
    ("observed", "options", "expected"),
    [
        (("cpu", "cpu"), {}, []),
        (("gpu-0", "gpu-1"), {}, []),
        (("gpu-0", "gpu-0"), {}, [SECOND]),
        (("gpu-0", "gpu-1"), {"hardware_class": "h20-4x8", "image": "sha256:" + "1" * 64}, []),
        (("gpu-0", "cpu"), {"hardware_class": "h20-4x8", "image": "sha256:" + "1" * 64}, [SECOND]),
        (("gpu-0", "gpu-1"), {"hardware_class": "h20-4x8"}, ["/deployment/image_digest"]),
    ],
)
def test_ranks_have_an_accelerator_each_and_an_image_is_named_where_there_are_any(
    observed: tuple[str, str], options: dict[str, str], expected: list[str]
) -> None:
    assert faults(observed, **options) == expected  # type: ignore[arg-type]
