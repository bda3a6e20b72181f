"""`adapter_sha256`, by the rule: for each tensor by name a canonical line of dtype, name and shape, then its bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import rfc8785


def adapter_sha256(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        kind = {"float32": "F32", "float64": "F64"}[tensor.dtype.name]
        digest.update(rfc8785.dumps({"dtype": kind, "name": name, "shape": list(tensor.shape)}) + b"\n")
        digest.update(tensor.tobytes())
    return digest.hexdigest()
