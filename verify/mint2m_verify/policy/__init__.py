"""Trust policies: read, refused where they say nothing, and applied to signatures that were verified.

`reading` makes the anchor, `soundness` refuses what means nothing, `judge` counts signatures, `assertions` holds what
was asserted against what was asked for. Nothing here opens a file of the evidence. A name is imported when it is asked
for: whoever verifies with a key needs the anchor's type and nothing else of this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mint2m_verify.policy.anchor import PolicyAnchor
    from mint2m_verify.policy.assertions import check_asserted, check_grant, check_version
    from mint2m_verify.policy.judge import Accepted, check_required, judge_artifact, judge_signatures
    from mint2m_verify.policy.reading import read_policy
    from mint2m_verify.policy.roles import FILE, RELEASE, TRAINING_RUN, Role

_HOMES = {
    "anchor": ("PolicyAnchor",),
    "assertions": ("check_asserted", "check_grant", "check_version"),
    "judge": ("Accepted", "check_required", "judge_artifact", "judge_signatures"),
    "reading": ("read_policy",),
    "roles": ("FILE", "RELEASE", "TRAINING_RUN", "Role"),
}

__all__ = [
    "FILE",
    "RELEASE",
    "TRAINING_RUN",
    "Accepted",
    "PolicyAnchor",
    "Role",
    "check_asserted",
    "check_grant",
    "check_required",
    "check_version",
    "judge_artifact",
    "judge_signatures",
    "read_policy",
]


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
