"""Verification where there is nothing to reach: no network interface, no home directory that can be read or written."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mint2m_verify.signers.private_root import PrivateRoot

TESTS = Path(__file__).resolve().parents[1]
VECTORS = TESTS / "vectors"
KEYS = VECTORS / "test-only-keys"
BASE = VECTORS / "bases" / "run"
WHO, ISSUER = "https://example.org/train.yml@refs/heads/main", "https://issuer.example.org"

#: A network namespace of its own, without an interface that is up; as root, else through a user namespace.
ALONE = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]


def module(path: Path) -> ModuleType:
    """A test module, which others cannot import by name."""
    name = f"mint2m_isolation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """One accepted command of each kind of evidence, with and without certificates."""
    place = tmp_path_factory.mktemp("evidence")
    vectors = module(TESTS / "test_vectors.py")
    case = vectors.read_case(VECTORS / "right-policy-certificate-v2")
    certified = vectors.lay_out(case, place)
    root = PrivateRoot.create()
    (place / "root.json").write_bytes(root.trusted_root())
    (place / "blob").write_bytes(b"what was signed")
    bundle = root.sign_blob(hashlib.sha256(b"what was signed").digest(), WHO, ISSUER)
    (place / "blob.sigstore.json").write_bytes(bundle)
    identity = ("--certificate-identity", WHO, "--certificate-oidc-issuer", ISSUER)
    return {
        "run by key": ["verify", "run", BASE, "--key", KEYS / "release.pub"],
        "run by certificate": vectors.words(case, place, certified),
        "signature by certificate": [
            *("verify", "signature", place / "blob", "--bundle", place / "blob.sigstore.json"),
            *(*identity, "--trusted-root", place / "root.json"),
        ],
        "evidence": ["verify", "evidence", TESTS.parent / "evidence", "--consistency-only"],
    }


KINDS = ("run by key", "run by certificate", "signature by certificate", "evidence")


def run(words: list[object], *, before: tuple[str, ...] = (), **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*before, sys.executable, "-m", "mint2m", *map(str, words), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def without_clock(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if '"evaluated_at"' not in line)


@pytest.fixture(scope="module")
def usual(commands: dict[str, list[object]]) -> dict[str, tuple[int, str, str]]:
    return {kind: run(words) for kind, words in commands.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_network_interface_the_verdict_is_the_same(
    kind: str, commands: dict[str, list[object]], usual: dict[str, tuple[int, str, str]]
) -> None:
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], check=False).returncode != 0:
        pytest.skip("network namespaces are not permitted here")
    code, out, err = run(commands[kind], before=tuple(ALONE))
    assert (code, err) == (0, "")
    assert without_clock(out) == without_clock(usual[kind][1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("home", ["missing", "a file", "poisoned"])
def test_a_home_that_is_not_there_or_lies_changes_nothing(
    kind: str, home: str, commands: dict[str, list[object]], usual: dict[str, tuple[int, str, str]], tmp_path: Path
) -> None:
    place = tmp_path / "home"
    if home == "a file":
        place.write_text("")  # not even root can make a directory below it
    if home == "poisoned":
        # Where sigstore-python keeps what it believes of the public root, unverified where it is offline.
        cache = place / ".cache/sigstore-python/tuf/https%3A%2F%2Ftuf-repo-cdn.sigstore.dev"
        cache.mkdir(parents=True)
        (cache / "trusted_root.json").write_text("{}")
    unset = {name: str(place / name) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(commands[kind], HOME=str(place), **unset)
    assert (code, err) == (0, "")
    assert without_clock(out) == without_clock(usual[kind][1])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_opens_a_socket_or_writes_a_file(kind: str, commands: dict[str, list[object]]) -> None:
    hooked: Callable[..., subprocess.CompletedProcess[str]] = module(TESTS / "verify/test_no_network.py").hooked
    done = hooked(*commands[kind])
    assert (done.returncode, done.stderr) == (0, "")
