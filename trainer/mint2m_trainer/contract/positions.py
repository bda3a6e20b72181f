"""Positions beyond a checkpoint's own: a YaRN payload that is put into `config.json` when an operator asks for it.

The rule: the payload says the whole of the change and nothing else, and it fits the checkpoint that it is put on: the
stretch is exactly the ratio of the two lengths, and the shorter one is the checkpoint's. Nothing applies it by default.
A factor that is nearly the ratio would rotate differently from the sampler that wrote the rollout, and no log-prob gate
could tell that from a bad model. The checkpoint's config is not changed but copied, so taking the copy away undoes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from mint2m_trainer.faults import InputError
from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.documents import inputs as documents
from mint2m_verify.documents.base import encode
from mint2m_verify.files import read_once

#: The payload of the two-million-token profile, beside that profile.
LONG_POSITIONS = Path(__file__).parents[1] / "deployments" / "glm-2m.positions.json"


class PositionsError(InputError):
    """A payload that is malformed, or does not fit the checkpoint; names the member and both sides."""

    def __init__(self, pointer: str, *, expected: str, actual: str) -> None:
        super().__init__(f"{pointer}: expected {expected}, got {actual}")
        self.pointer = pointer
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPositions:
    """YaRN (arXiv 2309.00071) by Hugging Face's names; every member is stated, none has a default."""

    max_position_embeddings: int
    rope_theta: float
    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    truncate: bool

    def __post_init__(self) -> None:
        longer, native = self.max_position_embeddings, self.original_max_position_embeddings
        if self.factor != longer / native or longer <= native:
            raise PositionsError(
                "/rope_parameters/factor",
                expected=f"{longer / native!r}, the ratio of {longer} and {native}, above 1",
                actual=repr(self.factor),
            )
        if not 0 < self.beta_slow < self.beta_fast:
            raise PositionsError(
                "/rope_parameters/beta_slow", expected="above 0 and below beta_fast", actual=repr(self.beta_slow)
            )

    def applied(self, config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """A checkpoint's config with these positions; every other member as it was.

        Raises:
            PositionsError: the checkpoint has another native length or base frequency, or is stretched already.
        """
        rope = config.get("rope_parameters")
        native: Mapping[str, JsonValue] = rope if isinstance(rope, dict) else {}
        for pointer, want, have in (
            (
                "/max_position_embeddings",
                self.original_max_position_embeddings,
                config.get("max_position_embeddings"),
            ),
            ("/rope_parameters/rope_type", "default", native.get("rope_type", "default")),
            ("/rope_parameters/rope_theta", self.rope_theta, native.get("rope_theta")),
        ):
            if have != want:
                raise PositionsError(pointer, expected=f"{want!r} in the checkpoint", actual=repr(have))
        stretched: dict[str, JsonValue] = {
            member.name: getattr(self, member.name)
            for member in fields(self)
            if member.name != "max_position_embeddings"
        }
        return {
            **config,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_parameters": {"rope_type": "yarn", **stretched},
        }


def read_positions(path: Path) -> LongPositions:
    """A payload file; raises `PositionsError`, or `FindingError` (`file.*`, `json.*`)."""
    return parse_positions(parse(read_once(path.resolve(), name=path.name), file=path.name))


def parse_positions(value: JsonValue) -> LongPositions:
    """The payload of a parsed file: exactly its members, each of its kind."""
    top = _members("", value, {"max_position_embeddings", "rope_parameters"})
    names = {member.name for member in fields(LongPositions)} - {"max_position_embeddings"}
    rope = _members("/rope_parameters", top["rope_parameters"], {*names, "rope_type"})
    if rope["rope_type"] != "yarn":
        raise PositionsError("/rope_parameters/rope_type", expected="'yarn'", actual=repr(rope["rope_type"]))
    return LongPositions(
        max_position_embeddings=_count("/max_position_embeddings", top["max_position_embeddings"]),
        original_max_position_embeddings=_count(
            "/rope_parameters/original_max_position_embeddings", rope["original_max_position_embeddings"]
        ),
        rope_theta=_number("rope_theta", rope),
        factor=_number("factor", rope),
        beta_fast=_number("beta_fast", rope),
        beta_slow=_number("beta_slow", rope),
        mscale=_number("mscale", rope),
        mscale_all_dim=_number("mscale_all_dim", rope),
        truncate=_flag("truncate", rope),
    )


def of_profile(asked: documents.LongPositions) -> LongPositions:
    """What a profile asks for, checked like a payload; raises `PositionsError`."""
    return parse_positions(encode(asked))


def apply_to_file(config: Path, positions: LongPositions) -> bytes:
    """The bytes of a `config.json` with these positions; the file itself is left alone."""
    value = parse(read_once(config.resolve(), name=config.name), file=config.name)
    if not isinstance(value, dict):
        raise PositionsError("", expected="an object", actual=type(value).__name__)
    return (json.dumps(positions.applied(value), indent=2) + "\n").encode("utf-8")


def _members(pointer: str, value: JsonValue, names: set[str]) -> Mapping[str, JsonValue]:
    if not isinstance(value, dict) or set(value) != names:
        actual = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise PositionsError(pointer, expected=f"exactly {sorted(names)}", actual=str(actual))
    return value


def _count(pointer: str, value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PositionsError(pointer, expected="a positive integer", actual=repr(value))
    return value


def _number(name: str, members: Mapping[str, JsonValue]) -> float:
    value = members[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise PositionsError(f"/rope_parameters/{name}", expected="a positive number", actual=repr(value))
    return float(value)


def _flag(name: str, members: Mapping[str, JsonValue]) -> bool:
    value = members[name]
    if not isinstance(value, bool):
        raise PositionsError(f"/rope_parameters/{name}", expected="true or false", actual=repr(value))
    return value
