"""Line charts as SVG: small, and the same bytes for the same figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tests.bench.report import number

WIDTH: Final = 640
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 40, 50
COLORS: Final = ("#0b61a4", "#d1495b", "#3a7d44", "#e08e1b", "#7b4b94", "#555555")
LABEL_DISTANCE: Final = 14.0
"""Least distance of two labels at the right."""


@dataclass(frozen=True)
class Line:
    """One line of a chart. Points without a value are left out."""

    label: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Chart:
    """A chart with logarithmic axes."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]


class _Axis:
    """A logarithmic axis from a power of ten to another one, unless `exact`."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, exact: bool) -> None:
        self.low, self.high = math.log10(min(values)), math.log10(max(values))
        if not exact:
            self.low, self.high = float(math.floor(self.low)), float(math.ceil(self.high))
        if self.high - self.low < 1e-9:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + part * (self._end - self._start)

    def powers(self) -> list[float]:
        return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def draw(chart: Chart) -> str:
    """Return the chart as SVG, or an empty text without a point."""
    lines = [
        (line.label, [(x, y) for x, y in line.points if y is not None and y > 0 and x > 0])
        for line in chart.lines
    ]
    lines = [(label, points) for label, points in lines if points]
    if not lines:
        return ""
    places = sorted({x for _, points in lines for x, _ in points})
    across = _Axis(places, LEFT, WIDTH - RIGHT, exact=True)
    up = _Axis([y for _, points in lines for _, y in points], HEIGHT - BOTTOM, TOP, exact=False)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12" role="img">'
        ),
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(chart.title)}</text>',
    ]
    for value in up.powers():
        y = up.place(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(value)}</text>')
    for value in places:
        x = across.place(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(chart.x_title)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y_title)}</text>'
    )
    ends = spread([up.place(points[-1][1]) for _, points in lines], LABEL_DISTANCE)
    for index, (label, points) in enumerate(lines):
        color = COLORS[index % len(COLORS)]
        corners = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        width = 3 if index == 0 else 1.5
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="{width}"/>')
        parts.extend(
            f'<circle cx="{across.place(x):.1f}" cy="{up.place(y):.1f}" r="3" fill="{color}">'
            f"<title>{escape(label)}: {number(y)}</title></circle>"
            for x, y in points
        )
        place = f'x="{WIDTH - RIGHT + 8}" y="{ends[index] + 4:.1f}"'
        parts.append(f'<text {place} fill="{color}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _power(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Return the places, moved apart to at least `distance`, in their order."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda index: places[index])
    for before, index in itertools.pairwise(order):
        moved[index] = max(moved[index], moved[before] + distance)
    return moved
