"""Findings about the papers of what the workers run. All are about the operator's own input and block, never fail."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict


def _blocked(id: str, message: str, explanation: str, hint: str | None = None) -> Entry:
    return Entry(id=id, verdict=Verdict.BLOCKED, message=message, explanation=explanation, hint=hint)


ENTRIES = (
    _blocked(
        "runtime-lock.missing",
        "this hardware class needs a runtime lock",
        "The deployment names no readable mint2m.runtime-lock/v1. On a cluster every part of the image is named before anything\n"
        "starts: base image, Containerfile, Python, each wheel with its SHA-256, drivers. See docs/runtime.md.",
        "mint2m release lock --environment cuda13",
    ),
    _blocked(
        "runtime-lock.invalid",
        "the runtime lock cannot be taken for one",
        "It is not strict JSON, breaks its schema, or names a package twice. `mint2m schema show runtime-lock` has the members.",
    ),
    _blocked(
        "runtime-lock.unresolved",
        "a part of the runtime lock is not known",
        "The pointer says which: null stands for a version or digest that nobody has filled in. Nothing is downloaded, built or\n"
        "started by such a lock, and mint2m never invents what is missing.",
        "give what is missing to `mint2m release lock`, or write it in by hand",
    ),
    _blocked(
        "runtime-lock.placeholder-digest",
        "a digest of the runtime lock is a template's",
        "All zeros, or a few characters over and over: no SHA-256 looks like this. It stands for a value that nobody filled in.",
        "write the digest, or null while it is not known",
    ),
    _blocked(
        "runtime-lock.environment-mismatch",
        "the runtime lock is of another environment",
        "reference-cpu runs the environment `cpu`, h20-4x8 `cuda13`: wheels and drivers of one say nothing about the other.",
    ),
    _blocked(
        "runtime-lock.pin-differs",
        "what pip resolved is not what constraints.txt pins",
        "Every wheel has the version that constraints.txt gives it, and everything that mint2m[trainer] names by itself is among\n"
        "them. Resolve again with `pip install --dry-run --report F -c constraints.txt`.",
    ),
    _blocked(
        "runtime-lock.hashes-invalid",
        "a file of wheel hashes is not understood",
        "Known are pip's report (`pip install --dry-run --ignore-installed --report F`) and a requirements file with --hash, one\n"
        "package a line. Hashes are taken from these and from wheels that are at hand; none is ever made up.",
    ),
    _blocked(
        "runtime-identity.not-locked",
        "what is installed is not what was locked",
        "Interpreter and every package of the runtime identity have the versions of the lock, and every locked wheel is installed\n"
        "in its version; on a cluster class nothing else is, but pip, setuptools and wheel. Ranks compare themselves with the identity, so none of them runs anything else.",
        "run the image that was built from this lock",
    ),
    _blocked(
        "sbom.invalid",
        "the SBOM is not SPDX 2.3 in JSON",
        "mint2m reads SPDX 2.3, JSON. `mint2m release sbom` makes one from the lock.",
    ),
    _blocked(
        "sbom.lock-mismatch",
        "the SBOM is not of what was locked",
        "Every wheel of the lock stands in the SBOM under its purl, with a SHA-256 that the lock has and none that it has not.",
    ),
    _blocked(
        "image-provenance.invalid",
        "the image provenance cannot be taken for one",
        "It is not strict JSON, breaks its schema (`mint2m schema show image-provenance`), or has a template's digest.",
    ),
    _blocked(
        "image-provenance.mismatch",
        "the image provenance is of other papers",
        "Image, lock, Containerfile, SBOM and source by digest: the pointer says which of them is not the one at hand.",
    ),
    _blocked(
        "deployment.against-differs",
        "two deployments do not share what runs",
        "Deployments that are held against each other run one image from one lock, with one identity, SBOM and provenance, on one\n"
        "model and one class of hardware. The pointer says what differs; what a promotion run showed then does not count here.",
    ),
)
