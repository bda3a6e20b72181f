"""Whether a wheel holds the source's files: what people install against what they can read.

The rule: outside its own `.dist-info` a wheel holds exactly the files that pyproject.toml ships, under the names that
it gives them, byte for byte. A module that only the wheel has would run on every machine and stand in no review.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import Finding, found
from mint2m_verify.release import layout
from mint2m_verify.release.project import PROJECT, Project, Shipped

#: What the zip reader raises for a file that is none, or a damaged one.
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)

#: What every installer reads.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

#: What hatchling writes itself.
_OWN = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the source: its path in it, its size and its digest."""

    path: str
    size: int
    sha256: str


def check_wheel(raw: bytes, project: Project, source: Mapping[str, SourceFile], *, version: str) -> Iterator[Finding]:
    """Where the wheel differs from `source`, which is by path."""
    file = layout.wheel_name(version)
    want = _expected(project, source, version)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            yield from _compare(archive, want, file, f"{PROJECT}-{version}.dist-info/")
    except _ZIP_FAULTS as fault:
        yield found(
            "release.wheel-differs", file=file, expected="a wheel", actual=f"{type(fault).__name__}: {fault}"[:200]
        )


def _compare(archive: zipfile.ZipFile, want: Mapping[str, SourceFile], file: str, own: str) -> Iterator[Finding]:
    names = [info.filename for info in archive.infolist()]
    if len(set(names)) != len(names):
        yield found("release.wheel-differs", file=file, expected="each name once")
    for info in archive.infolist():
        if info.compress_type not in _COMPRESSIONS:
            yield found("release.wheel-differs", file=file, actual=f"{info.filename}: compression {info.compress_type}")
            continue
        known = want.get(info.filename)
        if known is None:
            if info.filename.removeprefix(own) not in _OWN or not info.filename.startswith(own):
                yield found("release.wheel-differs", file=file, actual=f"{info.filename} is not of the source")
            continue
        with archive.open(info) as stream:
            content = stream.read(known.size + 1)  # whatever the zip says of its size
        if sha256_hex(content) != known.sha256:
            yield found("release.wheel-differs", file=file, actual=f"{info.filename} is not {known.path} of the source")
    for name in sorted(want.keys() - set(names)):
        yield found("release.wheel-differs", file=file, expected=name, actual="not in the wheel")


def _expected(project: Project, source: Mapping[str, SourceFile], version: str) -> dict[str, SourceFile]:
    """The source's file for each name in the wheel."""
    licences = tuple(
        Shipped(source=path, wheel=f"{PROJECT}-{version}.dist-info/licenses/{path}") for path in project.licence_files
    )
    wanted: dict[str, SourceFile] = {}
    for shipped in (*project.shipped, *licences):
        for path, entry in source.items():
            if path == shipped.source:
                wanted[shipped.wheel] = entry
            elif path.startswith(f"{shipped.source}/"):
                wanted[shipped.wheel + path.removeprefix(shipped.source)] = entry
    return wanted
