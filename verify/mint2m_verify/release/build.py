"""`mint2m release build`: from a clean checkout to a signed bundle that its own verifier accepts.

The rule: nothing appears under the bundle's name before the bundle was verified as a stranger would, and nothing is
overwritten. The source is the commit's, the wheel is built from it, and what is said about both is computed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.anchor import ConsistencyOnly, DigestAnchor, VerifyOptions
from mint2m_verify.bundle.verify import BundleQuestion, verify_bundle
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.files import sync_directory
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, Trust, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.release import layout
from mint2m_verify.release.archive import Bundle, Part, assemble, part_from, part_of, write_archive
from mint2m_verify.release.gates import BUILD_TOOL, Ready, check_gates
from mint2m_verify.release.git_source import Commit
from mint2m_verify.release.provenance import make_provenance
from mint2m_verify.release.sbom import make_sbom
from mint2m_verify.release.wheel_build import build_wheel
from mint2m_verify.signers.signer import Signer
from mint2m_verify.walk import Progress, read_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to release: the checkout, where the bundle goes (a directory, or a file of the bundle's own name)."""

    source: Path
    output: Path
    version: str | None = None
    receipts: tuple[Path, ...] = ()
    progress: Progress | None = None


def build_release(request: BuildRequest, signers: Sequence[Signer]) -> Report:
    """Build, sign and verify the bundle; a gate that is not passed ends it before anything is made.

    Args:
        request: what to build.
        signers: the release's signers; each signs the same statement.

    Raises:
        FindingError: `usage.invalid`, `file.exists`, `file.unwritable`, `release.build-failed`, `signer.*`.
    """
    if not 1 <= len(signers) <= layout.MOST_SIGNATURES:
        raise FindingError(found("usage.invalid", expected=f"1 to {layout.MOST_SIGNATURES} signers"))
    log = Findings()
    ready = check_gates(request.source, request.version, log)
    for receipt in request.receipts:
        log.judge(f"receipt {receipt.name}", Standing.CHECKED, _receipt(receipt, request))
    if ready is None or log.findings:
        return Report(
            subject=str(request.source),
            command="release build",
            requirements=log.requirements,
            findings=log.findings,
            summary="Nothing was built.",
        )
    target = _target(request.output, ready.project.version)
    try:
        work = Path(tempfile.mkdtemp(prefix=".release.", suffix=".partial", dir=target.parent))
    except OSError as fault:
        raise _unwritable(target, fault) from fault
    try:
        verified = _build(request, ready, signers, work, target)
    except OSError as fault:
        raise _unwritable(target, fault) from fault
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Report(
        subject=str(target),
        command="release build",
        # The first row of the verification is the builder's own digest, which is nobody's trust.
        requirements=(*log.requirements, *verified.requirements[1:], _written(target)),
        not_checked=("whether the tests pass at this commit", "who may release: that is the auditor's policy"),
        trust=Trust(digests=tuple(item for item in verified.trust.digests if item.name == "release")),
        summary=f"{target.name}, signed by {', '.join(signer.describe() for signer in signers)}",
    )


def _build(request: BuildRequest, ready: Ready, signers: Sequence[Signer], work: Path, target: Path) -> Report:
    """Make the bundle in `work`, verify it there, and give it its name."""
    bundle = _bundle(request, ready, work)
    signatures = [signer.sign_statement(bundle.statement.payload) for signer in signers]
    archive = work / "bundle" / target.name
    archive.parent.mkdir()
    with archive.open("xb") as stream:
        write_archive(bundle, signatures, stream.write)
        stream.flush()
        os.fsync(stream.fileno())
    anchor = DigestAnchor(sha256=bundle.statement.sha256)
    report = verify_bundle(BundleQuestion(archive=archive), anchor, VerifyOptions(progress=request.progress))
    for fault in report.roots:
        raise FindingError(fault)
    try:
        os.link(archive, target)  # unlike a rename, never onto something
    except FileExistsError as fault:
        raise FindingError(found("file.exists", file=str(target))) from fault
    sync_directory(target.parent)
    return report


def _bundle(request: BuildRequest, ready: Ready, work: Path) -> Bundle:
    commit, version = ready.commit, ready.project.version
    source, wheels = work / "source", work / "wheel"
    source.mkdir()
    wheels.mkdir()
    parts = list(_export(commit, source))
    wheel = part_from(layout.wheel_name(version), build_wheel(source, wheels, version=version, epoch=commit.epoch))
    sbom = make_sbom(ready.project, ready.pins, wheel_sha256=wheel.sha256, created=commit.committed_at)
    hatchling = next(pin.version for pin in ready.pins if pin.name == BUILD_TOOL)
    provenance = make_provenance(
        version=version, wheel_sha256=wheel.sha256, commit=commit.name, tree=commit.tree, hatchling=hatchling
    )
    parts += [wheel, part_of(layout.SBOM, sbom), part_of(layout.PROVENANCE, provenance)]
    for receipt in request.receipts:
        parts += _receipt_parts(receipt)
    return assemble(version, parts, commit=commit.name, committed_at=commit.committed_at)


def _export(commit: Commit, place: Path) -> Iterator[Part]:
    """Write the commit's files below `place` for the build, and name each as a part."""
    for file, content in commit.read():
        path = place / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if file.executable:
            path.chmod(0o755)
        yield Part(
            path=layout.SOURCE + file.path,
            executable=file.executable,
            size=len(content),
            sha256=sha256_hex(content),
            content=path,
        )


def _receipt(directory: Path, request: BuildRequest) -> Check:
    from mint2m_verify.run import verify_run

    label = directory.resolve().name
    labels = [other.resolve().name for other in request.receipts]
    if labels.count(label) > 1:
        yield found("release.receipt-invalid", file=str(directory), expected="a name of its own", actual=label)
    report = verify_run(directory, ConsistencyOnly(), VerifyOptions(progress=request.progress))
    for fault in report.roots:
        yield found("release.receipt-invalid", file=str(directory), actual=fault.id)
    return f"{len(report.requirements)} requirements hold"


def _receipt_parts(directory: Path) -> Iterator[Part]:
    label = directory.resolve().name
    snapshot = read_tree(directory, keep=lambda _: 0)
    for fault in snapshot.findings:
        raise FindingError(fault)
    for file in snapshot.files:
        entry = file.entry
        yield Part(
            path=f"{layout.RECEIPTS}{label}/{entry.path}",
            executable=entry.executable,
            size=entry.size,
            sha256=entry.sha256,
            content=directory / entry.path,
        )


def _target(output: Path, version: str) -> Path:
    """Where the bundle goes; it is called as its version demands and does not exist."""
    name = layout.archive_name(version)
    target = output / name if output.is_dir() else output
    if target.name != name:
        raise FindingError(
            found("usage.invalid", expected=f"--output with a directory, or a file {name}", actual=str(output))
        )
    if os.path.lexists(target):
        raise FindingError(found("file.exists", file=str(target)))
    return target


def _written(target: Path) -> Requirement:
    return Requirement(required="the bundle, as it was verified", found=str(target), standing=Standing.CHECKED)


def _unwritable(target: Path, fault: OSError) -> FindingError:
    return FindingError(found("file.unwritable", file=str(target), actual=fault.strerror))
