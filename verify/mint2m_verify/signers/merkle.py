"""The Merkle tree of RFC 6962, section 2: root and inclusion path over leaf hashes.

The rule: a leaf and a node are hashed under different prefixes, so that no node can be shown as a leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf_hash(raw: bytes) -> bytes:
    """Hash of one leaf's bytes."""
    return hashlib.sha256(b"\x00" + raw).digest()


def root_hash(leaves: Sequence[bytes]) -> bytes:
    """MTH of the tree over leaf hashes; the empty tree's is the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = _split(len(leaves))
    return _node(root_hash(leaves[:split]), root_hash(leaves[split:]))


def inclusion_path(index: int, leaves: Sequence[bytes]) -> tuple[bytes, ...]:
    """PATH(index, leaves): the siblings from the leaf up to the root; `index` is below the number of leaves."""
    if len(leaves) == 1:
        return ()
    split = _split(len(leaves))
    if index < split:
        return (*inclusion_path(index, leaves[:split]), root_hash(leaves[split:]))
    return (*inclusion_path(index - split, leaves[split:]), root_hash(leaves[:split]))


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
