"""What is asked of a chain beyond its anchor, as the command line gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from mint2m_verify.anchor import Anchor, VerifyOptions, read_key
from mint2m_verify.chain.places import ORDER
from mint2m_verify.documents.validation import StageName
from mint2m_verify.finding import FindingError, found
from mint2m_verify.runlog import LogHead

_HEAD = re.compile(r"([1-9][0-9]{0,5}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """What is asked of a chain beyond its anchor.

    `through` is the stage up to which the chain must be there, None for all that the plan requires; `plan_anchor` is
    for the plan's statement where another than the operator signs it; `known` is a head of the log seen before.
    """

    verify: VerifyOptions = field(default_factory=VerifyOptions)
    through: StageName | None = None
    plan_anchor: Anchor | None = None
    known: LogHead | None = None


def chain_options(verify: VerifyOptions, through: str | None, plan_key: Path | None, known: str | None) -> ChainOptions:
    """The options, each checked; raises `FindingError` (`usage.invalid`, `input.missing`, `key.*`)."""
    return ChainOptions(
        verify=verify,
        through=last_stage(through),
        plan_anchor=None if plan_key is None else read_key(plan_key),
        known=None if known is None else _head(known),
    )


def last_stage(through: str | None) -> StageName | None:
    """The word of `--through`; raises `FindingError` (`usage.invalid`)."""
    stage = next((name for name in ORDER if name == through), None)
    if through is not None and stage is None:
        raise FindingError(found("usage.invalid", expected=f"--through {' or '.join(ORDER)}", actual=through))
    return stage


def _head(text: str) -> LogHead:
    match = _HEAD.fullmatch(text)
    if match is None:
        expected = "--known-checkpoint SIZE:ROOT, the root in 64 lower-case hexadecimal digits"
        raise FindingError(found("usage.invalid", expected=expected, actual=text))
    return LogHead(size=int(match[1]), root=match[2])
