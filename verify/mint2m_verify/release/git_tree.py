"""Git's name of a tree, computed from its files: what `git rev-parse COMMIT^{tree}` prints.

The rule: the name follows from paths, executable bits and contents alone, so anyone who holds the source can say which
tree it is without a repository. It is SHA-1, as git's is: it says which tree is meant and protects nothing; that is the
signature's part, which is over SHA-256. Format: git-hash-object, git-mktree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    """What of a hashlib object is used."""

    def update(self, piece: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFile:
    """A file of a tree; `blob` is git's name of its content."""

    path: str
    executable: bool
    blob: str


def blob_hash(size: int) -> Hash:
    """A hash that becomes git's name of a content of `size` bytes once it was given them."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def tree_name(files: Iterable[GitFile]) -> str:
    """Git's name of the tree that holds exactly `files`."""
    here: list[tuple[bytes, bytes]] = []
    below: dict[str, list[GitFile]] = {}
    for file in files:
        head, slash, rest = file.path.partition("/")
        if slash:
            below.setdefault(head, []).append(GitFile(path=rest, executable=file.executable, blob=file.blob))
        else:
            mode = b"100755" if file.executable else b"100644"
            name = head.encode("utf-8")
            here.append((name, mode + b" " + name + b"\0" + bytes.fromhex(file.blob)))
    for head, inner in below.items():
        name = head.encode("utf-8")
        # Git sorts a directory as if its name ended in a slash.
        here.append((name + b"/", b"40000 " + name + b"\0" + bytes.fromhex(tree_name(inner))))
    content = b"".join(entry for _, entry in sorted(here))
    return hashlib.sha1(b"tree %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
