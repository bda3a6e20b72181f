"""The megatron model against Hugging Face's on the same snapshot, and its parts against plain formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.kernels import TorchKernels
from mint2m_trainer.model.glm import Bounds, LoraPlan, PrefixModel, build_model
from mint2m_trainer.model.head import selected_logprobs
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.model.lora import LoraError, fresh_a
from mint2m_trainer.model.moe import choose_experts
from mint2m_trainer.model.names import projection_names, projections, tensor_shapes
from mint2m_trainer.model.policy import family_of, family_projections
from mint2m_trainer.model.seam import FreshChoice, Passage, SeamError
from mint2m_trainer.model.snapshot import load_snapshot
from mint2m_trainer.model.spec import ModelSpec, SpecError, parse_spec, read_spec
from mint2m_trainer.prefix.layout import Layout, Places, Span

NO_ADAPTER = LoraPlan(rank=1, alpha=1.0, projections=frozenset())
BOUNDS = Bounds(head_tokens=16, expert_tokens=4096)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 8e6,
    "factor": 2.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


class _TopK(NamedTuple):
    values: Tensor
    indices: Tensor


@pytest.fixture
def stable_topk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face leaves ties of the index scores to torch; make them fall to the lower position."""
    plain = torch.Tensor.topk

    def topk(self: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
        if self.dim() != 3:
            return plain(self, k, dim=dim, **options)
        values, indices = torch.sort(self, dim=dim, descending=True, stable=True)
        return _TopK(values[..., :k], indices[..., :k])

    monkeypatch.setattr(torch.Tensor, "topk", topk)


def load(snapshot: Path, dtype: str, lora: LoraPlan = NO_ADAPTER) -> PrefixModel:
    spec = read_spec(snapshot)
    model = build_model(spec, world_size=1, dtype=dtype, angle_dtype="float32", lora=lora, bounds=BOUNDS)
    load_snapshot(model, spec, snapshot)
    return model


def passage(model: PrefixModel, comm: Comm, tokens: int) -> Passage:
    positions = torch.arange(tokens)
    layout = Layout(chunk=tokens, cp=1, rank=0)
    return Passage(
        phase="test",
        places=Places(layout=layout, prefix=0, share=layout.share(Span(index=0, start=0, stop=tokens))),
        positions=positions,
        rotation=model.rotary.rotation(positions, model.dtype),
        prefix=None,
        tape=FreshChoice(),
        comm=comm,
        kernels=TorchKernels(query_tile=16),
        keep_rows=False,
        rows_only=False,
    )


@pytest.mark.usefixtures("stable_topk")
@pytest.mark.parametrize("change", [{}, {"rope_parameters": YARN}, {"norm_topk_prob": False}, {"n_group": 1}])
def test_log_probs_are_hugging_faces(
    tmp_path: Path, single: Comm, small_config: dict[str, Any], change: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    init_tiny(tmp_path / "snapshot", 5, {**small_config, **change})
    theirs = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        tmp_path / "snapshot", attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
    ).eval()
    tokens = torch.randint(0, 64, (50,), generator=torch.Generator().manual_seed(9))
    targets = torch.randint(0, 64, (50,), generator=torch.Generator().manual_seed(10))
    with torch.no_grad():
        want = theirs(tokens[None], use_cache=False).logits[0].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        model = load(tmp_path / "snapshot", "float64")
        found = model(tokens, passage(model, single, 50), targets)
    # Hugging Face computes norms, softmax, routing and index scores in float32 even in float64.
    torch.testing.assert_close(found, want, rtol=0, atol=5e-6)


def test_a_layer_outside_a_passage_refuses_to_run(small_snapshot: Path, single: Comm) -> None:
    model = load(small_snapshot, "float32")
    with pytest.raises(SeamError, match="no passage is open"):
        model.decoder(hidden_states=torch.zeros(3, 1, 32), attention_mask=None)
    one = passage(model, single, 3)
    with model.seam.carry(one), pytest.raises(SeamError, match="open already"), model.seam.carry(one):
        pass
    with pytest.raises(SeamError):
        model.seam.current()


def test_in_bfloat16_what_chooses_stays_float32(small_snapshot: Path, single: Comm) -> None:
    lora = LoraPlan(rank=2, alpha=2.0, projections=frozenset({"lm_head", "model.layers.0.self_attn.kv_b_proj"}))
    model = load(small_snapshot, "bfloat16", lora)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    single_precision = {name for name, dtype in kinds.items() if dtype == torch.float32}
    assert {name.rsplit(".", 2)[-2] for name in single_precision if "adapters" not in name} == {
        "router",
        "weights_proj",
    }
    assert sum("adapters" in name for name in single_precision) == 4
    assert model.decoder.layers[1].mlp.router.expert_bias.dtype == torch.float32


def test_an_adapter_smaller_than_bfloat16_can_hold_still_acts(small_snapshot: Path, single: Comm) -> None:
    """A merged delta of 1e-4 of a weight is lost in bfloat16; an unmerged one adds up over the inputs."""
    model = load(small_snapshot, "bfloat16", LoraPlan(rank=1, alpha=1.0, projections=frozenset({"lm_head"})))
    (adapter,) = model.adapters()
    weight = model.output_layer.weight
    x = torch.ones(1, 1, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        weight.fill_(1.0)
        adapter.A.fill_(1.0)
        adapter.B.fill_(1e-3)  # a delta of 0.001 a weight, 0.032 a logit
        adapter.B[0] = 1e-2  # a delta of 0.01 a weight, 0.32 a logit
        out = model.output_layer(x)[0][0, 0].float()
        merged = (weight.float() + adapter.B @ adapter.A).to(torch.bfloat16)
    assert torch.equal(merged[1:], weight[1:])  # the merged adapter would be gone
    assert float(out[0]) == float(torch.tensor(32.32).to(torch.bfloat16))
    assert float(out[1]) == float(torch.tensor(32.032).to(torch.bfloat16))


def test_the_base_alone_is_what_a_model_without_adapters_gives(small_snapshot: Path, single: Comm) -> None:
    spec = read_spec(small_snapshot)
    plain = load(small_snapshot, "float32")
    adapted = load(small_snapshot, "float32", LoraPlan(rank=2, alpha=4.0, projections=projection_names(spec)))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for adapter in adapted.adapters():
            for parameter in (adapter.A, adapter.B):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        tokens, targets = torch.arange(20) % 64, torch.arange(20)
        want = plain(tokens, passage(plain, single, 20), targets)
        with adapted.base_only():
            base = adapted(tokens, passage(adapted, single, 20), targets)
        both = adapted(tokens, passage(adapted, single, 20), targets)
    assert torch.equal(base, want)
    assert not torch.equal(both, want)


def test_adapters_add_what_a_merged_weight_would(small_snapshot: Path, single: Comm) -> None:
    """In float64 merging is exact enough to be the reference: W + s B A for every projection."""
    spec = read_spec(small_snapshot)
    adapted = load(small_snapshot, "float64", LoraPlan(rank=2, alpha=4.0, projections=projection_names(spec)))
    merged = load(small_snapshot, "float64")
    generator = torch.Generator().manual_seed(2)
    weights = {p.name: p for p in projections(merged, spec)}
    with torch.no_grad():
        for adapter in adapted.adapters():
            for parameter in (adapter.A, adapter.B):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            target = weights[adapter.projection]
            target.module.weight[target.rows] += 2.0 * adapter.B @ adapter.A
        tokens, targets = torch.arange(30) % 64, torch.arange(30)
        found = adapted(tokens, passage(adapted, single, 30), targets)
        want = merged(tokens, passage(merged, single, 30), targets)
    assert len(list(adapted.adapters())) == len(weights) == len(projection_names(spec))
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


def test_experts_that_do_not_divide_over_the_ranks_are_refused(small_snapshot: Path) -> None:
    with pytest.raises(SpecError, match="a multiple of 3 ranks, found 4"):
        build_model(
            read_spec(small_snapshot),
            world_size=3,
            dtype="float32",
            angle_dtype="float32",
            lora=NO_ADAPTER,
            bounds=BOUNDS,
        )


def test_an_adapter_for_a_projection_that_does_not_exist_is_refused(small_snapshot: Path, single: Comm) -> None:
    plan = LoraPlan(rank=1, alpha=1.0, projections=frozenset({"model.layers.0.mlp.experts.0.up_proj"}))
    with pytest.raises(LoraError, match="the model has no projection"):
        load(small_snapshot, "float32", plan)


def test_head_log_probs_do_not_depend_on_the_tile() -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (7,), generator=generator)
    want = (hidden @ weight.T).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    right = torch.autograd.grad(want.square().sum(), (hidden, weight))
    for tile in (1, 3, 7, 100):
        found = selected_logprobs(lambda part: part @ weight.T, hidden, targets, tile)
        torch.testing.assert_close(found, want, rtol=1e-14, atol=1e-14)
        for a, b in zip(torch.autograd.grad(found.square().sum(), (hidden, weight)), right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("groups", "open_groups"), [(1, 1), (2, 1), (4, 2)])
def test_experts_are_hugging_faces_choice(small_snapshot: Path, groups: int, open_groups: int) -> None:
    modeling = pytest.importorskip("transformers.models.glm_moe_dsa.modeling_glm_moe_dsa")
    config = json.loads((small_snapshot / "config.json").read_text())
    config |= {"n_routed_experts": 8, "n_group": groups, "topk_group": open_groups, "num_experts_per_tok": 3}
    router = modeling.GlmMoeDsaTopkRouter(modeling.GlmMoeDsaConfig(**config))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        router.weight.copy_(torch.randn(8, 32, generator=generator))
        router.e_score_correction_bias.copy_(torch.randn(8, generator=generator) * 0.2)
        hidden = torch.randn(200, 32, generator=generator)
        logits, _, want = router(hidden)
    found = choose_experts(logits.sigmoid() + router.e_score_correction_bias, parse_spec(config))
    assert torch.equal(found.sort(-1).values, want.sort(-1).values)


def test_equal_expert_scores_go_to_the_lower_id(small_snapshot: Path) -> None:
    config = json.loads((small_snapshot / "config.json").read_text())
    spec = parse_spec(config | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3})
    assert choose_experts(torch.zeros(1, 8), spec).tolist() == [[0, 1, 2]]


def test_names_and_shapes_are_those_of_the_snapshot(small_snapshot: Path) -> None:
    spec: ModelSpec = read_spec(small_snapshot)
    found = {}
    for shard in small_snapshot.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as tensors:
            found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    assert dict(tensor_shapes(spec)) == found


def test_families_partition_the_projections(small_snapshot: Path) -> None:
    spec = read_spec(small_snapshot)
    every = projection_names(spec)
    # 5 attention projections a layer, 3 of the dense MLP, 3 of each of 4 experts and of the shared one, and the head.
    assert len(every) == 4 * 5 + 3 + 3 * (4 + 1) * 3 + 1
    parts = [family_projections(spec, [family]) for family in ("attention", "dense", "shared", "expert", "unembed")]
    assert frozenset.union(*parts) == every
    assert sum(map(len, parts)) == len(every)
    assert family_of("model.layers.0.mlp.gate_proj") == "dense"
    with pytest.raises(LoraError):
        family_projections(spec, ["router"])


def test_a_fresh_a_is_bounded_and_differs_by_name_and_seed() -> None:
    one = fresh_a("a", seed=0, rank=64, columns=100)
    assert float(one.abs().max()) <= 1 / 100**0.5  # Kaiming-uniform with a = sqrt(5): bound 1/sqrt(fan in)
    assert float(one.std()) == pytest.approx(1 / 300**0.5, rel=0.03)
    assert torch.equal(one, fresh_a("a", seed=0, rank=64, columns=100))
    assert not torch.equal(one, fresh_a("b", seed=0, rank=64, columns=100))
    assert not torch.equal(one, fresh_a("a", seed=1, rank=64, columns=100))
