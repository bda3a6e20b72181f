"""What megatron-core 0.16 needs to run on CPU and Gloo, and without TransformerEngine.

The whole accommodation is here, so that every other module is the same code on CPU/Gloo and CUDA/NCCL. On a
machine with CUDA and TransformerEngine nothing below changes anything. Import this module before megatron:
`TORCHDYNAMO_DISABLE` is read when torch._dynamo is first imported, and without it the first CPU forward compiles
for 25 seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def device() -> torch.device:
    """The device that this process computes on."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def backend() -> str:
    """The torch.distributed backend that fits `device`."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def install() -> None:
    """Apply the accommodations; idempotent.

    Raises:
        RuntimeError: psutil is missing; `dist_checkpointing.save` would hang for ever without it.
    """
    if importlib.util.find_spec("psutil") is None:
        raise RuntimeError("psutil is not installed: dist_checkpointing.save would never return")
    _hush()
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        # About forty `device=torch.cuda.current_device()` sites in megatron.core.
        torch.cuda.current_device = lambda: torch.device("cpu")
        # dist_checkpointing's file writer synchronizes unconditionally.
        torch.cuda.synchronize = lambda *_args, **_kwargs: None
    if importlib.util.find_spec("transformer_engine") is None:
        import megatron.core.transformer.moe.moe_utils as moe_utils
        import megatron.core.transformer.multi_latent_attention as mla

        mla.HAVE_TE = False  # 0.16 sets it True when TE is absent but ModelOpt's Linear imports
        moe_utils.te_general_gemm = None  # 0.16 leaves the name undefined without TE


def _hush() -> None:
    """Drop what megatron and torch say to everyone without TransformerEngine, Apex or a GPU; errors still show."""
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", module=r"torch\.distributed\.", category=FutureWarning)
    logging.getLogger("megatron").setLevel(logging.ERROR)


def make_deterministic() -> None:
    """Ask for the same bits from the same operation: a recomputed row must equal its stored row.

    With CUDA that is deterministic scatters and matrix products. On a CPU it is a fixed number of threads: setting it
    also stops MKL from taking fewer under load, which would cut a matrix product differently.
    """
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_num_threads(torch.get_num_threads())


class CudaLiterals(TorchFunctionMode):
    """Read the literal "cuda" as "cpu" inside megatron's optimizer, which spells it out.

    `Tensor.cuda()` returns the tensor, `device="cuda"` becomes `"cpu"`, and `Tensor.type()` answers with the CUDA
    name that megatron's gradient clipping compares with.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.type and len(args) == 1 and not named:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        wanted = named.get("device")
        if isinstance(wanted, (str, torch.device)) and torch.device(wanted).type == "cuda":
            named["device"] = "cpu"
        return func(*args, **named)


@contextlib.contextmanager
def on_cpu_literals() -> Iterator[None]:
    """Scope of `CudaLiterals` on a machine without CUDA; nothing with CUDA."""
    with contextlib.ExitStack() as stack:
        if not torch.cuda.is_available():
            stack.enter_context(CudaLiterals())
        yield


install()
