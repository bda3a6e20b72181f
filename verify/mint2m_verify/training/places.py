"""Where everything lies in a training directory; fixed here and never read from the evidence.

training-plan.json                       what was promised
inputs/profile.json, inputs/dataset.jsonl
steps/0000/step.json                     what the step drew, written before its update
steps/0000/gradient-0000/ and so on      the runs of all prompts but the last, where a step has several; no updates
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
_GRADIENT = re.compile(r"gradient-([0-9]{4})")


def step_folder(step: int) -> str:
    """The folder of a step."""
    return f"{STEPS}/{step:04d}"


def step_file(step: int) -> str:
    """What the step drew."""
    return f"{step_folder(step)}/step.json"


def run_folder(step: int) -> str:
    """The step's run directory: that of its last prompt, which takes the step."""
    return f"{step_folder(step)}/run"


def prompt_folder(step: int, index: int, prompts: int) -> str:
    """The run directory of one prompt of a step; of all but the last it holds a gradient and no update."""
    return run_folder(step) if index == prompts - 1 else f"{step_folder(step)}/gradient-{index:04d}"


def gradient_of(name: str) -> int | None:
    """The prompt whose gradient a folder of a step holds, by the folder's own name; None where none is called so."""
    match = _GRADIENT.fullmatch(name)
    return None if match is None else int(match[1])


def step_of(name: str) -> int | None:
    """The number of a step's folder by its own name, or None where no step is called so."""
    return int(name) if _STEP.fullmatch(name) is not None else None
