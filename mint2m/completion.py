"""Shell completion: click's own, over the command tree that is built one command at a time.

The shell's script runs `mint2m` again with an instruction in the environment; the answer is the words that fit.
"""

from __future__ import annotations

from click.shell_completion import get_completion_class

from mint2m.outcome import Outcome

#: Where the script puts its instruction, as `bash_complete`.
VARIABLE = "_MINT2M_COMPLETE"


def answer(instruction: str) -> Outcome:
    """The script itself (`bash_source`), or the words that fit what stands on the line (`bash_complete`)."""
    from mint2m.app import build

    shell, _, what = instruction.partition("_")
    kind = get_completion_class(shell)
    if kind is None or what not in ("source", "complete"):
        return Outcome(text="")
    made = kind(build(), {}, "mint2m", VARIABLE)
    return Outcome(text=made.source() if what == "source" else made.complete())
