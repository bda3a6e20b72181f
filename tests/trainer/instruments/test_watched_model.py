"""Instruments on a real model over a real prefix: what they see, against sums made here; they change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer import evidence
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.instruments.audit import HeadAuditor, audit_policy_logprobs
from mint2m_trainer.instruments.divergence import compare
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.routing import (
    RankRouting,
    RoutingRecorder,
    read_routing,
    replicated,
    routing_consensus,
    write_routing,
)
from mint2m_trainer.instruments.trace import LayerTracer, RankTrace, direction, fingerprint
from mint2m_trainer.instruments.trace_file import read_traces, write_trace
from mint2m_trainer.instruments.watch import Watch
from mint2m_trainer.kernels import TorchKernels
from mint2m_trainer.model.glm import Bounds
from mint2m_trainer.model.policy import Policy, PolicySource, materialize
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout
from mint2m_trainer.prefix.session import LocalLoss, Session, page_shape
from mint2m_trainer.prefix.store import MemoryRowStore

PROMPT, RESPONSES, LAYERS, EXPERTS = 37, (5, 1, 3), 4, 4
TRACER = {"stride": 1, "limit": 1_000_000}


def policy(comm: Comm, snapshot: Path, dtype: str = "float64") -> Policy:
    made = materialize(
        PolicySource(
            snapshot=snapshot,
            adapter=None,
            families=("attention", "dense", "shared", "expert", "unembed"),
            rank=2,
            alpha=4.0,
            seed=3,
            dtype=dtype,
            angle_dtype="float32",
            bounds=Bounds(head_tokens=2, expert_tokens=4096),
        ),
        comm,
    )
    with torch.no_grad():
        for name, parameter in made.trainable():
            if "lora_B" in name:
                generator = torch.Generator().manual_seed(sum(name.encode()))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made


def session(made: Policy, comm: Comm, *, chunk: int = 8, mode: Any = "exact") -> Session:
    generator = torch.Generator().manual_seed(17)
    tokens = lambda n: torch.randint(0, 64, (n,), generator=generator)  # noqa: E731
    return Session(
        model=made.wrapped,
        inner=made.inner,
        comm=comm,
        kernels=TorchKernels(query_tile=6),
        layout=Layout(chunk=chunk, cp=comm.size, rank=comm.rank),
        store=MemoryRowStore(page_shape(made.inner)),
        decisions=Decisions("store"),
        mode=mode,
        prompt=tokens(PROMPT),
        responses=[tokens(n) for n in RESPONSES],
        weights=evidence.weights_witness(made.inner),
    )


def update(run: Session, *, score: bool = True, mode: str = "exact") -> list[Tensor]:
    """A whole update's passes; the log-probs of the replays."""
    run.capture()
    if score:
        for response in range(len(RESPONSES)):
            run.score(response)
    logp = [
        run.replay(response, lambda logp, _: LocalLoss(total=logp.sum(), tokens=logp.detach().unsqueeze(1))).logp
        for response in range(len(RESPONSES))
    ]
    if mode == "exact":
        run.reverse()
    return logp


def traced(comm: Comm, snapshot: Path, *, chunk: int = 8, spoil: tuple[int, int] | None = None) -> RankTrace:
    """The trace of an update; `spoil` (layer, rank) adds to that layer's output on that rank from its next pass on."""
    made = policy(comm, snapshot)
    tracer = LayerTracer(**TRACER)
    with ExitStack() as stack:
        if spoil is not None and comm.rank == spoil[1]:
            layer = made.inner.decoder.layers[spoil[0]]
            stack.callback(layer.register_forward_hook(lambda _m, _i, out: (out[0] + 0.01, *out[1:])).remove)
        stack.enter_context(tracer.attached(made.inner))
        run = session(made, comm, chunk=chunk)
        run.capture()
        run.score(0)
    return tracer.trace


def both(comm: Comm, snapshot: Path) -> tuple[RankTrace, RankRouting, float, float]:
    """One watched update on several ranks: trace, routing, and two values compared over the ranks."""
    made = policy(comm, snapshot)
    tracer, recorder = LayerTracer(**TRACER), RoutingRecorder(limit_bytes=1 << 20)
    with tracer.attached(made.inner), recorder.attached(made.inner):
        logp = update(session(made, comm))
    same = replicated(torch.cat(logp), comm, Tag(phase="test"), "logp")
    apart = replicated(torch.tensor([1.0, float(comm.rank) * 0.25]), comm, Tag(phase="test"), "rank")
    return tracer.trace, recorder.routing, same, apart


def test_watching_changes_no_bit_of_log_probs_or_gradient(single: Comm, small_snapshot: Path) -> None:
    plain = policy(single, small_snapshot)
    right = update(session(plain, single))
    watched = policy(single, small_snapshot)
    instruments = LayerTracer(**TRACER), RoutingRecorder(limit_bytes=1 << 20), HeadAuditor(rows_per_tile=1)
    with ExitStack() as stack:
        for instrument in instruments:
            stack.enter_context(instrument.attached(watched.inner))
        found = update(session(watched, single))
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    pairs = zip(plain.trainable(), watched.trainable(), strict=True)
    assert all(torch.equal(a.main_grad, b.main_grad) for (_, a), (_, b) in pairs)
    hooked = [module for module in watched.inner.modules() if module._forward_pre_hooks]
    assert [module for module in plain.inner.modules() if module._forward_pre_hooks] == [] == hooked


@pytest.mark.parametrize("rows", [1, 2])
def test_the_audit_is_the_softmax_of_the_runs_own_logits(single: Comm, small_snapshot: Path, rows: int) -> None:
    made = policy(single, small_snapshot)
    auditor = HeadAuditor(rows_per_tile=rows)
    with auditor.attached(made.inner):
        update(session(made, single))
    result = auditor.result
    # Tiles of two tokens: of R tokens ceil(R / 2) first rows, or all R; scored once and replayed once.
    assert result.tokens == 2 * sum(RESPONSES if rows == 2 else [-(-n // 2) for n in RESPONSES])
    assert 0 < result.worst < 1e-5  # float64 against float32
    result.require(1e-5)


def test_a_head_that_reports_other_log_probs_is_named_by_phase_and_position(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    auditor = HeadAuditor(rows_per_tile=2)

    def wrong(_model: Any, _args: Any, _kwargs: Any, output: Tensor | None) -> Tensor | None:
        return None if output is None else output + torch.tensor([0.0] * (len(output) - 1) + [0.5])

    handle = made.inner.register_forward_hook(wrong, with_kwargs=True)  # before the auditor's, so it sees the result
    try:
        with auditor.attached(made.inner):
            run = session(made, single)
            run.capture()
            run.score(0)
    finally:
        handle.remove()
    assert auditor.result.worst == pytest.approx(0.5, abs=1e-5)
    assert auditor.result.position == PROMPT - 1 + RESPONSES[0] - 1
    with pytest.raises(InstrumentError, match=r"policy\.score, position 40"):
        auditor.result.require(1e-3)


def test_an_audit_of_nothing_is_refused() -> None:
    with pytest.raises(InstrumentError, match="no log-prob"):
        HeadAuditor(rows_per_tile=1).result.require(1.0)


def test_the_audits_formula_is_the_log_of_the_softmax() -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    targets = torch.tensor([0, 10, 3, 3, 7])
    right = [float(torch.log(row.exp()[t] / row.exp().sum())) for row, t in zip(logits, targets, strict=True)]
    assert audit_policy_logprobs(logits, targets).tolist() == pytest.approx(right, abs=2e-6)
    assert audit_policy_logprobs(logits.bfloat16(), targets).dtype == torch.float32
    with pytest.raises(InstrumentError):
        audit_policy_logprobs(logits, targets[:4])


def test_a_trace_holds_the_products_and_norms_of_the_hidden_states(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    seen: list[Tensor] = []
    handle = made.inner.decoder.layers[1].register_forward_hook(lambda _m, _i, out: seen.append(out[0].squeeze(1)))
    tracer = LayerTracer(stride=3, limit=10_000)
    with tracer.attached(made.inner):
        session(made, single).capture()
    handle.remove()
    hidden = torch.cat(seen).double()  # [36, hidden]
    unit = direction(32)
    assert float(unit.norm()) == pytest.approx(1, rel=1e-15)
    found = {
        position: values
        for point in tracer.trace.points
        if (point.layer, point.kind) == (1, "hidden")
        for position, values in zip(point.positions, point.values, strict=True)
    }
    assert sorted(found) == list(range(0, PROMPT - 1, 3))
    for position, (product, norm) in found.items():
        row = hidden[position].tolist()
        assert product == pytest.approx(sum(a * b for a, b in zip(row, unit.tolist(), strict=True)), abs=1e-12)
        assert norm == pytest.approx(sum(a * a for a in row) ** 0.5, rel=1e-12)


def test_a_fingerprint_is_of_the_set() -> None:
    assert fingerprint([3, 1, 2, -1]) == fingerprint([2, 3, 1]) != fingerprint([2, 3, 4])
    assert fingerprint([12]) != fingerprint([1, 2])
    assert 0 <= fingerprint([5]) < 2**48


def test_equal_runs_do_not_part_at_any_chunk_size(single: Comm, small_snapshot: Path) -> None:
    left, right = traced(single, small_snapshot), traced(single, small_snapshot, chunk=5)
    result = compare([left], [right], relative=1e-9)
    assert result.first is None
    # 36 prefix tokens: hidden states of 3 layers (the last only makes rows), selections of 2, experts of 2;
    # 5 response tokens: 4 hidden, 2 selections, 3 experts.
    assert result.tokens == 36 * (3 + 2 + 2) + 5 * (4 + 2 + 3)
    assert compare([left], [left], relative=0.0).first is None


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_first_layer_that_parts_is_named(single: Comm, small_snapshot: Path, layer: int) -> None:
    result = compare(
        [traced(single, small_snapshot)], [traced(single, small_snapshot, spoil=(layer, 0))], relative=1e-9
    )
    assert result.first is not None
    assert (result.first.phase, result.first.layer, result.first.kind) == ("policy.capture", layer, "hidden")
    assert (result.first.position, result.first.differing, result.first.compared) == (0, 36, 36)


def test_the_rank_that_parts_is_named(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, tmp_path: Path
) -> None:
    plain = ranks(_traced_on_ranks, 2, small_snapshot, None)
    spoilt = ranks(_traced_on_ranks, 2, small_snapshot, (1, 1))
    for trace in spoilt:
        write_trace(tmp_path, trace)
    assert sorted(read_traces(tmp_path), key=lambda trace: trace.rank) == spoilt

    result = compare(plain, read_traces(tmp_path), relative=1e-9)
    assert result.first is not None
    assert (result.first.layer, result.first.kind, result.first.position) == (1, "hidden", 4)
    assert (result.first.left_ranks, result.first.right_ranks) == ((1,), (1,))  # the second half of each chunk of 8
    assert "layer 1, hidden: position 4 on rank 1" in str(result.first)
    # And two ranks agree with one, token by token.
    assert compare(plain, [traced(single, small_snapshot)], relative=1e-9).first is None


def _traced_on_ranks(comm: Comm, snapshot: Path, spoil: tuple[int, int] | None) -> RankTrace:
    return traced(comm, snapshot, spoil=spoil)


def test_replays_agree_with_whole_sequences_where_both_have_a_token(single: Comm, small_snapshot: Path) -> None:
    traces = []
    for mode in ("exact", "conventional"):
        made = policy(single, small_snapshot)
        tracer = LayerTracer(**TRACER)
        with tracer.attached(made.inner):
            update(session(made, single, mode=mode), score=False, mode=mode)
        traces.append([tracer.trace])
    assert compare(*traces, relative=1e-9).first is not None  # one has no capture, the other no whole sequences
    result = compare(*traces, relative=1e-9, common_only=True)
    assert result.first is None
    assert result.tokens == sum(RESPONSES) * (4 + 2 + 3)


def test_ranks_agree_on_routing_and_a_recomputed_chunk_repeats_it(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, tmp_path: Path
) -> None:
    results = ranks(both, 2, small_snapshot)
    routings = [routing for _, routing, _, _ in results]
    for routing in routings:
        write_routing(tmp_path, routing)
    again = [
        read_routing(tmp_path / f"routing-{rank:04d}.safetensors", rank=rank, world_size=2, limit_bytes=1 << 20)
        for rank in (0, 1)
    ]
    two = routing_consensus(again, experts=EXPERTS)
    _, alone, _, _ = both(single, small_snapshot)
    one = routing_consensus([alone], experts=EXPERTS)

    assert two == one
    # Layers 1 and 2 see the prefix twice (capture, reverse); layers 1, 2 and 3 each response twice (score, replay).
    tokens = [2 * 36 + 2 * sum(RESPONSES), 2 * 36 + 2 * sum(RESPONSES), 2 * sum(RESPONSES)]
    assert [sum(counts) for _, counts in two.expert_tokens.items()] == [2 * n for n in tokens]  # two experts a token
    assert (two.repeated, two.repeated_differently) == (36 * 4, 0)  # experts of two layers, selections of two
    assert [(same, apart) for _, _, same, apart in results] == [(0.0, 0.25), (0.0, 0.25)]


def _watched(comm: Comm, snapshot: Path, folder: Path, spoil: bool) -> str:
    """One update under all instruments; what stopped it, or nothing."""
    made = policy(comm, snapshot)
    watch = Watch(made.inner, comm, folder)
    run = session(made, comm)
    update(run)
    made.wrapped.finish_grad_sync()
    gradients = dict(made.gradient_tensors("test"))
    if spoil and comm.rank == 1:
        next(iter(gradients.values())).mul_(1.5)
    try:
        watch.finish(gradients, "test")
    except InstrumentError as fault:
        return str(fault)
    return ""


def test_a_watched_update_leaves_traces_routing_audit_and_probe_of_every_rank(
    ranks: Callable[..., list[Any]], small_snapshot: Path, tmp_path: Path
) -> None:
    assert ranks(_watched, 2, small_snapshot, tmp_path, False) == ["", ""]
    seen = [json.loads((tmp_path / f"watch-{rank:04d}.json").read_text()) for rank in (0, 1)]
    # Responses of 5, 1 and 3 tokens: rank 0 takes 3, 1 and 2 of them; each is scored and replayed, in tiles of two.
    assert [value["audit"]["tokens"] for value in seen] == [2 * (3 + 1 + 2), 2 * (2 + 0 + 1)]
    assert seen[0]["probe"]["looked_at"] > 8
    assert "probe" not in seen[1]
    assert len(read_traces(tmp_path)) == 2
    assert (tmp_path / "routing-0001.safetensors").exists()


def test_ranks_with_different_gradients_stop_and_leave_no_files(
    ranks: Callable[..., list[Any]], small_snapshot: Path, tmp_path: Path
) -> None:
    told = ranks(_watched, 2, small_snapshot, tmp_path, True)
    assert all("ranks hold gradients whose norms are" in words for words in told)
    assert list(tmp_path.glob("watch-*")) == []


def test_routings_that_do_not_fit_together_are_refused(single: Comm, small_snapshot: Path) -> None:
    _, alone, _, _ = both(single, small_snapshot)
    with pytest.raises(InstrumentError, match="each rank once"):
        routing_consensus([alone, alone], experts=EXPERTS)
    with pytest.raises(InstrumentError, match="no choice"):
        routing_consensus([RankRouting(rank=0, world_size=1, choices=())], experts=EXPERTS)
    pair = [RankRouting(rank=rank, world_size=2, choices=alone.choices) for rank in (0, 1)]
    with pytest.raises(InstrumentError, match="overlap"):
        routing_consensus(pair, experts=EXPERTS)
    short = [pair[0], RankRouting(rank=1, world_size=2, choices=alone.choices[1:])]
    with pytest.raises(InstrumentError, match=r"ranks \[1\] made other choices"):
        routing_consensus(short, experts=EXPERTS)


@pytest.mark.parametrize("instrument", [LayerTracer(stride=1, limit=100), RoutingRecorder(limit_bytes=500)])
def test_an_instrument_past_its_bound_refuses_and_comes_off(
    single: Comm, small_snapshot: Path, instrument: LayerTracer | RoutingRecorder
) -> None:
    made = policy(single, small_snapshot)
    with pytest.raises(InstrumentError, match="limit of"), instrument.attached(made.inner):
        session(made, single).capture()
    session(made, single).capture()  # nothing watches any more


def test_traces_of_missing_ranks_or_of_nothing_in_common_are_refused(single: Comm, small_snapshot: Path) -> None:
    one = traced(single, small_snapshot)
    half = RankTrace(rank=0, world_size=2, stride=1, points=one.points)
    with pytest.raises(InstrumentError, match="each of its ranks once"):
        compare([half], [one], relative=0.0)
    empty = RankTrace(rank=0, world_size=1, stride=1, points=())
    with pytest.raises(InstrumentError, match="no token in common"):
        compare([empty], [empty], relative=0.0)
    found = compare([one], [empty], relative=0.0).first
    assert found is not None
    assert found.right is None
