"""Counts of a soak, and their table in the documentation.

Must never count anything itself.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from tests.world.choices import COMMANDS, SOW_TABLES, TABLES, missing, possible
from tests.world.faults import CLIENT_FAULTS, DISK_HARMS, FAULTS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"
MARK: Final = "<!-- script/soak --write writes below this line -->"
HAPPENED: Final = (
    "power lost in a start", "a disk ended a server", "a disk ended a start", "a stop was cut short",
    "a start refused lost files",
    "stopped cleanly", "connections sliced", "connections of a process that ended", "connection refused",
    "silence noticed", "call timed out", "lease ended", "committed before", "commit without an answer",
    "flush without an answer", "flushed", "replay cut short", "stream cut short", "redelivered",
    "plain subscriptions judged", "worker interrupted", "given back", "publish stores opened",
    "bookmark stores opened", "queue browsed", "expired by a worker", "leases extended",
    "ranges with a start", "ranges with an end", "frames behind the first of a transaction",
    "connection lost between two frames",
)  # fmt: skip
"""Results of faults, and events in applications."""


class State(msgspec.Struct):
    """Progress of a soak."""

    next: dict[str, int] = msgspec.field(default_factory=dict)
    """By shape: the first seed that was not begun."""
    lived: dict[str, int] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[str] = msgspec.field(default_factory=list)
    since: int = 0
    """Simulations since the last failure."""
    seconds: float = 0.0


def table(state: State) -> str:
    """Return the counts as a page."""
    counts = state.counts
    shapes = ", ".join(f"{number:,} {name}" for name, number in state.lived.items())
    there = sum(len(possible(one)) for one in TABLES + SOW_TABLES)
    never = sum(name.startswith("pair: ") for name in missing(counts))
    said_on_the_wire = sum(bool(counts.get(f"command: {name}")) for name in COMMANDS)
    said = (
        f"{sum(state.lived.values()):,} simulations ({shapes}) in {state.seconds / 60:.0f} minutes,\n"
        f"{counts.get('messages', 0):,} messages.\nFailures: {len(state.failures)}.\n"
        f"Simulations since the last failure: {state.since:,}.\n"
        f"{there - never} of {there} pairs of options occurred, "
        f"and {said_on_the_wire} of {len(COMMANDS)} commands."
    )
    lines = [
        said,
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {name} | {counts.get(name, 0):,} |" for name in (*FAULTS, *CLIENT_FAULTS, *DISK_HARMS)),
        "",
        "| event | times |",
        "|---|---|",
        *(f"| {name} | {counts.get(name, 0):,} |" for name in HAPPENED),
    ]
    return "\n".join(lines)


def write_page(state: State) -> None:
    """Put the table at the end of the page."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    head, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{head}{MARK}\n\nAt commit {commit.stdout.strip()}:\n{table(state)}\n")
