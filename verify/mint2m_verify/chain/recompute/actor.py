"""The actor stage: every tensor that a rank holds against the snapshot and adapter that the plan names.

The rule: a digest is compared with bytes at hand, not with another digest of the operator's. Where the snapshot did not
come with the evidence, the digests are the operator's word, and the numbers say so by their standing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.places import INPUTS, MODEL
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.chain.recompute.phases import check_rank_phases
from mint2m_verify.documents.validation import LoadedTensor, LoadedTensors, StandingName
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.layout import ADAPTER_WEIGHTS
from mint2m_verify.phases import BIND, INITIALIZE, MATERIALIZE
from mint2m_verify.recompute.shard_file import ShardFile, Union
from mint2m_verify.recompute.tensors import Floats

ADAPTER = f"{INPUTS}adapter/{ADAPTER_WEIGHTS}"
PHASES = (BIND, INITIALIZE, MATERIALIZE)

_DTYPES: Mapping[str, np.dtype[np.floating]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def tensors_file(rank: int) -> str:
    """Where a rank's list of loaded tensors lies, below the stage's tree."""
    return f"rank-{rank}.tensors.json"


def phases_file(rank: int) -> str:
    """Where a rank's phases lie, below the stage's tree."""
    return f"rank-{rank}.phases.json"


def recompute(evidence: Evidence) -> Recomputation:
    """Loaded, mismatched and missing tensors over all ranks; the optimizer as each rank observed it."""
    snapshot, standing = yield from _snapshot(evidence)
    adapter = yield from _read(evidence, (ADAPTER,))
    loaded, mismatched, wrong_adapter, wrong_contract, steps = 0, 0, 0, 0, 0
    seen: dict[str, str] = {}
    for rank in range(evidence.world_size):
        yield from check_rank_phases(evidence, phases_file(rank), rank=rank, case="actor", side="actor", wanted=PHASES)
        path = f"{evidence.tree}{tensors_file(rank)}"
        try:
            held = evidence.document(LoadedTensors, path)
        except FindingError as fault:
            yield fault.finding
            wrong_contract += 1
            continue
        if (held.execution_id, held.rank) != (evidence.execution_id, rank):
            want, have = f"rank {rank} of {evidence.execution_id}", f"rank {held.rank} of {held.execution_id}"
            yield found("chain.execution-mismatch", stage="actor", file=path, expected=want, actual=have)
        loaded += len(held.base)
        for place, tensor in enumerate(held.base):
            pointer = f"/base/{place}/sha256"
            bad = yield from _compare(tensor, snapshot.get(tensor.name), path, pointer, known=bool(snapshot))
            mismatched += bad
            first = seen.setdefault(tensor.name, tensor.sha256)
            if first != tensor.sha256:
                yield found(
                    "chain.ranks-disagree",
                    stage="actor",
                    file=path,
                    pointer=pointer,
                    expected=first,
                    actual=tensor.sha256,
                )
        for place, tensor in enumerate(held.adapter):
            pointer = f"/adapter/{place}/sha256"
            bad = yield from _compare(tensor, adapter.get(tensor.name), path, pointer, known=True)
            wrong_adapter += bad
        wrong_contract += held.optimizer != evidence.plan.optimizer
        steps += held.optimizer_steps
    missing = sorted(snapshot.keys() - seen.keys())
    for name in missing:
        yield found("chain.tensor-not-loaded", stage="actor", file=f"{evidence.tree}{tensors_file(0)}", expected=name)
    return (
        Number(name="tensors.loaded", value=float(loaded), standing=standing),
        Number(name="tensors.mismatched", value=float(mismatched), standing=standing),
        Number(name="tensors.missing", value=float(len(missing)), standing=standing),
        Number(name="adapter.mismatched", value=float(wrong_adapter), standing="derived"),
        Number(name="optimizer.mismatched", value=float(wrong_contract), standing="attested-only"),
        Number(name="optimizer.steps", value=float(steps), standing="attested-only"),
    )


def _snapshot(evidence: Evidence) -> Generator[Finding, None, tuple[Mapping[str, Floats], StandingName]]:
    """The snapshot's tensors by name; none, and the weakest standing, where the model is not at hand."""
    shards = yield from _read(evidence, sorted(p for p in evidence.files if _is_shard(p)))
    return shards, "derived" if shards else "attested-only"


def _is_shard(path: str) -> bool:
    return path.startswith(MODEL) and path.endswith(".safetensors")


def _read(evidence: Evidence, paths: Sequence[str]) -> Generator[Finding, None, Mapping[str, Floats]]:
    """The tensors of these files, read as they are asked for."""
    files: list[ShardFile] = []
    for path in paths:
        try:
            files.append(evidence.tensors(path))
        except FindingError as fault:
            yield fault.finding
    return Union(files)


def _compare(
    tensor: LoadedTensor, source: Floats | None, path: str, pointer: str, *, known: bool
) -> Generator[Finding, None, int]:
    """1 where what is held is not the source, widened to the dtype it is held in."""
    if not known:
        return 0
    dtype = _DTYPES.get(tensor.dtype)
    want = None
    # A narrower dtype loses digits in a way that depends on the rounding; only widening is bit for bit.
    wide = dtype is not None and source is not None and dtype.itemsize >= source.dtype.itemsize
    if source is not None and wide and tensor.shape == source.shape:
        want = hashlib.sha256(np.ascontiguousarray(source.astype(dtype)).tobytes()).hexdigest()
    if want == tensor.sha256:
        return 0
    yield found(
        "chain.tensor-mismatch",
        stage="actor",
        file=path,
        pointer=pointer,
        expected=f"{tensor.name} {want or 'as in the snapshot'}",
        actual=tensor.sha256,
    )
    return 1
