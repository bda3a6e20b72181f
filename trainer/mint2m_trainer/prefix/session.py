"""One update's passes over the prefix: capture, score, replay, reverse, in that order; or capture, then sampling.

A session owns one rank's pages, their gradient and the kept decisions of one prompt under one set of weights.
Passes out of order, pages captured under other weights and pages changed behind its back are refused: each would
give a gradient of another function without any sign of it in losses or log-probs.

The conventional mode runs the same model without pages, each response over the whole sequence under plain
autograd. It is the baseline that `exact` must equal.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from mint2m_trainer.comm.collectives import collect_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.kernels import Kernels
from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import FreshChoice, Passage, Prefix, Tape
from mint2m_trainer.peft import tensor_name
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout, Places, Share, Span
from mint2m_trainer.prefix.reverse import ReverseReport, reverse_prefix
from mint2m_trainer.prefix.rows import ChunkRows, PageShape, PrefixError, RowStore, Witness
from mint2m_trainer.prefix.view import PrefixView
from mint2m_trainer.resume.passes import Keeping, KeptCapture, KeptChunk, KeptReverse
from mint2m_trainer.sampling.decode import Ground, Sampled, decode
from mint2m_verify.documents.sampling import SamplingParameters

Mode = Literal["exact", "detached", "conventional"]
Progress = Callable[[int, int], None]


class Stage(enum.IntEnum):
    """Where a session stands; it only moves forward."""

    NEW = 0
    CAPTURED = 1
    SCORING = 2
    REPLAYING = 3
    REVERSED = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLoss:
    """A response's loss on one rank.

    `total` is the weighted sum over this rank's tokens, on the graph; `tokens` [n, C] are per-token values to
    keep, detached, in columns that the caller knows.
    """

    total: Tensor
    tokens: Tensor


class LossOf(Protocol):
    """Turns this rank's log-probs into its part of the loss."""

    def __call__(self, logp: Tensor, local: slice) -> LocalLoss:
        """`logp` [n] are those of response tokens `local`; n may be 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One response after its backward: log-probs [R] and kept values [R, C] of all its tokens, on every rank."""

    logp: Tensor
    tokens: Tensor
    backward_calls: int


class Session:
    """See the module; one instance per prompt and set of weights."""

    def __init__(
        self,
        *,
        model: Callable[..., Tensor | None],
        inner: PrefixModel,
        comm: Comm,
        kernels: Kernels,
        layout: Layout,
        store: RowStore,
        decisions: Decisions,
        mode: Mode,
        prompt: Tensor,
        responses: Sequence[Tensor],
        weights: Callable[[], str],
        label: str = "policy",
        keeping: Keeping | None = None,
    ) -> None:
        """Bind a session.

        Args:
            model: what to call: the model or its DDP wrapper.
            inner: the model itself.
            prompt: [P] int64; responses: each [R] int64, R >= 1; none in a session that only samples.
            weights: the digest of the weights now; pages are valid under one value only.
            label: names the session's passes in the ledger.
            keeping: where capture and reverse keep their work, and go on from it; None keeps nothing.
        """
        if prompt.numel() < 1 or any(len(r) < 1 for r in responses):
            raise PrefixError("a session needs a prompt and responses of at least one token")
        self._model, self._inner, self._comm, self._kernels = model, inner, comm, kernels
        self._layout, self._store, self._decisions, self._mode = layout, store, decisions, mode
        self._prompt, self._responses = prompt, tuple(responses)
        self._weights, self._label, self._keeping = weights, label, keeping
        self._resumed = 0
        self._stage = Stage.NEW
        self._digest = self._pages = ""
        self._witness: Witness | None = None
        self._replayed: set[int] = set()

    @property
    def chunks(self) -> tuple[Span, ...]:
        """Spans of the prefix: all prompt tokens but the last, which is replayed with each response."""
        return () if self._mode == "conventional" else self._layout.chunks(self._prompt.numel() - 1)

    @property
    def witness(self) -> Witness:
        """The pages as they should be."""
        if self._witness is None:
            raise PrefixError("the prefix was not captured")
        return self._witness

    @property
    def resumed_chunks(self) -> int:
        """Chunks whose rows an earlier execution captured."""
        return self._resumed

    def pages_sha256(self) -> str:
        """SHA-256 over the SHA-256 of every captured row, by position, the same on every rank.

        Ranks exchange the digests of their rows and not the rows, so it says the same whatever the ranks hold.
        """
        return self._pages

    @torch.no_grad()
    def capture(self, progress: Progress = lambda _done, _total: None) -> Witness:
        """Run the prefix once, without autograd, and keep its rows.

        Raises:
            ProgressError: kept chunks are not what was committed.
        """
        self._enter({Stage.NEW}, Stage.CAPTURED)
        self._digest = self._weights()
        self._store.claim(self._label, self._digest)
        phase, total = f"{self._label}.capture", self._prompt.numel() - 1
        kept = None if self._keeping is None else KeptCapture(self._keeping.files, self._comm, phase)
        self._resumed = 0 if kept is None else kept.resume(len(self.chunks))
        pages = hashlib.sha256()
        for span in self.chunks:
            if span.index == self._resumed:
                progress(span.start, total)  # the rate is that of this execution's own work
            if kept is not None and span.index < self._resumed:
                chunk = kept.chunk(span.index)
                self._store.append(span.index, chunk.rows)
                self._decisions.restore(span.index, chunk.choices)
            else:
                self._capture_chunk(span, phase)
            leaves = self._store.chunk_leaves(span.index).to(self._prompt.device)  # [count, 32], of what is stored
            share = self._layout.share(span)
            every = collect_rows(leaves, share.counts, self._comm, Tag(phase=phase, chunk=span.index), "leaves")
            pages.update(every.cpu().numpy().tobytes())
            if span.index >= self._resumed:
                if kept is not None:
                    rows, choices = self._store.chunk_rows(span.index), self._decisions.chosen(span.index)
                    kept.commit(span.index, KeptChunk(rows=rows, choices=choices))
                progress(span.stop, total)
        self._pages = pages.hexdigest()
        self._witness = self._store.witness()
        return self._witness

    @torch.no_grad()
    def score(self, response: int) -> Tensor:
        """log p of each token of a response, [R] on every rank, without autograd."""
        self._enter({Stage.CAPTURED, Stage.SCORING}, Stage.SCORING)
        self._check()
        logp, share, first = self._forward(response, f"{self._label}.score", exact=False)
        return self._collect(logp, share, first, f"{self._label}.score")

    def sample(
        self,
        parameters: SamplingParameters,
        seeds: Sequence[int],
        progress: Progress = lambda _done, _total: None,
    ) -> tuple[Sampled, ...]:
        """Draw a response for each seed from the captured prefix, the same on every rank; the pages stay as they are.

        Raises:
            PrefixError: there are no pages, or they are not those of these weights.
            SamplingError: see `sampling.decode`.
        """
        self._enter({Stage.CAPTURED}, Stage.CAPTURED)
        if self._mode == "conventional":
            raise PrefixError("a conventional session has no pages to sample from")
        self._check()
        ground = Ground(
            inner=self._inner,
            comm=self._comm,
            kernels=self._kernels,
            layout=self._layout,
            prefix=self._view(exact=False),
            prompt=self._prompt,
            chunks=len(self.chunks),
            phase=f"{self._label}.sample",
        )
        return decode(ground, parameters, seeds, progress)

    def replay(self, response: int, loss_of: LossOf) -> ReplayResult:
        """Run a response with autograd and go backward; gradient lands in adapters and, if exact, in pages."""
        self._enter({Stage.CAPTURED, Stage.SCORING, Stage.REPLAYING}, Stage.REPLAYING)
        self._check()
        if response in self._replayed:
            raise PrefixError(f"response {response} was replayed already")
        self._replayed.add(response)
        phase = f"{self._label}.grpo-{response}"
        logp, share, first = self._forward(response, phase, exact=self._mode == "exact")
        counts = _response_counts(share, first)
        count, offset = counts[self._comm.rank], max(share.offset, first) - first
        local = logp[share.count - count : share.count]  # [n]
        loss = loss_of(local, slice(offset, offset + count))
        backwards: list[Tensor] = []  # one entry for each time that autograd came through the log-probs
        logp.register_hook(backwards.append)
        # Every rank goes backward through its whole graph, a ghost with a zero, so that collectives pair up.
        (loss.total + logp.sum() * 0.0).backward()
        columns = torch.cat([local.detach().unsqueeze(1), loss.tokens], dim=1)  # [n, 1 + C]
        every = collect_rows(columns, counts, self._comm, Tag(phase=phase), "tokens")
        return ReplayResult(logp=every[:, 0], tokens=every[:, 1:], backward_calls=len(backwards))

    def reverse(self, progress: Progress = lambda _done, _total: None) -> ReverseReport:
        """Carry the pages' gradient back through the prefix; exact only.

        Raises:
            PrefixError: a response is missing, or a recomputed row differs from its stored row.
        """
        self._enter({Stage.REPLAYING}, Stage.REVERSED)
        if self._mode != "exact":
            raise PrefixError(f"a {self._mode} session has no reverse pass")
        self._check()
        if len(self._replayed) != len(self._responses):
            raise PrefixError(f"{len(self._replayed)} of {len(self._responses)} responses were replayed")
        phase = f"{self._label}.reverse"
        kept = None
        if self._keeping is not None:
            kept = KeptReverse(
                self._keeping,
                self._comm,
                phase,
                chunks=self.chunks,
                store=self._store,
                decisions=self._decisions,
                gradients=self._gradients(),
            )
        return reverse_prefix(
            chunks=self.chunks,
            store=self._store,
            decisions=self._decisions,
            layout=self._layout,
            comm=self._comm,
            recompute=lambda span, tape: self._run_chunk(span, tape, phase, self._view(exact=True)),
            progress=progress,
            phase=phase,
            kept=kept,
        )

    def close(self) -> None:
        """Drop pages and decisions; harmless twice."""
        self._stage = Stage.CLOSED
        self._decisions.clear()
        self._store.close()

    def _enter(self, allowed: set[Stage], stage: Stage) -> None:
        if self._stage not in allowed:
            raise PrefixError(f"{stage.name.lower()} after {self._stage.name.lower()}")
        self._stage = stage

    def _check(self) -> None:
        """Pages must be those captured, and under these weights."""
        if self._store.witness() != self._witness:
            raise PrefixError("pages changed since they were captured")
        if self._weights() != self._digest:
            raise PrefixError("pages were captured under other weights")

    def _view(self, *, exact: bool) -> PrefixView:
        return PrefixView(self._store, exact=exact)

    def _gradients(self) -> Mapping[str, Tensor]:
        """This rank's adapter gradients by name, where backward adds to them."""
        return {
            tensor_name(adapter.projection, side): parameter.main_grad
            for adapter in self._inner.adapters()
            for side, parameter in (("A", adapter.A), ("B", adapter.B))
        }

    def _capture_chunk(self, span: Span, phase: str) -> None:
        tape = self._decisions.recorder(self._layout.share(span)) if self._mode == "exact" else FreshChoice()
        passage = self._run_chunk(span, tape, phase, self._view(exact=False))
        rows = tuple(layer.rows for layer in passage.layers)
        self._store.append(span.index, ChunkRows(rows=rows, keys=tuple(layer.keys for layer in passage.layers)))

    def _run_chunk(self, span: Span, tape: Tape, phase: str, prefix: Prefix) -> Passage:
        share = self._layout.share(span)
        passage = self._passage(share, phase, prefix, tape, rows=True)
        self._model(self._tokens(share, self._prompt[span.start : span.stop]), passage)
        return passage

    def _forward(self, response: int, phase: str, *, exact: bool) -> tuple[Tensor, Share, int]:
        """Local log-probs [T], the share they belong to, and the index in its span of the first response token."""
        tail = self._responses[response]
        if self._mode == "conventional":
            tokens, first, prefix = torch.cat([self._prompt, tail[:-1]]), self._prompt.numel() - 1, None
            start = 0
        else:
            tokens, first = torch.cat([self._prompt[-1:], tail[:-1]]), 0
            prefix, start = self._view(exact=exact), self._prompt.numel() - 1
        span = Span(index=len(self.chunks), start=start, stop=start + tokens.numel())
        share = self._layout.share(span)
        tape = self._decisions.responder(share, response)
        passage = self._passage(share, phase, prefix, tape, rows=False)
        targets = torch.cat([tokens[1:], tail[-1:]])
        logp = self._model(self._tokens(share, tokens), passage, self._tokens(share, targets))
        if logp is None:
            raise PrefixError("the model gave no log-probs")
        return logp, share, first

    def _collect(self, logp: Tensor, share: Share, first: int, phase: str) -> Tensor:
        counts = _response_counts(share, first)
        local = logp[share.count - counts[self._comm.rank] : share.count]  # [n]
        return collect_rows(local, counts, self._comm, Tag(phase=phase), "scores")

    def _passage(self, share: Share, phase: str, prefix: Prefix | None, tape: Tape, *, rows: bool) -> Passage:
        offset = share.offset if share.count else 0  # a ghost stands at the span's first position
        start = share.span.start + offset
        positions = torch.arange(start, start + share.rows, device=self._prompt.device)  # [T] int64
        return Passage(
            phase=phase,
            places=Places(layout=self._layout, prefix=share.span.start if prefix is not None else 0, share=share),
            positions=positions,
            rotation=self._inner.rotary.rotation(positions, self._inner.dtype),
            prefix=prefix,
            tape=tape,
            comm=self._comm,
            kernels=self._kernels,
            keep_rows=rows,
            rows_only=rows,
        )

    def _tokens(self, share: Share, tokens: Tensor) -> Tensor:
        """This rank's tokens of a span, [T]; a ghost repeats the span's first."""
        return tokens[share.local] if share.count else tokens[:1]


def page_shape(model: PrefixModel) -> PageShape:
    """The pages of one model."""
    spec = model.spec
    exact = torch.float64 if model.dtype == torch.float64 else torch.float32
    return PageShape(
        row_width=spec.row_width,
        key_widths=tuple(spec.index_width if spec.full_indexer(n) else 0 for n in range(spec.layers)),
        dtype=model.dtype,
        grad_dtype=exact,
    )


def _response_counts(share: Share, first: int) -> tuple[int, ...]:
    """Response tokens of each rank when the span's first `first` tokens are prompt."""
    counts, offset = [], 0
    for count in share.counts:
        counts.append(max(offset + count - max(offset, first), 0))
        offset += count
    return tuple(counts)
