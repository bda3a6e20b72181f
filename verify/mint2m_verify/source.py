"""The identity of the code that runs: one digest over every module and schema of the installed distribution.

The digest is a tree root (the rule of `mint2m_verify.tree`) over `mint2m/**/*.py`, `mint2m_verify/**/*.py`,
`mint2m_trainer/**/*.py` and `schemas/*.json`, named by package and not by where they are installed, so a checkout and
a wheel of one version agree. Byte code, data and executable bits are left out: they differ between machines.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.manifests import TreeEntry
from mint2m_verify.finding import FindingError, found
from mint2m_verify.schema import schema_directory
from mint2m_verify.tree import root_digest

PACKAGES = ("mint2m", "mint2m_trainer", "mint2m_verify")

#: What of a checkout is source.
_CHECKOUT = ("mint2m", "verify", "trainer", "schemas", "pyproject.toml", "constraints.txt")


@cache
def source_sha256() -> str:
    """The root digest of this installation's source; computed once a process.

    Raises:
        FindingError: `source.missing` where a package cannot be found.
    """
    return root_digest(entries())


def observed_sha256() -> str:
    """The same digest from the files as they lie there now, hashed again at each call."""
    return root_digest(entries())


def checkout_sha256() -> str | None:
    """The root digest of the source checkout that this installation runs from; None for an installed wheel.

    Everything below the packages and `schemas/` that is no byte code, with `pyproject.toml` and `constraints.txt`,
    named as in the checkout.
    """
    root = _directory("mint2m").parent
    if not all((root / name).exists() for name in _CHECKOUT):
        return None
    files = [path for name in _CHECKOUT for path in _below(root / name)]
    return root_digest([_entry(path.relative_to(root).as_posix(), path) for path in files])


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for item in sorted(path.rglob("*")):
        if item.is_file() and "__pycache__" not in item.parts and item.suffix != ".pyc":
            yield item


def entries() -> tuple[TreeEntry, ...]:
    """Every file of the source, sorted by name."""
    return tuple(sorted(_entries(), key=lambda entry: entry.path))


def _entries() -> Iterator[TreeEntry]:
    for package in PACKAGES:
        root = _directory(package)
        for path in root.rglob("*.py"):
            yield _entry(f"{package}/{path.relative_to(root).as_posix()}", path)
    for path in schema_directory().glob("*.json"):
        yield _entry(f"schemas/{path.name}", path)


def _directory(package: str) -> Path:
    # find_spec of a top-level name does not import it, so no torch or ray comes along with the trainer.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FindingError(found("source.missing", file=package))
    return Path(next(iter(spec.submodule_search_locations)))


def _entry(name: str, path: Path) -> TreeEntry:
    raw = path.read_bytes()
    digest = sha256_hex(raw)
    # No source file comes near the 64 MiB chunk size, so a non-empty file is its own only chunk.
    return TreeEntry(path=name, size=len(raw), executable=False, sha256=digest, chunks=(digest,) if raw else ())
