"""An online training in memory that one change is made to, and then everything that binds the change made right again.

As in `forge.py` nothing of the verifier is used. A step's run is a run: its nonce is the digest of the step's file, its
names carry the nonce's first characters, and its seal is what the next step names as its parent. An untouched training
comes out of `follow` byte for byte.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rfc8785

from maker.forge import DEPLOYMENT, SEAL, Run, bundle, load_key, sha256

PLAN, TRAINING = "training-plan.json", "training.json"
STATEMENT = "attestations/training.sigstore.json"
DATASET, PROFILE = "inputs/dataset.jsonl", "inputs/profile.json"

#: Characters of the nonce's digest that names of a run carry.
_NAMED = 16


def step_file(step: int) -> str:
    return f"steps/{step:04d}/step.json"


def run_folder(step: int) -> str:
    return f"steps/{step:04d}/run/"


def gradient_folder(step: int, index: int) -> str:
    """The run of a prompt that is not its step's last."""
    return f"steps/{step:04d}/gradient-{index:04d}/"


@dataclass
class Training(Run):
    """One training directory in memory."""

    def put(self, path: str, value: Any) -> None:
        self.files[path] = rfc8785.dumps(value)

    @property
    def numbers(self) -> list[int]:
        return sorted(int(path.split("/")[1]) for path in self.files if path.endswith("/step.json"))

    def prompts(self, step: int) -> int:
        """Runs of a step, one a prompt."""
        start = f"steps/{step:04d}/"
        return len({path.split("/")[2] for path in self.files if path.startswith(start)} - {"step.json"})

    def folder(self, step: int, index: int | None) -> str:
        """Of the run of one prompt; None is the last one, which takes the step."""
        last = index is None or index == self.prompts(step) - 1
        return run_folder(step) if last or index is None else gradient_folder(step, index)

    def run(self, step: int, index: int | None = None) -> Run:
        """A step's run, to change; `put_run` puts it back."""
        folder = self.folder(step, index)
        inside = {p.removeprefix(folder): raw for p, raw in self.files.items() if p.startswith(folder)}
        return Run(base=f"{self.base}/{folder.rstrip('/')}", files=inside)

    def put_run(self, step: int, run: Run, index: int | None = None) -> None:
        folder = self.folder(step, index)
        for path in [path for path in self.files if path.startswith(folder)]:
            del self.files[path]
        self.files |= {folder + path: raw for path, raw in run.files.items()}

    def edit_run(self, step: int, change: Callable[[Run], None], *, index: int | None = None) -> None:
        """Change a step's run and make right again what binds the change inside it."""
        run = self.run(step, index)
        change(run)
        run.follow()
        self.put_run(step, run, index)

    def seal(self, step: int, index: int | None = None) -> str:
        """The digest of the payload of the seal of a step's run."""
        document = json.loads(self.files[self.folder(step, index) + SEAL])
        return sha256(base64.b64decode(document["dsseEnvelope"]["payload"]))

    def left(self, step: int) -> str:
        """The root digest of the adapter that a step left."""
        root: str = json.loads(self.files[f"{run_folder(step)}artifacts/adapter-manifest.json"])["root_sha256"]
        return root

    # Making right again what binds a change, from the plan on

    def follow(self, *, after: str = "") -> None:
        """Redo plan digests, nonces, parents and policies of all steps, then the training's file and statement."""
        for place, step in enumerate(self.numbers):
            document = self.json(step_file(step))
            document["plan_sha256"] = sha256(self.files[PLAN])
            if place:
                document["parent"] = self.seal(self.numbers[place - 1])
            self.put(step_file(step), document)
            self.redo_nonce(step)
        self.redo_training()

    def redo_nonce(self, step: int) -> None:
        """The runs as they would be had they been planned for the step's file as it is now."""
        prompts = self.prompts(step)
        for index in range(prompts):
            self._renamed(step, index, prompts)
            if index:
                self._on_top(step, index)

    def _on_top(self, step: int, index: int) -> None:
        """The run names the seal of the one before, as that is now."""
        deployment, seal = self.run(step, index).json(DEPLOYMENT), self.seal(step, index - 1)
        start = (deployment.get("accumulation") or {}).get("gradient")
        if start is not None and start["seal_sha256"] != seal:
            start["seal_sha256"] = seal
            self.edit_run(step, lambda run: run.put(DEPLOYMENT, deployment), index=index)

    def _renamed(self, step: int, index: int, prompts: int) -> None:
        run = self.run(step, index)
        plan = run.json("plan.json")
        nonce = sha256(self.files[step_file(step)])
        old, new = plan["nonce_sha256"], sha256((nonce if prompts == 1 else f"{nonce}-{index}").encode())
        if old == new:
            return
        for path, raw in run.files.items():
            if path.endswith((".json", ".jsonl")):
                raw = raw.replace(old.encode(), new.encode())
                run.files[path] = raw.replace(old[:_NAMED].encode(), new[:_NAMED].encode())
        run.follow()
        self.put_run(step, run, index)

    def redo_training(self) -> None:
        self.put(
            TRAINING,
            {
                "schema": "mint2m.training/v1",
                "plan": self.ref(PLAN),
                "steps": [
                    {
                        "step": self.ref(step_file(step)),
                        "seal_sha256": self.seal(step),
                        "policy_sha256": self.left(step),
                    }
                    for step in self.numbers
                ],
            },
        )
        self.redo_statement()

    def redo_statement(self, change: Callable[[dict[str, Any]], None] | None = None, *, key: str = "release") -> None:
        plan = self.json(PLAN)
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": TRAINING, "digest": {"sha256": sha256(self.files[TRAINING])}}],
            "predicateType": "urn:mint2m:predicate:training:v1",
            "predicate": {
                "name": plan["name"],
                "plan_sha256": sha256(self.files[PLAN]),
                "steps": plan["steps"],
                "hardware_class": plan["hardware_class"],
            },
        }
        if change is not None:
            change(statement)
        self.put(STATEMENT, bundle(rfc8785.dumps(statement), load_key(key)))
