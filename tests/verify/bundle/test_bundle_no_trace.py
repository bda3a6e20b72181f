"""Verifying a bundle opens no socket, writes nothing but what was asked for, holds little, and ends when told to."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.anchor import VerifyOptions
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.release.archive import Part, assemble, part_from, write_archive

HOOK = Path(__file__).parents[1] / "test_no_network.py"


def hooked(*words: object) -> subprocess.CompletedProcess[str]:
    """The command under the audit hook of tests/verify/test_no_network.py, then the modules that it brought."""
    spec = importlib.util.spec_from_file_location("mint2m_test_no_network", HOOK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    code = module.HOOKED.replace(
        "main(sys.argv[1:])",
        "import atexit\n"
        "atexit.register(lambda: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr))"
        "\nmain(sys.argv[1:])",
    )
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)


def test_no_socket_no_process_no_file_and_no_heavy_package(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    archive = tmp_path / kit.NAME
    archive.write_bytes(release.archive)
    checkout = kit.small_source(tmp_path / "checkout")
    words = ("verify", "bundle", archive, "--key", release.public, "--checkout", checkout, "--format", "json")
    done = hooked(*words)
    assert "FORBIDDEN" not in done.stderr
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "accepted")
    modules = set(done.stderr.split())
    assert "mint2m_verify" in modules
    assert not modules & {"sigstore", "torch", "ray", "megatron", "requests", "hatchling"}


def test_an_interrupted_verification_leaves_nothing(
    kit: ModuleType, release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mint2m_verify.bundle import verify as module

    def interrupted(*_arguments: Any) -> Any:
        assert [path.name for path in tmp_path.glob(".out.*/source/README.md")] == ["README.md"]
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check_contents", interrupted)
    archive = tmp_path / kit.NAME
    archive.write_bytes(release.archive)
    with pytest.raises(KeyboardInterrupt):
        verify_bundle(
            BundleQuestion(archive=archive, verified_output=tmp_path / "out"), release.anchor, VerifyOptions()
        )
    assert [path.name for path in tmp_path.iterdir()] == [kit.NAME]


def test_a_large_member_is_verified_in_little_memory(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    """64 MiB that are neither source nor wheel, in less than a quarter of that."""
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (64 << 12))
    entries = kit.entries_of(release.archive)
    manifest = json.loads(entries[0].content)
    parts = [
        Part(
            path=entry.name,
            executable=entry.executable,
            size=len(entry.content),
            sha256=sha256_hex(entry.content),
            content=entry.content,
        )
        for entry in entries[2:]
    ]
    parts.append(part_from("receipts/one/large", large))
    bundle = assemble(kit.VERSION, parts, commit=manifest["commit"], committed_at=manifest["committed_at"])
    archive = tmp_path / kit.NAME
    with archive.open("wb") as stream:
        write_archive(bundle, (release.signer.sign_statement(bundle.statement.payload),), stream.write)
    tracemalloc.start()
    question = BundleQuestion(archive=archive, verified_output=tmp_path / "out")
    report = verify_bundle(question, release.anchor, VerifyOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.findings == ()
    assert (tmp_path / "out/receipts/one/large").stat().st_size == 64 << 20
    assert peak < 16 << 20


def test_the_archive_is_written_in_little_memory(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(64 << 20))
    bundle = assemble("1.2.3", [part_from("receipts/one/large", large)], commit="1" * 40, committed_at="x")
    tracemalloc.start()
    with (tmp_path / "archive").open("wb") as stream:
        write_archive(bundle, (b"{}",), stream.write)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
