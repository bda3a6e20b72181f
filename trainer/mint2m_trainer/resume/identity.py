"""Whose work a progress folder holds: everything that decides a bit of pages or gradient, by name.

The rule: two executions share progress only where every member is equal, and the first that is not is named. What
decides no bit (the run's label, its nonce, its time limits) is left out, since these differ in every attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.inputs import Accumulation
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError

#: The file of an identity, in the folder that it is about.
IDENTITY = "identity.json"

_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first member in which two identities differ; None where one of them lacks it."""

    member: str
    kept: str | None
    now: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Members in the order in which a difference is looked for."""

    members: tuple[tuple[str, str], ...]

    def encode(self) -> bytes:
        """RFC 8785 bytes."""
        return canonical({"format": _FORMAT, "members": dict(self.members)})

    def difference(self, kept: Identity) -> Difference | None:
        """Where `kept` is another one."""
        here, there = dict(self.members), dict(kept.members)
        for member in [*here, *sorted(there.keys() - here.keys())]:
            if here.get(member) != there.get(member):
                return Difference(member=member, kept=there.get(member), now=here.get(member))
        return None


def read_identity(path: Path) -> Identity | None:
    """The identity in a file, None where the file holds something else; raises `FindingError` where it is not read."""
    raw = read_once(path)
    try:
        value = parse(raw, file=str(path), canonical_form=True)
    except FindingError:
        return None
    members = value.get("members") if isinstance(value, dict) and value.get("format") == _FORMAT else None
    if not isinstance(members, dict) or not all(isinstance(member, str) for member in members.values()):
        return None
    return Identity(members=tuple((name, str(member)) for name, member in members.items()))


def write_identity(folder: Path, identity: Identity) -> None:
    """Write the identity of a folder that has none; raises `FindingError` (`file.unwritable`)."""
    write_atomic(folder / IDENTITY, identity.encode(), mode=0o600)


def work_members(rollout: Rollout, profile: RunProfile, accumulation: Accumulation | None) -> Iterator[tuple[str, str]]:
    """What is computed, and how."""
    yield from _rollout_members(rollout)
    yield from _profile_members(profile)
    yield from _accumulation_members(accumulation)


def _profile_members(profile: RunProfile) -> Iterator[tuple[str, str]]:
    """Every member of a profile that decides a number, `prefix.chunk_tokens` and the like."""
    value = profile.value()
    for left_out in ("schema", "name", "timeouts_s"):
        value.pop(left_out, None)
    yield from _flat("", value)


def _rollout_members(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """The prompt, and everything else of a rollout, by digest."""
    prompt = np.asarray(rollout.prompt_tokens, dtype="<i8").tobytes()
    yield "prompt_tokens_sha256", hashlib.sha256(prompt).hexdigest()
    yield "rollout_sha256", replace(rollout, prompt_tokens=()).sha256


def _accumulation_members(accumulation: Accumulation | None) -> Iterator[tuple[str, str]]:
    """What a step over several prompts averages over; what the run goes on from is added after all that is kept."""
    if accumulation is not None:
        for name in ("prompts", "tokens", "responses"):
            yield f"accumulation.{name}", str(getattr(accumulation, name))


def _flat(prefix: str, value: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    for name, member in value.items():
        if isinstance(member, dict):
            yield from _flat(f"{prefix}{name}.", member)
        else:
            yield f"{prefix}{name}", canonical(member).decode("utf-8")
