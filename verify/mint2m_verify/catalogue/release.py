"""Findings about releases: what is signed, whether it belongs together, and what stands in the way of making one."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict


def _signed(id: str, message: str, explanation: str) -> Entry:
    return Entry(id=f"release.{id}", verdict=Verdict.FAILED, message=message, explanation=explanation)


def _gate(id: str, message: str, explanation: str, hint: str | None = None) -> Entry:
    return Entry(id=f"release.{id}", verdict=Verdict.BLOCKED, message=message, explanation=explanation, hint=hint)


ENTRIES = (
    _signed(
        "statement-invalid",
        "the signed statement is not that of a release",
        "The payload must be exactly an in-toto Statement v1 with predicate type urn:mint2m:predicate:release:v1, the version, and\n"
        "every member of the bundle as a subject with one SHA-256, sorted, release.json among them. A signature over something\n"
        "else, even a valid one, releases nothing.",
    ),
    _signed(
        "signatures-differ",
        "two signatures of the bundle are over different statements",
        "Each signature in a bundle is over the same statement. A second one over another statement vouches for another release\n"
        "and was put here to look like support for this one.",
    ),
    _signed(
        "manifest-changed",
        "the manifest is not the one that was signed",
        "The signed statement names release.json with a SHA-256, and the archive's first member has another one. Sizes and order\n"
        "of the members are not known, so nothing more was read.",
    ),
    _signed(
        "members-differ",
        "manifest and statement name different members",
        "The statement binds each member's content and the manifest its size; they must name the same files, in the order of their\n"
        "names. These do not, so they were not made together.",
    ),
    _signed(
        "part-missing",
        "a part that every release has is missing",
        "A release holds a wheel of its version, the source with pyproject.toml and constraints.txt, an SBOM and provenance. This\n"
        "one was signed without one of them.",
    ),
    _signed(
        "member-unexpected",
        "a signed member has no place in a release",
        "The layout of a bundle is fixed, and this name is not part of it. Nothing says what it would be.",
    ),
    _signed(
        "version-mismatch",
        "a part of the release is of another version",
        "The signed version, the source's pyproject.toml, the wheel, the SBOM and the provenance name one version. Here one of\n"
        "them names another, so the parts were not made together.",
    ),
    _signed(
        "source-invalid",
        "the source does not describe the project",
        "pyproject.toml or constraints.txt in the signed source is malformed, or of another project. What the wheel should hold and\n"
        "the SBOM should name cannot be known.",
    ),
    _signed(
        "sbom-invalid",
        "the SBOM is not about this release",
        "The SBOM is SPDX 2.3 and names this wheel by its SHA-256 and every pinned package of the source's constraints.txt. Here it\n"
        "is malformed, or names another wheel, or other packages.",
    ),
    _signed(
        "provenance-invalid",
        "the provenance is not about this release",
        "The provenance is an in-toto statement of type https://slsa.dev/provenance/v1 whose subjects are this wheel by its SHA-256\n"
        "and this source by its git tree, which is computed from the members. Here it is malformed or about something else.",
    ),
    _signed(
        "wheel-differs",
        "the wheel does not hold the source's files",
        "Every module, schema and trust file in the wheel must be the source's, byte for byte, and none may be missing. Here one is\n"
        "another, so what people install is not what the source shows.",
    ),
    _gate(
        "not-a-checkout",
        "the source is not a git checkout",
        "A release is made of the files of one commit. Here is no commit, git is missing, or it failed. Nothing was built.",
    ),
    _gate(
        "dirty",
        "the checkout has changes that are not committed",
        "Files were changed, added or removed since the last commit, so what you see is not what would be released. Commit them or\n"
        "put them away.",
        hint="git status",
    ),
    _gate(
        "file-unportable",
        "a file that no release can hold",
        "A tracked file is a link or a submodule, or its name is not one that every file system keeps apart from all others.",
    ),
    _gate(
        "path-too-long",
        "a name too long for the archive",
        "A ustar header has room for 100 bytes of a name, or for 255 where a slash divides it well. Give the file a shorter name.",
    ),
    _gate(
        "member-too-large",
        "a file too large for the archive",
        "A ustar header holds sizes below 8 GiB. Leave the file out, or split what it is part of.",
    ),
    _gate(
        "project-invalid",
        "the project's description cannot be read",
        "pyproject.toml or constraints.txt is missing or malformed, or the project is not mint2m. Nothing was built.",
    ),
    _gate(
        "version-inconsistent",
        "the version is not the same everywhere",
        "pyproject.toml, mint2m_verify.__version__ and the newest entry of docs/changelog.md name one version, of the form 1.2.3 or\n"
        "1.2.3rc1, and `--version` the same where it is given.",
    ),
    _gate(
        "changelog-empty",
        "the changelog says nothing about this version",
        "docs/changelog.md has no entry for the version, or one without a line. Users learn from it what changes for them.",
    ),
    _gate(
        "unpinned",
        "a dependency without its pin",
        "Every dependency of pyproject.toml, of its extras and of its build has an exact version in constraints.txt. The SBOM is\n"
        "made from these; what is not pinned could be anything.",
    ),
    _gate(
        "licence-missing",
        "no licence",
        "pyproject.toml names no licence, or the licence file that it names is not in the commit.",
    ),
    _gate(
        "schema-invalid",
        "a schema that is not published under its name",
        "Each file in schemas/ is a JSON Schema whose $id is made of the file's name and major version, and there is at least one.",
    ),
    _gate(
        "vectors-missing",
        "no verification vectors",
        "tests/vectors/ has no case, or one without a reason and an expected exit code. A release whose verifier nobody can test is\n"
        "not made.",
    ),
    _gate(
        "build-tool",
        "the build tool is not the pinned one",
        "The wheel is built by hatchling in this environment, in the version of constraints.txt, or others could not build it again.\n"
        "No network is used.",
        hint="pip install -c constraints.txt hatchling",
    ),
    _gate(
        "build-failed",
        "the wheel could not be built",
        "hatchling did not make exactly one wheel of the version from the commit's files. Its last words are shown.",
    ),
    _gate(
        "receipt-invalid",
        "a receipt that does not verify",
        "A directory given with --receipt must be a run that agrees with itself (`mint2m verify run DIR --consistency-only`) and\n"
        "have a name of its own. A release does not carry evidence that its own verifier refuses.",
    ),
)
