"""Where everything lies in a training directory; fixed here and never read from the evidence.

training-plan.json                       what was promised
inputs/profile.json, inputs/dataset.jsonl
steps/0000/step.json                     what the step drew, written before its update
steps/0000/run/                          the update, a run directory as `mint2m run` leaves it
training.json                            all steps, written when the last is done
attestations/training.sigstore.json      the statement over training.json
abandoned/                               steps that were stopped; no evidence, and not looked at
watch/                                   tables, curves and event files for people; the same
"""

from __future__ import annotations

import re

PLAN = "training-plan.json"
PROFILE = "inputs/profile.json"
DATASET = "inputs/dataset.jsonl"
STEPS = "steps"
TRAINING = "training.json"
STATEMENT = "attestations/training.sigstore.json"

#: What a training directory may hold beside its evidence.
NO_EVIDENCE = ("abandoned", "watch")

_STEP = re.compile(r"[0-9]{4}")


def step_folder(step: int) -> str:
    """The folder of a step."""
    return f"{STEPS}/{step:04d}"


def step_file(step: int) -> str:
    """What the step drew."""
    return f"{step_folder(step)}/step.json"


def run_folder(step: int) -> str:
    """The step's run directory."""
    return f"{step_folder(step)}/run"


def step_of(name: str) -> int | None:
    """The number of a step's folder by its own name, or None where no step is called so."""
    return int(name) if _STEP.fullmatch(name) is not None else None
