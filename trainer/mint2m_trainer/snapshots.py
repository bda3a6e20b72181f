"""`mint2m model init-tiny`: a tiny snapshot from the command line's words, and its manifest."""

from __future__ import annotations

from pathlib import Path

from mint2m_trainer.model.init_tiny import TinyConfigError, init_tiny
from mint2m_verify.canonical import parse
from mint2m_verify.deployment_parts import because
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.tree import manifest


def make_tiny(output: Path, *, seed: int, config: Path | None) -> FileManifest:
    """Write the snapshot and return its manifest.

    Raises:
        FindingError: `file.exists`, `input.missing` or `model.config-invalid`.
    """
    changes = None
    if config is not None:
        if not config.exists():
            raise FindingError(found("input.missing", file=str(config)))
        try:
            value = parse(read_once(config.resolve(), name=str(config)), file=str(config))
        except FindingError as fault:
            raise FindingError(because("model.config-invalid", fault.finding)) from fault
        if not isinstance(value, dict):
            raise FindingError(found("model.config-invalid", file=str(config), expected="an object"))
        changes = value
    try:
        init_tiny(output, seed, changes)
    except TinyConfigError as fault:
        raise FindingError(
            found(
                "model.config-invalid",
                file=None if config is None else str(config),
                pointer=fault.pointer,
                expected=fault.expected,
                actual=fault.actual,
            )
        ) from fault
    except FileExistsError as fault:
        raise FindingError(found("file.exists", file=str(output))) from fault
    return manifest("model", output, MODEL_TREE)
