"""The statement over a finished training: training/v1, whose one subject is `training.json`.

The rule: the statement follows from the file and the plan, so it is made again and compared, byte for byte; nothing in
it can say more than the file does.
"""

from __future__ import annotations

from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.documents.training import TrainingPlan
from mint2m_verify.statement import STATEMENT_TYPE, TRAINING_TYPE
from mint2m_verify.training.places import TRAINING


def training_payload(training: bytes, plan: TrainingPlan, plan_sha256: str) -> bytes:
    """The payload that a training's signer signs."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": TRAINING, "digest": {"sha256": sha256_hex(training)}}],
            "predicateType": TRAINING_TYPE,
            "predicate": {
                "name": plan.name,
                "plan_sha256": plan_sha256,
                "steps": plan.steps,
                "hardware_class": plan.hardware_class,
            },
        }
    )
