"""Report of results: numbers, table and page. Must never measure."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.registry import Bench

BEGIN = "<!-- script/bench writes below this line -->"
END = "<!-- script/bench writes above this line -->"
HEAD = ("measurement", "median", "at least", "aim", "met", "worst to best", "note")


@dataclass
class Outcome:
    """All readings of one bench, or its error, or the reason why it did not run."""

    bench: Bench
    values: list[float] = field(default_factory=list)
    note: str = ""
    error: str = ""
    skipped: str = ""


def number(value: float) -> str:
    """Three significant digits, thousands with commas: 1,230,000 and 45.6 and 0.123."""
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.{max(0, decimals)}f}" if abs(rounded) < 100 else f"{rounded:,.0f}"


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return title, median, agreed values and verdict, range from worst to best, and note."""
    bench = outcome.bench
    if outcome.error:
        return bench.title, "failed", "", "", "", "", outcome.error
    if outcome.skipped:
        return bench.title, "skipped", "", "", "", "", outcome.skipped
    ordered = sorted(outcome.values, reverse=not bench.higher_is_better)
    middle = statistics.median(ordered)
    agreed = (
        ("", "") if bench.floor is None or bench.aim is None else (number(bench.floor), number(bench.aim))
    )
    extent = f"{number(ordered[0])} to {number(ordered[-1])}" if len(ordered) > 1 else "measured once"
    return bench.title, f"{number(middle)} {bench.unit}", *agreed, bench.met(middle), extent, outcome.note


def line(outcome: Outcome) -> str:
    """Return the cells as a line for a terminal."""
    title, middle, floor, aim, met, extent, note = cells(outcome)
    agreed = f"[{floor} / {aim}: {met}]" if met else ""
    return f"{outcome.bench.group + ': ' + title:<76} {middle:>18}  {agreed:<32} {extent:<22} {note}"


def table(outcomes: Sequence[Outcome], machine: Sequence[str]) -> str:
    """Return the Markdown between the markers: the machine, and a table for each group."""
    lines = [textwrap.fill(f"* {line}", 100, subsequent_indent="  ") for line in machine]
    groups = list(dict.fromkeys(outcome.bench.group for outcome in outcomes))
    for group in groups:
        rows = [cells(outcome) for outcome in outcomes if outcome.bench.group == group]
        lines += ["", f"### {group}", "", *_rows(HEAD, rows)]
    return "\n".join(lines)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def between_markers(page: str, text: str) -> str:
    """Return `page` with `text` between its two markers.

    Raises ValueError unless it has each once, in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must hold these two lines once, in this order: {BEGIN} and {END}")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
