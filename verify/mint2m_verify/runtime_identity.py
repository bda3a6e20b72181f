"""What a worker runs: interpreter, platform, the packages that compute or carry a number, and the source digest.

Two ranks that compute with different packages may differ in the last bit and nobody would know why, so every rank
observes its own identity and the run stops unless all are equal. Package versions are read from installed metadata;
nothing is imported for it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from mint2m_verify.documents.inputs import Package, Platform, Python, RuntimeIdentity
from mint2m_verify.source import source_sha256

#: Distributions whose code computes, stores, transports or signs what ends up in the evidence.
PACKAGES = (
    "cryptography",
    "jsonschema",
    "llvmlite",
    "megatron-core",
    "mint2m",
    "numba",
    "numpy",
    "psutil",
    "ray",
    "rfc8785",
    "safetensors",
    "torch",
)


def observe(*, image_digest: str | None) -> RuntimeIdentity:
    """The identity of this process's installation; a package that is not installed is left out.

    Args:
        image_digest: the digest of the deployment's image. A process cannot see its own image, so this is the
            operator's word.
    """
    return RuntimeIdentity(
        python=Python(implementation=platform.python_implementation(), version=platform.python_version()),
        platform=Platform(system=platform.system(), machine=platform.machine()),
        packages=tuple(
            Package(name=name, version=version) for name in PACKAGES if (version := installed_version(name)) is not None
        ),
        source_sha256=source_sha256(),
        image_digest=image_digest,
    )


#: What installs the rest: base images bring it, no lock names it, and nothing that computes imports it.
INSTALLERS = frozenset({"pip", "setuptools", "wheel"})


def installed_packages() -> tuple[Package, ...]:
    """Every installed distribution but the installers, sorted by name, names as in locks (PEP 503).

    What another package carries inside itself is none: setuptools, once imported, puts its own copies on the path.
    """
    places = [place for place in sys.path if Path(place).name != "_vendor"]
    everything = {
        (re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(), found.version)
        for found in importlib.metadata.distributions(path=places)
        if found.metadata["Name"]  # a directory that only looks like metadata has none
    }
    return tuple(Package(name=name, version=version) for name, version in sorted(everything) if name not in INSTALLERS)


def installed_version(distribution: str) -> str | None:
    """The version in the installed metadata, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
