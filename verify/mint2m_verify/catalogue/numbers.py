"""Findings about placement, scores, losses, the gradient and the optimizer step."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHAT = (
    "The number was computed again from its leaves in the same files, and differs by more than rounding allows. Either it was\n"
    "edited, or the trainer that wrote it computes something else than its profile says. Nothing that rests on it holds.\n"
    "`mint2m explain` cannot tell which; a run by a trainer whose source digest you know can."
)


def _entry(id: str, message: str, meaning: str) -> Entry:
    return Entry(id=id, verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHAT}")


ENTRIES = (
    _entry(
        "placement.mismatch",
        "a rank is not where the deployment puts it",
        "Ranks fill the nodes in the deployment's order. Plan, record or bundle has another place for this rank.",
    ),
    _entry(
        "placement.too-few-slots",
        "the nodes do not have room for all ranks",
        "Nodes times accelerators is less than the world size, so the plan cannot have been carried out.",
    ),
    _entry(
        "scores.mismatch",
        "scores do not fit the rollout or the profile",
        "A count, source or length in the scores is not the one that rollout and profile call for.",
    ),
    _entry(
        "scores.tokens-mismatch",
        "scores are of other tokens",
        "The tokens of a response are not those of the rollout.",
    ),
    _entry(
        "scores.source-mismatch",
        "a log-prob is not the rollout's",
        "The profile takes these log-probs from the rollout, and the scores hold another value.",
    ),
    _entry(
        "scores.source-missing",
        "the rollout has no such log-probs",
        "The profile asks the rollout for old or reference log-probs, and it has none.",
    ),
    _entry(
        "scores.sampler-mismatch",
        "the trainer's log-prob is not the sampler's",
        "The profile bounds how far the two may lie apart (logprob_bound), and here they lie further. Another policy drew\n"
        "the rollout, or its engine computes otherwise than the trainer.",
    ),
    _entry(
        "scores.logprob-positive",
        "a log-prob is above 0",
        "The logarithm of a probability is at most 0.",
    ),
    _entry(
        "scores.nothing-scored",
        "no token was scored",
        "An update over no token is no update; an empty set proves nothing.",
    ),
    _entry(
        "grpo.reward-mismatch",
        "a reward is not what the rule gives",
        "The reward rule, applied to the text of the response, gives another reward. Whoever writes rewards chooses the\n"
        "direction of the update.",
    ),
    _entry(
        "grpo.advantage-mismatch",
        "an advantage does not follow from the rewards",
        "Advantages are (reward - mean) / (sample standard deviation + eps) over the group.",
    ),
    _entry(
        "grpo.loss-mismatch",
        "a token's loss does not follow from its log-probs",
        "The clipped objective with its drift term gives another loss for this token.",
    ),
    _entry(
        "grpo.clip-count-mismatch",
        "a clip count does not follow from the ratios",
        "Counting the ratios outside the clip, with tokens at its very edge either way, gives another number.",
    ),
    _entry(
        "grpo.total-loss-mismatch",
        "the loss is not the weighted sum of its tokens",
        "The aggregation that the profile names gives another loss for the group.",
    ),
    _entry(
        "grpo.kl-mismatch",
        "the drift is not the mean over the scored tokens",
        "The estimator that the profile names gives another mean drift from the reference.",
    ),
    _entry(
        "optimizer.norm-mismatch",
        "norm or clip coefficient is not the gradient's",
        "The L2 norm over the exported gradient, or min(1, clip / (norm + 1e-6)), is another number.",
    ),
    _entry(
        "optimizer.no-gradient",
        "no gradient came of the run although there was a signal",
        "Advantages differ from zero, and the gradient is all zero or, to the last bit, the one that the run went on from:\n"
        "nothing was learned from this prompt, whatever the step did.",
    ),
    _entry(
        "optimizer.step-mismatch",
        "a weight is not what one AdamW step makes of it",
        "From the adapter before, the clipped gradient, and zero state or the moments that the run went on from, AdamW gives\n"
        "another weight than the adapter after.",
    ),
    _entry(
        "optimizer.start-mismatch",
        "the moments that the step went on from are not those that the deployment names",
        "A step goes on from moments only where its deployment names them, by SHA-256 and with the steps that led to them;\n"
        "the copy in the run, the receipt and every rank's record must say the same.",
    ),
    _entry(
        "accumulation.mismatch",
        "the run's place among the prompts of its step cannot be, or the gradient that it went on from is another",
        "A step over several prompts has one run a prompt. The deployment says which of them a run is, how many tokens and\n"
        "responses all of them score, and by SHA-256 which gradient it goes on from; the copy in the run, the receipt and\n"
        "every rank's record must say the same. Only the last run takes the step.",
    ),
    _entry(
        "optimizer.moment-mismatch",
        "a moment is not that of the clipped gradient",
        "After one step from zero state the moments are (1 - beta1) g and (1 - beta2) g^2; after others, beta1 m + (1 - beta1) g\n"
        "and beta2 v + (1 - beta2) g^2. They are not: the gradient was scaled, not clipped, or the state was another.",
    ),
    _entry(
        "adapter.tensor-missing",
        "a tensor is missing",
        "Adapter, gradient and moments hold the same parameters; this one is missing here, or a LoRA half lacks the\n"
        "other.",
    ),
    _entry(
        "adapter.tensor-extra",
        "a tensor that the adapter does not have",
        "Adapter, gradient and moments hold the same parameters; this one has no counterpart.",
    ),
    _entry(
        "adapter.shape-mismatch",
        "a tensor has another shape",
        "The shape differs from the adapter's, or is not that of the profile's LoRA rank.",
    ),
    _entry(
        "adapter.dtype-mismatch",
        "a tensor has another type",
        "Adapters are float32; gradient and moments have the type that the profile's model type calls for.",
    ),
    _entry(
        "adapter.name-invalid",
        "a tensor name is not that of a LoRA weight",
        "Names are base_model.model.<module>.lora_A.weight and lora_B.weight.",
    ),
    _entry(
        "adapter.config-mismatch",
        "the adapter's configuration is not the profile's",
        "adapter_config.json names another rank, alpha or method than the profile, or differs before and after the step.",
    ),
    _entry(
        "tensor.malformed",
        "the file is not a strict safetensors file",
        "The header must describe the buffer exactly, each byte once, in F32 or F64. A hole or a tail could hold other\n"
        "values.",
    ),
    _entry(
        "tensor.none",
        "the file holds no tensor",
        "An empty set proves nothing.",
    ),
    _entry(
        "tensor.not-finite",
        "a tensor holds NaN or infinity",
        "Such a value is never a measurement, and comparisons with it are meaningless.",
    ),
    _entry(
        "adapter.not-fresh",
        "the adapter before the step is no fresh one",
        "The deployment gives no policy adapter, so the update starts from a fresh one whose B halves are zero. They are not.",
    ),
    _entry(
        "adapter.not-the-given-one",
        "the adapter before the step is not the given policy",
        "The deployment gives a policy adapter, and the update started from another.",
    ),
)
