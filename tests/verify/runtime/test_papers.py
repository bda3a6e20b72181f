"""The doctor holds a deployment's papers against each other and against what is installed; each fault has its name."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.deployments import PACKAGED, build
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.doctor import examine, examine_run
from mint2m_verify.documents.runtime import SystemPackage
from mint2m_verify.runtime.lock import resolved
from mint2m_verify.runtime.sbom import check_sbom, make_sbom
from mint2m_verify.runtime_identity import observe

_SPEC = importlib.util.spec_from_file_location("mint2m_test_papers", Path(__file__).with_name("papers_kit.py"))
assert _SPEC is not None and _SPEC.loader is not None
kit = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = kit  # dataclasses look their own module up
_SPEC.loader.exec_module(kit)  # test modules do not import each other
Site, digest, lay_papers, lock_of_this = kit.Site, kit.digest, kit.lay_papers, kit.lock_of_this


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return lay_papers(build(tmp_path / "run", PACKAGED["local-8k"]))


def spelt(package: Any, change: Callable[[str], str], sha256: str | None = None) -> Any:
    """A copy of an SBOM's package under another package URL, perhaps of another file."""
    copy = json.loads(json.dumps(package))
    copy["externalRefs"][0]["referenceLocator"] = change(copy["externalRefs"][0]["referenceLocator"])
    copy["checksums"][0]["checksumValue"] = sha256 or copy["checksums"][0]["checksumValue"]
    return copy


def blockers(site: Site) -> list[tuple[str, str | None]]:
    examination = examine_run(site.deployment, profile=None, output=None)
    return [(finding.id, finding.pointer) for finding in examination.findings]


def test_papers_that_hold_together_pass(site: Site) -> None:
    assert blockers(site) == []
    rows = {row.id: row.status for row in examine_run(site.deployment, profile=None, output=None).doctor.checks}
    assert {rows[name] for name in ("runtime-lock", "sbom", "image-provenance", "runtime-identity")} == {"passed"}


Edit = Callable[[Any], object]
CHANGES: Mapping[str, tuple[str, Edit, list[tuple[str, str | None]]]] = {
    "no lock": (
        "deployment.json",
        lambda d: d.pop("runtime_lock"),
        [
            ("image-provenance.mismatch", "/runtime_lock_sha256"),
            ("image-provenance.mismatch", "/container_file_sha256"),
        ],
    ),
    "lock gone": (
        "deployment.json",
        lambda d: d.update(runtime_lock="nowhere.json"),
        [("runtime-lock.missing", "/runtime_lock")],
    ),
    "unresolved": (
        "runtime-lock.json",
        lambda d: d.update(base_image=None),
        [("runtime-lock.unresolved", "/base_image"), ("image-provenance.mismatch", "/runtime_lock_sha256")],
    ),
    "another digest in the SBOM": (
        "sbom.spdx.json",
        lambda d: d["packages"][3]["checksums"][0].update(checksumValue=digest("other")),
        [("sbom.lock-mismatch", "/packages"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "a wheel that is not in the SBOM": (
        "sbom.spdx.json",
        lambda d: d["packages"].pop(3),
        [("sbom.lock-mismatch", "/packages"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "another version beside the locked one": (
        "sbom.spdx.json",
        lambda d: d["packages"].append(spelt(d["packages"][3], lambda purl: f"{purl.partition('@')[0]}@0.0.1")),
        [("sbom.lock-mismatch", "/packages"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "another file, by another spelling": (
        "sbom.spdx.json",
        lambda d: d["packages"].append(
            spelt(d["packages"][3], lambda purl: f"{purl.replace('pkg:pypi', 'pkg:PyPI')}#part", digest("other"))
        ),
        [("sbom.lock-mismatch", "/packages"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "another format": (
        "sbom.spdx.json",
        lambda d: d.update(spdxVersion="SPDX-3.0"),
        [("sbom.invalid", "/spdxVersion"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "an SBOM of nothing": (
        "sbom.spdx.json",
        lambda d: d.update(packages=[]),
        [("sbom.invalid", "/packages"), ("image-provenance.mismatch", "/sbom_sha256")],
    ),
    "provenance of another image": (
        "image-provenance.json",
        lambda d: d["image"].update(digest=f"sha256:{digest('other')}"),
        [("image-provenance.mismatch", "/image/digest")],
    ),
    "provenance of another source": (
        "image-provenance.json",
        lambda d: d.update(source_sha256=digest("other")),
        [("image-provenance.mismatch", "/source_sha256")],
    ),
    "a template's provenance": (
        "image-provenance.json",
        lambda d: d.update(sbom_sha256="0" * 64),
        [("image-provenance.invalid", "/sbom_sha256")],
    ),
    "a provenance that approves itself": (
        "image-provenance.json",
        lambda d: d.update(verified=True),
        [("image-provenance.invalid", "")],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_contradiction_blocks_under_its_own_id(site: Site, name: str) -> None:
    file, edit, expected = CHANGES[name]
    site.change(site.deployment.name if file == "deployment.json" else file, edit)
    assert blockers(site) == expected


def test_a_package_that_drifted_from_the_lock_blocks(site: Site) -> None:
    site.change("runtime-lock.json", lambda d: d["wheels"][0].update(version="0.0.1"))
    ids = [id for id, _ in blockers(site)]
    assert "runtime-identity.not-locked" in ids


def test_what_is_installed_beside_the_lock_blocks_a_cluster_class_and_is_counted_elsewhere(site: Site) -> None:
    """This environment has pytest, which the lock does not name."""
    (row,) = [
        row
        for row in examine_run(site.deployment, profile=None, output=None).doctor.checks
        if row.id == "runtime-identity"
    ]
    assert re.search(r", [1-9]\d* packages beside the lock$", row.actual or "")
    site.file("runtime-identity.json").write_bytes(observe(image_digest=kit.IMAGE.digest).encode())
    cluster = {"hardware_class": "h20-4x8", "runtime_identity": "runtime-identity.json"}
    site.change(site.deployment.name, lambda d: d.update(cluster))
    told = [
        finding.actual
        for finding in examine_run(site.deployment, profile=None, output=None).findings
        if finding.id == "runtime-identity.not-locked"
    ]
    assert any(actual is not None and actual.startswith("pytest ") for actual in told)


def test_a_cluster_class_needs_every_paper(tmp_path: Path) -> None:
    deployment = build(tmp_path / "run", PACKAGED["local-8k"])
    Site(deployment=deployment).change(deployment.name, lambda d: d.update(hardware_class="h20-4x8"))
    ids = {finding.id for finding in examine_run(deployment, profile=None, output=None).findings}
    wanted = {f"{paper}.missing" for paper in ("runtime-lock", "sbom", "image-provenance", "runtime-identity")}
    assert wanted <= ids


def test_a_loopback_address_names_no_node_of_several(site: Site) -> None:
    site.change(
        site.deployment.name,
        lambda d: d.update(hardware_class="h20-4x8", node_ips=["10.0.0.1", "127.0.0.2"], ray_address="localhost:6379"),
    )
    assert [item for item in blockers(site) if item[0].startswith("topology")] == [
        ("topology.loopback-address", "/node_ips/1"),
        ("topology.loopback-address", "/ray_address"),
    ]


def against(site: Site, other: Site) -> list[tuple[str, str | None]]:
    examined = examine(
        "run", deployment=site.deployment, profile=None, root=Path(), promoting=None, against=other.deployment
    )
    return [(finding.id, finding.pointer) for finding in examined.findings]


def test_deployments_that_share_what_runs_are_told_so_and_others_what_differs(site: Site, tmp_path: Path) -> None:
    other = lay_papers(build(tmp_path / "validation", PACKAGED["local-8k-1"]))
    assert against(site, other) == []
    other.change(
        other.deployment.name,
        lambda d: (
            d["image"].update(digest=f"sha256:{digest('other')}"),
            d["model"].update(model_manifest_sha256=digest("model")),
            d.update(sbom=None),
        ),
    )
    assert against(site, other) == [
        ("deployment.against-differs", "/image"),
        ("deployment.against-differs", "/model/model_manifest_sha256"),
        ("deployment.against-differs", "/sbom"),
    ]
    other.deployment.write_text("{}")
    assert against(site, other) == [("deployment.unreadable", "/schema")]


def test_the_sbom_is_valid_spdx_by_the_reference_tools_and_names_every_part(tmp_path: Path) -> None:
    from spdx_tools.spdx.model import ChecksumAlgorithm, RelationshipType
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    package = SystemPackage(name="libstdc++6", version="14.2.0-19", sha256=digest("stdc"))
    lock = resolved(replace(lock_of_this(), system_packages=(package,)).encode(), file="lock")
    place = tmp_path / "sbom.spdx.json"
    place.write_bytes(make_sbom(lock))
    document = parse_file(str(place))
    assert validate_full_spdx_document(document) == []
    packages = {item.name: item for item in document.packages}
    for wheel in lock.document.wheels:
        read = packages[wheel.name]
        assert read.version == wheel.version
        assert [(item.algorithm, item.value) for item in read.checksums] == [
            (ChecksumAlgorithm.SHA256, value) for value in wheel.sha256 or ()
        ]
        assert read.external_references[0].locator.startswith(f"pkg:pypi/{wheel.name}@")
    assert packages["libstdc++6"].checksums[0].value == digest("stdc")
    kinds = [item.relationship_type for item in document.relationships]
    assert kinds.count(RelationshipType.CONTAINS) == len(lock.document.wheels) + 3  # base image, Python, Debian package
    assert place.read_bytes() == make_sbom(lock)


def test_an_sbom_of_another_tool_may_name_more_and_spell_names_as_people_do() -> None:
    lock = resolved(lock_of_this().encode(), file="lock")
    document = json.loads(make_sbom(lock))
    for item in document["packages"]:
        reference = item["externalRefs"][0]
        reference["referenceLocator"] = reference["referenceLocator"].replace("megatron-core", "Megatron_Core")
    document["packages"].append({"name": "pip", "versionInfo": "26.3"})
    assert list(check_sbom(json.dumps(document).encode(), lock, file="sbom")) == []
    assert sha256_hex(b"") not in json.dumps(document)
