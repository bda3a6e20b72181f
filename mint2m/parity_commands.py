"""`mint2m parity export | compare | trace`: one update's numbers, how far two are apart, and where they part."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Format, Outcome, present


class Case(enum.StrEnum):
    """Where old scores come from, and which constants of the loss are active."""

    RATIO1 = "ratio1"
    ACTIVE_CLIP = "active_clip"


class Gradient(enum.StrEnum):
    """How the prompt's part of the gradient is made."""

    EXACT = "exact"
    DETACHED = "detached"
    CONVENTIONAL = "conventional"


class Dtype(enum.StrEnum):
    """Arithmetic of the run."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"


class Decisions(enum.StrEnum):
    """Whether choices of the first forward are kept or made again."""

    STORE = "store"
    RESCORE = "rescore"


def register(app: typer.Typer) -> None:
    """Add the `parity` group."""
    group = typer.Typer(help="Export and compare the numbers of an update.", no_args_is_help=True)
    group.command("export")(export)
    group.command("compare")(compare)
    group.command("trace")(trace)
    app.add_typer(group, name="parity")


def export(
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Model snapshot.")],
    adapter: Annotated[Path, typer.Option("--adapter", metavar="DIR", help="PEFT adapter to train.")],
    rollout: Annotated[Path, typer.Option("--rollout", help="Rollout document.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory.")],
    case: Annotated[Case, typer.Option("--case")] = Case.RATIO1,
    prefix_gradient: Annotated[Gradient, typer.Option("--prefix-gradient")] = Gradient.EXACT,
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Processes on this machine.")] = 1,
    dtype: Annotated[Dtype, typer.Option("--dtype")] = Dtype.FLOAT32,
    chunk_tokens: Annotated[int, typer.Option("--chunk-tokens", min=1)] = 32,
    decisions: Annotated[Decisions, typer.Option("--decisions")] = Decisions.STORE,
    constants: Annotated[Path | None, typer.Option("--constants", help="JSON whose `grpo` has the constants.")] = None,
) -> Outcome:
    """Run one update and write gradients, log-probs, moments, the stepped adapter and a report."""
    from mint2m_verify.doctor.machine import require_trainer

    require_trainer()
    from mint2m_trainer.parity_request import ExportRequest
    from mint2m_trainer.parity_request import export as run_export

    request = ExportRequest(
        model=model, adapter=adapter, rollout=rollout, output=output, case=case.value, ranks=ranks,
        prefix_gradient=prefix_gradient.value, dtype=dtype.value, chunk_tokens=chunk_tokens,
        decisions=decisions.value, constants=constants,
    )  # fmt: skip
    return Outcome(text=f"{output}\nconstants  {run_export(request)}")


def compare(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="Export, or a folder of expected numbers.")],
    candidate: Annotated[Path, typer.Argument(metavar="CAND", help="Export to be judged.")],
    case: Annotated[Case | None, typer.Option("--case", help="Which case of a folder of expected numbers.")] = None,
    logprob: Annotated[float, typer.Option("--max-logprob", min=0, help="Largest log-prob difference.")] = 5e-3,
    loss: Annotated[float, typer.Option("--max-loss", min=0, help="Largest loss difference.")] = 5e-3,
    cosine: Annotated[float, typer.Option("--min-cosine", help="Least gradient cosine.")] = 0.999,
    relative_l2: Annotated[float, typer.Option("--max-relative-l2", min=0, help="Largest relative L2.")] = 1e-2,
    tensor: Annotated[
        float | None, typer.Option("--max-tensor-relative-l2", min=0, help="The same of a tensor.")
    ] = None,
    norm: Annotated[float | None, typer.Option("--max-norm", min=0, help="Relative, of the gradient norm.")] = None,
    clip: Annotated[float | None, typer.Option("--max-clip", min=0, help="Relative, of the clip coefficient.")] = None,
    zeros: Annotated[int, typer.Option("--max-zero-mask", min=0, help="Elements that are zero on one side.")] = 0,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Cosine, relative L2, largest difference, zero masks, missing and extra, by family; exit 1 past a bound."""
    from mint2m_verify.recompute.parity import Thresholds
    from mint2m_verify.recompute.parity_sides import compare_directories

    bounds = Thresholds(
        logprob=logprob, loss=loss, cosine=cosine, relative_l2=relative_l2, tensor_relative_l2=tensor,
        gradient_norm=norm, clip_coefficient=clip, zero_mask=zeros,
    )  # fmt: skip
    label = None if case is None else case.value
    return present(compare_directories(reference, candidate, bounds, case=label), form)


def trace(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="Directory of `run --instruments`.")],
    candidate: Annotated[Path, typer.Argument(metavar="CAND", help="The same of the run to be judged.")],
    relative: Annotated[
        float, typer.Option("--max-relative", min=0, help="Largest difference of a hidden state, of its norm.")
    ] = 1e-4,
    common_only: Annotated[bool, typer.Option("--common-only", help="Leave out what one run has alone.")] = False,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Name the first layer, token and rank in which two watched runs part; exit 1 where they do."""
    from mint2m_verify.doctor.machine import require_trainer

    require_trainer()
    from mint2m_trainer.instruments.trace_report import trace_report

    return present(trace_report(reference, candidate, relative=relative, common_only=common_only), form)
