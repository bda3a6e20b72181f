"""`kit` makes small releases; `release` is one, built and signed once for the session."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from mint2m_verify.anchor import KeyAnchor, read_key
from mint2m_verify.release.build import BuildRequest, build_release
from mint2m_verify.signers.key_signer import KeySigner, signer_of
from mint2m_verify.signing import PrivateKey, public_key_pem


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """`release_kit.py` as a module: test modules do not import each other."""
    name = "mint2m_test_release_kit"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("release_kit.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their own module up
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A bundle as it was built, the checkout it is of, its signer and the auditor's copy of the key."""

    archive: bytes
    source: Path
    key: PrivateKey
    signer: KeySigner
    public: Path
    anchor: KeyAnchor


@pytest.fixture(scope="session")
def release(kit: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release of `kit.small_source`, signed with an Ed25519 key, whose signatures have no chance in them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    place = tmp_path_factory.mktemp("release")
    source = kit.small_source(place / "source")
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signer = signer_of(key, kind="managed", source="a test")
    public = place / "release.pub"
    public.write_bytes(public_key_pem(key.public_key()))
    report = build_release(BuildRequest(source=source, output=place), (signer,))
    assert report.verdict == 0, report.findings
    archive = (place / kit.NAME).read_bytes()
    return Release(archive=archive, source=source, key=key, signer=signer, public=public, anchor=read_key(public))
