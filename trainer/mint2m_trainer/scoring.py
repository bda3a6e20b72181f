"""Scores and loss of one group: where old and reference log-probs come from, and what each token costs.

Scores are frozen before the first policy backward. A source is named by the profile: `rollout` takes what the
sampler recorded, `recompute` what this trainer scores for itself. With R-1 recorded old log-probs the first
response token is not scored: it leaves numerator and denominator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer import grpo
from mint2m_trainer.faults import InputError
from mint2m_trainer.prefix.session import LocalLoss, ReplayResult
from mint2m_verify.documents import ResponseScores, Rollout
from mint2m_verify.documents.inputs import Accumulation, GrpoOptions

#: Columns of `LocalLoss.tokens`.
LOSS, RATIO, KL, CLIPPED_LOW, CLIPPED_HIGH = range(5)


class ScoreError(InputError):
    """The rollout lacks what the profile asks of it, or the two contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOutcome:
    """One response after its backward. Token lists cover the scored tokens."""

    scores: ResponseScores
    share: float
    kl_sum: float | None
    max_ratio_deviation: float
    backward_calls: int

    @property
    def scored(self) -> int:
        """Scored tokens."""
        return len(self.scores.policy)


class Group:
    """One prompt's responses and their scores; `accumulation` is its place in a step over several prompts."""

    def __init__(
        self,
        rollout: Rollout,
        options: GrpoOptions,
        dtype: torch.dtype,
        device: torch.device,
        accumulation: Accumulation | None = None,
    ) -> None:
        self._rollout, self._options = rollout, options
        self._dtype, self._device = dtype, device
        self._old: dict[int, Tensor] = {}
        self._reference: dict[int, Tensor] = {}
        self._check()
        #: Of each response, from the rewards; None where each token has its own, from the rollout.
        self.advantages = None if self._by_token else _of_rewards(rollout.rewards, options.advantage_eps)
        self.first_scored = tuple(self._unscored(response) for response in range(len(rollout.responses)))
        scored = [len(r) - first for r, first in zip(rollout.responses, self.first_scored, strict=True)]
        self.scored_tokens = sum(scored)
        self.weights = grpo.token_weights(
            scored, options.aggregation, norm_tokens=options.norm_tokens, accumulation=accumulation
        )
        if options.old_source == "rollout" and rollout.old_logprobs is not None:
            for response, values in enumerate(rollout.old_logprobs):
                self.set_old(response, self._padded(values, self.first_scored[response]))
        if self.has_reference and options.ref_source == "rollout" and rollout.ref_logprobs is not None:
            for response, values in enumerate(rollout.ref_logprobs):
                missing = len(rollout.responses[response]) - len(values)
                if missing not in (0, 1) or missing > self.first_scored[response]:
                    raise ScoreError(f"ref_logprobs of response {response}: {len(values)} entries")
                self.set_reference(response, self._padded(values, missing))

    @property
    def _by_token(self) -> bool:
        return self._options.advantage_source == "rollout"

    def _check(self) -> None:
        rollout, options = self._rollout, self._options
        if (rollout.advantages is not None) != self._by_token:
            said = (
                "takes advantages from the rollout, which has none" if self._by_token else "takes none of the rollout's"
            )
            raise ScoreError(f"the profile {said}")
        if rollout.advantages is not None:
            lengths = [len(values) for values in rollout.advantages]
            if lengths != [len(tokens) for tokens in rollout.responses]:
                raise ScoreError(f"an advantage for each response token, not {lengths}")
            if not all(math.isfinite(value) for values in rollout.advantages for value in values):
                raise ScoreError("an advantage that is not finite")
        count = len(rollout.responses)
        if count < 2 or len(rollout.rewards) != count:
            raise ScoreError(f"a group has two responses or more and a reward for each, not {count}")
        wanted: Mapping[str, tuple[bool, Sequence[object] | None]] = {
            "old_logprobs": (
                options.old_source == "rollout" or options.logprob_bound is not None,
                rollout.old_logprobs,
            ),
            "ref_logprobs": (self.has_reference and options.ref_source == "rollout", rollout.ref_logprobs),
        }
        for name, (needed, values) in wanted.items():
            if needed and (values is None or len(values) != count):
                raise ScoreError(f"the profile takes {name} from the rollout, which has none for each response")

    def _unscored(self, response: int) -> int:
        recorded = self._rollout.old_logprobs
        if self._options.old_source == "recompute" or recorded is None:
            return 0
        tokens = len(self._rollout.responses[response])
        return grpo.unscored_tokens(response_tokens=tokens, old_logprobs=len(recorded[response]))

    def _padded(self, values: Sequence[float], missing: int) -> Tensor:
        """[R]; a leading entry that was not recorded is NaN and never read."""
        return torch.tensor([float("nan")] * missing + list(values), dtype=self._dtype, device=self._device)

    @property
    def has_reference(self) -> bool:
        """Whether the loss has a drift term."""
        return self._options.kl_beta > 0

    @property
    def without_signal(self) -> bool:
        """All advantages zero: no policy gradient, whatever the log-probs."""
        by_token = self._rollout.advantages or ()
        return not any(any(values) for values in by_token) if self._by_token else not any(self.advantages or ())

    def set_old(self, response: int, logp: Tensor) -> None:
        """Freeze the old scores of a response, [R]."""
        self._freeze(self._old, response, logp)

    def set_reference(self, response: int, logp: Tensor) -> None:
        """Freeze the reference scores of a response, [R]."""
        self._freeze(self._reference, response, logp)

    def _freeze(self, scores: dict[int, Tensor], response: int, logp: Tensor) -> None:
        if response in scores:
            raise ScoreError(f"response {response} was scored already")
        if logp.shape != (len(self._rollout.responses[response]),):
            raise ScoreError(f"response {response} has {len(self._rollout.responses[response])} tokens")
        scores[response] = logp.detach().clone()

    def loss_of(self, response: int, logp: Tensor, local: slice) -> LocalLoss:
        """The loss of tokens `local` of a response; see `prefix.session.LossOf`."""
        first, options = self.first_scored[response], self._options
        unscored = max(min(first - local.start, logp.numel()), 0)
        scored = slice(local.start + unscored, local.stop)
        policy = logp[unscored:]  # [n]
        reference = None
        if self.has_reference:
            reference = grpo.Reference(
                logp=self._reference[response][scored], beta=options.kl_beta, estimator=options.kl_estimator
            )
        loss = grpo.token_loss(
            grpo.Scores(policy=policy, old=self._old[response][scored]),
            self._advantage(response, scored, policy),
            grpo.Clip(low=options.clip_low, high=options.clip_high, dual=options.clip_dual),
            reference,
        )
        kl = torch.zeros_like(loss.ratio) if loss.kl is None else loss.kl
        columns = torch.stack(
            [loss.loss.detach(), loss.ratio, kl, loss.clipped_low.to(kl.dtype), loss.clipped_high.to(kl.dtype)],
            dim=1,
        )  # [n, 5]
        skipped = columns.new_zeros(unscored, columns.shape[1])
        return LocalLoss(total=loss.loss.sum() * self.weights[response], tokens=torch.cat([skipped, columns]))

    def _recorded_advantages(self, response: int) -> tuple[float, ...] | None:
        """Of the scored tokens, as the loss used them: rounded to its dtype."""
        if self._rollout.advantages is None:
            return None
        values = torch.tensor(self._rollout.advantages[response][self.first_scored[response] :], dtype=self._dtype)
        return tuple(values.tolist())

    def _advantage(self, response: int, scored: slice, like: Tensor) -> Tensor:
        """[] of the response, or [n] of the tokens `scored`, in the dtype of the log-probs `like`."""
        if self._rollout.advantages is not None:
            return torch.tensor(self._rollout.advantages[response][scored], dtype=like.dtype, device=like.device)
        if self.advantages is None:
            raise ScoreError("no advantages")
        return torch.tensor(self.advantages[response], dtype=like.dtype, device=like.device)

    def check_sampler(self, response: int, logp: Tensor) -> None:
        """Hold the policy's log-probs [R] against the rollout's, where the profile bounds how far they may lie apart.

        Raises:
            ScoreError: a token's are further apart; which, and how far.
        """
        bound, recorded = self._options.logprob_bound, self._rollout.old_logprobs
        if bound is None or recorded is None or not recorded[response]:
            return
        drawn = torch.tensor(recorded[response], dtype=torch.float64)
        apart = (logp.detach().double().cpu()[len(logp) - len(drawn) :] - drawn).abs()
        worst = int(apart.argmax())
        if not float(apart[worst]) <= bound:
            token = worst + len(logp) - len(drawn)
            raise ScoreError(
                f"token {token} of response {response}: the policy's log-prob is {float(apart[worst]):.3g} from the "
                f"rollout's, and the profile's logprob_bound is {bound:g}"
            )

    def outcome(self, response: int, result: ReplayResult) -> ResponseOutcome:
        """Evidence of one response from what the ranks gathered."""
        first, weight = self.first_scored[response], self.weights[response]
        tokens = result.tokens[first:].double().cpu()  # [n, 5]
        reference = self._reference.get(response)
        return ResponseOutcome(
            scores=ResponseScores(
                response=response,
                tokens=tuple(self._rollout.responses[response]),
                first_scored=first,
                policy=tuple(result.logp[first:].tolist()),
                old=tuple(self._old[response][first:].tolist()),
                ref=None if reference is None else tuple(reference[first:].tolist()),
                loss=tuple(result.tokens[first:, LOSS].tolist()),
                clipped_low=int(tokens[:, CLIPPED_LOW].sum()),
                clipped_high=int(tokens[:, CLIPPED_HIGH].sum()),
                advantages=self._recorded_advantages(response),
            ),
            share=float(tokens[:, LOSS].sum()) * weight,
            kl_sum=float(tokens[:, KL].sum()) if self.has_reference else None,
            max_ratio_deviation=float((tokens[:, RATIO] - 1).abs().max()) if len(tokens) else 0.0,
            backward_calls=result.backward_calls,
        )


def _of_rewards(rewards: Sequence[float], eps: float) -> tuple[float, ...]:
    values = torch.tensor(rewards, dtype=torch.float64)
    return tuple(grpo.group_advantages(values, eps).tolist())
