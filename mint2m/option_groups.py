"""Options that several commands share, as one parameter: a dataclass whose fields typer sees as options of their own.

The rule: the command line does not show it. `grouped` puts the fields where the parameter stands, so that help, order
and names are those of a command that lists them all.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """`command`, called with the fields of its dataclass parameters in place of these."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if name != "return" and dataclasses.is_dataclass(kind)
    }

    @functools.wraps(command)
    def called(**given: Any) -> Result:
        for name, kind in groups.items():
            members = {member.name: given.pop(member.name) for member in dataclasses.fields(kind)}
            given[name] = kind(**members)
        return command(**given)

    parameters = tuple(_spread(inspect.signature(command), hints, groups))
    called.__signature__ = inspect.Signature(parameters, return_annotation=hints["return"])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": hints["return"]}
    return called


def _spread(signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, one in signature.parameters.items():
        if name not in groups:
            yield one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        members = get_type_hints(groups[name], include_extras=True)
        for member in dataclasses.fields(groups[name]):
            yield inspect.Parameter(
                member.name, inspect.Parameter.KEYWORD_ONLY, default=member.default, annotation=members[member.name]
            )
