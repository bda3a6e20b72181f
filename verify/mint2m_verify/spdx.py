"""What every SPDX 2.3 document of ours is made of: one package, found by its purl. Format: spdx/spdx-spec 2.3."""

from __future__ import annotations

from collections.abc import Sequence

from mint2m_verify.canonical import JsonValue

SPDX = "SPDX-2.3"
DOCUMENT_ID = "SPDXRef-DOCUMENT"


def package(id: str, name: str, version: str, purl: str, *, sha256: Sequence[str] = ()) -> dict[str, JsonValue]:
    """A package of which nothing is claimed but name, version and, where they are known, digests of its files."""
    made: dict[str, JsonValue] = {
        "SPDXID": id,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl},
        ],
    }
    if sha256:
        made["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest} for digest in sha256]
    return made


def pypi_purl(name: str, version: str) -> str:
    """A distribution of the Python package index; `+` of a local version is escaped, as purl asks for."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
