"""Exports of rollouts by an engine, for `rollout check`: one that is right, and each thing that can be wrong."""

from __future__ import annotations

from typing import Any

import rfc8785

from maker.case import vector
from maker.forge import Run

FILE = "rollouts.jsonl"
CHECK = ("rollout", "check", "{run}/rollouts.jsonl")
POLICY = "ad" * 32


def response(seed: int, text: str, *, finish: str = "stop") -> dict[str, Any]:
    tokens = list(text.encode())
    scores = [-0.5 - n / 16 for n in range(len(tokens))]
    return {"seed": seed, "tokens": tokens, "logprobs": scores, "finish": finish, "text": text}


def record(number: int, *responses: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": "mint2m.rollout-record/v1",
        "request": f"row-{number}",
        "engine": {"name": "vllm", "version": "0.11.0"},
        "policy": {"revision": "r1", "adapter_sha256": POLICY},
        "tokenizer": "utf8-bytes",
        "sampling": {"temperature": 1, "top_p": 0.9, "top_k": None, "stop_tokens": [10], "max_tokens": 12},
        "prompt_tokens": list(f"What is {number} and 1?\n".encode()),
        "responses": list(responses),
    }


def records() -> list[dict[str, Any]]:
    return [
        record(
            1, response(11, "Answer: 2\n"), response(12, "Answer: 3\n"), response(13, "It is two, a", finish="length")
        ),
        record(2, response(21, "Answer: 3\n"), response(22, "Answer: 3\n")),
    ]


def put(run: Run, records: list[dict[str, Any]]) -> None:
    run.files[FILE] = b"".join(rfc8785.dumps(one) + b"\n" for one in records)


def rollout(name: str, why: str, finding: str | None, **options: Any) -> Any:
    given = {"base": None, "command": (*CHECK, "--revision", "r1"), **options}
    return vector(f"rollouts-{name}", why, finding, **given)


@rollout("right", "Two prompts, five responses, one of them cut at the cap.", None, exit=0)
def _(run: Run) -> None:
    put(run, records())


@rollout("none", "An export without a line.", "rollout.empty")
def _(run: Run) -> None:
    put(run, [])


@rollout("logprobs-one-short", "The first token of a response has no log-prob.", "rollout.length-mismatch")
def _(run: Run) -> None:
    made = records()
    del made[0]["responses"][1]["logprobs"][0]
    put(run, made)


@rollout("logprob-positive", "A log-prob without its minus sign.", "rollout.logprob-positive")
def _(run: Run) -> None:
    made = records()
    made[1]["responses"][0]["logprobs"][3] *= -1
    put(run, made)


@rollout("logprob-nan", "A log-prob that is no number, as some engines write it.", "json.not-finite")
def _(run: Run) -> None:
    put(run, records())
    run.files[FILE] = run.files[FILE].replace(b"-0.5,", b"NaN,", 1)


@rollout("other-revision", "One prompt was drawn under the revision before.", "rollout.policy-mismatch")
def _(run: Run) -> None:
    made = records()
    made[1]["policy"]["revision"] = "r0"
    put(run, made)


@rollout(
    "other-adapter",
    "All were drawn with an adapter, and none should have been there.",
    "rollout.policy-mismatch",
    command=(*CHECK, "--no-adapter"),
)
def _(run: Run) -> None:
    put(run, records())


@rollout("other-temperature", "The second prompt was drawn colder.", "rollout.sampling-mismatch")
def _(run: Run) -> None:
    made = records()
    made[1]["sampling"]["temperature"] = 0.5
    put(run, made)


@rollout("prompt-twice", "One request id for two prompts.", "rollout.duplicate")
def _(run: Run) -> None:
    made = records()
    made[1]["request"] = "row-1"
    put(run, made)


@rollout("seed-twice", "Two responses of a prompt from one seed.", "rollout.duplicate")
def _(run: Run) -> None:
    made = records()
    made[1]["responses"][1]["seed"] = 21
    put(run, made)


@rollout(
    "token-outside-vocabulary",
    "A token that the model has no embedding for.",
    "rollout.token-outside-vocabulary",
    base="run",
    command=(*CHECK, "--model", "{run}/inputs/model"),
    also=("fixture.token-not-byte",),
)
def _(run: Run) -> None:
    made = records()
    made[0]["responses"][0]["tokens"][2] = 256
    put(run, made)


@rollout("stopped-without-stop", "A response that stopped, without the token that stops it.", "rollout.finish-mismatch")
def _(run: Run) -> None:
    made = records()
    made[0]["responses"][0] = response(11, "Answer: 2")
    put(run, made)


@rollout("after-its-stop", "A response that went on after its stop token.", "rollout.finish-mismatch")
def _(run: Run) -> None:
    made = records()
    made[0]["responses"][0] = response(11, "2\nAnswer: 2\n")
    put(run, made)


@rollout("beyond-the-cap", "A response longer than the cap.", "rollout.finish-mismatch")
def _(run: Run) -> None:
    made = records()
    made[0]["responses"][2] = response(13, "It is two, and", finish="length")
    put(run, made)


@rollout("other-text", "A text in which the answer was put right.", "rollout.text-mismatch")
def _(run: Run) -> None:
    made = records()
    made[0]["responses"][1]["text"] = "Answer: 2\n"
    put(run, made)


@rollout(
    "cut-too-often",
    "One response of five was cut, and the bound allows one of ten.",
    "rollout.audit-exceeded",
    command=(*CHECK, "--max-flagged", "0.1"),
)
def _(run: Run) -> None:
    put(run, records())
