"""What a rank can say about itself: digests of weights, adapter and pages, counts, memory.

A digest covers names, dtypes, shapes and bytes in order of name, so a tensor that moved or changed type shows.
The witness is a cheap stand-in between digests: it covers where tensors lie and how often they were written.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.names import slots
from mint2m_verify.canonical import canonical

_DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over tensors by name: a canonical JSON line of name, dtype and shape, then little-endian bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        head = {"dtype": _DTYPE_NAMES[tensor.dtype], "name": name, "shape": list(tensor.shape)}
        digest.update(canonical(head) + b"\n")
        if tensor.numel():
            digest.update(memoryview(tensor.view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def base_tensors(model: PrefixModel) -> Mapping[str, Tensor]:
    """The base tensors that this rank holds, buffers that decide routing included, by Hugging Face name."""
    return {slot.name: slot.view for slot in slots(model, model.spec)}


def weights_sha256(model: PrefixModel) -> str:
    """Digest of `base_tensors`."""
    return tensors_sha256(base_tensors(model))


def weights_witness(model: PrefixModel) -> Callable[[], str]:
    """Tells the identity of every weight whenever it is asked: storage and version counter, base and adapter.

    The tensors are looked up once: a session asks before every pass. One put in another's place later shows in the
    digest that ends the update.
    """
    held = [(slot.name, slot.tensor) for slot in slots(model, model.spec)]
    held += [(a.projection, p) for a in model.adapters() for p in (a.A, a.B)]

    def now() -> str:
        words = "".join(f"{name}\0{tensor.data_ptr()}\0{tensor._version}\n" for name, tensor in held)
        return hashlib.sha256(words.encode()).hexdigest()

    return now


def peak_memory_bytes() -> int:
    """High-water mark of this process: device memory with CUDA, resident memory without."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _resident_bytes()


def peak_host_memory_bytes() -> int | None:
    """High-water mark of this process's resident memory; None without CUDA, where `peak_memory_bytes` is that."""
    return _resident_bytes() if torch.cuda.is_available() else None


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kibibytes on Linux
