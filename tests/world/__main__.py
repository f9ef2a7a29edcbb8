"""Runs simulations for any length of time: `python -m tests.world`, or `script/soak`.

Must never continue after a failure without printing its seed, nor run a simulation twice: the file `--state`
keeps the next seeds. `counters.py` writes the counts.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

import click
import msgspec

from tests.world.choices import missing
from tests.world.counters import PAGE, State, table, write_page
from tests.world.faults import CLIENT_FAULTS, DISK_HARMS, FAULTS
from tests.world.life import SHAPES, AnyShape, live

WORLDS: Final = 20
"""Simulations that one process runs before it reports."""
BATCHES: Final = (*["machines"] * 8, *["small"] * 2, "trio", "pair", "large", "harmed", "records")
"""Simulations of a round: about the same time for each shape."""


def some(job: tuple[str, int]) -> tuple[str, int, Counter[str], list[str]]:
    """Run `WORLDS` simulations, and return the counts and the failures."""
    name, first = job
    counts: Counter[str] = Counter()
    failures = []
    for seed in range(first, first + WORLDS):
        try:
            live(seed, SHAPES[name], counts)
        except Exception:  # noqa: BLE001 - every error is reported with its seed
            failures.append(f"{seed} {smallest(seed, SHAPES[name])}\n{traceback.format_exc(limit=-3)}")
    return name, first, counts, failures


def smallest(seed: int, shape: AnyShape) -> str:
    """Return the fewest faults and messages with which this seed still fails."""
    best = shape
    least_of = {
        "faults": 0,
        "messages": 1,
        "publishers": 1,
        "readers": 0,
        "workers": 0,
        "readings": 1,
        "changes": 1,
        "queries": 1,
    }
    for field, least in least_of.items():
        if field not in shape._fields:
            continue
        for value in range(least, getattr(best, field)):
            fewer = best._replace(**{field: value})  # type: ignore[arg-type]
            try:
                live(seed, fewer, Counter())
            except Exception:  # noqa: BLE001 - it fails, which is what is looked for
                best = fewer
                break
    return str(best)


@click.command(help=__doc__)
@click.option("--minutes", default=10.0, show_default=True, help="How long.")
@click.option("--state", default=".soak.json", show_default=True, help="Where it goes on from.")
@click.option("--processes", default=2, show_default=True)
@click.option("--write", is_flag=True, help=f"Write the counts to {PAGE.name}.")
def soak(minutes: float, state: str, processes: int, *, write: bool) -> None:
    """Until the time is over."""
    file = Path(state)
    kept = msgspec.json.decode(file.read_bytes(), type=State) if file.exists() else State()
    counts = Counter(kept.counts)
    before = kept.seconds
    began = time.monotonic()

    def jobs() -> list[tuple[str, int]]:
        found = []
        for name in BATCHES:
            first = kept.next.get(name, 0)
            found.append((name, first))
            kept.next[name] = first + WORLDS
        return found

    with multiprocessing.get_context("fork").Pool(processes) as pool:
        while time.monotonic() - began < minutes * 60:
            for name, _, counted, failures in pool.imap_unordered(some, jobs()):
                counts += counted
                kept.lived[name] = kept.lived.get(name, 0) + WORLDS
                kept.since = 0 if failures else kept.since + WORLDS
                kept.failures += [f"{name} {failure}" for failure in failures]
                for failure in failures:
                    print(f"FAILED {name} {failure}", flush=True)
            kept.counts, kept.seconds = dict(counts), before + time.monotonic() - began
            file.write_bytes(msgspec.json.encode(kept))
            if sys.stderr.isatty():
                print(
                    f"\r{counts['worlds']:,} worlds, {len(kept.failures)} failures", end="", file=sys.stderr
                )
    never = [name for name in (*FAULTS, *CLIENT_FAULTS, *DISK_HARMS) if not counts[name]] + missing(counts)
    print(table(kept))
    if write:
        write_page(kept)
    for name in never:
        print(f"never came up: {name}")
    sys.exit(1 if kept.failures or never else 0)


if __name__ == "__main__":
    soak()
