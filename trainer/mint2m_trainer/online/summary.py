"""A training's steps for people: one table as Markdown, and one page with curves that needs no other file.

The rule: the page holds no script and loads nothing, and says on itself that it is no evidence. Every value on it is a
number or a word of the plan, and every word passes the escape of its format.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mint2m_trainer.online.step_numbers import GROUPS, StepNumbers
from mint2m_verify.documents.training import TrainingPlan
from mint2m_verify.render.escape import escape
from mint2m_verify.training.exhibits import step_cells

_HEADS = ("step", "row", "tried", "reward", "tokens", "loss", "KL", "clipped", "gradient norm")
_NO_EVIDENCE = "For people, and no evidence: nothing signs this file. `mint2m verify training` says what holds."
_WITHOUT_EVENTS = "No event files: the package tensorboard is not installed (`pip install 'mint2m[watch]'`)."

#: Size of a curve, and the room around it for its numbers; in pixels.
_WIDTH, _HEIGHT, _LEFT, _ROOM = 420, 150, 64, 18


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    title: str
    value: Callable[[StepNumbers], float | None]


_CURVES = (
    _Curve(title="mean reward of the groups that were trained on", value=lambda step: step.reward),
    _Curve(title="mean reward of every group that was tried", value=lambda step: step.sampled),
    _Curve(title="loss", value=lambda step: step.loss),
    _Curve(title="KL to the reference", value=lambda step: step.kl),
    _Curve(title="share of clipped tokens", value=lambda step: step.clipped),
    _Curve(title="gradient norm", value=lambda step: step.gradient_norm),
    _Curve(title="mean response length, tokens", value=lambda step: step.tokens),
    _Curve(title="seconds of the update", value=lambda step: step.total_seconds),
)


def markdown_page(plan: TrainingPlan, steps: Sequence[StepNumbers], *, events: bool) -> str:
    """The summary as Markdown; names of a plan hold no markup, by its schema."""
    lines = [f"# {escape(plan.name)}", "", _said(plan, steps), "", _NO_EVIDENCE, ""]
    if not events:
        lines += [_WITHOUT_EVENTS, ""]
    heads = (*_HEADS, *(f"{name}, s" for name in GROUPS))
    lines.append(f"| {' | '.join(heads)} |")
    lines.append(f"|{'---:|' * len(heads)}")
    lines += [f"| {' | '.join(step_cells(step.step, step, *step.seconds))} |" for step in steps]
    return "\n".join(lines) + "\n"


def html_page(plan: TrainingPlan, steps: Sequence[StepNumbers], *, events: bool) -> str:
    """The summary as one page with curves."""
    name = html.escape(escape(plan.name))
    heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in (*_HEADS, *(f"{g}, s" for g in GROUPS)))
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>\n"
        for cells in (step_cells(step.step, step, *step.seconds) for step in steps)
    )
    notes = [_said(plan, steps), _NO_EVIDENCE, *([] if events else [_WITHOUT_EVENTS])]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f'<meta name="viewport" content="width=device-width"><title>{name}</title>\n<style>{_STYLE}</style></head>\n'
        f"<body><h1>{name}</h1>\n{''.join(f'<p>{html.escape(note)}</p>' for note in notes)}\n"
        f"<div>{''.join(_drawn(curve, steps) for curve in _CURVES)}</div>\n"
        f'<div class="wide" tabindex="0" role="group" aria-label="table of steps">\n'
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div></body></html>\n"
    )


_STYLE = (
    "body{font:14px sans-serif;margin:1.2em;color:#111;background:#fff}figure{display:inline-block;margin:0 1em 1em 0;"
    "max-width:100%}svg{max-width:100%;height:auto}.wide{overflow-x:auto}"
    "figcaption{font-weight:bold}table{border-collapse:collapse}th,td{padding:.2em .6em;text-align:right;"
    "border-bottom:1px solid #ddd}polyline{fill:none;stroke:#0b5394;stroke-width:1.5}circle{fill:#0b5394}"
    "line{stroke:#999}text{font:11px sans-serif}"
)


def _said(plan: TrainingPlan, steps: Sequence[StepNumbers]) -> str:
    prompts = "" if plan.prompts == 1 else f", {plan.prompts} prompts a step"
    return (
        f"{len(steps)} of {plan.steps} steps over {plan.rows} rows, rule {escape(plan.reward_rule)}, "
        f"seed {plan.seed}, moments {plan.moments or 'fresh'}{prompts}."
    )


def _drawn(curve: _Curve, steps: Sequence[StepNumbers]) -> str:
    """A curve as SVG, its lowest and highest value beside it; nothing where no step has the value."""
    points = [(step.step, value) for step in steps if (value := curve.value(step)) is not None and math.isfinite(value)]
    if not points:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    last = max(step for step, _ in points)
    places = [
        (
            _LEFT + (_WIDTH - _LEFT - _ROOM) * (step / last if last else 0.5),
            _ROOM + (_HEIGHT - 2 * _ROOM) * ((high - value) / (high - low) if high > low else 0.5),
        )
        for step, value in points
    ]
    # A curve that is level has one value, beside it.
    labels = [(_ROOM, high), (_HEIGHT - _ROOM, low)] if high > low else [(_HEIGHT // 2, high)]
    title = html.escape(curve.title)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
    words = f"{title}: {points[0][1]:.4g} at step {points[0][0]}, {points[-1][1]:.4g} at step {points[-1][0]}"
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{words}"><line x1="{_LEFT}" y1="{_HEIGHT - _ROOM}" x2="{_WIDTH - _ROOM}" y2="{_HEIGHT - _ROOM}"/>'
        f"{''.join(_label(y, value) for y, value in labels)}"
        f'<text x="{_WIDTH - _ROOM}" y="{_HEIGHT - 4}" text-anchor="end">step {last}</text>'
        f'<polyline points="{line}"/>{dots}</svg></figure>\n'
    )


def _label(y: int, value: float) -> str:
    return f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.4g}</text>'
