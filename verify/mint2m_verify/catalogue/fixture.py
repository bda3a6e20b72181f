"""Findings about a training fixture: what it says of its payload, rollout, model and profile."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="fixture.path-not-adjacent",
        verdict=Verdict.FAILED,
        message="a file of the fixture does not lie beside it",
        explanation=(
            "Payload and rollout lie in the fixture's own directory and are named without any folder, so that the three\n"
            "travel together and a fixture cannot make its reader open a file somewhere else. Put them beside the fixture\n"
            "and build it again."
        ),
    ),
    Entry(
        id="fixture.size-mismatch",
        verdict=Verdict.FAILED,
        message="a file of the fixture has another size than the fixture says",
        explanation=(
            "The fixture binds payload and rollout by byte count and SHA-256. This file was cut, grown or replaced after the\n"
            "fixture was built. Nothing about the training input is established. Restore the file or build the fixture again."
        ),
    ),
    Entry(
        id="fixture.hash-mismatch",
        verdict=Verdict.FAILED,
        message="a file of the fixture has another SHA-256 than the fixture says",
        explanation=(
            "The fixture binds payload and rollout by byte count and SHA-256. This file was changed after the fixture was\n"
            "built. Nothing about the training input is established. Restore the file or build the fixture again."
        ),
    ),
    Entry(
        id="fixture.revision-mismatch",
        verdict=Verdict.FAILED,
        message="the fixture was made for another model revision",
        explanation=(
            "A rollout means something only under the model that it was sampled from and scored with. The deployment names\n"
            "another revision than the fixture. Use the fixture of that revision, or build one for it."
        ),
    ),
    Entry(
        id="fixture.model-mismatch",
        verdict=Verdict.FAILED,
        message="the fixture was made for other model files",
        explanation=(
            "The fixture binds the model's manifest by SHA-256, and the model at hand has another manifest: some file of the\n"
            "snapshot differs, although the revision may be the same. Find out which with `mint2m verify manifest`."
        ),
    ),
    Entry(
        id="fixture.policy-mismatch",
        verdict=Verdict.FAILED,
        message="the fixture was made for another policy adapter",
        explanation=(
            "The fixture binds the adapter that is trained on (null: a fresh one from the profile's seed). Another adapter\n"
            "makes the rollout's old log-probs belong to a policy that is not there."
        ),
    ),
    Entry(
        id="fixture.profile-mismatch",
        verdict=Verdict.FAILED,
        message="the fixture was made for another run profile",
        explanation=(
            "The fixture binds the profile's bytes. A changed profile changes numbers of the run, so a fixture that was\n"
            "approved under one profile says nothing under another. Build the fixture with this profile."
        ),
    ),
    Entry(
        id="fixture.shape-mismatch",
        verdict=Verdict.FAILED,
        message="a length or count differs from what the fixture or the profile says",
        explanation=(
            "The fixture states how long the prompt and each response are and how many responses there are; the rollout must\n"
            "agree, and both must fit the profile. A rollout of another shape is another rollout."
        ),
    ),
    Entry(
        id="fixture.token-outside-vocabulary",
        verdict=Verdict.FAILED,
        message="a token is not in the vocabulary",
        explanation=(
            "Every token must be smaller than the vocabulary size that the fixture states. A larger one has no embedding: it\n"
            "would read past the table, or be another token on another device. The rollout is damaged or of another model."
        ),
    ),
    Entry(
        id="fixture.vocabulary-mismatch",
        verdict=Verdict.FAILED,
        message="the fixture states another vocabulary size than the model has",
        explanation="Tokens were checked against a size that is not the model's. Build the fixture for this model.",
    ),
    Entry(
        id="fixture.token-not-byte",
        verdict=Verdict.FAILED,
        message="a response token is not a byte",
        explanation=(
            "The payload's tokenizer is `utf8-bytes`: each token is one byte of text, 0 to 255. A token beyond that has no\n"
            "text, so the reward rule cannot be applied to the response."
        ),
    ),
    Entry(
        id="fixture.prompt-not-payload",
        verdict=Verdict.FAILED,
        message="the prompt tokens are not the payload's text",
        explanation=(
            "The prompt tokens must be the UTF-8 bytes of the payload's `prompt_text`, one by one. Here they differ, so the\n"
            "text that people approved is not the text that would be trained on."
        ),
    ),
    Entry(
        id="fixture.reward-mismatch",
        verdict=Verdict.FAILED,
        message="a reward is not what the rule gives",
        explanation=(
            "The reward was computed again from the response's bytes, the ground truth and the rule that the payload names.\n"
            "The rollout carries another value. A wrong reward turns the update around, so the rollout is refused."
        ),
    ),
    Entry(
        id="fixture.reward-rule-unknown",
        verdict=Verdict.FAILED,
        message="the reward rule is not known",
        explanation="Rewards are only accepted where the verifier can compute them itself. Rules are versioned by name.",
    ),
    Entry(
        id="fixture.reward-rule-absent",
        verdict=Verdict.BLOCKED,
        message="the reward rule is a plugin that is not installed here",
        explanation=(
            "The payload names a rule of the user's own, `plugin:NAME/vN`. Exactly one installed package must declare it under\n"
            "the entry point group `mint2m.rewards`. Training cannot give rewards without it; an auditor without it is told that\n"
            "the rewards are the operator's word."
        ),
    ),
    Entry(
        id="fixture.reward-rule-failed",
        verdict=Verdict.FAILED,
        message="the reward rule gave no number",
        explanation=(
            "A user's own reward rule raised an error, or returned something that is not a finite number. A rule is a pure\n"
            "function of a response's text and the ground truth and has an answer for every text."
        ),
    ),
    Entry(
        id="fixture.advantages-not-permitted",
        verdict=Verdict.FAILED,
        message="the rollout brings advantages that the profile does not take",
        explanation=(
            "Advantages follow from the rewards unless the profile's advantage_source is `rollout`. This rollout has one for each\n"
            "token all the same: it was made for another profile. Take them out, or have a profile approved that takes them."
        ),
    ),
    Entry(
        id="fixture.advantages-missing",
        verdict=Verdict.FAILED,
        message="the rollout lacks the advantages that the profile takes from it",
        explanation="With advantage_source `rollout` the rollout must have one for each response token. Give them, or leave it out.",
    ),
    Entry(
        id="fixture.logprob-positive",
        verdict=Verdict.FAILED,
        message="a log-prob is greater than zero",
        explanation="No probability exceeds one. The rollout's scores are damaged, or are logits or losses instead.",
    ),
)
