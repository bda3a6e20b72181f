"""What the workers run, as papers: the lock of an image's parts and the provenance of the image built from it.

The rule: null in a lock says that a part is not known yet, and nothing runs on it; no default ever fills it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document
from mint2m_verify.documents.inputs import Image, Python

Environment = Literal["cpu", "cuda13"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDigest:
    """A file by its name and SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """A distribution of the Python environment; any file with one of the digests will do."""

    name: str
    version: str
    sha256: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPackage:
    """A Debian package that is installed over the base image."""

    name: str
    version: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """The least driver that the hosts must have, and the NCCL that the image has."""

    cuda_driver_minimum: str | None
    nccl: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLock(Document):
    """What an image is made of; written by `mint2m release lock`, and completed by people."""

    NAME: ClassVar[str] = "runtime-lock"

    name: str
    environment: Environment
    base_image: Image | None
    container_file: NamedDigest | None
    python: Python | None
    wheels: tuple[LockedWheel, ...]
    system_packages: tuple[SystemPackage, ...]
    drivers: Drivers | None

    def unresolved(self) -> Iterator[str]:
        """The pointer of every part that is not known yet, in the document's order."""
        for member in ("base_image", "container_file", "python"):
            if getattr(self, member) is None:
                yield f"/{member}"
        for index, wheel in enumerate(self.wheels):
            if wheel.sha256 is None:
                yield f"/wheels/{index}/sha256"
        for index, package in enumerate(self.system_packages):
            for member in ("version", "sha256"):
                if getattr(package, member) is None:
                    yield f"/system_packages/{index}/{member}"
        if self.environment == "cpu":
            return
        if self.drivers is None:
            yield "/drivers"
            return
        for member in ("cuda_driver_minimum", "nccl"):
            if getattr(self.drivers, member) is None:
                yield f"/drivers/{member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProvenance(Document):
    """What an image was built from, and the SBOM that was made of it; the builder's word."""

    NAME: ClassVar[str] = "image-provenance"

    image: Image
    runtime_lock_sha256: str
    container_file_sha256: str
    sbom_sha256: str
    source_sha256: str
