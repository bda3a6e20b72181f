"""`mint2m release build`: the same bytes from the same commit, and parts that other people's tools read."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import FindingError
from mint2m_verify.release.archive import Part, assemble, part_from, write_archive
from mint2m_verify.release.build import BuildRequest, build_release
from mint2m_verify.signers.key_signer import signer_of
from mint2m_verify.signing import new_private_key, public_key_pem

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "tests/vectors/bases/run"


def built(release: Any, kit: ModuleType, place: Path, **request: Any) -> bytes:
    place.mkdir(parents=True, exist_ok=True)
    source = request.pop("source", release.source)
    report = build_release(BuildRequest(source=source, output=place, **request), (release.signer,))
    assert report.findings == ()
    return (place / kit.NAME).read_bytes()


def member(archive: bytes, kit: ModuleType, name: str) -> bytes:
    (entry,) = [entry for entry in kit.entries_of(archive) if entry.name == name]
    return bytes(entry.content)


def test_two_builds_of_one_commit_are_the_same_bytes(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    """From another checkout, at another time, under another umask and in another time zone."""
    clone = tmp_path / "clone"
    kit.git(tmp_path, "clone", "-q", str(release.source), str(clone))
    for path in clone.rglob("*"):
        if ".git" not in path.parts:
            os.utime(path, (1, 1))
    before = os.umask(0o077)
    zone, os.environ["TZ"] = os.environ.get("TZ"), "Pacific/Kiritimati"
    try:
        again = built(release, kit, tmp_path / "out", source=clone)
    finally:
        os.umask(before)
        os.environ.pop("TZ")
        if zone is not None:
            os.environ["TZ"] = zone
    assert sha256_hex(again) == sha256_hex(release.archive)


def test_two_builds_with_one_p256_key_are_the_same_bytes(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    signer = signer_of(new_private_key(), kind="managed", source="a test")
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        request = BuildRequest(source=release.source, output=tmp_path / name)
        assert build_release(request, (signer,)).findings == ()
        made.append((tmp_path / name / kit.NAME).read_bytes())
    assert made[0] == made[1]


def test_a_p256_signature_is_that_of_rfc_6979() -> None:
    """Appendix A.2.5, SHA-256, message "sample"."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    from mint2m_verify.signing import sign_bytes

    secret = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    assert decode_dss_signature(sign_bytes(b"sample", ec.derive_private_key(secret, ec.SECP256R1()))) == (
        0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
        0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
    )


def test_what_lies_about_and_is_ignored_does_not_get_in(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    files = {**kit.small_files(), ".gitignore": b"secret*\nbuild/\n"}
    source = kit.small_source(tmp_path / "source", files)
    first = built(release, kit, tmp_path / "one", source=source)
    (source / "secret.txt").write_bytes(b"hidden")
    (source / "mint2m" / "secret.py").write_bytes(b"import os\n")
    assert built(release, kit, tmp_path / "two", source=source) == first
    assert b"hidden" not in first


def test_the_members_are_the_commit_s_files_and_what_is_said_of_them(release: Any, kit: ModuleType) -> None:
    entries = kit.entries_of(release.archive)
    names = [entry.name for entry in entries]
    assert names[:2] == ["release.json", "release.sigstore.json"]
    assert names[2:] == sorted(names[2:])
    source = {entry.name.removeprefix("source/"): entry for entry in entries if entry.name.startswith("source/")}
    assert {name: entry.content for name, entry in source.items()} == kit.small_files()
    assert [name for name, entry in source.items() if entry.executable] == ["tool.sh"]
    manifest = json.loads(entries[0].content)
    assert manifest["commit"] == kit.git(release.source, "rev-parse", "HEAD")
    assert manifest["committed_at"] == "2026-01-31T12:00:00Z"


def test_the_wheel_is_one_that_pip_installs(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / Path(kit.WHEEL).name
    wheel.write_bytes(member(release.archive, kit, kit.WHEEL))
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True, capture_output=True)
    assert (tmp_path / "site/mint2m_verify/empty.py").read_bytes() == b""
    with zipfile.ZipFile(io.BytesIO(member(release.archive, kit, kit.WHEEL))) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2026, 1, 31, 12, 0, 0)}


def test_the_sbom_is_valid_spdx_by_the_reference_tools(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    from spdx_tools.spdx.model import RelationshipType
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    place = tmp_path / "sbom.spdx.json"
    place.write_bytes(member(release.archive, kit, "sbom.spdx.json"))
    document = parse_file(str(place))
    assert validate_full_spdx_document(document) == []
    packages = {package.name: package for package in document.packages}
    assert {name: package.version for name, package in packages.items()} == {"mint2m": kit.VERSION, **kit.pins()}
    (checksum,) = packages["mint2m"].checksums
    assert checksum.value == sha256_hex(member(release.archive, kit, kit.WHEEL))
    kinds = {
        (relation.spdx_element_id, relation.relationship_type, str(relation.related_spdx_element_id))
        for relation in document.relationships
    }
    assert ("SPDXRef-mint2m", RelationshipType.DEPENDS_ON, "SPDXRef-pypi-numpy") in kinds
    assert ("SPDXRef-pypi-torch", RelationshipType.OPTIONAL_DEPENDENCY_OF, "SPDXRef-mint2m") in kinds
    assert ("SPDXRef-pypi-hatchling", RelationshipType.BUILD_DEPENDENCY_OF, "SPDXRef-mint2m") in kinds


def test_the_provenance_names_the_wheel_and_git_s_tree(release: Any, kit: ModuleType) -> None:
    document = json.loads(member(release.archive, kit, "provenance.intoto.json"))
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [
        {"name": "source/", "digest": {"gitTree": kit.git(release.source, "rev-parse", "HEAD^{tree}")}},
        {"name": kit.WHEEL, "digest": {"sha256": sha256_hex(member(release.archive, kit, kit.WHEEL))}},
    ]
    definition = document["predicate"]["buildDefinition"]
    assert {"buildType", "externalParameters", "resolvedDependencies"} <= definition.keys()
    assert document["predicate"]["runDetails"]["builder"]["id"].startswith("urn:")


def test_a_receipt_is_carried_and_verifies_where_it_is_unpacked(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / kit.NAME
    archive.write_bytes(built(release, kit, tmp_path / "out", receipts=(RUN,)))
    question = BundleQuestion(archive=archive, verified_output=tmp_path / "verified")
    assert verify_bundle(question, release.anchor, VerifyOptions()).verdict == 0
    key = ROOT / "tests/vectors/test-only-keys/release.pub"
    outcome = command_line(["verify", "run", str(tmp_path / "verified/receipts/run"), "--key", str(key)])
    assert outcome.verdict == 0, outcome.text


def test_a_receipt_that_does_not_verify_is_not_carried(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    run = shutil.copytree(RUN, tmp_path / "run")
    (run / "plan.json").write_bytes(b"{}")
    (tmp_path / "out").mkdir()
    request = BuildRequest(source=release.source, output=tmp_path / "out", receipts=(run,))
    report = build_release(request, (release.signer,))
    assert (int(report.verdict), report.findings[0].id) == (2, "release.receipt-invalid")
    assert list((tmp_path / "out").iterdir()) == []


def test_two_receipts_of_one_name_are_refused(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    other = shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "out").mkdir()
    request = BuildRequest(source=release.source, output=tmp_path / "out", receipts=(RUN, other))
    report = build_release(request, (release.signer,))
    assert {fault.id for fault in report.findings} == {"release.receipt-invalid"}


def test_two_signers_sign_one_statement_and_each_key_accepts_its_own(
    release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    second = signer_of(new_private_key(), kind="managed", source="a second")
    report = build_release(BuildRequest(source=release.source, output=tmp_path), (second, release.signer))
    assert report.findings == ()
    public = tmp_path / "second.pub"
    public.write_bytes(public_key_pem(second.public_key))
    archive = tmp_path / kit.NAME
    assert [entry.name for entry in kit.entries_of(archive.read_bytes())][:3] == [
        "release.json",
        "release.sigstore.json",
        "release.2.sigstore.json",
    ]
    assert verify_bundle(BundleQuestion(archive=archive), read_key(public), VerifyOptions()).verdict == 0


def test_a_dirty_checkout_is_not_released_and_nothing_is_made(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path / "source")
    (source / "new.py").write_bytes(b"")
    (tmp_path / "out").mkdir()
    report = build_release(BuildRequest(source=source, output=tmp_path / "out"), (release.signer,))
    assert (int(report.verdict), [fault.id for fault in report.findings]) == (2, ["release.dirty"])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_bundle_is_never_written_over_another(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    (tmp_path / kit.NAME).write_bytes(b"mine")
    for output in (tmp_path, tmp_path / kit.NAME):
        with pytest.raises(FindingError) as caught:
            build_release(BuildRequest(source=release.source, output=output), (release.signer,))
        assert caught.value.finding.id == "file.exists"
    assert (tmp_path / kit.NAME).read_bytes() == b"mine"


def test_a_bundle_has_its_own_name(release: Any, tmp_path: Path) -> None:
    with pytest.raises(FindingError) as caught:
        build_release(BuildRequest(source=release.source, output=tmp_path / "x.tar.gz"), (release.signer,))
    assert caught.value.finding.id == "usage.invalid"
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_cannot_be_built_leaves_nothing(release: Any, kit: ModuleType, tmp_path: Path) -> None:
    files = kit.small_files()
    files["pyproject.toml"] = files["pyproject.toml"].replace(b'"schemas" =', b'"absent" =')
    source = kit.small_source(tmp_path / "source", files)
    (tmp_path / "out").mkdir()
    with pytest.raises(FindingError) as caught:
        build_release(BuildRequest(source=source, output=tmp_path / "out"), (release.signer,))
    assert caught.value.finding.id == "release.build-failed"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_that_changes_while_it_is_written_is_noticed(release: Any, tmp_path: Path) -> None:
    file = tmp_path / "part"
    file.write_bytes(b"before")
    bundle = assemble("1.2.3", [part_from("source/part", file)], commit="1" * 40, committed_at="2026-01-31T12:00:00Z")
    for content in (b"after!", b"longer than before", b""):
        file.write_bytes(content)
        with pytest.raises(FindingError) as caught:
            write_archive(bundle, (b"{}",), io.BytesIO().write)
        assert caught.value.finding.id == "tree.changed-while-read"


def test_a_part_that_became_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        part = Part(path=name, executable=False, size=1, sha256="1" * 64, content=tmp_path / name)
        bundle = assemble("1.2.3", [part], commit="1" * 40, committed_at="2026-01-31T12:00:00Z")
        with pytest.raises(FindingError) as caught:
            write_archive(bundle, (b"{}",), io.BytesIO().write)
        assert caught.value.finding.id in {"file.unreadable", "tree.changed-while-read"}


def test_the_project_s_own_release_is_built_and_verifies_itself(mint2m: Any, tmp_path: Path) -> None:
    """From a clone of this repository's commit; the wheel in the bundle then verifies the bundle."""
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is not a git checkout, so there is no commit to release")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    assert mint2m("keys", "new", tmp_path / "key").returncode == 0
    build = ("release", "build", "--source", clone, "--key", tmp_path / "key.key", "--output", tmp_path)
    done = mint2m(*build, timeout=600)  # seconds, but for a machine that is busy with other tests
    assert done.returncode == 0, done.stdout
    (archive,) = tmp_path.glob("mint2m-v*-release-bundle.tar.gz")
    words = ("verify", "bundle", archive, "--key", tmp_path / "key.pub", "--checkout", clone)
    done = mint2m(*words, "--verified-output", tmp_path / "verified", timeout=600)
    assert done.returncode == 0, done.stdout
    (wheel,) = (tmp_path / "verified/wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    code = (
        "import sys; place = sys.argv.pop(1); sys.path.insert(0, place)\n"
        "import mint2m_verify; assert mint2m_verify.__file__.startswith(place)\n"
        "from mint2m.__main__ import main; main(sys.argv[1:])"
    )
    again = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "site", *map(str, words)],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (again.returncode, again.stdout.split()[0]) == (0, "ACCEPTED"), again.stdout
