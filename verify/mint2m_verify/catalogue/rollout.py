"""Findings about an engine's export of rollouts, of `mint2m rollout check`."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="rollout.empty",
        verdict=Verdict.FAILED,
        message="the export holds no rollout",
        explanation="An export has one JSON record a line, and at least one. Nothing can be trained on, or checked, here.",
    ),
    Entry(
        id="rollout.duplicate",
        verdict=Verdict.FAILED,
        message="a prompt or a draw is there twice",
        explanation=(
            "A request id names one prompt, and a seed draws one response from it. A second one with the same name or the\n"
            "same seed is the same rollout again: it would count twice in its group's mean and in the loss."
        ),
    ),
    Entry(
        id="rollout.policy-mismatch",
        verdict=Verdict.FAILED,
        message="a rollout was drawn under another policy",
        explanation=(
            "All rollouts of an export are of one model revision and one adapter, and of those that were asked for with\n"
            "--revision and --adapter. A rollout of another policy has log-probs that the ratio of the update would take for\n"
            "this one's: the update would be off policy without knowing by how much."
        ),
    ),
    Entry(
        id="rollout.sampling-mismatch",
        verdict=Verdict.FAILED,
        message="rollouts were drawn with different parameters",
        explanation=(
            "Temperature, top_p, top_k, stop tokens and length cap are the same for a whole export, so that rewards of\n"
            "different prompts mean the same. Export each set of parameters into a file of its own."
        ),
    ),
    Entry(
        id="rollout.token-outside-vocabulary",
        verdict=Verdict.FAILED,
        message="a token is not in the model's vocabulary",
        explanation=(
            "Every token must be smaller than the vocabulary of the model that --model names. The export is damaged, or of\n"
            "another model or tokenizer."
        ),
    ),
    Entry(
        id="rollout.length-mismatch",
        verdict=Verdict.FAILED,
        message="a response has not one log-prob for each token",
        explanation=(
            "An export has one log-prob for each response token, the stop token included. One short, every score would\n"
            "belong to its neighbour, and nothing in the loss would show it."
        ),
    ),
    Entry(
        id="rollout.logprob-positive",
        verdict=Verdict.FAILED,
        message="a log-prob is greater than zero",
        explanation="No probability exceeds one. The export's scores are damaged, or are logits or losses instead.",
    ),
    Entry(
        id="rollout.finish-mismatch",
        verdict=Verdict.FAILED,
        message="a response did not end as it says",
        explanation=(
            "A response that stopped ends with a stop token and has none before; one that was cut has as many tokens as the\n"
            "cap allows. Anything else was cut, joined or continued after it was drawn."
        ),
    ),
    Entry(
        id="rollout.text-mismatch",
        verdict=Verdict.FAILED,
        message="a text is not that of its tokens",
        explanation=(
            "With the tokenizer `utf8-bytes` the text follows from the tokens. The export has another text: what people\n"
            "read, and what a reward rule might be given, is not what would be trained on."
        ),
    ),
    Entry(
        id="rollout.audit-exceeded",
        verdict=Verdict.FAILED,
        message="more responses show a sign of broken decoding than the bound allows",
        explanation=(
            "--max-flagged bounds the share of responses with a replacement character (a token sequence that is no text), a\n"
            "tail that repeats itself, a marker of the prompt's template, or the length cap as their end. Look at those\n"
            "responses: a tokenizer, template, stop token or cap is wrong, or the policy has collapsed."
        ),
    ),
)
