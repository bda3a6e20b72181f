"""Small releases for the tests: a git checkout of a few files, and archives written by Python's own tarfile and gzip.

Nothing here uses the code under test to write an archive, so what it reads was made by somebody else. `small_source`
is what `mint2m release build` is given; `entries_of` takes a bundle apart, `archive` puts one together in any shape.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

VERSION = "1.2.3"
NAME = f"mint2m-v{VERSION}-release-bundle.tar.gz"
WHEEL = f"wheel/mint2m-{VERSION}-py3-none-any.whl"

#: The time that every member has: 1980-01-01.
MTIME = 315_532_800

PYPROJECT = f"""
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "mint2m"
version = "{VERSION}"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["numpy>=1"]

[project.optional-dependencies]
trainer = ["torch>=2", "mint2m"]

[tool.hatch.build.targets.wheel]
packages = ["mint2m", "verify/mint2m_verify"]

[tool.hatch.build.targets.wheel.force-include]
"schemas" = "mint2m_verify/schemas"
"""


def hatchling_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("hatchling")


def pins() -> dict[str, str]:
    """The lock: what the project names, and one package that only another one needs."""
    return {"hatchling": hatchling_version(), "numpy": "2.4.6", "packaging": "26.4", "torch": "2.13.0"}


def small_files() -> dict[str, bytes]:
    """The files of a project that passes every gate."""
    schema = {"$id": "urn:mint2m:schema:thing:v1", "type": "object"}
    return {
        "pyproject.toml": PYPROJECT.encode(),
        "constraints.txt": "\n".join(["# the lock", *(f"{name}=={pin}" for name, pin in pins().items())]).encode(),
        "LICENSE": b"the licence\n",
        "README.md": b"# A project\n",
        "docs/changelog.md": f"# Changelog\n\n## {VERSION}\n\n- something\n\n## 1.2.2\n\n- before\n".encode(),
        "docs/caf\u00e9.md": b"caf\xc3\xa9\n",
        "mint2m/__init__.py": b'"""The command line."""\n',
        "verify/mint2m_verify/__init__.py": f'"""Verification."""\n\n__version__ = "{VERSION}"\n'.encode(),
        "verify/mint2m_verify/empty.py": b"",
        "schemas/thing.v1.json": json.dumps(schema).encode(),
        "tests/vectors/one/case.json": json.dumps({"why": "a reason", "exit": 1}).encode(),
        "tool.sh": b"#!/bin/sh\nexit 0\n",
        "large.bin": bytes(range(256)) * 600,  # more than one stored block
    }


def small_source(place: Path, files: Mapping[str, bytes] | None = None) -> Path:
    """A git checkout of `files` at `place`, committed at a fixed time; `tool.sh` is executable."""
    for path, raw in (small_files() if files is None else files).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(raw)
        if path.endswith(".sh"):
            (place / path).chmod(0o755)
    git(place, "init", "-q", "-b", "main")
    git(place, "add", "-A")
    commit(place)
    return place


def commit(place: Path) -> None:
    git(place, "commit", "-q", "--allow-empty", "-m", "a commit")


def git(place: Path, *words: str) -> str:
    """Git without this machine's settings, at a fixed time and by nobody in particular."""
    when = "2026-01-31T12:00:00Z"
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_AUTHOR_DATE": when,
        "GIT_COMMITTER_DATE": when,
    }
    done = subprocess.run(["git", *words], cwd=place, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A member as tarfile knows it, canonical unless told otherwise; `content` may be of another length than `size`."""

    name: str
    content: bytes = b""
    executable: bool = False
    mode: int | None = None
    mtime: int = MTIME
    uid: int = 0
    gid: int = 0
    uname: str = ""
    gname: str = ""
    type: bytes = tarfile.REGTYPE
    linkname: str = ""
    size: int | None = None

    def block(self) -> bytes:
        """The header as tarfile writes it."""
        info = tarfile.TarInfo(self.name)
        info.size = len(self.content) if self.size is None else self.size
        info.mode = self.mode if self.mode is not None else (0o755 if self.executable else 0o644)
        info.mtime, info.uid, info.gid = self.mtime, self.uid, self.gid
        info.uname, info.gname, info.type, info.linkname = self.uname, self.gname, self.type, self.linkname
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")

    def raw(self) -> bytes:
        """Header, content and zeros up to the next block."""
        return self.block() + self.content + bytes(-len(self.content) % 512)


def entries_of(archive: bytes) -> list[Entry]:
    """The members of an archive, as tarfile reads them."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as bundle:
        members = [(info, bundle.extractfile(info)) for info in bundle.getmembers()]
        return [
            Entry(name=info.name, content=stream.read() if stream else b"", executable=bool(info.mode & 0o100))
            for info, stream in members
        ]


def tar(entries: Iterable[Entry | bytes], *, end: bytes = bytes(1024)) -> bytes:
    """Members one after another; bytes stand for themselves."""
    return b"".join(entry if isinstance(entry, bytes) else entry.raw() for entry in entries) + end


def deflated(raw: bytes, *, level: int = 6) -> bytes:
    """One compressed gzip member, without name or time."""
    return gzip.compress(raw, compresslevel=level, mtime=0)


def archive(entries: Iterable[Entry | bytes], *, end: bytes = bytes(1024)) -> bytes:
    """A compressed archive of these members."""
    return deflated(tar(entries, end=end))


def checksummed(block: bytes) -> bytes:
    """A header block whose checksum is made right again."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def patched(entry: Entry, offset: int, new: bytes) -> bytes:
    """An entry with bytes of its header replaced, under a right checksum."""
    block = entry.block()
    return checksummed(block[:offset] + new + block[offset + len(new) :]) + entry.raw()[512:]


def changed(entries: list[Entry], name: str, **members: object) -> list[Entry]:
    """The entries, one of them with other members."""
    assert any(entry.name == name for entry in entries)
    return [replace(entry, **members) if entry.name == name else entry for entry in entries]  # type: ignore[arg-type]
