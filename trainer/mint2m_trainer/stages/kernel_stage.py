"""The kernel stage: the kernels that a run of this plan would choose here, over adversarial cases of this execution.

The rule: results are written as they come and judged elsewhere. Kernels are compiled before the run, over the same
sizes and other values; then the compile cache is hashed, and again after the last kernel, since a kernel compiled
during the run is not the one that was planned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.stages.doctor_stage import driver_rank
from mint2m_trainer.stages.observing import look
from mint2m_trainer.stages.setting import Inputs, Setting
from mint2m_trainer.stages.writing import Done
from mint2m_verify.canonical import canonical
from mint2m_verify.chain import kernel_cases as cases
from mint2m_verify.chain.kernel_cases import Dtype
from mint2m_verify.chain.places import PLACES
from mint2m_verify.chain.recompute.kernel import CACHE, attend_file, topk_file
from mint2m_verify.documents import RunProfile
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.manifests import TreeEntry
from mint2m_verify.documents.validation import Setting as EnvironmentSetting
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.tree import hash_tree, root_digest

if TYPE_CHECKING:
    import torch

    from mint2m_trainer.kernels import Kernels

#: Where a further precompiled kernel cache lies, as the seeds name it; hashed with the kernels' own where it is set.
CACHE_VARIABLE = "TILELANG_CACHE_DIR"

#: Queries that a kernel takes at once here: small, so that every case crosses several tiles.
_QUERY_TILE = 4

#: The cache is the user's, and another process may compile for itself meanwhile: only a pass in which nothing changed
#: counts, and these many are tried.
_PASSES = 3

#: Cases of no execution, on which everything is compiled.
_WARMING = "warming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a run in `dtype` would compute with on this device, and where its compiled code is kept."""

    dtype: Dtype
    device: torch.device
    kernels: Kernels
    cache: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    """Root digest and number of files of the compile caches; None and 0 where there is none."""

    sha256: str | None
    files: int


def work(setting: Setting) -> Done:
    """Run all cases; raises `FindingError` (`stage.cache-missing`, `stage.changed-while-running`)."""
    started_at = utc_now()
    chosen = tuple(_choose(dtype) for dtype in cases.planned_dtypes(_profiles(setting.inputs)))
    for _ in _results(chosen, _WARMING):
        pass
    folders = _folders(chosen)
    if setting.plan.kernel_cache_required and not _hashed(setting, folders).files:
        raise FindingError(found("stage.cache-missing", stage=setting.stage, actual=_named(folders) or "none is kept"))
    setting.tree.mkdir(parents=True)
    for _ in range(_PASSES):
        before = _hashed(setting, folders)
        written = dict(_results(chosen, setting.execution_id))
        after_cache = _hashed(setting, folders)
        if before == after_cache:
            break
    else:
        raise FindingError(
            found(
                "stage.changed-while-running",
                stage=setting.stage,
                file=_named(folders),
                expected=before.sha256,
                actual=after_cache.sha256,
            )
        )
    written[CACHE] = canonical({"after": after_cache.sha256, "before": before.sha256, "files": before.files})
    for name, raw in written.items():
        write_atomic(setting.tree / name, raw)
    after = look(setting.plan.image_digest)
    files = tuple(FileRef.of(f"{PLACES[setting.stage].tree}{name}", raw) for name, raw in sorted(written.items()))
    return Done(
        started_at=started_at,
        ended_at=utc_now(),
        after=after,
        ranks=(driver_rank(setting, files, after),),
        settings=tuple(_settings(chosen)),
    )


def _settings(chosen: tuple[Chosen, ...]) -> Iterator[EnvironmentSetting]:
    """Which kernels ran, and the further cache where one is named."""
    for item in chosen:
        words = f"{type(item.kernels).__name__} on {item.device.type}"
        yield EnvironmentSetting(name=f"kernels.{item.dtype}", value=words)
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        yield EnvironmentSetting(name=CACHE_VARIABLE, value=Path(folder).name)


def keeps_compiled_code(dtype: Dtype) -> bool:
    """Whether kernels for `dtype` are compiled here and kept, so that a plan can ask for their cache."""
    return _choose(dtype).cache is not None


def _profiles(inputs: Inputs) -> Iterator[RunProfile]:
    for item in inputs.plan.stages:
        if item.fixture is not None:
            path = item.fixture.profile.path
            yield RunProfile.parse(read_once(inputs.directory / path, name=path), file=path, canonical_form=False)


def _choose(dtype: Dtype) -> Chosen:
    from mint2m_trainer import compat
    from mint2m_trainer.kernels import choose_kernels, compile_cache

    device = compat.device()
    return Chosen(
        dtype=dtype,
        device=device,
        kernels=choose_kernels(device, _torch_dtype(dtype), _QUERY_TILE),
        cache=compile_cache(device, _torch_dtype(dtype)),
    )


def _torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch dtype of that name."""
    import torch

    named: torch.dtype = getattr(torch, dtype)
    return named


def _folders(chosen: tuple[Chosen, ...]) -> Mapping[str, Path]:
    """The caches by a name under which their files are hashed."""
    folders = {f"{item.device.type}/": item.cache for item in chosen if item.cache is not None}
    given = os.environ.get(CACHE_VARIABLE)
    return folders | {f"{CACHE_VARIABLE}/": Path(given)} if given else folders


def _named(folders: Mapping[str, Path]) -> str:
    return ", ".join(str(folder) for folder in folders.values())


def _hashed(setting: Setting, folders: Mapping[str, Path]) -> _Cached:
    entries: list[TreeEntry] = []
    for name, folder in folders.items():
        try:
            entries += (replace(entry, path=name + entry.path) for entry in hash_tree(folder))
        except FindingError as fault:
            actual = fault.finding.actual or fault.finding.message
            refusal = found("stage.cache-missing", stage=setting.stage, file=str(folder), actual=actual)
            raise FindingError(refusal) from fault
    if not entries:
        return _Cached(sha256=None, files=0)
    return _Cached(sha256=root_digest(tuple(sorted(entries, key=lambda entry: entry.path))), files=len(entries))


def _results(chosen: tuple[Chosen, ...], execution_id: str) -> Iterator[tuple[str, bytes]]:
    """Every case in every dtype: the file's name and its bytes."""
    for item in chosen:
        for name in cases.TOPK:
            yield topk_file(name, item.dtype), _topk(item, name, execution_id)
        for name in cases.ATTEND:
            yield attend_file(name, item.dtype), _attend(item, name, execution_id)


def _topk(chosen: Chosen, name: str, execution_id: str) -> bytes:
    import torch
    from safetensors.torch import save

    from mint2m_trainer.kernels import KeyBlock

    case, inputs = cases.TOPK[name], cases.topk_inputs(name, execution_id)
    place = {"device": chosen.device, "dtype": _torch_dtype(chosen.dtype)}
    keys = torch.from_numpy(inputs.keys).to(**place)
    ends = [*inputs.starts[1:], case.rows]
    # Later blocks first: the order in which blocks come may not show.
    blocks = [KeyBlock(start=s, keys=keys[s:e]) for s, e in zip(inputs.starts, ends, strict=True)][::-1]
    kept = chosen.kernels.topk(
        torch.from_numpy(inputs.q).to(**place),
        torch.from_numpy(inputs.w).to(**place),
        blocks,
        torch.from_numpy(inputs.qpos).to(chosen.device),
        case.keep,
    )
    return save({"scores": kept.scores.float().cpu().contiguous(), "positions": kept.positions.double().cpu()})


def _attend(chosen: Chosen, name: str, execution_id: str) -> bytes:
    import torch
    from safetensors.torch import save

    case, inputs = cases.ATTEND[name], cases.attend_inputs(name, execution_id, chosen.dtype)
    place = {"device": chosen.device, "dtype": _torch_dtype(chosen.dtype)}
    q, rows = torch.from_numpy(inputs.q).to(**place), torch.from_numpy(inputs.rows).to(**place)
    idx, ok = torch.from_numpy(inputs.idx).to(chosen.device), torch.from_numpy(inputs.ok).to(chosen.device)
    out, lse = chosen.kernels.attend(q, rows, idx, ok, case.scale, case.value_width)
    grad_q, grad_rows = chosen.kernels.attend_backward(
        q, rows, idx, ok, case.scale, out, lse, torch.from_numpy(inputs.grad).to(**place)
    )
    parts = {"out": out, "lse": lse, "grad_q": grad_q, "grad_rows": grad_rows}
    # A file of evidence holds float32 or float64, and either holds every bfloat16.
    held = torch.float64 if chosen.dtype == "float64" else torch.float32
    return save({part: tensor.to(held).cpu().contiguous() for part, tensor in parts.items()})
