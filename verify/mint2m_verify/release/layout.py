"""Where things lie in a release bundle.

The rule: what a member is follows from its name alone, and the names are fixed here. A manifest that could say which
member is the wheel could call anything one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MANIFEST = "release.json"
SIGNATURE = "release.sigstore.json"
PROVENANCE = "provenance.intoto.json"
SBOM = "sbom.spdx.json"
SOURCE = "source/"
WHEEL = "wheel/"
RECEIPTS = "receipts/"

#: Signatures that one bundle can carry, each over the same statement.
MOST_SIGNATURES = 9

#: Members that no subject of the statement can be: they are about it.
_SIGNATURE_NAME = re.compile(r"release(\.[2-9])?\.sigstore\.json")

_ARCHIVE_NAME = "mint2m-v{version}-release-bundle.tar.gz"


def signature_name(number: int) -> str:
    """The member that holds the `number`th signature, counted from 1."""
    return SIGNATURE if number == 1 else f"release.{number}.sigstore.json"


def is_signature(path: str) -> bool:
    """Whether a member of this name is a signature over the statement."""
    return _SIGNATURE_NAME.fullmatch(path) is not None


def archive_name(version: str) -> str:
    """The file name of the bundle of `version`."""
    return _ARCHIVE_NAME.format(version=version)


def wheel_name(version: str) -> str:
    """The member that is the wheel of `version`."""
    return f"{WHEEL}mint2m-{version}-py3-none-any.whl"


def has_place(path: str, version: str) -> bool:
    """Whether a bundle of `version` may hold a member of this name, signatures and manifest aside."""
    if path in (PROVENANCE, SBOM, wheel_name(version)):
        return True
    return path.startswith((SOURCE, RECEIPTS)) and len(path.split("/")) > 1


def missing_parts(paths: Iterable[str], version: str) -> tuple[str, ...]:
    """What every bundle of `version` must hold and these names lack."""
    names = set(paths)
    return tuple(
        path
        for path in (PROVENANCE, SBOM, wheel_name(version), f"{SOURCE}pyproject.toml", f"{SOURCE}constraints.txt")
        if path not in names
    )
