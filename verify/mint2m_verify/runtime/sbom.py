"""The software bill of materials of an image: SPDX 2.3, JSON, made from the lock and held against it.

The rule: it is the same bytes for the same lock, on every machine and at every time, so whoever has the lock can make
it again. Another tool's SBOM is as good, and may name more, as long as every locked wheel is in it, in no other
version, with a digest that the lock has and none that it has not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import unquote

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.release.project import normal_name
from mint2m_verify.runtime.lock import ReadLock
from mint2m_verify.spdx import DOCUMENT_ID, SPDX, package, pypi_purl

_ROOT = "SPDXRef-runtime"
_PYPI = "pkg:pypi/"

#: SPDX asks for a time, and a lock has none. The beginning of Unix time claims nothing and is always the same.
_CREATED = "1970-01-01T00:00:00Z"


def make_sbom(lock: ReadLock) -> bytes:
    """The SBOM's bytes, RFC 8785, of a lock in which every part is known."""
    document = lock.document
    if document.base_image is None or document.python is None:
        raise FindingError(found("runtime-lock.unresolved", file=lock.file))
    digest = document.base_image.digest.removeprefix("sha256:")
    base = package(
        "SPDXRef-base-image",
        document.base_image.name,
        document.base_image.digest,
        f"pkg:oci/{document.base_image.name.rpartition('/')[2].partition(':')[0].lower()}@sha256%3A{digest}",
        sha256=(digest,),
    )
    python = package(
        "SPDXRef-python",
        document.python.implementation,
        document.python.version,
        f"pkg:generic/{document.python.implementation.lower()}@{document.python.version}",
    )
    wheels = [
        package(
            f"SPDXRef-pypi-{wheel.name}",
            wheel.name,
            wheel.version,
            pypi_purl(wheel.name, wheel.version),
            sha256=wheel.sha256 or (),
        )
        for wheel in document.wheels
    ]
    system = [
        package(
            f"SPDXRef-deb-{item.name.replace('+', '-plus-')}",
            item.name,
            item.version or "",
            f"pkg:deb/debian/{item.name.replace('+', '%2B')}@{(item.version or '').replace('+', '%2B')}",
            sha256=(item.sha256 or "",),
        )
        for item in document.system_packages
    ]
    parts = [base, python, *wheels, *system]
    root = package(_ROOT, f"mint2m-runtime-{document.environment}", lock.sha256, f"pkg:generic/{document.name}")
    return canonical(
        {
            "SPDXID": DOCUMENT_ID,
            "spdxVersion": SPDX,
            "dataLicense": "CC0-1.0",
            "name": document.name,
            "documentNamespace": f"urn:mint2m:spdx:runtime-lock:{lock.sha256}",
            "creationInfo": {"created": _CREATED, "creators": ["Tool: mint2m"]},
            "packages": [{**root, "primaryPackagePurpose": "CONTAINER"}, *parts],
            "relationships": [
                _relation(DOCUMENT_ID, "DESCRIBES", _ROOT),
                *(_relation(_ROOT, "CONTAINS", str(part["SPDXID"])) for part in parts),
            ],
        }
    )


def _relation(one: str, kind: str, other: str) -> JsonValue:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def check_sbom(raw: bytes, lock: ReadLock, *, file: str) -> Iterator[Finding]:
    """Where an SBOM is not about what was locked: `sbom.invalid`, `sbom.lock-mismatch`."""
    try:
        document = parse(raw, file=file)
    except FindingError as stop:
        yield found("sbom.invalid", file=file, pointer=stop.finding.pointer, actual=stop.finding.message)
        return
    members = document if isinstance(document, dict) else {}
    if members.get("spdxVersion") != SPDX:
        yield found(
            "sbom.invalid", file=file, pointer="/spdxVersion", expected=SPDX, actual=_text(members, "spdxVersion")
        )
        return
    packages = members.get("packages")
    if not isinstance(packages, list) or not packages:
        yield found("sbom.invalid", file=file, pointer="/packages", expected="packages", actual="none")
        return
    have = _wheels(packages)
    for wheel in lock.document.wheels:
        if wheel.sha256 is None:
            continue  # `runtime-lock.unresolved` says so
        purl = pypi_purl(wheel.name, wheel.version)
        digests, locked = have.get((wheel.name, wheel.version)), set(wheel.sha256)
        others = ", ".join(version for name, version in sorted(have) if name == wheel.name and version != wheel.version)
        if digests is None or others:
            yield found(
                "sbom.lock-mismatch", file=file, pointer="/packages", expected=purl, actual=others or "not in the SBOM"
            )
        elif not digests or not digests <= locked:
            yield found(
                "sbom.lock-mismatch",
                file=file,
                pointer="/packages",
                expected=f"{purl} with SHA-256 {' or '.join(sorted(locked))}",
                actual=", ".join(sorted(digests)) or "no SHA-256",
            )


def _wheels(packages: list[JsonValue]) -> dict[tuple[str, str], set[str]]:
    """SHA-256 digests by name and version of everything that is in the Python package index."""
    known: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in packages:
        members = entry if isinstance(entry, dict) else {}
        for purl in _strings(members.get("externalRefs"), "referenceLocator"):
            if purl[: len(_PYPI)].lower() == _PYPI:  # scheme and type of a package URL know no case
                name, _, version = re.split("[?#]", purl[len(_PYPI) :])[0].partition("@")
                sums = _strings(members.get("checksums"), "checksumValue", algorithm="SHA256")
                known[normal_name(unquote(name)), unquote(version)] |= {text.lower() for text in sums}
    return known


def _strings(items: JsonValue, member: str, **with_members: str) -> Iterator[str]:
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and all(item.get(name) == value for name, value in with_members.items()):
            value = item.get(member)
            if isinstance(value, str):
                yield value


def _text(members: dict[str, JsonValue], name: str) -> str:
    return str(members.get(name))[:120]
