"""The papers of a deployment: runtime lock, runtime identity, SBOM, image provenance and the grant.

The rule: what is named must be there and hold on any hardware, and a cluster class needs all of it. Papers are held
against each other and against what runs here; one that contradicts another is worth less than none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.deployment_parts import Parts, because
from mint2m_verify.documents.inputs import Deployment, Package, RuntimeIdentity
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.grant import check_terms, parse_grant
from mint2m_verify.runtime.lock import check_environment, check_identity, described, not_locked, read_lock
from mint2m_verify.runtime.provenance import Papers, check_provenance
from mint2m_verify.runtime.sbom import check_sbom
from mint2m_verify.runtime_identity import installed_packages, installed_version, observe
from mint2m_verify.seal import counted
from mint2m_verify.source import source_sha256


def check_lock(parts: Parts, deployment: Deployment) -> None:
    """The lock by itself, and that it is of the environment that this class runs."""
    raw = _read(parts, deployment, "runtime-lock", deployment.runtime_lock, needed=True)
    if raw is None or deployment.runtime_lock is None:
        return
    lock, faults = read_lock(raw, file=deployment.runtime_lock)
    if lock is None:
        parts.record("runtime-lock", *faults)
        return
    parts.lock = lock
    faults += tuple(check_environment(lock, deployment.hardware_class))
    parts.record("runtime-lock", *faults, actual=described(lock))


def check_attachments(parts: Parts, deployment: Deployment) -> None:
    """SBOM, provenance and grant."""
    sbom = _read(parts, deployment, "sbom", deployment.sbom, needed=True)
    if sbom is not None and deployment.sbom is not None:
        parts.sbom_sha256 = sha256_hex(sbom)
        faults = () if parts.lock is None else tuple(check_sbom(sbom, parts.lock, file=deployment.sbom))
        parts.record("sbom", *faults, actual=parts.sbom_sha256)
    provenance = _read(parts, deployment, "image-provenance", deployment.image_provenance, needed=True)
    if provenance is not None and deployment.image_provenance is not None:
        named = {"lock": (deployment.runtime_lock, parts.lock), "sbom": (deployment.sbom, parts.sbom_sha256)}
        papers = Papers(
            image=deployment.image,
            lock=parts.lock,
            sbom_sha256=parts.sbom_sha256,
            source_sha256=source_sha256(),
            unread=frozenset(name for name, (path, read) in named.items() if path is not None and read is None),
        )
        faults = tuple(check_provenance(provenance, papers, file=deployment.image_provenance))
        parts.record("image-provenance", *faults, actual=sha256_hex(provenance))
    # The grant of a promotion run is over its plan.
    needed = deployment.kind != "validation" and not parts.of_a_stage
    grant = _read(parts, deployment, "authorization", deployment.authorization_grant, needed=needed)
    if grant is not None and deployment.authorization_grant is not None:
        causes = _granted(grant, parts, deployment.authorization_grant)
        faults = tuple(because("authorization.missing", cause, pointer=_POINTERS["authorization"]) for cause in causes)
        parts.record("authorization", *faults, actual=sha256_hex(grant))


_POINTERS = {
    "runtime-lock": "/runtime_lock",
    "sbom": "/sbom",
    "image-provenance": "/image_provenance",
    "authorization": "/authorization_grant",
}


def _read(parts: Parts, deployment: Deployment, name: str, path: str | None, *, needed: bool) -> bytes | None:
    """A paper's bytes; None where it is not there, which is recorded if it is `needed` or was named."""
    if path is None:
        if needed and deployment.hardware_class != "reference-cpu":
            parts.record(name, found(f"{name}.missing", file=parts.path.name, pointer=_POINTERS[name]))
        return None
    try:
        return read_once(parts.near(path).resolve(), name=path)
    except FindingError as stop:
        parts.record(name, because(f"{name}.missing", stop.finding, pointer=_POINTERS[name]))
        return None


def _granted(raw: bytes, parts: Parts, name: str) -> tuple[Finding, ...]:
    """What keeps a file from being a grant for this deployment, now. Whose word it is, only a policy can say."""
    from mint2m_verify.sigstore_bundle.model import Envelope
    from mint2m_verify.sigstore_bundle.reading import read_bundle

    try:
        content = read_bundle(raw, file=name).content
        if not isinstance(content, Envelope):
            raise FindingError(found("grant.invalid", file=name, pointer="/dsseEnvelope"))
        statement = parse_grant(content.payload, file=name)
    except FindingError as fault:
        return (fault.finding,)
    return tuple(check_terms(statement, "training", sha256_hex(parts.deployment_raw), datetime.now(UTC), file=name))


def check_runtime(
    parts: Parts,
    deployment: Deployment,
    *,
    installed: Callable[[str], str | None] = installed_version,
    everything: Callable[[], tuple[Package, ...]] = installed_packages,
) -> None:
    """The identity that the deployment names, this installation's, and the lock, all three against each other.

    What is installed beside the lock blocks a cluster class; elsewhere, on somebody's own machine, it is counted.
    """
    digest = None if deployment.image is None else deployment.image.digest
    here = observe(image_digest=digest)
    pointer, file = "/runtime_identity", parts.path.name
    if deployment.runtime_identity is None:
        if deployment.hardware_class != "reference-cpu":
            parts.record("runtime-identity", found("runtime-identity.missing", file=file, pointer=pointer))
            return
        given = here
    else:
        path = parts.near(deployment.runtime_identity)
        file = path.name
        try:
            given = RuntimeIdentity.parse(read_once(path.resolve(), name=file), file=file)
        except FindingError as stop:
            parts.record("runtime-identity", because("runtime-identity.missing", stop.finding, pointer=pointer))
            return
    faults: tuple[Finding, ...] = ()
    beside = ""
    if given != here:
        faults = (
            found("runtime-identity.mismatch", file=file, pointer=pointer, expected=given.sha256, actual=here.sha256),
        )
    if parts.lock is not None:
        faults += tuple(check_identity(parts.lock, given, file=file, installed=installed))
        others = tuple(not_locked(parts.lock, everything(), file=file))
        if deployment.hardware_class == "reference-cpu":
            beside = f", {counted(len(others), 'package')} beside the lock" if others else ""
        else:
            faults += others
    if not faults:
        parts.identity = given
    words = "observed, " if deployment.runtime_identity is None else ""
    parts.record("runtime-identity", *faults, actual=f"{words}{given.sha256}{beside}")
