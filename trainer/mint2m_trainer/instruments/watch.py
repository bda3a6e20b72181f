"""All instruments on one model at once, and the files that they leave.

The rule: watching is asked for, changes no number, and what it saw is written only when the update has its gradient. A
rank whose ids disagree with the others', or whose log-probs are not those of its logits, stops the update there.

Files of rank N: `trace-N.json`, `routing-N.safetensors`, `watch-N.json` (the audit and, on rank 0, the probe).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.instruments.audit import HeadAuditor, LogprobAudit
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.probe import GradientProbe, probe_gradient
from mint2m_trainer.instruments.routing import RoutingRecorder, replicated, write_routing
from mint2m_trainer.instruments.trace import LayerTracer
from mint2m_trainer.instruments.trace_file import write_trace
from mint2m_trainer.model.glm import PrefixModel
from mint2m_verify.canonical import JsonValue, canonical
from mint2m_verify.files import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Bounds of what is kept, and how far an audited log-prob may be off."""

    stride: int = 1
    trace_numbers: int = 4_000_000
    routing_bytes: int = 256 << 20
    rows_per_tile: int = 4
    probe_elements: int = 8
    probe_limit: int = 1 << 20
    audit_bound: float = 1e-4


class Watch:
    """Attached from the moment it is made until `finish` or `close`."""

    def __init__(self, model: PrefixModel, comm: Comm, directory: Path, bounds: Watched | None = None) -> None:
        """`directory` is there already, and may be shared by all ranks."""
        self._comm, self._directory, self._bounds = comm, directory, bounds or Watched()
        self._tracer = LayerTracer(stride=self._bounds.stride, limit=self._bounds.trace_numbers)
        self._recorder = RoutingRecorder(limit_bytes=self._bounds.routing_bytes)
        self._auditor = HeadAuditor(rows_per_tile=self._bounds.rows_per_tile)
        self._hooks = ExitStack()
        for instrument in (self._tracer, self._recorder, self._auditor):
            self._hooks.enter_context(instrument.attached(model))

    def finish(self, gradients: Mapping[str, Tensor], phase: str) -> None:
        """Come off the model, hold the ranks against each other and write what was seen; a collective.

        Args:
            gradients: the whole finalized gradient by global name, which every rank has.
            phase: in whose name the ledger notes the comparison.

        Raises:
            InstrumentError: ranks hold different gradients, or an audited log-prob is off.
        """
        self.close()
        probe = probe_gradient(gradients, per_tensor=self._bounds.probe_elements, limit=self._bounds.probe_limit)
        values = next(iter(gradients.values())).new_tensor([tensor.norm for tensor in probe.tensors])
        apart = replicated(values, self._comm, Tag(phase=phase), "probe")
        if apart > 0:
            raise InstrumentError(f"ranks hold gradients whose norms are {apart:g} apart")
        audit = self._auditor.result
        if audit.tokens:  # a rank that only ever had ghosts scored nothing
            audit.require(self._bounds.audit_bound)
        write_trace(self._directory, self._tracer.trace)
        write_routing(self._directory, self._recorder.routing)
        value: dict[str, JsonValue] = {"rank": self._comm.rank, "audit": _audit(audit)}
        if self._comm.rank == 0:
            value["probe"] = _probe(probe)
        write_atomic(self._directory / f"watch-{self._comm.rank:04d}.json", canonical(value))

    def close(self) -> None:
        """Come off the model; harmless twice."""
        self._hooks.close()


def _audit(audit: LogprobAudit) -> JsonValue:
    return {"tokens": audit.tokens, "worst": audit.worst, "phase": audit.phase, "position": audit.position}


def _probe(probe: GradientProbe) -> JsonValue:
    tensors: list[JsonValue] = [
        {
            "name": tensor.name,
            "elements": tensor.elements,
            "norm": tensor.norm,
            "positions": list(tensor.positions),
            "values": list(tensor.values),
        }
        for tensor in probe.tensors
    ]
    return {"elements": probe.elements, "looked_at": probe.looked_at, "tensors": tensors}
