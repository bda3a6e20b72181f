"""A small policy and its sessions in any layout, for the tests of this folder, in their own and in rank processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mint2m_trainer import evidence
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.kernels import Kernels, choose_kernels
from mint2m_trainer.model.glm import Bounds
from mint2m_trainer.model.policy import Policy, PolicySource, materialize
from mint2m_trainer.model.seam import Tape
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout, Share
from mint2m_trainer.prefix.session import LocalLoss, Session, page_shape
from mint2m_trainer.prefix.store import MappedRowStore, MemoryRowStore
from mint2m_trainer.resume.passes import Keeping

PROMPT, RESPONSES = 37, (5, 1, 3)
FAMILIES = ("attention", "dense", "shared", "expert", "unembed")
RANK, ALPHA = 2, 4.0

#: A choice by (pass, kind, layer, position): pass is -1 for the prefix or the response's number.
Choices = dict[tuple[int, str, int, int], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a session is laid out on its ranks."""

    chunk: int = 8
    page_rows: int = 8
    route: str = "fetch"
    store: str = "memory"
    decisions: str = "store"


def policy(
    comm: Comm,
    snapshot: Path,
    dtype: str = "float64",
    *,
    expert_tokens: int = 4096,
    families: tuple[str, ...] = FAMILIES,
    angle_dtype: str = "float32",
) -> Policy:
    """The small model with an adapter that does something: B is drawn by name as A is."""
    made = materialize(
        PolicySource(
            snapshot=snapshot,
            adapter=None,
            families=families,
            rank=RANK,
            alpha=ALPHA,
            seed=3,
            dtype=dtype,
            angle_dtype=angle_dtype,  # type: ignore[arg-type]
            bounds=Bounds(head_tokens=2, expert_tokens=expert_tokens),
        ),
        comm,
    )
    with torch.no_grad():
        for name, parameter in made.trainable():
            if "lora_B" in name:
                seed = sum(name.encode()) * 7919 + len(name)
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.copy_(noise * 0.1)
    return made


def token_ids(prompt: int = PROMPT, responses: tuple[int, ...] = RESPONSES) -> tuple[Tensor, list[Tensor]]:
    """The prompt and the responses."""
    generator = torch.Generator().manual_seed(17)

    def draw(count: int) -> Tensor:
        return torch.randint(0, 64, (count,), generator=generator)

    return draw(prompt), [draw(count) for count in responses]


def session(
    made: Policy,
    comm: Comm,
    mode: str,
    *,
    prompt: int = PROMPT,
    responses: tuple[int, ...] = RESPONSES,
    cut: Cut | None = None,
    decisions: Decisions | None = None,
    kernels: Kernels | None = None,
    keeping: Keeping | None = None,
    tokens: tuple[Tensor, list[Tensor]] | None = None,
    **change: object,
) -> Session:
    """A session of `made` over `tokens`, drawn ones where None; members of `cut` may be given by name."""
    laid = Cut(**change) if cut is None else cut  # type: ignore[arg-type]
    given, tails = token_ids(prompt, responses) if tokens is None else tokens
    stores = {"memory": MemoryRowStore, "mapped": MappedRowStore}
    return Session(
        model=made.wrapped,
        inner=made.inner,
        comm=comm,
        kernels=choose_kernels(torch.device("cpu"), made.inner.dtype, 6) if kernels is None else kernels,
        layout=Layout(chunk=laid.chunk, cp=comm.size, rank=comm.rank, route=laid.route),  # type: ignore[arg-type]
        store=stores[laid.store](page_shape(made.inner), page_rows=laid.page_rows),
        decisions=Decisions(laid.decisions) if decisions is None else decisions,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        prompt=given,
        responses=tails,
        weights=evidence.weights_witness(made.inner),
        keeping=keeping,
    )


def weighted(logp: Tensor, local: slice) -> LocalLoss:
    """A loss that weighs tokens differently, so that a misplaced token shows."""
    weight = torch.arange(local.start + 1, local.stop + 1, dtype=logp.dtype)
    return LocalLoss(total=(logp * weight).sum(), tokens=torch.stack([weight], dim=1))


def gradients(made: Policy, run: Session, mode: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """All gradients by name after a whole pass, and the log-probs of each response."""
    run.capture()
    logp = [run.replay(response, weighted).logp for response in range(len(run._responses))]
    if mode == "exact":
        run.reverse()
    made.wrapped.finish_grad_sync()
    return dict(made.gradient_tensors("test")), logp


def relative(candidate: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """L2 of the difference over L2 of the reference, all tensors together."""
    assert candidate.keys() == reference.keys()
    assert reference
    difference = sum(float((candidate[name].double() - reference[name].double()).square().sum()) for name in reference)
    return (difference / sum(float(value.double().square().sum()) for value in reference.values())) ** 0.5


class _Watched:
    """A tape that does what another does and writes down what was chosen, by position."""

    def __init__(self, inner: Tape, share: Share, number: int, noted: Choices) -> None:
        self._inner, self._share, self._number, self._noted = inner, share, number, noted

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return self._note("rows", layer, self._inner.rows(layer, choose))

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return self._note("experts", layer, self._inner.experts(layer, choose))

    def _note(self, kind: str, layer: int, ids: Tensor) -> Tensor:
        first = self._share.span.start + self._share.offset
        for n, chosen in enumerate(ids[: self._share.count].tolist()):
            self._noted[self._number, kind, layer, first + n] = tuple(chosen)
        return ids


class _Forced:
    """A tape that repeats choices made in another layout; a ghost looks at its span's first row."""

    def __init__(self, share: Share, number: int, given: Choices) -> None:
        self._share, self._number, self._given = share, number, given

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        chosen = self._take("rows", layer)
        if not chosen:
            return torch.tensor([[self._share.span.start]])
        width = max(len(ids) for ids in chosen)
        return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in chosen])

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        # A ghost goes where it would have gone, and so does what a capture leaves out: the prefix in the last layer.
        ids = choose().clone()
        for n, given in enumerate(self._take("experts", layer)):
            if given:
                ids[n] = torch.tensor(given)
        return ids

    def _take(self, kind: str, layer: int) -> list[tuple[int, ...]]:
        first = self._share.span.start + self._share.offset
        keys = [(kind, layer, first + n) for n in range(self._share.count)]
        # A conventional pass goes over the prefix as well.
        return [self._given.get((self._number, *key)) or self._given.get((-1, *key), ()) for key in keys]


class Watching(Decisions):
    """Decisions whose choices, and those of the responses, can be looked at afterwards."""

    def __init__(self, mode: str = "store") -> None:
        super().__init__(mode)  # type: ignore[arg-type]
        self.noted: Choices = {}

    def recorder(self, share: Share) -> Tape:
        return _Watched(super().recorder(share), share, -1, self.noted)

    def responder(self, share: Share, response: int) -> Tape:
        return _Watched(super().responder(share, response), share, response, self.noted)


class Forcing(Decisions):
    """Decisions that were made in another layout."""

    def __init__(self, given: Choices) -> None:
        super().__init__("rescore")
        self._given = given

    def recorder(self, share: Share) -> Tape:
        return _Forced(share, -1, self._given)

    def replayer(self, share: Share) -> Tape:
        return _Forced(share, -1, self._given)

    def responder(self, share: Share, response: int) -> Tape:
        return _Forced(share, response, self._given)
