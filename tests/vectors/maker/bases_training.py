"""The bases of online trainings: two steps each, by the trainer and signed with a key of these tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from maker.bases import make_keys
from maker.forge import BASES, KEYS
from maker.training_site import build_site
from mint2m_trainer.online.loop import OnlineRequest, online
from mint2m_verify.finding import Verdict

STEPS = 2


def make_training(base: str) -> None:
    """Sample, train and seal two steps; some minutes.

    `training-carried` carries its moments, `training-prompts` too and has two prompts a step.
    """
    make_keys()
    with tempfile.TemporaryDirectory(prefix="mint2m-vectors-") as folder:
        work = Path(folder)
        site = build_site(
            work / "site",
            key=KEYS / "release.key",
            moments=None if base == "training" else "carried",
            prompts=2 if base == "training-prompts" else None,
        )
        request = OnlineRequest(deployment=site.deployment, steps=STEPS, directory=work / "training", resume=False)
        report = online(request)
        if report.verdict is not Verdict.ACCEPTED:
            raise SystemExit(f"{report.subject}: {[(f.id, f.file, f.expected, f.actual) for f in report.findings]}")
        shutil.rmtree(BASES / base, ignore_errors=True)
        shutil.copytree(work / "training", BASES / base)
