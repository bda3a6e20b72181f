"""What docs/release-signing.md tells a stranger to do with other tools works, and fails where it should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.release.build import BuildRequest, build_release
from mint2m_verify.signers.key_signer import signer_of
from mint2m_verify.signing import new_private_key, public_key_pem

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/release-signing.md"
TOOLS = ("bash", "tar", "jq", "openssl", "sha256sum", "git")


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def signed(kit: ModuleType, release: Any, tmp_path: Path) -> Path:
    """A bundle signed with a P-256 key, and `release.pub` beside it."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    signer = signer_of(new_private_key(), kind="managed", source="a test")
    (tmp_path / "release.pub").write_bytes(public_key_pem(signer.public_key))
    assert build_release(BuildRequest(source=release.source, output=tmp_path), (signer,)).verdict == 0
    return tmp_path / str(kit.NAME)


def sh(script: str, archive: Path, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ARCHIVE": str(archive), "PUBLIC_KEY": str(archive.parent / "release.pub")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_stranger_verifies_signature_and_digests_without_us(signed: Path, kit: ModuleType, tmp_path: Path) -> None:
    done = sh(blocks()[0], signed, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["Verified", "OK", kit.VERSION]), done.stderr


def test_the_stranger_s_way_notices_a_changed_file_and_another_key(
    signed: Path, kit: ModuleType, tmp_path: Path
) -> None:
    entries = kit.changed(kit.entries_of(signed.read_bytes()), "source/README.md", content=b"another\n")
    changed = tmp_path / "changed.tar.gz"
    changed.write_bytes(kit.archive(entries))
    (tmp_path / "one").mkdir()
    assert sh(blocks()[0], changed, cwd=tmp_path / "one").returncode != 0
    (tmp_path / "release.pub").write_bytes(public_key_pem(new_private_key().public_key()))
    (tmp_path / "two").mkdir()
    assert sh(blocks()[0], signed, cwd=tmp_path / "two").returncode != 0


def test_the_wheel_is_built_again_from_the_source_byte_for_byte(signed: Path, tmp_path: Path) -> None:
    assert sh(blocks()[0], signed, cwd=tmp_path).returncode == 0
    done = sh(f"mkdir -p ../unpacked && {blocks()[1]}", signed, cwd=tmp_path / "unpacked")
    assert done.returncode == 0, done.stderr
    provenance = json.loads((tmp_path / "unpacked/provenance.intoto.json").read_bytes())
    assert done.stdout.split()[0] == provenance["subject"][0]["digest"]["gitTree"]


def test_every_member_is_a_subject_that_verify_signature_accepts(signed: Path, mint2m: Any, tmp_path: Path) -> None:
    assert sh(blocks()[0], signed, cwd=tmp_path).returncode == 0
    place = tmp_path / "unpacked"
    words = ("--bundle", place / "release.sigstore.json", "--key", tmp_path / "release.pub")
    (wheel,) = (place / "wheel").glob("*.whl")
    for member in (wheel, place / "source/README.md"):
        done = mint2m("verify", "signature", member, *words)
        assert done.returncode == 0, done.stdout
    (place / "source/README.md").write_bytes(b"another\n")
    assert mint2m("verify", "signature", place / "source/README.md", *words).returncode == 1


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_release_by_an_identity_verifies_with_unmodified_sigstore_python(
    log: Any, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    from sigstore.models import Bundle, TrustedRoot
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    from mint2m_verify.signers.private_root import PrivateRoot

    root = PrivateRoot.create()
    who, issuer = "release@example.org", "https://issuer.example.org"
    signer = root.signer(who, issuer, log=log)
    assert build_release(BuildRequest(source=release.source, output=tmp_path), (signer,)).findings == ()
    (tmp_path / "root.json").write_bytes(root.trusted_root())
    entries = kit.entries_of((tmp_path / kit.NAME).read_bytes())
    verifier = Verifier(trusted_root=TrustedRoot.from_file(str(tmp_path / "root.json")))
    bundle = Bundle.from_json(entries[1].content)
    kind, payload = verifier.verify_dsse(bundle, Identity(identity=who, issuer=issuer))
    statement = json.loads(payload)
    assert (kind, statement["predicate"]["version"]) == ("application/vnd.in-toto+json", kit.VERSION)
    assert {subject["name"] for subject in statement["subject"]} == {entry.name for entry in entries} - {
        "release.sigstore.json"
    }
