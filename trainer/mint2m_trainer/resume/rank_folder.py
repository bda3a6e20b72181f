"""A rank's part of a progress folder: whose it is, and the files of each pass that the rank makes.

The rule: the identity is written before anything else, and read before anything else is. It names what this rank holds
in memory, not what somebody says that it was given: the weights by the digest of its own tensors, the kernels by their
class.
"""

from __future__ import annotations

from pathlib import Path

import torch

from mint2m_trainer import compat
from mint2m_trainer.kernels import Kernels
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_trainer.resume.faults import OtherProgressError
from mint2m_trainer.resume.identity import IDENTITY, Identity, read_identity, work_members, write_identity
from mint2m_trainer.resume.pass_files import PassFiles
from mint2m_verify.runtime_identity import observe


class RankFolder:
    """One rank's folder, open for one update."""

    def __init__(self, progress: Path, rank: int, identity: Identity) -> None:
        """Open or make `progress/rank-N`.

        Raises:
            OtherProgressError: it keeps the progress of something else; the first difference is named.
            FindingError, OSError: it cannot be read or written.
        """
        self._folder = progress / f"rank-{rank}"
        self._passes: list[PassFiles] = []
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._folder / IDENTITY
        if not place.exists():
            write_identity(self._folder, identity)
        kept = read_identity(place)
        if kept is None:
            raise OtherProgressError(f"{place}: not an identity that this version writes")
        differs = identity.difference(kept)
        if differs is not None:
            raise OtherProgressError(
                f"{self._folder} keeps the progress of another run: {differs.member} was "
                f"{differs.kept or 'absent'}, now it is {differs.now or 'absent'}"
            )

    def pass_files(self, label: str) -> PassFiles:
        """The files of the pass `label`, locked until `close`."""
        files = PassFiles(self._folder / label)
        self._passes.append(files)
        return files

    def close(self) -> None:
        """Give up all locks; harmless twice."""
        for files in self._passes:
            files.close()
        self._passes.clear()


def identity_of(inputs: RankInputs, kernels: Kernels, *, weights_sha256: str, adapter_sha256: str) -> Identity:
    """Of a rank that holds these weights before the step."""
    seen = observe(image_digest=inputs.image_digest)
    members: list[tuple[str, str]] = [
        ("source_sha256", seen.source_sha256),
        ("runtime_identity_sha256", seen.sha256),
        ("rank", f"{inputs.rank} of {inputs.world_size}"),
        ("weights_sha256", weights_sha256),
        ("adapter_sha256", adapter_sha256),
        *work_members(inputs.rollout, inputs.profile, inputs.accumulation),
        ("device", compat.device().type),
        ("kernels", type(kernels).__name__),
        ("threads", str(torch.get_num_threads())),
    ]
    return Identity(members=tuple(members))
