"""A promotion chain in memory that one change is made to, and then everything that binds the change made right again.

As in `forge.py` nothing of the verifier is used; the Merkle tree is written here once more, from RFC 6962. An untouched
chain comes out of `follow` byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rfc8785

from maker.forge import Run, bundle, load_key, sha256, tree_root

ORDER = ("doctor", "kernel", "nccl", "actor", "parity-32k", "parity-64k", "scale-2m")
STEMS = {"kernel": ("kernel-smoke", "kernel"), "nccl": ("nccl-smoke", "nccl")}
PLAN, PLAN_SEAL = "validation-plan.json", "attestations/plan.sigstore.json"


def record_of(stage: str) -> str:
    return f"{STEMS.get(stage, (stage, stage))[0]}.json"


def part_of(stage: str, part: str) -> str:
    return f"{STEMS.get(stage, (stage, stage))[1]}-{part}.json"


def four_of(stage: str) -> list[str]:
    return [record_of(stage), *(part_of(stage, part) for part in ("artifacts", "ranks", "validation"))]


def tree_of(stage: str) -> str:
    return f"artifacts/{stage}/"


def seal_of(stage: str) -> str:
    return f"attestations/{stage}.sigstore.json"


def proof_of(stage: str) -> str:
    return f"attestations/{stage}.log.json"


def leaf(raw: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + raw).digest()


def merkle(leaves: list[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + merkle(leaves[:half]) + merkle(leaves[half:])).digest()


def path(index: int, leaves: list[bytes]) -> list[str]:
    if len(leaves) == 1:
        return []
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    if index < half:
        return [*path(index, leaves[:half]), merkle(leaves[half:]).hex()]
    return [*path(index - half, leaves[half:]), merkle(leaves[:half]).hex()]


def growth(old: int, leaves: list[bytes], *, whole: bool = True) -> list[str]:
    if old == len(leaves):
        return [] if whole else [merkle(leaves).hex()]
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    if old <= half:
        return [*growth(old, leaves[:half], whole=whole), merkle(leaves[half:]).hex()]
    return [*growth(old - half, leaves[half:], whole=False), merkle(leaves[:half]).hex()]


@dataclass
class Chain(Run):
    """One evidence directory in memory."""

    def put(self, path: str, value: Any) -> None:
        self.files[path] = rfc8785.dumps(value)

    @property
    def stages(self) -> list[str]:
        return [stage for stage in ORDER if record_of(stage) in self.files]

    def payload(self, seal: str) -> bytes:
        return base64.b64decode(json.loads(self.files[seal])["dsseEnvelope"]["payload"])

    def drop(self, stage: str) -> None:
        """Remove every file of a stage."""
        own = {*four_of(stage), seal_of(stage), proof_of(stage)}
        for name in [n for n in self.files if n in own or n.startswith(tree_of(stage))]:
            del self.files[name]

    def execution(self, stage: str) -> str:
        return self.json(record_of(stage))["execution_id"]

    def redo_proof(self, stage: str) -> None:
        before = [self.payload(PLAN_SEAL), *(self.payload(seal_of(s)) for s in self.stages[: self.stages.index(stage)])]
        payloads = [*before, self.payload(seal_of(stage))]
        leaves, last = [leaf(raw) for raw in payloads], len(payloads) - 1
        self.put(
            proof_of(stage),
            {
                "schema": "mint2m.log-proof/v1",
                "payload_sha256": sha256(payloads[last]),
                "index": last,
                "head": {"size": len(leaves), "root": merkle(leaves).hex()},
                "inclusion": path(last, leaves),
                "consistency": growth(last, leaves),
            },
        )

    def sign_plan(self, key: str = "planner") -> None:
        """The planner's statement over the plan as it is now."""
        statement = json.loads(self.payload(PLAN_SEAL))
        statement["subject"] = [{"name": PLAN, "digest": {"sha256": sha256(self.files[PLAN])}}]
        statement["predicate"] |= {name: self.json(PLAN)[name] for name in ("claim_scope", "hardware_class")}
        self.put(PLAN_SEAL, bundle(rfc8785.dumps(statement), load_key(key)))

    def planned_as(self, change: dict[str, Any]) -> None:
        """The whole chain as it would be under a plan with these members: whatever names the plan names this one."""
        old = sha256(self.files[PLAN])
        self.put(PLAN, self.json(PLAN) | change)
        new = sha256(self.files[PLAN])
        self.sign_plan()
        for name in [name for name in self.files if name.startswith("artifacts/") or name.endswith("-ranks.json")]:
            raw = self.files[name].replace(old.encode(), new.encode())
            if raw == self.files[name]:
                continue
            self.files[name] = raw
            if name.endswith((".phases.json", ".step.json")):
                self._redo_phases(name)
            elif name.endswith(".jsonl"):
                self._redo_journal(name)
        for stage in self.stages:
            record = self.json(record_of(stage))
            self.put(record_of(stage), record | {name: change[name] for name in record.keys() & change.keys()})
            self.seal(stage, lambda statement: statement["predicate"].update(change))
        self.follow()

    def _redo_phases(self, name: str) -> None:
        """The chain of one rank's records in one computation."""
        document = self.json(name)
        seed = "\n".join(document[member] for member in ("case", "side", "validation_plan_sha256"))
        start = {"execution_id": document["execution_id"], "plan_sha256": sha256(seed.encode())}
        previous = sha256(rfc8785.dumps(start | {"rank": document["rank"]}))
        for record in document["phases"]:
            record["previous_sha256"] = previous
            previous = sha256(rfc8785.dumps(record))
        self.put(name, document)

    def _redo_journal(self, name: str) -> None:
        previous, lines = None, []
        for line in self.files[name].splitlines():
            raw = rfc8785.dumps(json.loads(line) | {"previous_sha256": previous})
            previous = sha256(raw)
            lines.append(raw + b"\n")
        self.files[name] = b"".join(lines)

    def seal(self, stage: str, change: Callable[[dict[str, Any]], None] | None = None, *, key: str = "release") -> None:
        """Sign the stage's four files as they are now, after what lies before them."""
        done = self.stages[: self.stages.index(stage)]
        payloads = [self.payload(PLAN_SEAL), *(self.payload(seal_of(s)) for s in done)]
        statement = json.loads(self.payload(seal_of(stage)))
        statement["subject"] = [
            {"name": name, "digest": {"sha256": sha256(self.files[name])}} for name in sorted(four_of(stage))
        ]
        statement["predicate"] |= {
            "execution_id": self.execution(stage),
            "plan_sha256": sha256(self.files[PLAN]),
            "parent": sha256(payloads[-1]) if done else None,
            "log": {"size": len(payloads), "root": merkle([leaf(raw) for raw in payloads]).hex()},
        }
        if change is not None:
            change(statement)
        self.put(seal_of(stage), bundle(rfc8785.dumps(statement), load_key(key)))

    def redo_tree(self, stage: str) -> None:
        """The stage's manifest of raw artifacts."""
        entries = self.entries(tree_of(stage))
        manifest = self.json(part_of(stage, "artifacts"))
        manifest |= {
            "files": entries,
            "file_count": len(entries),
            "total_bytes": sum(entry["size"] for entry in entries),
            "root_sha256": tree_root(entries),
        }
        self.put(part_of(stage, "artifacts"), manifest)

    def redo_ranks(self, stage: str) -> None:
        """The files that ranks name."""
        ranks = self.json(part_of(stage, "ranks"))
        for rank in ranks["ranks"]:
            rank["files"] = [self.ref(f["path"]) if f["path"] in self.files else f for f in rank["files"]]
        self.put(part_of(stage, "ranks"), ranks)

    def redo_record(self, stage: str, *, parent: bool = True) -> None:
        """Record and validation: every reference in them."""
        record = self.json(record_of(stage))
        record["validation_plan"] = self.ref(PLAN)
        record["ranks"], record["artifacts"] = (self.ref(part_of(stage, part)) for part in ("ranks", "artifacts"))
        done = self.stages[: self.stages.index(stage)]
        if parent and done and record["parent"] is not None:
            record["parent"] = {
                "stage": done[-1],
                "seal_sha256": sha256(self.payload(seal_of(done[-1]))),
                "validation_sha256": sha256(self.files[part_of(done[-1], "validation")]),
            }
        self.put(record_of(stage), record)
        self.redo_validation(stage)

    def redo_validation(self, stage: str) -> None:
        validation = self.json(part_of(stage, "validation"))
        record = self.json(record_of(stage))
        validation |= {
            "execution_id": record["execution_id"],
            "run_id": record["run_id"],
            "validation_plan_sha256": sha256(self.files[PLAN]),
            "record": self.ref(record_of(stage)),
            "ranks": self.ref(part_of(stage, "ranks")),
            "artifacts": self.ref(part_of(stage, "artifacts")),
        }
        self.put(part_of(stage, "validation"), validation)

    def follow(self, *, after: str = "", parent: bool = True) -> None:
        """Redo everything from the stage `after` on, that one included; all where it is empty."""
        for stage in self.stages[self.stages.index(after) if after else 0 :]:
            self.redo_tree(stage)
            self.redo_ranks(stage)
            self.redo_record(stage, parent=parent or stage != after)
            self.seal(stage)
            self.redo_proof(stage)

    def number(self, stage: str, name: str, value: float | None) -> None:
        """Give a number of record and validation another value."""
        for file in (record_of(stage), part_of(stage, "validation")):
            document = self.json(file)
            for item in document["numbers"]:
                if item["name"] == name:
                    item["value"] = value
            self.put(file, document)
