"""Decoding: all responses of a group, one token each, until every one has stopped.

The responses are spread over the ranks like the tokens of a chunk and stay where they are; each rank draws the tokens
of its own and every rank hears of all. The rule: which token comes next depends on the response's own tokens, its
seed and the weights, and on nothing that another response or another layout does, so a response is drawn alike alone
or in company, up to the rounding of the matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.comm.packing import collect_packed
from mint2m_trainer.faults import InputError
from mint2m_trainer.kernels import Kernels
from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import FreshChoice, Passage, Prefix
from mint2m_trainer.prefix.layout import Layout, Places, Share, Span
from mint2m_trainer.sampling.continuation import Continuation, ResponseRows, slots_of
from mint2m_trainer.sampling.draw import draw, policy_logprobs
from mint2m_verify.documents.sampling import Finish, SamplingParameters
from mint2m_verify.draws import uniform


class SamplingError(InputError):
    """What was asked cannot be drawn, or the policy's log-probs are no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One drawn response; `logp` [R] are those of the policy, without temperature, top-k and top-p."""

    seed: int
    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What responses are drawn on: a captured prefix and the model that captured it."""

    inner: PrefixModel
    comm: Comm
    kernels: Kernels
    layout: Layout
    prefix: Prefix
    prompt: Tensor  # [P] int64
    chunks: int
    phase: str


@dataclass(slots=True, kw_only=True)
class _Response:
    seed: int
    tokens: list[int]
    logp: list[float]
    open: bool = True


@torch.no_grad()
def decode(
    ground: Ground,
    parameters: SamplingParameters,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Sampled, ...]:
    """A response for each seed, the same on every rank.

    Raises:
        SamplingError: no seed, a stop token outside the vocabulary, or a log-prob that is not finite.
    """
    _check(ground, parameters, seeds)
    comm, spec = ground.comm, ground.inner.spec
    held_by = ground.layout.counts(len(seeds))  # responses of each rank, adjacent
    first = [sum(held_by[:rank]) for rank in range(comm.size)]
    held = ResponseRows(
        spec=spec,
        responses=held_by[comm.rank],
        room=parameters.max_tokens,
        dtype=ground.inner.dtype,
        device=ground.prompt.device,
    )
    responses = [_Response(seed=seed, tokens=[], logp=[]) for seed in seeds]
    for length in range(parameters.max_tokens):
        active = [n for n, response in enumerate(responses) if response.open]
        if not active:
            break
        slots = [slots_of(active, start, count) for start, count in zip(first, held_by, strict=True)]
        counts = tuple(map(len, slots))
        mine = [responses[first[comm.rank] + slot] for slot in slots[comm.rank]]
        tokens, logp = _step(ground, parameters, held, mine, slots[comm.rank], counts, length)
        for response, token, value in zip((responses[n] for n in active), tokens, logp, strict=True):
            if not math.isfinite(value):
                raise SamplingError(f"the log-prob of token {length} of a response is {value}")
            response.tokens.append(token)
            response.logp.append(value)
            response.open = token not in parameters.stop_tokens
        progress(length + 1, parameters.max_tokens)
    return tuple(_sampled(response) for response in responses)


def _sampled(response: _Response) -> Sampled:
    finish: Finish = "length" if response.open else "stop"
    return Sampled(seed=response.seed, tokens=tuple(response.tokens), logp=tuple(response.logp), finish=finish)


def _check(ground: Ground, parameters: SamplingParameters, seeds: Sequence[int]) -> None:
    vocab = ground.inner.spec.vocab
    if not seeds or parameters.max_tokens < 1:
        raise SamplingError(f"{len(seeds)} responses of at most {parameters.max_tokens} tokens")
    if any(not 0 <= token < vocab for token in parameters.stop_tokens):
        raise SamplingError(f"a stop token outside the vocabulary of {vocab}: {parameters.stop_tokens}")


def _step(
    ground: Ground,
    parameters: SamplingParameters,
    held: ResponseRows,
    mine: Sequence[_Response],
    slots: Sequence[int],
    counts: tuple[int, ...],
    length: int,
) -> tuple[list[int], list[float]]:
    """The next token and its log-prob of every response under way, in order, on every rank; a collective."""
    inner, comm, device = ground.inner, ground.comm, ground.prompt.device
    given = [response.tokens[-1] if response.tokens else int(ground.prompt[-1]) for response in mine]
    passage = _passage(ground, held, slots, counts, length)
    logits = inner.logits(torch.tensor(given or [int(ground.prompt[-1])], device=device), passage)  # [T, V]
    logits = logits[: len(mine)]  # [n, V], without a ghost's
    drawn = [_drawn(row, parameters, response, length) for row, response in zip(logits, mine, strict=True)]
    tokens = torch.tensor(drawn, dtype=torch.int64, device=device)  # [n]
    logp = policy_logprobs(logits, tokens).double()  # [n]
    tag = Tag(phase=ground.phase, chunk=ground.chunks)
    every, scores = collect_packed((tokens, logp), counts, comm, tag, "drawn")
    return every.tolist(), scores.tolist()


def _drawn(logits: Tensor, parameters: SamplingParameters, response: _Response, length: int) -> int:
    # Only this rank sees a NaN here; the log-prob tells the others, and then all refuse alike.
    if bool(torch.isnan(logits).any()):
        return 0
    return draw(logits, parameters, uniform(response.seed, length))


def _passage(ground: Ground, held: ResponseRows, slots: Sequence[int], counts: tuple[int, ...], length: int) -> Passage:
    """The passage of one token of each response; all stand at the same position."""
    prefix, device = ground.prompt.numel() - 1, ground.prompt.device
    position = prefix + length
    # A span of tokens side by side, as the ledger knows them; where they stand is in `positions`.
    span = Span(index=ground.chunks, start=position, stop=position + sum(counts))
    share = Share(span=span, counts=counts, rank=ground.comm.rank)
    positions = torch.full((share.rows,), position, dtype=torch.int64, device=device)  # [T]
    inner = ground.inner
    continuation = Continuation(
        held, inner.spec, slots=torch.tensor(slots, dtype=torch.int64, device=device), length=length
    )
    return Passage(
        phase=ground.phase,
        places=Places(layout=ground.layout, prefix=prefix, share=share),
        positions=positions,
        rotation=inner.rotary.rotation(positions, inner.dtype),
        prefix=ground.prefix,
        tape=FreshChoice(),
        comm=ground.comm,
        kernels=ground.kernels,
        keep_rows=False,
        rows_only=False,
        continuation=continuation,
    )
