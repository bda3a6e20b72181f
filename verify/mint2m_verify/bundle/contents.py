"""Whether the parts of a release belong together: source, wheel, SBOM and provenance.

The rule: each part is held against the others' bytes, not against what it says of itself. A signature says that
somebody released these files; this says that they are of one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from mint2m_verify.bundle.head import Signed
from mint2m_verify.finding import FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.release import layout
from mint2m_verify.release.git_tree import GitFile, tree_name
from mint2m_verify.release.project import CONSTRAINTS, PYPROJECT, read_pins, read_project
from mint2m_verify.release.provenance import check_provenance
from mint2m_verify.release.sbom import check_sbom
from mint2m_verify.release.wheel_check import SourceFile, check_wheel

_DOCUMENT_LIMIT = 16 << 20
_WHEEL_LIMIT = 256 << 20


def kept_bytes(path: str) -> int:
    """The largest size at which a member's bytes are kept for these checks; 0 for those that are hashed only."""
    if path in (layout.SBOM, layout.PROVENANCE, layout.SOURCE + PYPROJECT, layout.SOURCE + CONSTRAINTS):
        return _DOCUMENT_LIMIT
    return _WHEEL_LIMIT if path.startswith(layout.WHEEL) else 0


def check_contents(signed: Signed, kept: Mapping[str, bytes], blobs: Mapping[str, str]) -> Check:
    """One version, one lock, one wheel, one source.

    Args:
        signed: statement and manifest; the members are as they say.
        kept: the bytes of every member that `kept_bytes` asks for.
        blobs: git's name of each file of the source, by its path in it.
    """
    version, digests = signed.statement.version, signed.digests
    wheel = layout.wheel_name(version)
    source = {
        member.path.removeprefix(layout.SOURCE): member
        for member in signed.manifest.members
        if member.path.startswith(layout.SOURCE)
    }
    tree = tree_name(
        GitFile(path=path, executable=member.executable, blob=blobs[path]) for path, member in source.items()
    )
    try:
        project = read_project(kept[layout.SOURCE + PYPROJECT], file=layout.SOURCE + PYPROJECT)
        pins = read_pins(kept[layout.SOURCE + CONSTRAINTS], file=layout.SOURCE + CONSTRAINTS)
    except FindingError as fault:
        yield found(
            "release.source-invalid",
            file=fault.finding.file,
            expected=fault.finding.expected,
            actual=fault.finding.actual,
        )
        return "unreadable"
    if project.version != version:
        yield found(
            "release.version-mismatch", file=layout.SOURCE + PYPROJECT, expected=version, actual=project.version
        )
    files = {
        path: SourceFile(path=path, size=member.size, sha256=digests[member.path]) for path, member in source.items()
    }
    yield from check_wheel(kept[wheel], project, files, version=version)
    yield from check_sbom(kept[layout.SBOM], pins, version=version, wheel_sha256=digests[wheel])
    yield from check_provenance(
        kept[layout.PROVENANCE],
        version=version,
        wheel_sha256=digests[wheel],
        commit=signed.manifest.commit,
        tree=tree,
    )
    return f"wheel and SBOM of {len(source)} source files, git tree {tree[:12]}, {len(pins)} pinned packages"
