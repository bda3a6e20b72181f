"""`mint2m model export-adapter`: a run's adapter, checked whole and written for another loader.

The rule: the function stays the same, and what is written appears whole. The canonical form is PEFT's own for models
whose experts are modules; transformers 5 keeps them in fused parameters, and PEFT would drop parts of the canonical
form there in silence (see `peft_fused`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.peft import Adapter, AdapterError, read_adapter, write_adapter
from mint2m_trainer.peft_fused import fuse_experts, write_fused
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.tree import manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: `modules` of the canonical form, tensors and root digest of the new directory."""

    modules: int
    tensors: int
    rank: int
    root_sha256: str


def export_adapter(directory: Path, output: Path, *, fused: bool) -> Exported:
    """Read the adapter in `directory` and write it to `output`, which must not exist or be empty.

    Args:
        fused: for transformers 5, each layer's experts in one pair per fused parameter.

    Raises:
        FindingError: `input.missing`, `adapter.malformed`, `file.exists` or `file.unwritable`; nothing is left then.
    """
    if not directory.is_dir():
        raise FindingError(found("input.missing", file=str(directory)))
    adapter = _read(directory)
    try:
        if fused:
            made = fuse_experts(adapter)
            write_fused(output, made)
            tensors, rank = len(made.tensors), made.rank
        else:
            write_adapter(output, adapter.tensors, adapter.rank, adapter.alpha)
            tensors, rank = len(adapter.tensors), adapter.rank
    except AdapterError as fault:
        raise FindingError(_malformed(fault)) from fault
    except FileExistsError as fault:
        raise FindingError(found("file.exists", file=str(output))) from fault
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(output), actual=fault.strerror)) from fault
    root = manifest("file", output, output.name).root_sha256
    return Exported(modules=len(adapter.modules), tensors=tensors, rank=rank, root_sha256=root)


def _read(directory: Path) -> Adapter:
    try:
        return read_adapter(directory)
    except AdapterError as fault:
        raise FindingError(_malformed(fault)) from fault
    except FileNotFoundError as fault:
        raise FindingError(found("input.missing", file=str(fault.filename))) from fault
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(fault.filename), actual=fault.strerror)) from fault


def _malformed(fault: AdapterError) -> Finding:
    return found(
        "adapter.malformed", file=fault.file, pointer=fault.pointer, expected=fault.expected, actual=fault.actual
    )
