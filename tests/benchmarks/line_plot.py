"""A log-log line plot as SVG, without a plotting library: one panel a quantity, one line a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8d6b94")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 320, 70, 16, 34, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A method's points (x, y), both positive, x ascending."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot: `y_label` says quantity and unit."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


def svg(panels: Sequence[Panel]) -> str:
    """The panels side by side; raises `ValueError` where none has a point."""
    if not any(line.points for panel in panels for line in panel.lines):
        raise ValueError("a plot needs a point")
    body = "".join(
        f'<g transform="translate({index * WIDTH},0)">{_panel(panel)}</g>' for index, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines for point in line.points]
    if not points:
        return f'<text x="{LEFT}" y="{TOP}">{escape(panel.title)}: nothing measured</text>'
    low_x, high_x = _span([x for x, _ in points], 2)
    low_y, high_y = _span([y for _, y in points], 10)

    def place(x: float, y: float) -> tuple[float, float]:
        right = (math.log(x) - math.log(low_x)) / (math.log(high_x) - math.log(low_x))
        up = (math.log(y) - math.log(low_y)) / (math.log(high_y) - math.log(low_y))
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="18" font-size="13">{escape(panel.title)}</text>']
    for tick in _ticks(low_x, high_x, 2):
        x, y = place(tick, low_y)
        parts.append(_rule(x, TOP, x, y) + _text(x, y + 15, _number(tick), "middle"))
    for tick in _ticks(low_y, high_y, 10):
        x, y = place(low_x, tick)
        parts.append(_rule(x, y, WIDTH - RIGHT, y) + _text(x - 6, y + 4, _number(tick), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, panel.x_label, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})">'
        f"{escape(panel.y_label)}</text>"
    )
    for index, (line, colour) in enumerate(zip(panel.lines, COLOURS, strict=False)):
        placed = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        parts.append(f'<text x="{LEFT + 8}" y="{TOP + 12 + 14 * index}" fill="{colour}">{escape(line.name)}</text>')
    return "".join(parts)


def _span(values: Sequence[float], base: int) -> tuple[float, float]:
    """Whole powers of `base` around the values, at least one apart."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = math.ceil(math.log(max(values), base) - 1e-9)
    return float(base**low), float(base ** max(high, low + 1))


def _ticks(low: float, high: float, base: int) -> list[float]:
    ticks, value = [], low
    while value <= high * (1 + 1e-9):
        ticks.append(value)
        value *= base
    return ticks


def _number(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}K"
    return f"{value:g}"


def _rule(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
