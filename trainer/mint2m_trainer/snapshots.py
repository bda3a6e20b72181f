"""`mint2m model init-tiny | pretrain`: a tiny snapshot from the command line's words, and its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mint2m_trainer.model.init_tiny import Json, TinyConfigError, init_tiny
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
    changes = read_changes(config)
    with refusals_found(output, config):
        init_tiny(output, seed, changes)
    return manifest("model", output, MODEL_TREE)


def read_changes(config: Path | None) -> Mapping[str, Json]:
    """The members to change, of a file that the operator names or of none.

    Raises:
        FindingError: `input.missing` or `model.config-invalid`.
    """
    if config is None:
        return {}
    if not config.exists():
        raise FindingError(found("input.missing", file=str(config)))
    try:
        value = parse(read_once(config.resolve(), name=str(config)), file=str(config))
    except FindingError as fault:
        raise FindingError(because("model.config-invalid", fault.finding)) from fault
    if not isinstance(value, dict):
        raise FindingError(found("model.config-invalid", file=str(config), expected="an object"))
    return value


@contextmanager
def refusals_found(output: Path, config: Path | None) -> Iterator[None]:
    """Scope in which what `init_tiny` refuses becomes `file.exists` or `model.config-invalid`."""
    try:
        yield
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
