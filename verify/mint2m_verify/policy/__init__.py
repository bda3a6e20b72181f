"""Trust policies: read, refused where they say nothing, and applied to signatures that were verified.

`reading` makes the anchor, `soundness` refuses what means nothing, `judge` counts signatures, `assertions` holds what
was asserted against what was asked for. Nothing here opens a file of the evidence.
"""

from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.assertions import check_asserted, check_grant, check_version
from mint2m_verify.policy.judge import Accepted, check_required, judge_artifact, judge_signatures
from mint2m_verify.policy.reading import read_policy
from mint2m_verify.policy.roles import FILE, RELEASE, TRAINING_RUN, Role

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
