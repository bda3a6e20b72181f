"""What a vector is: a name, a reason, a base, one change, and the finding and exit code that must come of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from maker.chain_forge import Chain
from maker.forge import HERE, KEY_OF_BASE, KEYS, Run, read_base
from maker.splice import Piece, apply, pieces
from maker.training_forge import Training

#: Directories beside the vectors that are none.
NOT_CASES = frozenset({"bases", "maker", KEYS.name, "__pycache__"})

Change = Callable[[Run], None]

#: The base that is a promotion chain and no run, and those that are online trainings.
CHAIN, TRAININGS = "chain", ("training", "training-carried", "training-prompts")

VERIFY_RUN = ("verify", "run", "{run}", "--key", "{keys}/{key}.pub")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`also` are ids that must be among the findings as well, as consequences or beside the first root."""

    name: str
    why: str
    base: str | None
    command: tuple[str, ...]
    exit: int
    finding: str | None
    also: tuple[str, ...]
    change: Change


CASES: dict[str, Case] = {}


def vector(
    name: str,
    why: str,
    finding: str | None,
    *,
    base: str | None = "run",
    command: tuple[str, ...] = VERIFY_RUN,
    exit: int = 1,
    also: tuple[str, ...] = (),
) -> Callable[[Change], Change]:
    """Register the function that makes the change of a vector."""

    def register(change: Change) -> Change:
        if name in CASES or name in NOT_CASES:
            raise ValueError(f"two vectors are called {name}")
        key = KEY_OF_BASE.get(base or "", "release")
        words = tuple(word.replace("{key}", key) for word in command)
        CASES[name] = Case(
            name=name, why=why, base=base, command=words, exit=exit, finding=finding, also=also, change=change
        )
        return change

    return register


def lay_out(case: Case) -> dict[str, bytes]:
    """The files of the vector's directory: `case.json`, `changes.json` for small differences, `files/…` for others."""
    run = _base(case.base)
    before = dict(run.files)
    case.change(run)
    removed = sorted(before.keys() - run.files.keys())
    changed = {path: raw for path, raw in run.files.items() if before.get(path) != raw}
    if not changed and not removed and not run.steps and not run.outside and case.command == VERIFY_RUN and case.exit:
        raise SystemExit(f"{case.name}: nothing was changed")
    document: dict[str, Any] = {
        "why": case.why,
        "base": case.base,
        "command": list(case.command),
        "exit": case.exit,
        "finding": case.finding,
    }
    if case.also:
        document["also"] = list(case.also)
    if removed:
        document["remove"] = removed
    document |= run.steps
    laid = {"case.json": (json.dumps(document, indent=2, ensure_ascii=True) + "\n").encode()}
    laid |= {f"outside/{path}": raw for path, raw in run.outside.items()}
    changes: dict[str, list[Piece]] = {}
    for path, raw in changed.items():
        small = pieces(before[path], raw) if path in before else None
        # A difference that is half the file says no more than the file.
        if small is not None and 2 * len(json.dumps(small)) < len(raw) and apply(before[path], small) == raw:
            changes[path] = small
        else:
            laid[f"files/{path}"] = raw
    if changes:
        laid["changes.json"] = _pretty(changes)
    return laid


def _base(name: str | None) -> Run:
    if name is None:
        return Run(base="", files={})
    kinds: dict[str, type[Run]] = {CHAIN: Chain, **dict.fromkeys(TRAININGS, Training)}
    return kinds.get(name, Run).of(name)


def _pretty(changes: dict[str, list[Piece]]) -> bytes:
    """One piece a line, so that a change can be read and reviewed."""
    files = []
    for path, list_ in sorted(changes.items()):
        lines = ",\n    ".join(json.dumps(piece) for piece in list_)
        files.append(f"  {json.dumps(path)}: [\n    {lines}\n  ]")
    return ("{\n" + ",\n".join(files) + "\n}\n").encode()


def write_case(name: str, files: dict[str, bytes]) -> None:
    """Replace the vector's directory."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    for path, raw in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(raw)


def committed() -> dict[str, dict[str, bytes]]:
    """The vectors as they lie in the source tree, by name."""
    found: dict[str, dict[str, bytes]] = {}
    for folder in sorted(path for path in HERE.iterdir() if path.is_dir() and path.name not in NOT_CASES):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        found[folder.name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return found


def check_engine() -> None:
    """Refuse to make vectors with a forger that changes what it should leave alone."""
    for base in KEY_OF_BASE:
        run = Run.of(base)
        run.follow()
        different = [path for path, raw in read_base(base).items() if run.files[path] != raw and path != _seal(base)]
        if different:
            raise SystemExit(f"{base}: following an untouched run changed {', '.join(different)}")


def check_chain() -> None:
    """The same of the chain, where every signature is Ed25519 and must come out as it was."""
    chain = Chain.of(CHAIN)
    chain.sign_plan()
    chain.follow()
    different = [path for path, raw in read_base(CHAIN).items() if chain.files[path] != raw]
    if different:
        raise SystemExit(f"{CHAIN}: following an untouched chain changed {', '.join(different)}")


def check_training() -> None:
    """The same of the training and of each of its runs."""
    for base in TRAININGS:
        training = Training.of(base)
        for step in training.numbers:
            for index in range(training.prompts(step)):
                training.edit_run(step, lambda _run: None, index=index)
        training.follow()
        different = [path for path, raw in read_base(base).items() if training.files[path] != raw]
        if different:
            raise SystemExit(f"{base}: following an untouched training changed {', '.join(different)}")


def _seal(base: str) -> str:
    """The P-256 seal of a real run has a random nonce; Ed25519 seals must come out the same."""
    return "attestations/seal.sigstore.json" if base == "run-one-rank" else ""
