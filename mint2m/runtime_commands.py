"""`mint2m release lock | requirements | sbom | image-provenance`: the papers of what the workers run."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.outcome import Outcome, ReportFormat, present

Output: TypeAlias = Annotated[Path, typer.Option("--output", help="File to write.")]
LockFile: TypeAlias = Annotated[Path, typer.Option("--lock", help="Runtime lock in which every part is known.")]
Form: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")]


class Environment(enum.StrEnum):
    """What an image is for."""

    CPU = "cpu"
    CUDA13 = "cuda13"


def add_papers(group: typer.Typer) -> None:
    """Add the commands to the `release` group."""
    for name, command in (
        ("lock", lock),
        ("requirements", requirements),
        ("sbom", sbom),
        ("image-provenance", image_provenance),
    ):
        group.command(name)(command)


def lock(
    environment: Annotated[Environment, typer.Option("--environment", help="What the image is for.")],
    output: Output,
    source: Annotated[Path, typer.Option("--source", metavar="DIR", help="Top of a checkout, for its pins.")] = Path(),
    hashes: Annotated[
        list[Path] | None,
        typer.Option("--hashes", help="pip's report, or a requirements file with --hash; may be repeated."),
    ] = None,
    wheel: Annotated[
        list[Path] | None, typer.Option("--wheel", help="A wheel that is at hand; may be repeated.")
    ] = None,
    base_image: Annotated[str | None, typer.Option("--base-image", help="NAME@sha256:HEX of the base.")] = None,
    container_file: Annotated[Path | None, typer.Option("--container-file", help="The Containerfile.")] = None,
    python: Annotated[str | None, typer.Option("--python", help="Version of CPython in the base.")] = None,
    cuda_driver: Annotated[str | None, typer.Option("--cuda-driver", help="Least driver that hosts need.")] = None,
    nccl: Annotated[str | None, typer.Option("--nccl", help="Version of NCCL in the image.")] = None,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Write the lock of an image from what is at hand; what is not known is null, and blocks until it is."""
    from mint2m_verify.runtime.making import LockRequest, write_lock

    request = LockRequest(
        environment=environment.value,
        source=source,
        hashes=tuple(hashes or ()),
        wheels=tuple(wheel or ()),
        base_image=base_image,
        container_file=container_file,
        python=python,
        cuda_driver=cuda_driver,
        nccl=nccl,
    )
    return present(write_lock(request, output), form)


def requirements(lock: LockFile, output: Output, form: Form = ReportFormat.TEXT) -> Outcome:
    """Write a lock's wheels for `pip install --require-hashes`."""
    from mint2m_verify.runtime.making import write_requirements

    return present(write_requirements(lock, output), form)


def sbom(lock: LockFile, output: Output, form: Form = ReportFormat.TEXT) -> Outcome:
    """Write a lock's software bill of materials, SPDX 2.3."""
    from mint2m_verify.runtime.making import write_sbom

    return present(write_sbom(lock, output), form)


def image_provenance(
    image: Annotated[str, typer.Option("--image", help="NAME@sha256:HEX of the image that was built.")],
    lock: LockFile,
    container_file: Annotated[Path, typer.Option("--container-file", help="The Containerfile it was built by.")],
    sbom: Annotated[Path, typer.Option("--sbom", help="Its SBOM.")],
    output: Output,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Write down from which papers and which source an image was built."""
    from mint2m_verify.runtime.making import write_provenance

    return present(write_provenance(image, lock, container_file, sbom, output), form)
