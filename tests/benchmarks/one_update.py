"""One GRPO update in this process, by one method: time of each phase, and the peak over what loading left resident.

    python tests/benchmarks/one_update.py REQUEST.json

Prints one JSON line. Methods: `exact`, `detached` and `conventional` are this trainer's; `huggingface` is transformers'
`glm_moe_dsa` with the same LoRA, each response through the whole sequence, plain autograd and AdamW. All take the same
snapshot, adapter and rollout, and old log-probs from the rollout, so that loss and gradient norm must agree. Each first
runs once over a few tokens, unmeasured: code that is mapped on first use is memory of the libraries, not of the method.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

Method = Literal["exact", "detached", "conventional", "huggingface"]
METHODS: tuple[Method, ...] = ("exact", "detached", "conventional", "huggingface")

#: Old log-probs are a sampler's and arbitrary here; with bounds this wide no token is clipped and all are trained.
CLIP_LOW, CLIP_HIGH = 1.0, 1e6
LORA_RANK, LORA_ALPHA = 8, 16.0

#: Prompt of the unmeasured run.
WARM_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run: `snapshot`, `adapter` and `rollout` are paths; `chunk` and `tile` are this trainer's only."""

    method: Method
    snapshot: str
    adapter: str
    rollout: str
    chunk: int
    tile: int
    decisions: Literal["store", "rescore"] = "store"
    #: This process's place in a world of this trainer's ranks, which meet at `port`; 0 takes a free one for one rank.
    rank: int = 0
    ranks: int = 1
    port: int = 0
    #: `position` makes Hugging Face's selection keep the lower position of equal scores, as this trainer does, by a
    #: whole sort; `device` leaves ties to its top-k, which is faster and trains another model.
    ties: Literal["position", "device"] = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`seconds` and `cpu_seconds` from the first pass over the prompt to the stepped adapter; memory in bytes.

    `peak_bytes` is the process's high-water mark after loading minus what was resident then.
    """

    method: Method
    prompt_tokens: int
    responses: int
    response_tokens: int
    phases: tuple[tuple[str, float], ...]
    seconds: float
    cpu_seconds: float
    loaded_bytes: int
    peak_bytes: int
    loss: float
    gradient_norm: float


class Meter:
    """Times the phases of this process; made when everything is loaded."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what loading freed must not pass for resident, and hide a peak
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
        self.loaded_bytes = _status_bytes("VmRSS")
        self.phases: list[tuple[str, float]] = []
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._last = self._wall

    def lap(self, phase: str) -> None:
        """A phase ends here."""
        now = time.perf_counter()
        self.phases.append((phase, now - self._last))
        self._last = now

    def ended(self) -> Meter:
        """Read the clocks and the high-water mark now."""
        self._cpu_seconds = time.process_time() - self._cpu
        self._peak_bytes = _status_bytes("VmHWM") - self.loaded_bytes
        return self

    def cost(self, request: Request, rollout: Mapping[str, Any], *, loss: float, norm: float) -> Cost:
        return Cost(
            method=request.method,
            prompt_tokens=len(rollout["prompt_tokens"]),
            responses=len(rollout["responses"]),
            response_tokens=max(map(len, rollout["responses"])),
            phases=tuple(self.phases),
            seconds=self._last - self._wall,
            cpu_seconds=self._cpu_seconds,
            loaded_bytes=self.loaded_bytes,
            peak_bytes=self._peak_bytes,
            loss=loss,
            gradient_norm=norm,
        )


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


def run(request: Request) -> Cost:
    """Run the update and measure it."""
    torch.set_num_threads(1)
    rollout = json.loads(Path(request.rollout).read_text(encoding="utf-8"))
    if request.method == "huggingface":
        return _huggingface(request, rollout)
    return _ours(request, rollout)


def _ours(request: Request, rollout: Mapping[str, Any]) -> Cost:
    # Ranks meet anew for the measured run, one port further on: the first may still be closing.
    _update(request, _shortened(rollout))
    meter, loss, norm = _update(replace(request, port=request.port and request.port + 1), rollout)
    return meter.cost(request, rollout, loss=loss, norm=norm)


def _update(request: Request, rollout: Mapping[str, Any]) -> tuple[Meter, float, float]:
    """Phases up to the step; (meter, loss, gradient norm)."""
    from mint2m_trainer.update import Update
    from mint2m_verify import phases

    with tempfile.TemporaryDirectory(prefix="mint2m-benchmark-") as folder:
        update = Update(rank_inputs(request, rollout, Path(folder)))
        meter: Meter | None = None
        loss, norm = 0.0, 0.0
        try:
            for phase in update.phases:
                seen = update.run(phase).evidence
                if meter is not None:
                    meter.lap(phase)
                if phases.response_of(phase) is not None:
                    loss += seen.loss or 0.0
                if phase == phases.FINALIZE:
                    norm = seen.gradient_norm or 0.0
                if phase == phases.MATERIALIZE:
                    meter = Meter()
                if phase == phases.OPTIMIZER_STEP:
                    break
        finally:
            update.close()
        if meter is None:
            raise RuntimeError("nothing was materialized")
        return meter.ended(), loss, norm


def _shortened(rollout: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rollout with a prompt of a few tokens."""
    return {**rollout, "prompt_tokens": rollout["prompt_tokens"][:WARM_TOKENS]}


def rank_inputs(request: Request, rollout: Mapping[str, Any], run_dir: Path) -> Any:
    """The inputs of this trainer's update on one rank."""
    from mint2m_trainer.update import RankInputs
    from mint2m_verify.documents import Rollout

    return RankInputs(
        rank=request.rank,
        world_size=request.ranks,
        master_address="127.0.0.1",
        master_port=request.port or free_port(),
        run_dir=run_dir,
        snapshot=Path(request.snapshot),
        adapter=Path(request.adapter),
        profile=profile(request, len(rollout["prompt_tokens"]), [len(r) for r in rollout["responses"]]),
        rollout=Rollout(
            prompt_tokens=tuple(rollout["prompt_tokens"]),
            responses=tuple(map(tuple, rollout["responses"])),
            rewards=tuple(map(float, rollout["rewards"])),
            old_logprobs=tuple(map(tuple, rollout["old_logprobs"])),
            ref_logprobs=None,
        ),
        plan_sha256="0" * 64,  # there is no plan
        execution_id="0" * 64,
        image_digest=None,
        baseline=request.method == "conventional",
    )


def profile(request: Request, prompt_tokens: int, response_tokens: Sequence[int]) -> Any:
    """The packaged profile at one rank, with the benchmark's lengths."""
    from mint2m_trainer.deployments import PACKAGED, packaged_profile

    packaged = packaged_profile(PACKAGED["local-8k-1"])
    return replace(
        packaged,
        name="benchmark",
        topology=replace(
            packaged.topology,
            world_size=request.ranks,
            context_parallel=request.ranks,
            expert_parallel=request.ranks,
        ),
        context=replace(packaged.context, prompt_tokens=prompt_tokens, max_response_tokens=max(response_tokens)),
        group_size=len(response_tokens),
        lora=replace(packaged.lora, rank=LORA_RANK, alpha=LORA_ALPHA),
        grpo=replace(packaged.grpo, clip_low=CLIP_LOW, clip_high=CLIP_HIGH, old_source="rollout"),
        prefix=replace(
            packaged.prefix,
            gradient="detached" if request.method == "detached" else "exact",
            chunk_tokens=request.chunk,
            decisions=request.decisions,
        ),
        memory=replace(packaged.memory, query_tile=request.tile),
    )


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _huggingface(request: Request, rollout: Mapping[str, Any]) -> Cost:
    import transformers
    from safetensors.torch import load_file
    from transformers import GlmMoeDsaForCausalLM

    if request.ties == "position":
        torch.Tensor.topk = _stable_topk  # type: ignore[method-assign,assignment]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = GlmMoeDsaForCausalLM.from_pretrained(request.snapshot, dtype=torch.float32, attn_implementation="eager")
    model.eval().requires_grad_(False)
    lora = {
        name.removeprefix("base_model.model."): tensor.float().requires_grad_()
        for name, tensor in load_file(Path(request.adapter) / "adapter_model.safetensors").items()
    }

    def group(given: Mapping[str, Any], meter: Meter | None) -> float:
        """Forward and backward of every response; the loss."""
        base = dict(model.named_parameters())
        prompt = torch.tensor(given["prompt_tokens"])
        rewards = torch.tensor(given["rewards"], dtype=torch.float64)
        advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).float()
        scored, total = sum(map(len, given["responses"])), 0.0
        for g, tokens in enumerate(given["responses"]):
            response, old = torch.tensor(tokens), torch.tensor(given["old_logprobs"][g])
            weights = {name: _adapted(name, weight, lora) for name, weight in base.items()}
            options = {"use_cache": False, "logits_to_keep": len(tokens) + 1}  # no head over the prompt
            ids = torch.cat([prompt, response])[None]
            logits = torch.func.functional_call(model, weights, (ids,), options).logits[0]
            logp = torch.log_softmax(logits[:-1].float(), -1).gather(-1, response[:, None])[:, 0]  # [R]
            ratio, a = torch.exp(logp - old), advantages[g]
            gain = torch.minimum(ratio * a, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * a)
            loss = -gain.sum() / scored
            loss.backward()
            total += float(loss.detach())
            if meter is not None:
                meter.lap(f"grpo-{g}")
        return total

    group(_shortened(rollout), None)
    for tensor in lora.values():
        tensor.grad = None
    optimizer = torch.optim.AdamW(lora.values(), lr=1e-4, weight_decay=0.01)
    meter = Meter()
    total = group(rollout, meter)
    norm = float(torch.nn.utils.clip_grad_norm_(lora.values(), 1.0))
    optimizer.step()
    meter.lap("optimizer-step")
    return meter.ended().cost(request, rollout, loss=total, norm=norm)


_topk = torch.Tensor.topk


class _Kept(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


def _stable_topk(scores: torch.Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """The indexer's [batch, query, key] scores by (score descending, position ascending); others as before."""
    if scores.dim() != 3:
        return _topk(scores, k, dim=dim, **options)
    values, indices = scores.sort(dim=dim, descending=True, stable=True)
    return _Kept(values[..., :k], indices[..., :k])


def _adapted(name: str, weight: torch.Tensor, lora: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight with its adapter merged, on the graph. transformers stacks experts, and fuses gate and up."""
    scale = LORA_ALPHA / LORA_RANK
    stem = name.removesuffix(".weight")
    if f"{stem}.lora_A.weight" in lora:
        return torch.addmm(weight, lora[f"{stem}.lora_B.weight"], lora[f"{stem}.lora_A.weight"], alpha=scale)
    if ".mlp.experts." not in name:
        return weight
    stem, kind = name.rsplit(".", 1)
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
    deltas = [
        torch.cat([lora[f"{stem}.{e}.{p}.lora_B.weight"] @ lora[f"{stem}.{e}.{p}.lora_A.weight"] for p in parts])
        for e in range(weight.shape[0])
    ]
    return weight + scale * torch.stack(deltas)


if __name__ == "__main__":
    print(json.dumps(asdict(run(Request(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))))
