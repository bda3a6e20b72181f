"""The kernel stage: every hot kernel over the adversarial cases of this execution, in the driver itself.

The rule: results are written as they come and judged elsewhere; and the compile cache, where there is one, is hashed
before the first kernel and after the last, since a kernel compiled during the run is not the one that was planned.
"""

from __future__ import annotations

import os
from pathlib import Path

from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.stages.doctor_stage import driver_rank
from mint2m_trainer.stages.observing import look
from mint2m_trainer.stages.setting import Setting
from mint2m_trainer.stages.writing import Done
from mint2m_verify.canonical import canonical
from mint2m_verify.chain import kernel_cases as cases
from mint2m_verify.chain.places import PLACES
from mint2m_verify.chain.recompute.kernel import CACHE, attend_file, topk_file
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.validation import Setting as EnvironmentSetting
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.tree import hash_tree, root_digest

#: Where a precompiled kernel cache lies, as the seeds name it.
CACHE_VARIABLE = "TILELANG_CACHE_DIR"

#: Queries that a kernel takes at once here: small, so that every case crosses several tiles.
_QUERY_TILE = 4


def work(setting: Setting) -> Done:
    """Run all cases; raises `FindingError` (`stage.cache-missing`, `stage.changed-while-running`)."""
    started_at = utc_now()
    before = _cache(setting)
    setting.tree.mkdir(parents=True)
    written: dict[str, bytes] = {}
    for name in cases.TOPK:
        written[topk_file(name)] = _topk(name, setting.execution_id)
    for name in cases.ATTEND:
        written[attend_file(name)] = _attend(name, setting.execution_id)
    after_cache = _cache(setting)
    if before != after_cache:
        raise FindingError(found("stage.changed-while-running", stage=setting.stage, file=CACHE_VARIABLE))
    digest, count = before
    written[CACHE] = canonical({"after": after_cache[0], "before": digest, "files": count})
    for name, raw in written.items():
        write_atomic(setting.tree / name, raw)
    after = look(setting.plan.image_digest)
    files = tuple(FileRef.of(f"{PLACES[setting.stage].tree}{name}", raw) for name, raw in sorted(written.items()))
    folder = os.environ.get(CACHE_VARIABLE)
    return Done(
        started_at=started_at,
        ended_at=utc_now(),
        after=after,
        ranks=(driver_rank(setting, files, after),),
        settings=(EnvironmentSetting(name=CACHE_VARIABLE, value=Path(folder).name),) if folder else (),
    )


def _cache(setting: Setting) -> tuple[str | None, int]:
    """Root digest and files of the compile cache; None and 0 where none is named and none is required."""
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        if setting.plan.kernel_cache_required:
            raise FindingError(found("stage.cache-missing", stage=setting.stage, actual=f"{CACHE_VARIABLE} is not set"))
        return None, 0
    try:
        entries = hash_tree(Path(folder))
    except FindingError as fault:
        actual = fault.finding.actual or fault.finding.message
        raise FindingError(found("stage.cache-missing", stage=setting.stage, file=folder, actual=actual)) from fault
    return root_digest(entries), len(entries)


def _topk(name: str, execution_id: str) -> bytes:
    import torch
    from safetensors.torch import save

    from mint2m_trainer.kernels import KeyBlock, TorchKernels

    case, inputs = cases.TOPK[name], cases.topk_inputs(name, execution_id)
    keys = torch.from_numpy(inputs.keys).float()
    ends = [*inputs.starts[1:], case.rows]
    # Later blocks first: the order in which blocks come may not show.
    blocks = [KeyBlock(start=s, keys=keys[s:e]) for s, e in zip(inputs.starts, ends, strict=True)][::-1]
    kept = TorchKernels(query_tile=_QUERY_TILE).topk(
        torch.from_numpy(inputs.q).float(),
        torch.from_numpy(inputs.w).float(),
        blocks,
        torch.from_numpy(inputs.qpos),
        case.keep,
    )
    return save({"scores": kept.scores.float().contiguous(), "positions": kept.positions.double().contiguous()})


def _attend(name: str, execution_id: str) -> bytes:
    import torch
    from safetensors.torch import save

    from mint2m_trainer.kernels import TorchKernels

    case, inputs = cases.ATTEND[name], cases.attend_inputs(name, execution_id)
    kernels = TorchKernels(query_tile=_QUERY_TILE)
    q, rows = torch.from_numpy(inputs.q).float(), torch.from_numpy(inputs.rows).float()
    idx, ok = torch.from_numpy(inputs.idx), torch.from_numpy(inputs.ok)
    out, lse = kernels.attend(q, rows, idx, ok, case.scale, case.value_width)
    grad_q, grad_rows = kernels.attend_backward(
        q, rows, idx, ok, case.scale, out, lse, torch.from_numpy(inputs.grad).float()
    )
    parts = {"out": out, "lse": lse, "grad_q": grad_q, "grad_rows": grad_rows}
    return save({part: tensor.float().contiguous() for part, tensor in parts.items()})
