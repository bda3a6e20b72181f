"""The software bill of materials: SPDX 2.3, JSON, of the wheel and every package of the lock.

The rule: it names exactly the pinned packages and this wheel by its SHA-256. Which package needs which is said only
where the project says so itself; for the rest of the lock nothing is claimed but that it is there.
Format: spdx/spdx-spec 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.release import layout
from mint2m_verify.release.project import PROJECT, Pin, Project, normal_name
from mint2m_verify.spdx import DOCUMENT_ID, SPDX, package, pypi_purl

_ROOT = f"SPDXRef-{PROJECT}"


def make_sbom(project: Project, pins: tuple[Pin, ...], *, wheel_sha256: str, created: str) -> bytes:
    """The SBOM's bytes, RFC 8785.

    Args:
        project: whose version and direct requirements it names.
        pins: the lock.
        wheel_sha256: of the wheel that it is about.
        created: a time, RFC 3339 with seconds.
    """
    wheel = layout.wheel_name(project.version).removeprefix(layout.WHEEL)
    root: JsonValue = {
        **package(_ROOT, PROJECT, project.version, pypi_purl(PROJECT, project.version)),
        "checksums": [{"algorithm": "SHA256", "checksumValue": wheel_sha256}],
        "packageFileName": wheel,
        "licenseDeclared": project.licence or "NOASSERTION",
        "primaryPackagePurpose": "APPLICATION",
    }
    others: list[JsonValue] = [
        {
            **package(_id(pin), pin.name, pin.version, pypi_purl(pin.name, pin.version)),
            "primaryPackagePurpose": "LIBRARY",
        }
        for pin in pins
    ]
    return canonical(
        {
            "SPDXID": DOCUMENT_ID,
            "spdxVersion": SPDX,
            "dataLicense": "CC0-1.0",
            "name": wheel.removesuffix(".whl"),
            "documentNamespace": f"urn:mint2m:spdx:{project.version}:{wheel_sha256}",
            "creationInfo": {"created": created, "creators": [f"Tool: {PROJECT}-{project.version}"]},
            "packages": [root, *others],
            "relationships": list(_relationships(project, pins)),
        }
    )


def check_sbom(raw: bytes, pins: tuple[Pin, ...], *, version: str, wheel_sha256: str) -> Iterator[Finding]:
    """Where an SBOM is not about this wheel and this lock."""
    try:
        document = parse(raw, file=layout.SBOM)
    except FindingError as fault:
        yield fault.finding
        return
    members = document if isinstance(document, dict) else {}
    if members.get("spdxVersion") != SPDX:
        yield _invalid("/spdxVersion", SPDX, repr(members.get("spdxVersion")))
        return
    packages = members.get("packages")
    known = [entry for entry in packages if isinstance(entry, dict)] if isinstance(packages, list) else []
    own = [entry for entry in known if entry.get("name") == PROJECT]
    want: JsonValue = [{"algorithm": "SHA256", "checksumValue": wheel_sha256}]
    if len(own) != 1 or own[0].get("checksums") != want:
        yield _invalid("/packages", f"{PROJECT} once, with SHA-256 {wheel_sha256}", None)
    elif own[0].get("versionInfo") != version:
        yield found(
            "release.version-mismatch", file=layout.SBOM, expected=version, actual=repr(own[0].get("versionInfo"))
        )
    others = [entry for entry in known if entry not in own]
    have = {(normal_name(str(entry.get("name"))), str(entry.get("versionInfo"))) for entry in others}
    if len(have) != len(others) or not isinstance(packages, list) or len(known) != len(packages):
        yield _invalid("/packages", "objects, each package once", None)
    for name, pinned in sorted(have ^ {(pin.name, pin.version) for pin in pins}):
        where = "the SBOM" if (name, pinned) in have else layout.SOURCE + "constraints.txt"
        yield _invalid("/packages", "the packages of the lock", f"{name} {pinned} only in {where}")


def _invalid(pointer: str, expected: str, actual: str | None) -> Finding:
    return found("release.sbom-invalid", file=layout.SBOM, pointer=pointer, expected=expected, actual=actual)


def _relationships(project: Project, pins: tuple[Pin, ...]) -> Iterator[JsonValue]:
    yield {"spdxElementId": DOCUMENT_ID, "relationshipType": "DESCRIBES", "relatedSpdxElement": _ROOT}
    for pin in pins:
        if pin.name in project.required:
            yield {"spdxElementId": _ROOT, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": _id(pin)}
        elif pin.name in project.optional:
            yield {"spdxElementId": _id(pin), "relationshipType": "OPTIONAL_DEPENDENCY_OF", "relatedSpdxElement": _ROOT}
        elif pin.name in project.build:
            yield {"spdxElementId": _id(pin), "relationshipType": "BUILD_DEPENDENCY_OF", "relatedSpdxElement": _ROOT}
        else:
            yield {
                "spdxElementId": _id(pin),
                "relationshipType": "OTHER",
                "relatedSpdxElement": _ROOT,
                "comment": "in the lock; needed by another package of it",
            }


def _id(pin: Pin) -> str:
    return f"SPDXRef-pypi-{pin.name}"
