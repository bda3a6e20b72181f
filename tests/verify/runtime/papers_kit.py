"""Papers of an image that fits this installation: a lock of what is installed, with its SBOM and provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import Image, Python
from mint2m_verify.documents.runtime import LockedWheel, NamedDigest, RuntimeLock
from mint2m_verify.runtime.lock import resolved
from mint2m_verify.runtime.provenance import make_provenance
from mint2m_verify.runtime.sbom import make_sbom
from mint2m_verify.runtime_identity import observe
from mint2m_verify.source import source_sha256

CONTAINER_FILE = b"FROM scratch\n"


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


IMAGE = Image(name="registry.example/mint2m", digest=f"sha256:{digest('image')}")


def lock_of_this() -> RuntimeLock:
    """Every part known: the packages that the identity sees here, in their versions."""
    here = observe(image_digest=None)
    return RuntimeLock(
        name="mint2m-cpu",
        environment="cpu",
        base_image=Image(name="docker.io/library/python", digest=f"sha256:{digest('base')}"),
        container_file=NamedDigest(name="cpu.Containerfile", sha256=sha256_hex(CONTAINER_FILE)),
        python=Python(implementation=here.python.implementation, version=here.python.version),
        wheels=tuple(
            LockedWheel(name=item.name, version=item.version, sha256=(digest(item.name),)) for item in here.packages
        ),
        system_packages=(),
        drivers=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A deployment with papers beside it."""

    deployment: Path

    def file(self, name: str) -> Path:
        return self.deployment.parent / name

    def change(self, name: str, edit: Callable[[Any], object]) -> None:
        value = json.loads(self.file(name).read_bytes())
        edit(value)
        self.file(name).write_text(json.dumps(value))


def lay_papers(deployment: Path) -> Site:
    """Write lock, SBOM, provenance and image into the deployment and beside it."""
    site = Site(deployment=deployment)
    raw = lock_of_this().encode()
    lock = resolved(raw, file="runtime-lock.json")
    sbom = make_sbom(lock)
    made = make_provenance(IMAGE, lock, container_file=CONTAINER_FILE, sbom=sbom, source_sha256=source_sha256())
    site.file("runtime-lock.json").write_bytes(raw)
    site.file("sbom.spdx.json").write_bytes(sbom)
    site.file("image-provenance.json").write_bytes(made)
    site.change(
        deployment.name,
        lambda d: d.update(
            image={"name": IMAGE.name, "digest": IMAGE.digest},
            runtime_lock="runtime-lock.json",
            sbom="sbom.spdx.json",
            image_provenance="image-provenance.json",
        ),
    )
    return site
