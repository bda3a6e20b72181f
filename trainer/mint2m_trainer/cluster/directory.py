"""The run directory before and after the ranks: copies of the inputs first, manifests and receipt last.

The rule: the bytes that were planned are the bytes that are copied, each under the place that the verifier fixes, and
nothing is overwritten. A file that is there already must hold exactly those bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mint2m_trainer.cluster.messages import reference_of
from mint2m_verify import layout
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import Doctor
from mint2m_verify.elsewhere import HashedElsewhere, hash_now
from mint2m_verify.files import read_once, sync_directory, write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.tree import ManifestKind, manifest
from mint2m_verify.walk import Hashing

_BLOCK_BYTES = 1 << 20

#: Temporary names of everything the project writes: `.NAME.PID.partial` files, `NAME.partial-ID` files and directories.
_HALF_WRITTEN = re.compile(r"\..+\.[0-9]+\.partial|.+\.partial-[0-9a-f]+")


def prepare(root: Path, plan: Plan, inputs: PlannedInputs, doctor: Doctor) -> None:
    """Write plan, doctor and the inputs' copies below `root`; raises `FindingError` (`file.exists`)."""
    files = {
        layout.DEPLOYMENT: inputs.deployment_raw,
        layout.PROFILE: inputs.profile_raw,
        layout.FIXTURE: inputs.fixture_bytes.fixture,
        layout.PAYLOAD: inputs.fixture_bytes.payload,
        layout.ROLLOUT: inputs.fixture_bytes.rollout,
        layout.MODEL_MANIFEST: inputs.model_manifest.encode(),
        layout.RUNTIME_IDENTITY: inputs.runtime_identity.encode(),
        layout.DOCTOR: doctor.encode(),
        layout.PLAN: plan.encode(),
    }
    for path, raw in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            if read_once(place, name=path) != raw:
                raise FindingError(found("file.exists", file=path, expected=sha256_hex(raw)))
        else:
            write_atomic(place, raw)
    if inputs.adapter is not None:
        for source in sorted(inputs.adapter.iterdir()):
            _copy(source, root / layout.ADAPTER_INITIAL / source.name)
    if inputs.moments is not None:
        _copy(inputs.moments, root / layout.OPTIMIZER_INITIAL)
    if inputs.gradient is not None:
        _copy(inputs.gradient, root / layout.GRADIENT_INITIAL)
    (root / "artifacts").mkdir(exist_ok=True)


def _copy(source: Path, place: Path) -> None:
    """Copy a file that may be large, under a temporary name until it is whole and on disk."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with source.open("rb") as reader, partial.open("xb") as writer:
            shutil.copyfileobj(reader, writer, _BLOCK_BYTES)
            writer.flush()
            os.fsync(writer.fileno())
        partial.replace(place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(place.parent)


#: What the ranks hashed as they wrote it, by path in the run directory.
Written: TypeAlias = Mapping[str, HashedElsewhere]


def hash_written(
    root: Path, paths: Iterable[str], hashed_already: Iterable[HashedElsewhere] = ()
) -> tuple[HashedElsewhere, ...]:
    """The digests of files that this rank has just written below `root`, sorted by path.

    Args:
        hashed_already: some of them, hashed on their way to the disk; a digest is taken where the file still has the
            size and time that it had when it was whole.

    Raises:
        FindingError: `file.unreadable` where one is not there, or no longer what it was.
    """
    known = {file.file.path: file for file in hashed_already}
    hashed = []
    for path in sorted(paths):
        file = _still(root, known.get(path)) or hash_now(root, path)
        if file is None:
            raise FindingError(found("file.unreadable", file=path, actual="changed or removed while it was hashed"))
        hashed.append(file)
    return tuple(hashed)


def _still(root: Path, known: HashedElsewhere | None) -> HashedElsewhere | None:
    try:
        return known if known is not None and known.is_of((root / known.file.path).lstat()) else None
    except OSError:
        return None


def write_manifest(root: Path, kind: ManifestKind, tree: str, place: str, written: Written) -> FileRef:
    """Write the manifest of the run directory's tree `tree` at `place`; what its writers hashed is not read again."""
    below = {path.removeprefix(f"{tree}/"): file for path, file in written.items() if path.startswith(f"{tree}/")}
    raw = manifest(kind, root / tree, tree, hashing=Hashing(elsewhere=below)).encode()
    write_atomic(root / place, raw)
    return FileRef.of(place, raw)


def write_document(root: Path, place: str, raw: bytes) -> FileRef:
    """Write a document of the run and return its reference."""
    write_atomic(root / place, raw)
    return FileRef.of(place, raw)


def reference(root: Path, place: str, written: Written | None = None) -> FileRef:
    """The reference to a file that the run has written; what its writer hashed is not read again."""
    known = None if written is None else written.get(place)
    if known is not None and known.is_of((root / place).stat()):
        return reference_of(known)
    with (root / place).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRef(path=place, sha256=digest, size=os.fstat(stream.fileno()).st_size)


def half_written(root: Path) -> Iterator[Path]:
    """Files and directories below `root` that were being written when their writer ended; outermost only."""
    for path in sorted(root.iterdir()):
        if _HALF_WRITTEN.fullmatch(path.name):
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from half_written(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Half-written things that were removed, and those that could not be."""

    removed: tuple[Path, ...]
    stayed: tuple[Path, ...]


def remove_half_written(root: Path) -> Removal:
    """Remove what `half_written` finds."""
    removed, stayed = [], []
    for path in half_written(root):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError:
            stayed.append(path)
        else:
            removed.append(path)
            sync_directory(path.parent)
    return Removal(removed=tuple(removed), stayed=tuple(stayed))
