"""A backend without a model, for everything around an update: it goes through all phases on any CPU, in no time.

The rule: it can never be taken for an update. It writes no file, so no receipt can be made of it; it calls itself
`fake` where evidence names a communication backend, which no schema of ours allows; and it leaves out weights, adapter,
loss, gradient norm and optimizer steps, each of which the verifier requires. What it does do is real: pages in the
trainer's own store with an append that is undone and made again, a toy policy whose log-probs go backward once a
response, page gradients that are taken and released in reverse, a probe of the toy's gradient, one finalize, one step.

The toy: token t leaves the fixed row e(t) [D]; with c the mean of the prefix's rows, the next token's logits are
(c + e(t)) W, W [D, V].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer.comm.ledger import Ledger, Position, Tag
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.probe import GradientProbe, probe_gradient
from mint2m_trainer.prefix.layout import Layout
from mint2m_trainer.prefix.store import ChunkRows, MemoryRowStore, PageShape
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_verify import phases
from mint2m_verify.documents import PhaseEvidence
from mint2m_verify.elsewhere import HashedElsewhere

BACKEND = "fake"
VOCABULARY, WIDTH, LAYERS = 32, 4, 2

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOutcome:
    """A phase that went through; `files` is always empty."""

    evidence: PhaseEvidence
    files: tuple[str, ...] = ()
    hashed: tuple[HashedElsewhere, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """What happened so far on this rank."""

    appends_undone: int
    chunks_captured: int
    chunks_released: int
    backward_events: tuple[int, ...]
    finalized: int
    stepped: int
    probe: GradientProbe | None


class FakeUpdate:
    """The lifecycle of one rank; phases run once and in order, and a phase that failed is the last."""

    def __init__(self, inputs: RankInputs) -> None:
        profile = inputs.profile
        if len(inputs.rollout.responses) != profile.group_size:
            raise InstrumentError(f"{len(inputs.rollout.responses)} responses in a group of {profile.group_size}")
        self.phases = phases.expected_phases(profile, inputs.accumulation)
        self._inputs, self._ledger = inputs, Ledger()
        self._layout = Layout(chunk=profile.prefix.chunk_tokens, cp=inputs.world_size, rank=inputs.rank)
        self._next, self._failed = 0, False
        shape = PageShape(row_width=WIDTH, key_widths=(0,) * LAYERS, dtype=torch.float32, grad_dtype=torch.float32)
        self._store = MemoryRowStore(shape)
        generator = torch.Generator().manual_seed(5)
        self._rows = torch.randn(VOCABULARY, WIDTH, generator=generator)  # [V, D], fixed
        self._policy = torch.zeros(WIDTH, VOCABULARY, requires_grad=True)  # [D, V]
        self._undone = self._captured = self._released = self._finalized = self._stepped = 0
        self._events: list[int] = []
        self._probe: GradientProbe | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """What happened so far."""
        return Lifecycle(
            appends_undone=self._undone,
            chunks_captured=self._captured,
            chunks_released=self._released,
            backward_events=tuple(self._events),
            finalized=self._finalized,
            stepped=self._stepped,
            probe=self._probe,
        )

    def run(self, phase: str, progress: Progress = lambda _label, _done, _total: None) -> FakeOutcome:
        """Run the next phase.

        Raises:
            InstrumentError: it is not the next one, an earlier one failed, or the lifecycle does not add up.
        """
        if self._failed or self._next >= len(self.phases) or phase != self.phases[self._next]:
            due = "nothing" if self._failed or self._next >= len(self.phases) else self.phases[self._next]
            raise InstrumentError(f"phase {phase} is not due; {due} is")
        self._failed = True  # until the phase has returned
        self._ledger.record(Tag(phase=phase), "fake", 0)
        seen = self._seen(phase)
        progress(phase, 1, 1)
        self._failed, self._next = False, self._next + 1
        return FakeOutcome(evidence=seen)

    def position(self) -> Position | None:
        """The last collective that this rank would have come to."""
        return self._ledger.position

    def flight(self) -> None:
        """There are no collectives."""

    def close(self) -> None:
        """Drop everything; harmless twice."""
        self._failed = True
        self._store.close()

    def _seen(self, phase: str) -> PhaseEvidence:
        common = PhaseEvidence(collectives=self._ledger.summary().calls, ledger_sha256=self._ledger.digest())
        response = phases.response_of(phase)
        if response is not None:
            self._replay(response)
        elif phase == phases.CAPTURE_PREFIX:
            self._capture()
        elif phase == phases.PREFIX_BACKWARD:
            self._reverse()
        elif phase == phases.FINALIZE:
            self._finalize()
        elif phase == phases.OPTIMIZER_STEP:
            self._step()
        elif phase == phases.INITIALIZE:
            return PhaseEvidence(backend=BACKEND, collectives=common.collectives, ledger_sha256=common.ledger_sha256)
        return common

    def _own_rows(self, chunk: int) -> Tensor:
        """Rows of this rank's tokens of a chunk, [n, D]; n may be 0."""
        prompt = self._inputs.rollout.prompt_tokens
        span = self._layout.chunks(len(prompt) - 1)[chunk]
        share = self._layout.share(span)
        tokens = prompt[span.start : span.stop][share.local]
        return self._rows[torch.tensor([token % VOCABULARY for token in tokens], dtype=torch.int64)]

    def _capture(self) -> None:
        self._store.claim("fake", "fake")
        for span in self._layout.chunks(len(self._inputs.rollout.prompt_tokens) - 1):
            rows = ChunkRows(rows=(self._own_rows(span.index),) * LAYERS, keys=(None,) * LAYERS)
            before = self._store.witness()
            transaction = self._store.append(span.index, rows)
            if span.index == 0:  # undone once, so that undoing is part of every lifecycle
                self._store.pop(transaction)
                after = self._store.witness()
                if (after.rows, after.chunks, after.digest) != (before.rows, before.chunks, before.digest):
                    raise InstrumentError("an append that was undone left a trace")
                self._undone += 1
                self._store.append(span.index, rows)
            self._captured += 1

    def _replay(self, response: int) -> None:
        if response != len(self._events):
            raise InstrumentError(f"response {response} after {len(self._events)} others")
        tokens = [self._inputs.rollout.prompt_tokens[-1], *self._inputs.rollout.responses[response]]
        ids = torch.tensor([token % VOCABULARY for token in tokens], dtype=torch.int64)  # [R + 1]
        held = torch.arange(self._store.length)
        prefix = self._store.rows(LAYERS - 1, held).requires_grad_()  # [N, D]
        context = prefix.mean(0) if held.numel() else torch.zeros(WIDTH)  # [D]
        logits = (self._rows[ids[:-1]] + context) @ self._policy  # [R, V]
        logp = torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)  # [R]
        events: list[Tensor] = []
        logp.register_hook(events.append)
        (-logp.sum() * self._inputs.rollout.rewards[response]).backward()
        if len(events) != 1:
            raise InstrumentError(f"autograd came through response {response} {len(events)} times")
        if prefix.grad is not None:
            self._store.add_grad(LAYERS - 1, held, prefix.grad)
        self._events.append(len(events))

    def _reverse(self) -> None:
        for chunk in reversed(range(self._captured)):
            for layer in range(LAYERS):
                gradient = self._store.take_grad(layer, chunk)
                if not bool(gradient.isfinite().all()):
                    raise InstrumentError(f"chunk {chunk} layer {layer}: a gradient that is not finite")
            self._store.release(chunk)
            self._released += 1
        if self._store.length:
            raise InstrumentError(f"{self._store.length} rows were not released")

    def _finalize(self) -> None:
        if len(self._events) != self._inputs.profile.group_size or self._policy.grad is None:
            raise InstrumentError(f"finalize after {len(self._events)} of {self._inputs.profile.group_size} responses")
        self._finalized += 1
        self._probe = probe_gradient({"fake": self._policy.grad}, per_tensor=8, limit=8)

    def _step(self) -> None:
        if (self._finalized, self._stepped) != (1, 0) or self._policy.grad is None:
            raise InstrumentError(f"a step after {self._finalized} finalizes and {self._stepped} steps")
        with torch.no_grad():
            self._policy -= 0.1 * self._policy.grad
        self._policy.grad = None
        self._stepped += 1
