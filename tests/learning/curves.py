"""Mean rewards over steps as SVG, one line a run, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8d6b94", "#b8860b")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 340, 48, 170, 40, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A run's points (step, mean reward between -1 and 1)."""

    name: str
    points: tuple[tuple[int, float], ...]


def svg(title: str, curves: Sequence[Curve]) -> str:
    """One plot; raises `ValueError` where there is no second step to draw a line to."""
    last = max((step for curve in curves for step, _ in curve.points), default=0)
    if last < 1:
        raise ValueError("a curve needs two steps")

    def x(step: float) -> float:
        return LEFT + step / last * (WIDTH - LEFT - RIGHT)

    def y(reward: float) -> float:
        return HEIGHT - BOTTOM - (reward + 1) / 2 * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="20" font-size="13">{escape(title)}</text>']
    for level in (-1, -0.5, 0, 0.5, 1):
        parts.append(f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level:+g}</text>')
    for step in sorted({step for curve in curves for step, _ in curve.points}):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{x(last / 2):.1f}" y="{HEIGHT - 8}" text-anchor="middle">updates</text>')
    for index, curve in enumerate(curves):
        colour, dash = (
            COLOURS[index % len(COLOURS)],
            "" if curve.name.startswith("exact") else ' stroke-dasharray="5 4"',
        )
        placed = [(x(step), y(reward)) for step, reward in curve.points]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>' for a, b in placed]
        at = TOP + 12 + 16 * index
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {at - 4}h20" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 38}" y="{at}">{escape(curve.name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
