"""The files of a commit, as git holds them.

The rule: a release is made of one commit's objects and never of the working tree. What lies there can be ignored,
filtered, changed or linked elsewhere; that it is clean is asked all the same, so that what people see is what is
released.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mint2m_verify.finding import Finding, FindingError, found

_REGULAR = {"100644": False, "100755": True}
_SHA1_LENGTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFile:
    """An entry of the commit's tree; `mode` is git's."""

    path: str
    mode: str
    blob: str
    size: int

    @property
    def executable(self) -> bool:
        return _REGULAR.get(self.mode, False)

    @property
    def regular(self) -> bool:
        return self.mode in _REGULAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit that is checked out at `root`; `tree` is git's name of its tree, `epoch` its time."""

    root: Path
    name: str
    tree: str
    epoch: int
    files: tuple[CommitFile, ...]

    @property
    def committed_at(self) -> str:
        """Its time, RFC 3339 in UTC."""
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def read(self, paths: Iterable[str] | None = None) -> Iterator[tuple[CommitFile, bytes]]:
        """Files by path, or all regular ones, one at a time; a path that the commit has not is left out."""
        wanted = None if paths is None else set(paths)
        files = [file for file in self.files if file.regular and (wanted is None or file.path in wanted)]
        with tempfile.TemporaryFile() as names:
            # From a file: git would wait for its output to be taken while we wait for it to take names.
            names.write("".join(f"{file.blob}\n" for file in files).encode("ascii"))
            names.seek(0)
            with subprocess.Popen(
                ["git", "cat-file", "--batch"], cwd=self.root, stdin=names, stdout=subprocess.PIPE, env=_environment()
            ) as git:
                if git.stdout is None:
                    raise RuntimeError("git was started without a pipe")
                for file in files:
                    head = git.stdout.readline()
                    content = git.stdout.read(file.size + 1)
                    if head != f"{file.blob} blob {file.size}\n".encode() or len(content) != file.size + 1:
                        git.kill()
                        raise _no_checkout(self.root, f"git cat-file said {head[:100]!r}")
                    yield file, content[:-1]


def read_commit(root: Path) -> Commit:
    """The commit checked out at `root`, the checkout's top; raises `FindingError` (`release.not-a-checkout`)."""
    top = _git(root, "rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape").rstrip("\n")
    if Path(top).resolve() != root.resolve():
        raise _no_checkout(root, f"part of the checkout {top}")
    name, tree, epoch = _git(root, "log", "-1", "--format=%H %T %ct", "HEAD").decode("ascii").split()
    if len(name) != _SHA1_LENGTH:
        raise _no_checkout(root, "a repository with SHA-256 names")
    return Commit(root=root, name=name, tree=tree, epoch=int(epoch), files=tuple(_files(root)))


def check_clean(root: Path) -> Iterator[Finding]:
    """Each path that differs from the commit; ignored files may lie about."""
    for line in _git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames").split(b"\0"):
        if line:
            yield found("release.dirty", file=line[3:].decode("utf-8", "backslashreplace"), actual=line[:2].decode())


def _files(root: Path) -> Iterator[CommitFile]:
    for line in _git(root, "ls-tree", "-r", "-l", "-z", "--full-tree", "HEAD").split(b"\0"):
        if line:
            facts, _, path = line.partition(b"\t")
            mode, _, blob, size = facts.decode("ascii").split()
            shown = path.decode("utf-8", "surrogateescape")
            yield CommitFile(path=shown, mode=mode, blob=blob, size=0 if size == "-" else int(size))


def _git(root: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False, env=_environment())
    except OSError as fault:
        raise _no_checkout(root, f"git: {fault.strerror}") from fault
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        raise _no_checkout(root, lines[-1] if lines else f"git {words[0]} failed")
    return done.stdout


def _environment() -> dict[str, str]:
    """This process's, without what would point git at another repository; git is not to write, nor to translate."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _no_checkout(root: Path, actual: str) -> FindingError:
    return FindingError(found("release.not-a-checkout", file=str(root), actual=actual[:300]))
