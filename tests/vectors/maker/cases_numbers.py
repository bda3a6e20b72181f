"""Scores and losses that do not follow from what they are made of, signed with the right key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.forge import SCORES, SESSIONS, Run, Tensors

ONE = "run-one-rank"


def scores(run: Run, change: Callable[[dict[str, Any]], Any]) -> None:
    run.edit(SCORES, lambda document: change(document) and None)
    run.follow(after="execution")


def stepped(run: Run, path: str, change: Callable[[Tensors], Any]) -> None:
    """Change the tensors of one file, and make every binding of it right."""
    tensors = run.tensors(path)
    run.put_tensors(path, change(tensors) or tensors)
    run.follow(after="execution")


# Scores and losses


@vector("loss-of-a-token", "The loss of one token was edited.", "grpo.loss-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][0]["loss"].__setitem__(2, 0.5))


@vector("total-loss", "The total loss was edited, in scores and receipt.", "grpo.total-loss-mismatch", base=ONE)
def _(run: Run) -> None:
    run.set("receipt.json", "/loss", 0.0)
    scores(run, lambda made: made.update(loss=0.0))


@vector("advantage", "An advantage was edited.", "grpo.advantage-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["advantages"].__setitem__(1, 0.75))


@vector("reward-in-scores", "A reward in the scores is not what the response earned.", "grpo.reward-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["rewards"].__setitem__(1, 0.5))


@vector("clip-count", "A clip count was edited.", "grpo.clip-count-mismatch", base=ONE)
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        made["responses"][1]["clipped_high"] -= 1
        made["clipped_high"] -= 1

    scores(run, change)


@vector("drift", "The drift from the reference was edited.", "grpo.kl-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made.update(kl=0.0))


@vector("policy-logprob", "A policy log-prob was edited: its loss does not follow.", "grpo.loss-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][1]["policy"].__setitem__(1, -3.25))


@vector("old-logprob", "An old log-prob is not the rollout's.", "scores.source-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][0]["old"].__setitem__(0, -5.5))


@vector("positive-logprob", "A probability above one.", "scores.logprob-positive", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][0]["policy"].__setitem__(0, 0.25))


@vector("tokens-of-another-response", "The scored tokens are not the rollout's.", "scores.tokens-mismatch", base=ONE)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][0]["tokens"].__setitem__(0, 66))


@vector(
    "first-token-scored",
    "A response with R-1 old log-probs is said to be scored from its first token.",
    "scores.mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    scores(run, lambda made: made["responses"][0].update(first_scored=0))


@vector(
    "other-source",
    "The old log-probs are said to be recomputed where the profile takes the rollout's.",
    "scores.mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    scores(run, lambda made: made.update(old_source="recompute"))


@vector("source-missing", "The profile takes old log-probs from a rollout that has none.", "scores.source-missing")
def _(run: Run) -> None:
    run.set("inputs/profile.json", "/grpo/old_source", "rollout")
    run.set(SCORES, "/old_source", "rollout")
    run.edit("plan.json", lambda plan: plan["phases"].remove("score-old"))

    def without(document: dict[str, Any]) -> None:
        for session in document["ranks"]:
            session["phases"] = [record for record in session["phases"] if record["phase"] != "score-old"]
            for number, record in enumerate(session["phases"]):
                record["sequence"] = number

    run.edit(SESSIONS, without)
    run.follow()


def bounded(run: Run, bound: float) -> None:
    run.set("inputs/profile.json", "/grpo/logprob_bound", bound)
    run.follow()


@vector("sampler-bounded", "Trainer and sampler lie no further apart than is allowed.", None, base=ONE, exit=0)
def _(run: Run) -> None:
    bounded(run, 20.0)


@vector("sampler-apart", "Another policy drew than the profile allows for.", "scores.sampler-mismatch", base=ONE)
def _(run: Run) -> None:
    bounded(run, 0.001)


@vector(
    "sampler-unknown", "The profile bounds a mismatch with a sampler that left no log-probs.", "scores.source-missing"
)
def _(run: Run) -> None:
    bounded(run, 0.001)


@vector(
    "nothing-scored",
    "No token was scored: a mean over nothing.",
    "fixture.shape-mismatch",
    base=ONE,
    also=("scores.nothing-scored",),
)
def _(run: Run) -> None:
    def empty(made: dict[str, Any]) -> None:
        for entry in made["responses"]:
            entry.update(policy=[], old=[], ref=[], loss=[], clipped_low=0, clipped_high=0)
        made.update(scored_tokens=0, clipped_low=0, clipped_high=0, loss=0, kl=None)

    run.edit("inputs/rollout.json", lambda rollout: rollout.update(old_logprobs=[[], []]))
    run.edit(SCORES, empty)
    run.follow()


@vector("one-response-scored", "One of two responses was scored.", "scores.mismatch")
def _(run: Run) -> None:
    run.edit(SCORES, lambda made: made["responses"][1].update(policy=[], old=[], loss=[], clipped_high=0))
    run.follow(after="execution")


@vector(
    "ratio-overflows",
    "An old log-prob so low that the ratio overflows: any loss would be within rounding.",
    "grpo.loss-mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        made["responses"][1]["old"][0] = -800.0
        made["responses"][1]["loss"][0] = 12345.0

    run.set("inputs/rollout.json", "/old_logprobs/1/0", -800)
    run.edit(SCORES, change)
    run.follow()


@vector(
    "ratio-far-above-its-clip",
    "A ratio of 1e300 lends its rounding to a loss that does not depend on it.",
    "grpo.loss-mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        made["responses"][1]["old"][0] = -695.0
        made["responses"][1]["loss"][0] = 12345.0

    run.set("inputs/rollout.json", "/old_logprobs/1/0", -695)
    run.edit(SCORES, change)
    run.follow()


@vector(
    "reference-far-away",
    "A reference log-prob so low that rounding would seem to explain any loss.",
    "grpo.loss-mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        made["responses"][1]["ref"][0] = -700.0
        made["responses"][1]["loss"][0] = 12345.0

    scores(run, change)


@vector("reference-overflows", "A policy log-prob so low that the drift overflows.", "grpo.loss-mismatch", base=ONE)
def _(run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        made["responses"][1]["policy"][0] = -900.0
        made["responses"][1]["loss"][0] = 12345.0

    scores(run, change)
