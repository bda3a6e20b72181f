"""`mint2m doctor --against OTHER`: whether two deployments, a validation and the training after it, share what runs.

The rule: sharing is shown by digests of what both name, read now, and by nothing that either says of the other. What
neither names is not shared but unknown, and a cluster class asks for it in a check of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.deployment_parts import Check, because
from mint2m_verify.documents.inputs import Deployment
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found

_PAPERS = ("runtime_identity", "runtime_lock", "sbom", "image_provenance")


def check_against(path: Path, other: Path) -> Check:
    """One deployment against another; paths in each are its own."""
    try:
        mine, theirs = (_shared(item) for item in (path, other))
    except FindingError as stop:
        return Check(name="against", findings=(because("deployment.unreadable", stop.finding),))
    findings = tuple(_differing(mine, theirs, path.name))
    return Check(name="against", actual=f"{other.name}: {', '.join(mine)}", findings=findings)


def _differing(mine: dict[str, str], theirs: dict[str, str], file: str) -> Iterator[Finding]:
    for name, have in mine.items():
        if have != theirs[name]:
            yield found("deployment.against-differs", file=file, pointer=f"/{name}", expected=theirs[name], actual=have)


def _shared(path: Path) -> dict[str, str]:
    """What a promotion run and the runs that rest on it have in common, in words that can be compared."""
    raw = read_once(path.resolve(), name=path.name)
    deployment = Deployment.parse(raw, file=path.name, canonical_form=False)
    shared = {
        "hardware_class": deployment.hardware_class,
        "image": "none" if deployment.image is None else deployment.image.digest,
        "model/revision": deployment.model.revision,
        "model/model_manifest_sha256": deployment.model.model_manifest_sha256,
    }
    for name in _PAPERS:
        named: str | None = getattr(deployment, name)
        shared[name] = "none" if named is None else sha256_hex(read_once((path.parent / named).resolve(), name=named))
    return shared
