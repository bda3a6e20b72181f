"""Manifests of file trees. How a tree is hashed is `mint2m_verify.tree`'s subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mint2m_verify.documents.base import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """One regular file; `chunks` are the SHA-256 of consecutive 64 MiB pieces, none for an empty file."""

    path: str
    size: int
    executable: bool
    sha256: str
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileManifest(Document):
    """A tree of regular files; `tree` is its name for people."""

    NAME: ClassVar[str] = "file-manifest"

    tree: str
    chunk_bytes: int
    file_count: int
    total_bytes: int
    files: tuple[TreeEntry, ...]
    root_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelManifest(FileManifest):
    """The files of a model snapshot."""

    NAME: ClassVar[str] = "model-manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest(FileManifest):
    """The files of a checkpoint."""

    NAME: ClassVar[str] = "checkpoint-manifest"
