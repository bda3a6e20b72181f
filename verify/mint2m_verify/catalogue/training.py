"""Findings about online trainings, of `mint2m verify training`, and what stops `mint2m online`."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict


def _failed(id: str, message: str, explanation: str) -> Entry:
    return Entry(id=f"training.{id}", verdict=Verdict.FAILED, message=message, explanation=explanation)


def _blocked(id: str, message: str, explanation: str) -> Entry:
    return Entry(id=f"online.{id}", verdict=Verdict.BLOCKED, message=message, explanation=explanation)


ENTRIES = (
    _failed(
        "dataset-empty",
        "the dataset holds no row",
        "A dataset has one JSON row a line, and at least one. Nothing can be trained on here.",
    ),
    _failed(
        "input-changed",
        "profile or dataset are not what the plan names",
        "The plan binds both by SHA-256 and byte count, and the dataset by its number of rows. One of them was changed\n"
        "after the plan was written, so it does not say any more what was promised. Restore the file.",
    ),
    _failed(
        "rehearsal",
        "the profile is that of a rehearsal",
        "A rehearsal tries the ranks of a run over a short prompt and counts as no run; steps that each count as none are no\n"
        "training. Train by the profile of a run.",
    ),
    Entry(
        id="training.unfinished",
        verdict=Verdict.INCOMPLETE,
        message="the training is not finished",
        explanation=(
            "The plan promises more steps than are there, or the statement over all of them is not there yet. What is there\n"
            "may hold; that nothing was left out at the end cannot be said. `mint2m online --resume` goes on."
        ),
    ),
    _failed(
        "step-missing",
        "a step of a finished training, or between others, is missing",
        "Steps are numbered without a gap, each starts from the policy that the one before left, and a training that is\n"
        "finished has as many as its plan. Whoever takes one out hides an update that the result rests on.",
    ),
    _failed(
        "order-mismatch",
        "a step stands in another place than it says",
        "A step's file names its number, and the plan names how many there are. This one was moved, copied or added.",
    ),
    _failed(
        "plan-mismatch",
        "a step is of another plan",
        "Every step names the SHA-256 of the plan that was fixed before it. A step made under another plan has other seeds,\n"
        "rows or parameters than were promised here.",
    ),
    _failed(
        "moments-mismatch",
        "a step's optimizer did not go on from where the step before left it",
        "The plan says whether moments are carried from step to step. Where they are, a step's run names the moments that\n"
        "the step before left and as many steps as there were; where they are not, it names none.",
    ),
    _failed(
        "parent-mismatch",
        "a step does not follow the one before it",
        "A step names the seal of the run before it. Another one was there when this step was made: a step was repeated,\n"
        "swapped or taken from another training.",
    ),
    _failed(
        "policy-mismatch",
        "a step starts from, or drew with, another policy",
        "A step starts from the adapter that the one before left, its run trains that adapter, and its responses were drawn\n"
        "by it. A rollout of another revision is off policy without saying so.",
    ),
    _failed(
        "model-mismatch",
        "a step's run is of another model",
        "The plan names the model by revision and manifest, for all steps. A run of another model is no step of this one.",
    ),
    _failed(
        "source-mismatch",
        "a step ran other source than the plan names",
        "The plan fixes the trainer's own source for the whole training. A step that another version made may differ in any\n"
        "number. Finish a training with the version that began it.",
    ),
    _failed(
        "run-mismatch",
        "the run was not planned for this step",
        "The instance nonce of a step's run is the SHA-256 of the step's file, so the sealed plan of the run holds the digest\n"
        "of that. Here they do not belong together: the step's file was changed after its run, or the run is another's.",
    ),
    _failed(
        "row-mismatch",
        "a step trained on another row than was due",
        "Rows are taken in their order and never skipped. The step's row, prompt or ground truth is not the dataset's next.\n"
        "Whoever chooses rows chooses what is learned.",
    ),
    _failed(
        "search-mismatch",
        "a step's search did not go as planned",
        "A step takes the first row whose group has signal, among as many rows as the plan allows, and records every one. Here\n"
        "a group was passed over, taken without signal, or sought for longer.",
    ),
    _failed(
        "seed-mismatch",
        "a response was drawn from another seed",
        "The seed of each response follows from the plan's seed, the step, the attempt and the response. Another seed means\n"
        "that somebody could draw until a response suited him.",
    ),
    _failed(
        "parameters-mismatch",
        "a step was drawn, rewarded or trained otherwise than planned",
        "Group size, stop tokens, length cap, reward rule and profile are the plan's for every step; only the prompt's length\n"
        "is the row's.",
    ),
    _failed(
        "reward-mismatch",
        "a reward is not what the rule gives",
        "The reward was computed again from the response's bytes and the row's ground truth. The step or its run has another:\n"
        "a wrong reward turns the update around.",
    ),
    _failed(
        "response-mismatch",
        "the run trained on other responses than were drawn",
        "The responses in the run's rollout are those that the step drew last, token by token and in order.",
    ),
    _failed(
        "logprobs-mismatch",
        "log-probs are missing, copied wrong, or not the trainer's",
        "The sampler recorded one log-prob for each token, the run's rollout repeats them, and the trainer's own scores agree\n"
        "with them within the plan's bound. Beyond it sampler and trainer are two policies.",
    ),
    _failed(
        "pages-mismatch",
        "responses were drawn from pages of another policy",
        "The pages that responses were drawn from were captured under the adapter that the step trains, and for the row that\n"
        "is trained on they are the run's own, row by row. Pages of an earlier step are stale: they hold another policy's\n"
        "view of the prompt.",
    ),
    _failed(
        "accumulation-mismatch",
        "the runs of a step are not those of its prompts, in order, each on top of the one before",
        "A step over several prompts has one run a prompt. Each names its place, the tokens and responses that all groups of\n"
        "the step have, and the seal and the gradient of the run before it; the last takes the step. One of them is missing,\n"
        "repeated, exchanged, or says otherwise.",
    ),
    _failed(
        "step-mismatch",
        "the training names another step than lies there",
        "`training.json` names each step's file and its run's seal. One of them was exchanged after the training was signed.",
    ),
    _failed(
        "statement-mismatch",
        "the statement is about another training",
        "The signed payload follows from `training.json` and the plan, byte for byte. This one was made for others.",
    ),
    Entry(
        id="online.search-exhausted",
        verdict=Verdict.INCOMPLETE,
        message="no group with signal among the rows that a step may try",
        explanation=(
            "All responses of every row that was tried got one reward, so there is nothing to learn from. What was drawn is\n"
            "recorded in the step's file. A new training with more rows a step, a larger group, a higher temperature or a\n"
            "task nearer to what the policy can do may find signal; this one ends here."
        ),
    ),
    _blocked(
        "plan-differs",
        "the training to be resumed was planned otherwise",
        "A training is resumed under the plan that it began with. Deployment, profile, dataset, steps or the trainer's source\n"
        "are others now. Restore them, or begin a new training in another directory.",
    ),
    _blocked(
        "profile-unsuited",
        "the profile cannot train what is sampled",
        "An online training computes advantages from rewards, takes no reference log-probs from a rollout, caps responses\n"
        "within the profile's length, and runs one rank for each of the deployment's. The profile says otherwise.",
    ),
    _blocked(
        "vocabulary-not-bytes",
        "the model's tokens are not bytes",
        "Rewards are computed from text, and the one tokenizer whose text the verifier can compute again is `utf8-bytes`.\n"
        "The model's vocabulary is larger than 256, so a drawn token need not be a byte.",
    ),
    _blocked(
        "input-mismatch",
        "an input is not what the deployment pins",
        "The deployment names profile, dataset and model by SHA-256. The file at hand has another.",
    ),
    _blocked(
        "in-use",
        "another process works on this training",
        "Two processes on one training would both make its next step. Wait for the other, or end it.",
    ),
    _blocked(
        "step-broken",
        "a finished step does not verify",
        "The last finished step of the training to be resumed is damaged, or was sealed by another key. Nothing is built on\n"
        "it. `mint2m verify run` on its run directory says what is wrong.",
    ),
)
