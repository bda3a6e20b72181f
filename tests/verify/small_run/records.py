"""What the ranks of a small run say that they did, and the journal of what the run owned."""

from __future__ import annotations

import rfc8785

from small_run.parts import SOURCE, TIME, Json, adapter_digest, sha256
from small_run.update import Update


class Records(Update):
    """Evidence of every phase, chained by rank, and the ownership journal."""

    def _evidence(self, phase: str, rank: int) -> Json:
        world = self.recipe.world_size
        weights = sha256(b"weights of rank %d" % rank)
        common = {
            "collectives": 3,
            "ledger_sha256": sha256(f"ledger after {phase}".encode()),
            "peak_memory_bytes": 10**8 + rank,
        }
        if phase.startswith("grpo-"):
            g = int(phase[5:])
            seen = {
                "response": g,
                "response_tokens": len(self.responses[g]),
                "scored_tokens": len(self.responses[g]),
                "loss": self.shares[g],
                "clipped_low": self.scores["responses"][g]["clipped_low"],
                "clipped_high": self.scores["responses"][g]["clipped_high"],
                "max_ratio_deviation": self.deviations[g],
                "backward_calls": 1,
            }
            if self.recipe.kl_beta:
                seen["kl"] = sum(self.kls[g]) / len(self.kls[g])
            return {**seen, **common}
        rows = len(self.recipe.prompt) - 1
        # Each chunk's rows are dealt to within one, the first ranks take one more; the model has one layer.
        shares = [(min(rows - start, 8) + world - 1 - rank) // world for start in range(0, rows, 8)]
        identity = self.ref("inputs/runtime-identity.json")["sha256"]
        table: dict[str, Json] = {
            "bind": {"runtime_identity_sha256": identity, "source_sha256": SOURCE, "world_size": world},
            "initialize": {
                "backend": "gloo",
                "world_size": world,
                "context_parallel": world,
                "expert_parallel": world,
            },
            "materialize": {
                "weights_sha256": weights,
                "adapter_sha256": adapter_digest(self.before),
                "tensors": 9,
                "parameters": 900,
                "trainable_parameters": 40,
            },
            "capture-prefix": {
                "prompt_tokens": rows,
                "chunks": self.chunks,
                "page_rows": sum(shares),
                "page_bytes": sum(shares) * 64,
                "pages_sha256": sha256(b"pages"),
                "weights_sha256": weights,
                "forward_nonce": "ab" * 16,
            },
            "score-old": {"scored_tokens": sum(len(r) for r in self.responses), "weights_sha256": weights},
            "prefix-backward": {
                "chunks": self.chunks,
                "backward_calls": self.chunks,
                "rows_compared": sum(shares),
                "row_difference": 0,
                "gradient_pages_released": sum(share > 0 for share in shares),
            },
            "finalize": {
                "finalize_calls": 1,
                "gradient_norm": self.norm,
                "clip_coefficient": self.coefficient,
                "weights_sha256": weights,
            },
            "optimizer-step": {
                "optimizer_contract": self.profile["optimizer"],
                "optimizer_steps": 1,
                "gradients_zeroed": True,
                "adapter_sha256": adapter_digest(self.after),
            },
            "checkpoint": {"adapter_sha256": adapter_digest(self.after), "weights_sha256": weights, "tensors": 12},
        }
        return {**table[phase], **common}

    def _written(self, phase: str, rank: int) -> list[Json]:
        """Files that a rank wrote in a phase: rank 0 the artifacts, every rank its part of the checkpoint."""
        own = {
            "materialize": ["artifacts/adapter-before/adapter_model.safetensors"],
            "finalize": ["artifacts/gradient.safetensors", "artifacts/scores.json"],
            "checkpoint": ["adapter/adapter_model.safetensors", "artifacts/optimizer-after.safetensors"],
        }
        paths = own.get(phase, []) if rank == 0 else []
        part = f"checkpoint/__{rank}_0.distcp"
        if phase == "checkpoint" and (self.root / part).exists():
            paths = [*paths, part]
        return [self.ref(path) for path in paths]

    def _sessions(self) -> None:
        ranks = []
        for rank in range(self.recipe.world_size):
            records = [
                {
                    "sequence": number,
                    "phase": phase,
                    "started_at": TIME,
                    "ended_at": TIME,
                    "files": self._written(phase, rank),
                    "evidence": self._evidence(phase, rank),
                }
                for number, phase in enumerate(self.phases())
            ]
            place = {"node_ip": "127.0.0.1", "slot": rank}
            ranks.append(
                {
                    "rank": rank,
                    "world_size": self.recipe.world_size,
                    "actor": f"run-rank-{rank:04d}",
                    "actor_id": f"{rank + 1:032x}",
                    "pid": 100 + rank,
                    "placement": {
                        **{f"planned_{k}": v for k, v in place.items()},
                        **{f"observed_{k}": v for k, v in place.items()},
                        "observed_accelerator": "cpu",
                    },
                    "phases": records,
                    "cleanup": {"session_closed": True, "groups_destroyed": True, "actor_absent": True},
                }
            )
        ranks = self.edit("sessions", ranks)
        for entry in ranks:
            start = {
                "execution_id": self.recipe.execution_id,
                "plan_sha256": self.plan_sha256,
                "rank": entry["rank"],
            }
            previous = sha256(rfc8785.dumps(start))
            for record in entry["phases"]:
                record["previous_sha256"] = previous
                previous = sha256(rfc8785.dumps(record))
        document = {
            "schema": "mint2m.rank-sessions/v1",
            "plan_sha256": self.plan_sha256,
            "execution_id": self.recipe.execution_id,
            "ranks": ranks,
        }
        self.write_json("artifacts/rank-sessions.json", self.edit("chained", document))

    def _journal(self) -> None:
        ids = {f"run-rank-{rank:04d}": f"{rank + 1:032x}" for rank in range(self.recipe.world_size)}

        def owned(kind: str, name: str) -> Json:
            known = {"id": ids.get(name), "pid": None, "start_ticks": None, "node_ip": None}
            return {"kind": kind, "name": name, **known}

        names = [("ray", "local"), ("actor", "run-driver"), ("placement-group", "run-group")]
        names += [("actor", f"run-rank-{rank:04d}") for rank in range(self.recipe.world_size)]
        events: list[Json] = [{"event": "opened", "resource": None}]
        for kind, name in names:
            events += [{"event": event, "resource": owned(kind, name)} for event in ("intent", "created")]
        for kind, name in reversed(names):
            events += [{"event": event, "resource": owned(kind, name)} for event in ("released", "absent")]
        events.append({"event": "closed", "resource": None})
        events = self.edit("journal", events)
        previous, lines = None, []
        for number, event in enumerate(events):
            line = rfc8785.dumps(
                {
                    "schema": "mint2m.ownership-event/v1",
                    "sequence": number,
                    "previous_sha256": previous,
                    "time": TIME,
                    "plan_sha256": self.plan_sha256,
                    "execution_id": self.recipe.execution_id,
                    "detail": None,
                    **event,
                }
            )
            previous = sha256(line)
            lines.append(line + b"\n")
        self.write("ownership.jsonl", b"".join(lines))
