"""Users' own reward rules, by entry point.

A package of the user's declares, for instance,

    [project.entry-points."mint2m.rewards"]
    "short-answer/v1" = "my_rewards:short_answer"

and a payload names it `plugin:short-answer/v1`. Two packages that declare one name make it ambiguous, and it is then
as absent as one that nobody declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

GROUP = "mint2m.rewards"

#: Names that a payload may give to a user's own rule; the schema has the same pattern.
PLUGIN = re.compile(r"plugin:[a-z0-9][a-z0-9.-]{0,63}/v[1-9][0-9]{0,3}")


def find_plugin(rule: str) -> Callable[[str, str], float] | None:
    """The installed function of a `plugin:` rule; None where there is not exactly one, or it cannot be imported."""
    from importlib.metadata import entry_points  # slow to load, and few rules are somebody's own

    declared = [*entry_points(group=GROUP, name=rule.removeprefix("plugin:"))]
    if len(declared) != 1:
        return None
    try:
        function: Any = declared[0].load()
    except (ImportError, AttributeError):
        return None
    return function if callable(function) else None
