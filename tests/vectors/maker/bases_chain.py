"""The base `chain`: one small promotion run, made by the stages themselves and signed with keys of these tests.

Two ranks, the smallest model of `bases`, three short prompts; every stage is real, Ray and collectives included.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from maker.bases import MODEL, make_keys
from maker.forge import BASES, KEYS, NONCE
from mint2m_trainer.run import ChosenSigner
from mint2m_trainer.stages.packaged_set import PackagedSet
from mint2m_trainer.stages.planner import PlanRequest, plan_set
from mint2m_trainer.stages.run import StageRequest, run_all
from mint2m_verify.finding import Verdict
from mint2m_verify.signers.choose import key_file_signer

RUN_ID = "6f2d3c52-5e2b-4a5e-9a53-0d7a5a1f0c11"

#: Experts are few and narrow, so that the shards of four computations stay small.
SET = PackagedSet(
    name="vectors",
    world_size=2,
    tokens={"parity-32k": 700, "parity-64k": 760, "scale-2m": 820},
    chunk_tokens={"parity-32k": 128, "parity-64k": 128, "scale-2m": 256},
    model_config={**MODEL, "n_routed_experts": 2, "num_experts_per_tok": 1},
    lora_rank=1,
)


def make_chain() -> None:
    """Plan and run all stages; some minutes."""
    make_keys()
    with tempfile.TemporaryDirectory(prefix="mint2m-vectors-") as folder:
        work = Path(folder)
        signer = key_file_signer(KEYS / "planner.key")
        plan_set(SET, PlanRequest(output=work / "plan", signer=signer, nonce=NONCE))
        report = run_all(
            StageRequest(
                validation_plan=work / "plan/validation-plan.json",
                run_id=RUN_ID,
                evidence=work / "evidence",
                signer=ChosenSigner(signer=key_file_signer(KEYS / "release.key"), source=KEYS / "release.key"),
                plan_key=KEYS / "planner.pub",
            )
        )
        if report.verdict is not Verdict.ACCEPTED:
            raise SystemExit(f"{report.subject}: {[(f.id, f.file, f.expected, f.actual) for f in report.findings]}")
        shutil.rmtree(BASES / "chain", ignore_errors=True)
        shutil.copytree(work / "evidence", BASES / "chain")
