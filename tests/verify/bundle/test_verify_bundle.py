"""`mint2m verify bundle`: anchors, versions, checkouts and the verified output, each as an auditor uses it."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify import schema
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.release.archive import assemble, part_of, write_archive
from mint2m_verify.signers.key_signer import signer_of
from mint2m_verify.signing import new_private_key, public_key_pem


@pytest.fixture
def archive(release: Any, kit: ModuleType, tmp_path: Path) -> Path:
    place = tmp_path / kit.NAME
    place.write_bytes(release.archive)
    return place


def verify(archive: Path, *words: object) -> dict[str, Any]:
    """The report of the command, checked against its schema; `exit` is the exit code."""
    outcome = command_line(["verify", "bundle", str(archive), *map(str, words), "--format", "json"])
    report: dict[str, Any] = json.loads(outcome.text)
    assert schema.check(report, "report", file="report") == ()
    assert report["exit_code"] == int(outcome.verdict)
    return report


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"]]


def payload_sha256(release: Any, kit: ModuleType) -> str:
    import base64

    bundle = json.loads(kit.entries_of(release.archive)[1].content)
    return sha256_hex(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


# Anchors


def test_the_signer_s_key_accepts_it(archive: Path, release: Any, kit: ModuleType) -> None:
    report = verify(archive, "--key", release.public)
    assert (report["exit_code"], ids(report)) == (0, [])
    assert report["trust"]["mode"] == "managed-key"
    assert {item["name"] for item in report["trust"]["digests"]} == {"key", "release"}
    assert {row["standing"] for row in report["requirements"]} == {"checked", "derived"}


def test_the_statement_s_digest_accepts_it_and_another_does_not(archive: Path, release: Any, kit: ModuleType) -> None:
    digest = payload_sha256(release, kit)
    report = verify(archive, "--digest", digest)
    assert (report["exit_code"], report["trust"]["mode"]) == (0, "digest")
    assert any("who signed" in note for note in report["not_checked"])
    assert ids(verify(archive, "--digest", "1" * 64)) == ["trust.digest-mismatch"]


def test_without_an_anchor_it_is_not_trusted_though_everything_is_checked(archive: Path) -> None:
    report = verify(archive)
    assert (report["exit_code"], ids(report)) == (4, ["trust.no-anchor"])
    assert len(report["requirements"]) == 5
    consistent = verify(archive, "--consistency-only")
    assert (consistent["exit_code"], consistent["trust"]["mode"]) == (0, "consistent, origin unknown")


def test_a_stranger_s_key_is_another_and_nothing_behind_the_signature_is_judged(archive: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(public_key_pem(new_private_key().public_key()))
    report = verify(archive, "--key", stranger)
    assert (report["exit_code"], ids(report)) == (4, ["signature.key-mismatch"])
    assert report["trust"]["signers"] == []
    assert [row["standing"] for row in report["requirements"][1:]] == ["unverifiable"] * 4


def test_a_key_that_lies_in_the_archive_is_no_anchor(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    """Whoever made the archive put it there, under whatever name."""
    members = kit.entries_of(release.archive)[2:]
    parts = [part_of(entry.name, entry.content) for entry in members]
    parts.append(part_of("source/trust/release.pub", release.public.read_bytes()))
    bundle = assemble(kit.VERSION, parts, commit="1" * 40, committed_at="2026-01-31T12:00:00Z")
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(bundle.statement.payload),), made.write)
    (tmp_path / kit.NAME).write_bytes(made.getvalue())
    report = verify(tmp_path / kit.NAME, "--key", release.public)
    assert (report["exit_code"], ids(report)) == (4, ["trust.key-inside-evidence"])
    assert (report["trust"]["mode"], report["trust"]["signers"]) == ("none", [])


def test_a_key_that_lies_in_the_checkout_is_no_anchor(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    key = shutil.copy(release.public, checkout / ".git" / "release.pub")
    report = verify(archive, "--key", key, "--checkout", checkout)
    assert (report["exit_code"], ids(report)) == (4, ["trust.key-inside-evidence"])


# Co-signatures


def with_second_signature(release: Any, kit: ModuleType, second: bytes) -> bytes:
    entries = kit.entries_of(release.archive)
    return kit.archive([*entries[:2], kit.Entry(name="release.2.sigstore.json", content=second), *entries[2:]])


def test_a_second_signature_is_named_and_not_unpacked_where_the_key_cannot_judge_it(
    release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    import base64

    payload = base64.b64decode(json.loads(kit.entries_of(release.archive)[1].content)["dsseEnvelope"]["payload"])
    second = signer_of(new_private_key(), kind="managed", source="a second").sign_statement(payload)
    (tmp_path / kit.NAME).write_bytes(with_second_signature(release, kit, second))
    report = verify(tmp_path / kit.NAME, "--key", release.public, "--verified-output", tmp_path / "out")
    assert (report["exit_code"], ids(report)) == (0, [])
    assert any("release.2.sigstore.json" in note for note in report["not_checked"])
    assert not (tmp_path / "out" / "release.2.sigstore.json").exists()


# Names and versions


def test_the_file_s_name_is_that_of_the_signed_version(archive: Path, release: Any, tmp_path: Path) -> None:
    renamed = archive.rename(tmp_path / "mint2m-v1.2.4-release-bundle.tar.gz")
    report = verify(renamed, "--key", release.public)
    assert (report["exit_code"], ids(report)) == (1, ["bundle.name-mismatch"])


def test_another_version_than_the_expected_one_is_honest_and_not_enough(archive: Path, release: Any) -> None:
    assert verify(archive, "--key", release.public, "--expect-version", "1.2.3")["exit_code"] == 0
    report = verify(archive, "--key", release.public, "--expect-version", "1.2.4")
    assert (report["exit_code"], ids(report)) == (3, ["trust.expectation-mismatch"])


# The checkout


def test_the_checkout_that_it_was_built_from_is_its_source(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    assert verify(archive, "--key", release.public, "--checkout", checkout)["exit_code"] == 0


def test_every_file_of_a_checkout_that_differs_is_named(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    (checkout / "README.md").write_bytes(b"another\n")
    (checkout / "LICENSE").unlink()
    (checkout / "mint2m" / "extra.py").write_bytes(b"import os\n")
    (checkout / "tool.sh").chmod(0o644)
    (checkout / "docs" / "changelog.md").rename(checkout / "docs" / "changes.md")
    (checkout / "link").symlink_to("/etc/passwd")
    os.mkfifo(checkout / "pipe")
    (checkout / ".gitignore").write_bytes(b"*.pyc\n")
    report = verify(archive, "--key", release.public, "--checkout", checkout)
    assert report["exit_code"] == 1
    assert {(finding["id"], finding["file"]) for finding in report["findings"]} == {
        ("tree.file-changed", "README.md"),
        ("tree.file-missing", "LICENSE"),
        ("tree.file-unlisted", "mint2m/extra.py"),
        ("tree.mode-changed", "tool.sh"),
        ("tree.file-renamed", "docs/changelog.md"),
        ("tree.symlink", "link"),
        ("tree.special-file", "pipe"),
        ("tree.file-unlisted", ".gitignore"),
    }


def test_only_the_git_directory_at_the_top_is_exempt(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    for place in ("mint2m/.git/config", ".github/x", ".git2"):
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        (checkout / place).write_bytes(b"x")
    report = verify(archive, "--key", release.public, "--checkout", checkout)
    assert {finding["file"] for finding in report["findings"]} == {"mint2m/.git/config", ".github/x", ".git2"}


def test_a_checkout_whose_git_directory_is_a_file_has_a_file_too_many(
    archive: Path, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    checkout = kit.small_source(tmp_path / "checkout")
    shutil.rmtree(checkout / ".git")
    (checkout / ".git").write_text("gitdir: /elsewhere\n")
    report = verify(archive, "--key", release.public, "--checkout", checkout)
    assert [(finding["id"], finding["file"]) for finding in report["findings"]] == [("tree.file-unlisted", ".git")]


# The verified output


def test_the_output_is_what_tar_would_unpack(archive: Path, release: Any, kit: ModuleType, tmp_path: Path) -> None:
    report = verify(archive, "--key", release.public, "--verified-output", tmp_path / "out")
    assert report["exit_code"] == 0
    plain = tmp_path / "plain"
    plain.mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", plain], check=True)
    assert subprocess.run(["diff", "-r", plain, tmp_path / "out"], capture_output=True, text=True).stdout == ""
    assert os.access(tmp_path / "out/source/tool.sh", os.X_OK)
    assert not os.access(tmp_path / "out/source/README.md", os.X_OK)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([kit.NAME, "out", "plain"])


@pytest.mark.parametrize("kind", ["file", "directory", "dangling-link"])
def test_the_output_is_never_put_over_something(kind: str, archive: Path, release: Any, tmp_path: Path) -> None:
    place = tmp_path / "out"
    if kind == "file":
        place.write_bytes(b"mine")
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("nowhere")
    report = verify(archive, "--key", release.public, "--verified-output", place)
    assert (report["exit_code"], ids(report)) == (2, ["file.exists"])
    assert place.is_symlink() or place.is_file() or list(place.iterdir()) == []


def test_what_appears_while_it_is_verified_is_not_replaced(
    archive: Path, release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival's directory, made after the first look and before the name is given."""
    from mint2m_verify.bundle import verify as module

    genuine = module.check_contents

    def slow(*arguments: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "rival").write_bytes(b"mine")
        return genuine(*arguments)

    monkeypatch.setattr(module, "check_contents", slow)
    report = verify(archive, "--key", release.public, "--verified-output", tmp_path / "out")
    assert ids(report) == ["file.exists"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rival"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("words", [(), ("--consistency-only",)])
def test_nothing_is_unpacked_without_an_anchor(words: tuple[str, ...], archive: Path, tmp_path: Path) -> None:
    report = verify(archive, *words, "--verified-output", tmp_path / "out")
    assert (report["exit_code"], ids(report)) == (2, ["usage.invalid"])
    assert not (tmp_path / "out").exists()


def test_a_checkout_that_differs_keeps_the_output_back(archive: Path, release: Any, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/x").write_bytes(b"x")
    words = ("--checkout", tmp_path / "checkout", "--verified-output", tmp_path / "out")
    report = verify(archive, "--key", release.public, *words)
    assert report["exit_code"] == 1
    assert report["requirements"][-1]["standing"] == "unverifiable"
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_an_output_that_cannot_be_written_is_no_verdict_on_the_archive(
    archive: Path, release: Any, tmp_path: Path
) -> None:
    report = verify(archive, "--key", release.public, "--verified-output", tmp_path / "absent" / "out")
    assert (report["exit_code"], ids(report)) == (5, ["file.unwritable"])


# The file itself


def test_an_archive_that_is_not_there_is_the_caller_s_mistake(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    report = verify(tmp_path / kit.NAME, "--key", release.public)
    assert (report["exit_code"], ids(report)) == (2, ["input.missing"])


def test_a_link_that_the_caller_names_is_followed(archive: Path, release: Any, kit: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / kit.NAME
    link.symlink_to(archive)
    assert verify(link, "--key", release.public)["exit_code"] == 0


def test_a_repacked_archive_with_the_same_tar_is_accepted(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    """A mirror's compression changes no member, and no header says anything but that."""
    content = gzip.decompress(release.archive)
    for level in (1, 6, 9):
        (tmp_path / kit.NAME).write_bytes(gzip.compress(content, compresslevel=level, mtime=0))
        assert verify(tmp_path / kit.NAME, "--key", release.public)["exit_code"] == 0


def test_tarfile_writes_the_same_tar(release: Any, kit: ModuleType) -> None:
    """The canonical form is ustar as Python's tarfile has it, but for the filling of the last record."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as bundle:
        for entry in kit.entries_of(release.archive):
            info = tarfile.TarInfo(entry.name)
            info.size, info.mtime, info.mode = len(entry.content), kit.MTIME, 0o755 if entry.executable else 0o644
            bundle.addfile(info, io.BytesIO(entry.content))
    content = gzip.decompress(release.archive)
    assert made.getvalue()[: len(content)] == content
    assert made.getvalue()[len(content) :].strip(b"\0") == b""
