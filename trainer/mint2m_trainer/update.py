"""One GRPO update on one rank, as a fixed sequence of phases. Nothing here knows of Ray.

The phases are those of `mint2m_verify.phases` for the profile, each runs once and in order, and each returns what
it saw. A phase that fails ends the update: what is half done cannot be resumed or skipped over. Then parameters and
optimizer state are those from before the update, bit for bit, and what the phase wrote is gone. What only one rank
can see going wrong, a NaN or a full disk, it tells the others (`Comm.together`), so that all fail alike.
Rank 0 writes the artifacts that describe the update, every rank writes its part of the checkpoint.
"""

from __future__ import annotations

import gc
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mint2m_trainer import compat, evidence
from mint2m_trainer.accumulation import add_gradient, load_gradient
from mint2m_trainer.checkpoint import save_checkpoint
from mint2m_trainer.comm import flight
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger, Position, Tag
from mint2m_trainer.finite import check_finite
from mint2m_trainer.instruments.watch import Watch
from mint2m_trainer.kernels import Kernels, choose_kernels
from mint2m_trainer.model.policy import Policy, materialize
from mint2m_trainer.moments import load_moments
from mint2m_trainer.optimizer import NORM_EPS, AdamWStep
from mint2m_trainer.outputs import discard, present
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.session import LocalLoss, Mode, Session
from mint2m_trainer.profiled import layout_of, policy_source, store_of
from mint2m_trainer.rank_inputs import RankInputs, UpdateError
from mint2m_trainer.records import Records, write_adapter_copy, write_scores, write_tensors
from mint2m_trainer.resume.passes import Keeping
from mint2m_trainer.resume.rank_folder import RankFolder, identity_of
from mint2m_trainer.scoring import LOSS, Group, ResponseOutcome
from mint2m_verify import layout as places
from mint2m_verify import phases
from mint2m_verify.documents import PhaseEvidence
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.runtime_identity import observe

from megatron.core import parallel_state  # isort: skip
from megatron.core.distributed import finalize_model_grads  # isort: skip

Progress = Callable[[str, int, int], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOutcome:
    """A finished phase: what this rank saw, and the files it wrote, relative to the run directory.

    Attributes:
        hashed: those of the files whose bytes were hashed as they were written.
    """

    phase: str
    evidence: PhaseEvidence
    files: tuple[str, ...]
    hashed: tuple[HashedElsewhere, ...] = ()


class Update:
    """Drives one rank; every rank must run the same phases in the same order."""

    def __init__(self, inputs: RankInputs) -> None:
        self._inputs, self._profile = inputs, inputs.profile
        inputs.check()
        expected = phases.expected_phases(inputs.profile, inputs.accumulation)
        self.phases = tuple(p for p in expected if not (inputs.baseline and p == phases.PREFIX_BACKWARD))
        self._next, self._failed = 0, False
        self._ledger = Ledger()
        self._comm: Comm | None = None
        self._policy: Policy | None = None
        self._optimizer: AdamWStep | None = None
        self._group: Group | None = None
        self._session: Session | None = None
        self._outcomes: list[ResponseOutcome] = []
        self._base_sha256 = ""
        self._norm = (0.0, 0.0)
        self._finalize_calls = 0
        self._watch: Watch | None = None
        self._folder: RankFolder | None = None
        self._found: frozenset[str] = frozenset()  # outputs that were there before the phase
        self._hashed: tuple[HashedElsewhere, ...] = ()  # of the checkpoint

    @property
    def policy(self) -> Policy:
        """The policy, once it is materialized."""
        return _there(self._policy)

    @property
    def optimizer(self) -> AdamWStep:
        """The optimizer, once the policy is materialized."""
        return _there(self._optimizer)

    def run(self, phase: str, progress: Progress = lambda _label, _done, _total: None) -> PhaseOutcome:
        """Run the next phase.

        Raises:
            UpdateError: `phase` is not the next one, or an earlier one failed.
        """
        if self._failed or self._next >= len(self.phases) or phase != self.phases[self._next]:
            due = "nothing: the update failed" if self._failed else (*self.phases, "nothing")[self._next]
            raise UpdateError(f"phase {phase} is not due; {due} is")
        self._failed = True  # until the phase has returned
        self._found = present(self._inputs.run_dir)
        try:
            seen, files = self._phase(phase, progress)
            if self._comm is not None:
                self._comm.agree(phase)
        except BaseException:
            self._take_back(phase)
            raise
        if phase == phases.CHECKPOINT:
            self.optimizer.begin()  # the step is on disk, and stands
        summary = self._ledger.summary()
        seen = replace(
            seen,
            collectives=summary.calls,
            ledger_sha256=summary.digest,
            peak_memory_bytes=evidence.peak_memory_bytes(),
            peak_host_memory_bytes=evidence.peak_host_memory_bytes(),
        )
        self._failed, self._next = False, self._next + 1
        return PhaseOutcome(phase=phase, evidence=seen, files=files, hashed=self._hashed)

    def position(self) -> Position | None:
        """The last collective that this rank came to."""
        return self._ledger.position

    def flight(self) -> bytes | None:
        """The flight record of this rank's collectives; None before its groups are open."""
        return flight.recorded()

    def close(self) -> None:
        """Drop pages and end the process groups; harmless twice."""
        self._failed = True
        if self._watch is not None:
            self._watch.close()
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._folder is not None:
            self._folder.close()
        self._policy = self._optimizer = self._comm = None
        gc.collect()  # or modules would keep groups alive; see `close_comm`
        close_comm()

    def _take_back(self, phase: str) -> None:
        """Leave weights and disk as if there had been neither a step nor this phase."""
        if self._optimizer is not None:
            self._optimizer.undo()
        if self._inputs.rank == 0:
            discard(self._inputs.run_dir, phase, but=self._found)

    def _phase(self, phase: str, progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        response = phases.response_of(phase)
        if response is not None:
            return self._grpo(response, progress), ()
        steps: Mapping[str, Callable[[str, Progress], tuple[PhaseEvidence, tuple[str, ...]]]] = {
            phases.BIND: self._bind,
            phases.INITIALIZE: self._initialize,
            phases.MATERIALIZE: self._materialize,
            phases.SCORE_REFERENCE: self._score_reference,
            phases.CAPTURE_PREFIX: self._capture,
            phases.SCORE_OLD: self._score_old,
            phases.PREFIX_BACKWARD: self._reverse,
            phases.FINALIZE: self._finalize,
            phases.OPTIMIZER_STEP: self._step,
            phases.CHECKPOINT: self._checkpoint,
        }
        return steps[phase](phase, progress)

    def _bind(self, _phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        identity = observe(image_digest=self._inputs.image_digest)
        return PhaseEvidence(
            runtime_identity_sha256=identity.sha256,
            source_sha256=identity.source_sha256,
            world_size=self._inputs.world_size,
        ), ()

    def _initialize(self, _phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        timeouts = self._profile.timeouts_s
        self._comm = open_comm(
            rank=self._inputs.rank,
            world_size=self._inputs.world_size,
            master_address=self._inputs.master_address,
            master_port=self._inputs.master_port,
            ledger=self._ledger,
            # Later than the driver gives up, which knows every late rank; a group that gives up knows a peer at most.
            timeout_seconds=timeouts.phase + timeouts.cleanup,
        )
        return PhaseEvidence(
            backend=compat.backend(),
            world_size=dist.get_world_size(),
            context_parallel=parallel_state.get_context_parallel_world_size(),
            expert_parallel=parallel_state.get_expert_model_parallel_world_size(),
        ), ()

    def _materialize(self, phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        profile, comm = self._profile, _there(self._comm)
        source = policy_source(profile, snapshot=self._inputs.snapshot, adapter=self._inputs.adapter)
        policy = self._policy = materialize(source, comm)
        self._optimizer = AdamWStep(
            policy.trainable(),
            profile.optimizer,
            expert_group=parallel_state.get_expert_model_parallel_group(),
        )
        moments, steps = self._inputs.moments, self._inputs.steps_before
        loaded = None if moments is None else load_moments(moments, steps, self._optimizer, policy, comm, phase)
        if self._inputs.gradient is not None:
            load_gradient(self._inputs.gradient, policy, comm, phase)  # refused now or never: nothing is kept of it
        scores = torch.float64 if policy.inner.dtype == torch.float64 else torch.float32
        accumulation = self._inputs.accumulation
        self._group = Group(self._inputs.rollout, profile.grpo, scores, compat.device(), accumulation)
        adapter = policy.adapter_tensors(phase)
        files = self._written(phase, lambda: write_adapter_copy(self._records(), "artifacts/adapter-before", adapter))
        self._base_sha256 = evidence.weights_sha256(policy.inner)
        if self._inputs.instruments is not None:
            self._watch = Watch(policy.inner, comm, self._inputs.instruments)
        held = evidence.base_tensors(policy.inner)
        return PhaseEvidence(
            weights_sha256=self._base_sha256,
            adapter_sha256=evidence.tensors_sha256(adapter),
            tensors=len(held) + len(policy.trainable()),
            parameters=sum(tensor.numel() for tensor in held.values()),
            trainable_parameters=sum(p.numel() for _, p in policy.trainable()),
            moments_sha256=loaded,
        ), files

    def _score_reference(self, phase: str, progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        """The base model scores all responses from pages of its own, which are dropped."""
        policy, group = _there(self._policy), _there(self._group)
        session = self._new_session("detached", "reference", phase)
        try:
            with policy.inner.base_only():
                session.capture(lambda done, total: progress("reference", done, total))
                for response in range(len(self._inputs.rollout.responses)):
                    group.set_reference(response, self._scored(response, session, "reference"))
        finally:
            session.close()
        return PhaseEvidence(
            scored_tokens=group.scored_tokens,
            weights_sha256=evidence.weights_sha256(policy.inner),
            resumed_chunks=_if_any(session.resumed_chunks),
        ), ()

    def _capture(self, phase: str, progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        policy, comm = _there(self._policy), _there(self._comm)
        mode: Mode = "conventional" if self._inputs.baseline else self._profile.prefix.gradient
        session = self._session = self._new_session(mode, "policy", phase)
        policy.inner.take_expert_tokens()  # those of the reference
        witness = session.capture(lambda done, total: progress("capture", done, total))
        routed = policy.inner.take_expert_tokens()
        weights = evidence.weights_sha256(policy.inner)
        if weights != self._base_sha256:
            raise UpdateError("base weights changed between materialize and capture")
        nonce = [secrets.token_hex(16)]
        self._ledger.record(Tag(phase=phase), "nonce.broadcast", 32)
        dist.broadcast_object_list(nonce, src=0, group=comm.group)
        return PhaseEvidence(
            prompt_tokens=len(self._inputs.rollout.prompt_tokens) - 1,
            chunks=witness.chunks,
            page_rows=witness.rows,
            page_bytes=witness.page_bytes,
            pages_sha256=session.pages_sha256(),
            weights_sha256=weights,
            forward_nonce=nonce[0],
            resumed_chunks=_if_any(session.resumed_chunks),
            # Of some of the prompt they would say nothing about the whole.
            expert_tokens=None if session.resumed_chunks else routed,
        ), ()

    def _score_old(self, _phase: str, progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        policy, group, session = _there(self._policy), _there(self._group), _there(self._session)
        count = len(self._inputs.rollout.responses)
        for response in range(count):
            group.set_old(response, self._scored(response, session, "old"))
            progress("score-old", response + 1, count)
        return PhaseEvidence(
            scored_tokens=group.scored_tokens, weights_sha256=evidence.weights_sha256(policy.inner)
        ), ()

    def _scored(self, response: int, session: Session, kind: str) -> Tensor:
        """Log-probs [R], the same on every rank, which therefore all refuse the same."""
        logp = session.score(response)
        check_finite(f"{kind} log-probs of", [(f"response {response}", logp)])
        return logp

    def _grpo(self, response: int, progress: Progress) -> PhaseEvidence:
        group, session, comm = _there(self._group), _there(self._session), _there(self._comm)
        mine: list[tuple[str, Tensor]] = []

        def loss_of(logp: Tensor, local: slice) -> LocalLoss:
            made = group.loss_of(response, logp, local)
            mine.extend([("by token of", made.tokens[:, LOSS]), ("of", made.total.detach())])
            return made

        result = session.replay(response, loss_of)
        # Only here: every rank must have gone backward, since the ranks' collectives pair up.
        comm.together(
            f"grpo-{response}",
            lambda: check_finite("loss", [(f"{kind} response {response}", loss) for kind, loss in mine]),
        )
        group.check_sampler(response, result.logp)  # equal on every rank, which therefore all refuse alike
        outcome = group.outcome(response, result)
        if not math.isfinite(outcome.share):
            raise UpdateError(f"the loss of response {response} is {outcome.share}")
        self._outcomes.append(outcome)
        progress(f"grpo-{response}", 1, 1)
        scored = outcome.scored
        return PhaseEvidence(
            response=response,
            response_tokens=len(outcome.scores.tokens),
            scored_tokens=scored,
            loss=outcome.share,
            clipped_low=outcome.scores.clipped_low,
            clipped_high=outcome.scores.clipped_high,
            kl=None if outcome.kl_sum is None or not scored else outcome.kl_sum / scored,
            max_ratio_deviation=outcome.max_ratio_deviation,
            backward_calls=outcome.backward_calls,
        )

    def _reverse(self, _phase: str, progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        report = _there(self._session).reverse(lambda done, total: progress("reverse", done, total))
        return PhaseEvidence(
            chunks=report.chunks,
            backward_calls=report.backward_calls,
            rows_compared=report.rows_compared,
            row_difference=report.row_difference,
            gradient_pages_released=report.gradient_pages_released,
            resumed_chunks=_if_any(report.resumed_chunks),
        ), ()

    def _finalize(self, phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        policy, optimizer, group = _there(self._policy), _there(self._optimizer), _there(self._group)
        _there(self._session).close()  # nothing may be differentiated against these pages any more
        _there(self._comm).together(phase, lambda: check_finite("gradient of", policy.local_gradients()))
        # Token weights are normalized already, so megatron must not divide by a token count.
        self._ledger.record(Tag(phase=phase), "gradients.reduce", policy.replicated_gradient_bytes())
        finalize_model_grads([policy.wrapped], num_tokens=None)
        self._finalize_calls += 1
        start = None
        if self._inputs.gradient is not None:
            start = add_gradient(self._inputs.gradient, policy, _there(self._comm), phase)
            _there(self._comm).together(phase, lambda: check_finite("sum of gradients of", policy.local_gradients()))
        weights = evidence.weights_sha256(policy.inner)
        if weights != self._base_sha256:
            raise UpdateError("base weights or router buffers changed during the update")
        self._ledger.record(Tag(phase=phase), "norm.reduce", 8)
        norm = optimizer.gradient_norm()
        if not math.isfinite(norm):
            raise UpdateError(f"the norm of the reduced gradient is {norm}")  # the same on every rank
        self._norm = norm, min(1.0, self._profile.optimizer.clip_grad / (norm + NORM_EPS))
        gradient = policy.gradient_tensors(phase)
        if self._watch is not None:
            self._watch.finish(gradient, phase)
        records = self._records()
        files = self._written(
            phase,
            lambda: (
                *write_tensors(records, places.GRADIENT, gradient),
                *write_scores(records, group, self._outcomes, self._norm),
            ),
        )
        return PhaseEvidence(
            finalize_calls=self._finalize_calls,
            gradient_norm=norm,
            clip_coefficient=self._norm[1],
            weights_sha256=weights,
            gradient_start_sha256=start,
        ), files

    def _step(self, phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        policy, optimizer, comm = _there(self._policy), _there(self._optimizer), _there(self._comm)
        comm.together(phase, optimizer.ready)
        self._ledger.record(Tag(phase=phase), "norm.reduce", 8)
        report = optimizer.step()
        comm.together(phase, lambda: check_finite("stepped", policy.trainable()))
        if (report.gradient_norm, report.clip_coefficient) != self._norm:
            raise UpdateError("the gradient changed between finalize and the step")
        zeroed = all(p.grad is None and not bool(p.main_grad.any()) for _, p in policy.trainable())
        return PhaseEvidence(
            optimizer_contract=report.observed,
            optimizer_steps=report.steps - self._inputs.steps_before,
            optimizer_life_steps=None if self._inputs.moments is None else report.steps,
            gradients_zeroed=zeroed,
            adapter_sha256=evidence.tensors_sha256(policy.adapter_tensors(phase)),
        ), ()

    def _checkpoint(self, phase: str, _progress: Progress) -> tuple[PhaseEvidence, tuple[str, ...]]:
        policy, optimizer, comm = _there(self._policy), _there(self._optimizer), _there(self._comm)
        adapter = policy.adapter_tensors(phase)
        moments = policy.gather(optimizer.state_tensors(), phase)
        digest = evidence.tensors_sha256(adapter)
        records = self._records()
        files = self._written(
            phase,
            lambda: (
                *write_adapter_copy(records, "adapter", adapter),
                *write_tensors(records, places.OPTIMIZER_AFTER, moments),
            ),
        )
        self._ledger.record(Tag(phase=phase), "checkpoint.save", 0)  # its own collectives are megatron's
        saved = save_checkpoint(
            self._inputs.run_dir / "checkpoint",
            optimizer,
            {"plan_sha256": self._inputs.plan_sha256, "adapter_sha256": digest},
            execution=self._inputs.execution_id,
        )
        own = f"__{comm.rank}_"
        mine = [name for name in saved.files if name.startswith(own)]
        if comm.rank == 0:
            mine += [name for name in saved.files if not name.startswith("__")]
        self._hashed = tuple(file.below("checkpoint") for file in saved.hashed)
        files = (*files, *(f"checkpoint/{name}" for name in sorted(mine)))
        return PhaseEvidence(
            adapter_sha256=digest,
            weights_sha256=evidence.weights_sha256(policy.inner),
            tensors=len(adapter) + len(moments),
        ), files

    def _written(self, phase: str, write: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """What rank 0 writes; a disk that refuses it fails every rank."""
        comm = _there(self._comm)
        return comm.together(phase, write if comm.rank == 0 else None) or ()

    def _new_session(self, mode: Mode, label: str, phase: str) -> Session:
        policy, comm, profile = _there(self._policy), _there(self._comm), self._profile
        rollout = self._inputs.rollout
        kernels = choose_kernels(compat.device(), policy.inner.dtype, profile.memory.query_tile)
        return Session(
            model=policy.wrapped,
            inner=policy.inner,
            comm=comm,
            kernels=kernels,
            layout=layout_of(profile, comm),
            store=store_of(profile, policy.inner),
            decisions=Decisions(profile.prefix.decisions),
            mode=mode,
            prompt=torch.tensor(rollout.prompt_tokens, dtype=torch.int64, device=compat.device()),
            responses=[torch.tensor(tokens, dtype=torch.int64, device=compat.device()) for tokens in rollout.responses],
            weights=evidence.weights_witness(policy.inner),
            label=label,
            keeping=self._keeping(label, kernels, phase),
        )

    def _keeping(self, label: str, kernels: Kernels, phase: str) -> Keeping | None:
        """Where a session keeps its work; this rank's folder is opened, and held against this run, by the first."""
        if self._inputs.progress is None:
            return None
        if self._folder is None:
            adapter = evidence.tensors_sha256(_there(self._policy).adapter_tensors(phase))
            identity = identity_of(self._inputs, kernels, weights_sha256=self._base_sha256, adapter_sha256=adapter)
            self._folder = RankFolder(self._inputs.progress, self._inputs.rank, identity)
        return Keeping(files=self._folder.pass_files(label))

    def _records(self) -> Records:
        return Records(
            run_dir=self._inputs.run_dir,
            plan_sha256=self._inputs.plan_sha256,
            execution_id=self._inputs.execution_id,
            profile=self._profile,
            rewards=self._inputs.rollout.rewards,
        )


def _if_any(count: int) -> int | None:
    """A count that records leave out where it is zero."""
    return count or None


def _there(value: T | None) -> T:
    """A part that an earlier phase made."""
    if value is None:
        raise UpdateError("an earlier phase did not leave what this one needs")
    return value
