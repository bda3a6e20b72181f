"""Findings about what binds what: plan, deployment, profile, fixture, runtime."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHAT = (
    "Documents of one run bind each other by SHA-256 and repeat a few facts; all of it is computed again. A difference means\n"
    "that the parts were not made together, or that one was changed afterwards. Compare both sides in the finding, and get the\n"
    "evidence again from the operator; it cannot be mended by hand, since every digest above it would change."
)


def _entry(id: str, message: str, meaning: str) -> Entry:
    return Entry(id=id, verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHAT}")


ENTRIES = (
    _entry(
        "binding.plan-address",
        "the plan is not at its own address",
        "`plan_sha256` is the SHA-256 of the plan's RFC 8785 form without that member, and another value stands there.\n"
        "The plan was changed after it was made.",
    ),
    _entry(
        "binding.plan-differs",
        "the plan does not follow from its inputs",
        "A fact in the plan is not that of the deployment, the profile or the runtime identity it was made from, or a\n"
        "value that follows from them (phases, chunks, claim scope) was set otherwise.",
    ),
    _entry(
        "binding.path-mismatch",
        "a reference names another path",
        "The run directory has a fixed layout, and this reference leads elsewhere. What lies at the fixed place was still\n"
        "compared.",
    ),
    _entry(
        "binding.file-absent",
        "a referenced file is not there",
        "A document names this file by digest and the run directory does not hold it.",
    ),
    _entry(
        "binding.hash-mismatch",
        "a reference does not fit the file at hand",
        "A document names this file with a SHA-256 and size, and the file at hand has others.",
    ),
    _entry(
        "binding.deployment-differs",
        "the deployment names another input",
        "The operator's deployment gives the SHA-256 of fixture, profile and model manifest, and the copy beside it has\n"
        "another.",
    ),
    _entry(
        "binding.class-placement",
        "nodes, accelerators or ranks are not those that the hardware class names",
        "A class is a placement too: h20-4x8 is four nodes of eight, with a rank on each accelerator. The deployment claims the\n"
        "class with another placement, or fewer ranks than that ran, so that nothing is shown about it.",
    ),
    _entry(
        "binding.topology",
        "the topology is not one this trainer can run",
        "Context and expert parallelism equal the world size, and tensor and pipeline parallelism are 1. A run under\n"
        "another topology did not happen with this trainer.",
    ),
    _entry(
        "plan.model-root-mismatch",
        "the model's files are not those the plan binds",
        "The root digest over inputs/model is not that of the model manifest, which the plan and the fixture bind.",
    ),
)
