"""One AdamW step, under a contract that is read back from the live optimizer before it runs.

The rule: the step that was promised is the step that is taken. The contract is compared with what the
optimizer object would really do, just before it does it; the gradient is checked for non-finite values
before any weight changes; there is exactly one step in a transaction, and afterwards no gradient is left that
a later backward could add to. Without it a changed group, a second step or a stale gradient would still look
like training. Until the next transaction begins the step can be undone, bit for bit: a checkpoint that cannot be
written must not leave weights that nothing on disk has.

Gradients come from `main_grad` (Megatron's DDP buffers). Dense parameters are equal on all ranks and count
once in the norm; expert parameters (`p.allreduce` is False) live on one rank of the expert group each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mint2m_trainer.optimizer_shards import Shards
from mint2m_trainer.optimizer_undo import Before
from mint2m_verify.documents import OptimizerContract

#: Added to the norm in the clip coefficient, as `torch.nn.utils.clip_grad_norm_` does.
NORM_EPS = 1e-6

#: The contract of the reviewed 2M run, with the state whole on each rank.
STANDARD_CONTRACT = OptimizerContract(
    name="adam",
    lr=1e-4,
    min_lr=0.0,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.01,
    decoupled_weight_decay=True,
    clip_grad=1.0,
    schedule="constant",
    distributed_optimizer=False,
    state_dtype="float32",
)

T = TypeVar("T")

_DTYPE_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


class OptimizerError(RuntimeError):
    """The step may not be taken; nothing was changed. Names what differs."""

    def __init__(self, field: str, *, expected: str, actual: str) -> None:
        super().__init__(f"optimizer {field}: expected {expected}, got {actual}")
        self.field = field
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the one step did. Norm and coefficient are of the gradient before clipping."""

    gradient_norm: float
    clip_coefficient: float
    observed: OptimizerContract
    steps: int
    parameters: int
    elements: int


class AdamWStep:
    """AdamW over the trainable parameters of a DDP-wrapped model.

    Args:
        params: (global name, parameter) of each trainable parameter on this rank; names are unique.
        contract: what the step must do.
        expert_group: process group over which expert parameters are spread, and replicated ones are equal; None only
            without other ranks.
        dense_is_replicated: dense gradients are equal on all ranks, as after `finalize_model_grads`. Nothing
            else is supported: a norm over unequal dense gradients would differ from rank to rank.
    """

    def __init__(
        self,
        params: Sequence[tuple[str, nn.Parameter]],
        contract: OptimizerContract,
        *,
        expert_group: dist.ProcessGroup | None,
        dense_is_replicated: bool = True,
    ) -> None:
        names = [name for name, _ in params]
        if not 0 < contract.clip_grad < math.inf:
            raise OptimizerError("clip_grad", expected="> 0, finite", actual=str(contract.clip_grad))
        if not params:
            raise OptimizerError("parameters", expected="at least one", actual="none")
        if len(set(names)) != len(names) or len({id(p) for _, p in params}) != len(names):
            raise OptimizerError("parameters", expected="each once", actual="a repeated name or tensor")
        for name, p in params:
            if not p.requires_grad:
                raise OptimizerError(f"parameter {name}", expected="trainable", actual="frozen")
        if not dense_is_replicated:
            raise OptimizerError("dense gradients", expected="replicated over ranks", actual="not replicated")
        if expert_group is None and dist.is_initialized() and dist.get_world_size() > 1:
            raise OptimizerError("expert group", expected=f"one of {dist.get_world_size()} ranks", actual="None")
        self._params = tuple(params)
        self._dense = {name: p for name, p in params if getattr(p, "allreduce", True)}
        self._shards: Shards | None = None
        if contract.distributed_optimizer:
            self._shards = Shards({name: p.numel() for name, p in self._dense.items()}, expert_group)
        # Experts are stepped where they live, replicated parameters everywhere or, dealt out, by one rank.
        self._own = tuple(
            (name, p)
            for name, p in params
            if self._shards is None or name not in self._dense or self._shards.owns(name)
        )
        if not self._own:
            raise OptimizerError("parameters of this rank", expected="at least one", actual="none: fewer than ranks")
        self._contract = contract
        self._group = expert_group
        self._clip = contract.clip_grad
        self._stepped = False
        self._before: Before | None = None
        self._optimizer = torch.optim.AdamW(
            [{"params": [p for _, p in self._own], "min_lr": contract.min_lr}],
            lr=contract.lr,
            betas=(contract.beta1, contract.beta2),
            eps=contract.eps,
            weight_decay=contract.weight_decay,
            foreach=False,  # one tensor at a time: the same arithmetic on every device and layout
            fused=False,
        )

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """The live optimizer that `observe` reads."""
        return self._optimizer

    @property
    def params(self) -> tuple[tuple[str, nn.Parameter], ...]:
        """(global name, parameter) as given."""
        return self._params

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._params)

    def begin(self) -> None:
        """Opens another transaction: one more step is allowed, the last one stands. The constructor opens the first."""
        self._stepped, self._before = False, None

    def undo(self) -> None:
        """Puts back parameters and moments as they were before the step of this transaction; nothing without a step.

        No other step is allowed in the transaction: the gradient is gone.
        """
        if self._before is not None:
            self._before.restore(self._optimizer)
            self._before = None

    def observe(self) -> OptimizerContract:
        """What the live optimizer would do now, from its class, its param groups and its state."""
        kind = type(self._optimizer)
        if kind is not torch.optim.AdamW:
            raise OptimizerError("name", expected="adam: torch.optim.AdamW", actual=kind.__name__)
        groups = self._optimizer.param_groups
        held = [id(p) for group in groups for p in group["params"]]
        if sorted(held) != sorted(id(p) for _, p in self._own):
            raise OptimizerError("parameters", expected=f"the {len(self._own)} given", actual=f"{len(held)} others")
        for switch in ("amsgrad", "maximize", "capturable", "differentiable"):
            if any(group[switch] for group in groups):
                raise OptimizerError(switch, expected="false", actual="true")
        decoupled = {bool(group.get("decoupled_weight_decay", True)) for group in groups}
        # A scheduler leaves `initial_lr` in every group it drives.
        scheduled = any("initial_lr" in group for group in groups)
        betas = {tuple(group["betas"]) for group in groups}
        beta1, beta2 = _one(betas, "betas")
        return OptimizerContract(
            name="adam",
            lr=float(_one({group["lr"] for group in groups}, "lr")),
            min_lr=float(_one({group["min_lr"] for group in groups}, "min_lr")),
            beta1=float(beta1),
            beta2=float(beta2),
            eps=float(_one({group["eps"] for group in groups}, "eps")),
            weight_decay=float(_one({group["weight_decay"] for group in groups}, "weight_decay")),
            decoupled_weight_decay=_one(decoupled, "decoupled_weight_decay"),
            clip_grad=self._clip,
            schedule="scheduled" if scheduled else "constant",
            distributed_optimizer=self._shards is not None,
            state_dtype=self._state_dtype(),
        )

    def check(self) -> OptimizerContract:
        """The observed contract, or a fault that names the first field that differs."""
        observed = self.observe()
        for field in fields(OptimizerContract):
            expected, actual = getattr(self._contract, field.name), getattr(observed, field.name)
            if expected != actual:
                raise OptimizerError(field.name, expected=repr(expected), actual=repr(actual))
        return observed

    @torch.no_grad()
    def gradient_norm(self) -> float:
        """Global norm of all `main_grad`, the same on every rank; a collective over the expert group."""
        device = self._params[0][1].device
        # Sums in fp64: the norm then does not depend on how experts are spread, to about 1e-16.
        dense = torch.zeros((), dtype=torch.float64, device=device)
        expert = torch.zeros((), dtype=torch.float64, device=device)
        for name, p in self._params:
            square = _main_grad(name, p).double().square().sum()
            if getattr(p, "allreduce", True):
                dense += square
            else:
                expert += square
        if self._group is not None:
            dist.all_reduce(expert, group=self._group)
        return math.sqrt(float(dense + expert))

    @torch.no_grad()
    def step(self) -> StepReport:
        """Checks the contract, clips, takes the one step of this transaction and zeroes the gradients.

        Raises:
            OptimizerError: and no weight changed, or every one is what it was.
        """
        observed = self.ready()
        norm = self.gradient_norm()
        if not math.isfinite(norm):
            raise OptimizerError("gradient norm", expected="finite", actual=str(norm))
        coefficient = min(1.0, self._clip / (norm + NORM_EPS))
        self._check_dealt()
        before = self._steps_taken()
        self._stepped = True
        self._before = Before.of([p for _, p in self._params], self._optimizer)
        try:
            taken = self._take(coefficient, before)
        except BaseException:
            self.undo()  # half a step is none
            raise
        return StepReport(
            gradient_norm=norm,
            clip_coefficient=coefficient,
            observed=observed,
            steps=taken,
            parameters=len(self._params),
            elements=sum(p.numel() for _, p in self._params),
        )

    def ready(self) -> OptimizerContract:
        """What `step` refuses on this rank alone, before any collective: a second step, the contract, a stray `grad`.

        Raises:
            OptimizerError: nothing was changed.
        """
        if self._stepped:
            raise OptimizerError("steps in a transaction", expected="1", actual="2")
        observed = self.check()
        for name, p in self._params:
            if p.grad is not None:
                raise OptimizerError(f"grad of {name}", expected="None: gradients live in main_grad", actual="a tensor")
        return observed

    def _take(self, coefficient: float, before: int) -> int:
        """The step itself; the steps taken afterwards, which are one more than `before`."""
        for name, p in self._own:
            # The coefficient is rounded to the gradient's dtype, then multiplied: the verifier does the same.
            p.grad = (_main_grad(name, p) * coefficient).to(p.dtype)
        self._optimizer.step()
        if self._shards is not None:
            self._shards.spread(self._dense)
        self.zero()
        taken = self._steps_taken()
        if taken != before + 1:
            raise OptimizerError("steps of the live optimizer", expected=str(before + 1), actual=str(taken))
        return taken

    @torch.no_grad()
    def zero(self) -> None:
        """No gradient survives: DDP would add a left-over `grad` to the next `main_grad`."""
        for _, p in self._params:
            p.grad = None
            main = getattr(p, "main_grad", None)
            if main is not None:
                main.zero_()

    def state_tensors(self) -> dict[str, Tensor]:
        """`<name>.exp_avg` and `<name>.exp_avg_sq` of each parameter; zeros before the first step.

        A collective where the state is dealt over ranks: every rank gets the whole.
        """
        exported: dict[str, Tensor] = {}
        for name, p in self._params:
            state = self._optimizer.state.get(p, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                value = state.get(moment)
                exported[f"{name}.{moment}"] = torch.zeros_like(p) if value is None else value.detach().clone()
        if self._shards is not None:
            for moment in ("exp_avg", "exp_avg_sq"):
                self._shards.spread({name: exported[f"{name}.{moment}"] for name in self._dense})
        return exported

    @property
    def steps_taken(self) -> int:
        """Steps in the life of the state, restored ones included."""
        return self._steps_taken()

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor], *, steps: int) -> None:
        """Puts back what `state_tensors` and `steps_taken` gave; bit for bit.

        Raises:
            OptimizerError: a missing or extra tensor, or one of another shape or dtype.
        """
        wanted = {f"{name}.{moment}" for name, _ in self._params for moment in ("exp_avg", "exp_avg_sq")}
        if wanted != tensors.keys():
            differing = sorted(wanted ^ tensors.keys())[0]
            raise OptimizerError("state", expected=f"{len(wanted)} moments", actual=f"{differing} missing or extra")
        if steps < 0:
            raise OptimizerError("state steps", expected=">= 0", actual=str(steps))
        own = {name for name, _ in self._own}
        for name, p in self._params:
            moments = {moment: tensors[f"{name}.{moment}"] for moment in ("exp_avg", "exp_avg_sq")}
            for moment, value in moments.items():
                if value.shape != p.shape or value.dtype != p.dtype:
                    raise OptimizerError(
                        f"state {name}.{moment}",
                        expected=f"{list(p.shape)} {p.dtype}",
                        actual=f"{list(value.shape)} {value.dtype}",
                    )
            if name not in own:
                continue
            state: dict[str, Tensor] = {"step": torch.tensor(float(steps), dtype=torch.float32)}
            state |= {moment: value.detach().clone().to(p.device) for moment, value in moments.items()}
            self._optimizer.state[p] = state

    def _state_dtype(self) -> str:
        """Dtype of the moments: of the state where it exists, else of the parameter it will be made like."""
        found = set()
        for _, p in self._own:
            state = self._optimizer.state.get(p, {})
            found |= {state[m].dtype if m in state else p.dtype for m in ("exp_avg", "exp_avg_sq")}
        dtype = _one(found, "state_dtype")
        return _DTYPE_NAMES.get(dtype, str(dtype))

    def _check_dealt(self) -> None:
        """Each replicated parameter is in exactly one live optimizer; every rank learns of a fault alike."""
        if self._shards is None:
            return
        live = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        held = [name for name, p in self._dense.items() if id(p) in live]
        counts = self._shards.times_held(held, self._params[0][1].device)
        wrong = {name: count for name, count in counts.items() if count != 1}
        if wrong:
            raise OptimizerError("parameters", expected="each stepped by one rank", actual=str(wrong))

    def _steps_taken(self) -> int:
        steps = {int(self._optimizer.state[p]["step"]) if p in self._optimizer.state else 0 for _, p in self._own}
        return _one(steps, "steps")


def _one(values: set[T], field: str) -> T:
    if len(values) != 1:
        raise OptimizerError(field, expected="one value in all groups", actual=str(sorted(map(str, values))))
    return next(iter(values))


def _main_grad(name: str, p: nn.Parameter) -> Tensor:
    grad = getattr(p, "main_grad", None)
    if not isinstance(grad, Tensor) or grad.shape != p.shape:
        actual = "missing" if grad is None else str(list(getattr(grad, "shape", [])))
        raise OptimizerError(f"main_grad of {name}", expected=str(list(p.shape)), actual=actual)
    return grad
