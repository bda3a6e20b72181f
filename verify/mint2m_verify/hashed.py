"""What a report says of files that were hashed: how much was read now, what a journal or a manifest stood in for.

The rule: a digest that was not computed in this verification is never called re-hashed. Chunk digests that the trusted
manifest commits make a large file that file, bit for bit; that its whole digest is of the same bytes is then the word
of the manifest's maker, and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.documents import FileManifest, TreeEntry
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, Standing
from mint2m_verify.seal import megabytes
from mint2m_verify.walk import CHUNK_BYTES, ReadFile


def hashed_standing(files: Iterable[ReadFile]) -> Standing:
    """Of a row that rests on the digests of `files`."""
    seen = tuple(files)
    if any(file.elsewhere for file in seen):
        return Standing.ATTESTED_ONLY
    return Standing.CACHED if any(file.cached for file in seen) else Standing.CHECKED


def hashed_words(files: Sequence[ReadFile]) -> str:
    """`1.2 MB re-hashed`, and what a journal stood in for."""
    cached, elsewhere = sum(file.cached for file in files), _elsewhere(files)
    words = f"{megabytes(sum(file.entry.size for file in files) - cached - elsewhere)} re-hashed"
    words += f", {megabytes(cached)} from the journal" if cached else ""
    return f"{words}, {megabytes(elsewhere)} by other machines" if elsewhere else words


def hashed_notes(files: Sequence[ReadFile]) -> list[str]:
    """What was not computed, for the part of a report that tells what was not checked."""
    notes = []
    count = sum(file.by_chunks for file in files)
    if count:
        which = "the file" if count == 1 else f"the {count} files"
        notes.append(
            f"whole-file digests of {which} above 64 MiB: the bytes are those of the committed chunk digests "
            "(--whole-digests computes both)"
        )
    cached = sum(file.cached for file in files)
    if cached:
        notes.append(f"what lies on disk now for {megabytes(cached)}: the digests are from your journal")
    elsewhere = _elsewhere(files)
    if elsewhere:
        notes.append(f"digests of {megabytes(elsewhere)}: other machines of the signer computed them")
    return notes


def _elsewhere(files: Sequence[ReadFile]) -> int:
    return sum(file.entry.size for file in files if file.elsewhere)


def committed_by_trees(root: Path) -> Iterator[TreeEntry]:
    """What the manifests of a run directory commit, by path in it, where a tree has a file of more than one chunk.

    A first look, which decides only how files are hashed: the manifests are read again as evidence, and every entry is
    held against them then. What cannot be read is passed over here and a finding there.
    """
    for place in layout.TREES:
        if not _has_large_file(root / place.prefix):
            continue
        try:
            raw = read_once(root / place.manifest)
            manifest = layout.DOCUMENTS[place.manifest].parse(raw, file=place.manifest)
        except FindingError:
            continue
        if isinstance(manifest, FileManifest):
            yield from (replace(entry, path=place.prefix + entry.path) for entry in manifest.files)


def _has_large_file(folder: Path) -> bool:
    return any(
        _size(os.path.join(place, name)) > CHUNK_BYTES  # noqa: PTH118 - the bytes of a name may be no path
        for place, _, names in os.walk(folder, followlinks=False)
        for name in names
    )


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
