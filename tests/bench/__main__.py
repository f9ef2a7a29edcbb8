"""Runs the benches: python -m tests.bench [--list] [--quick] [--write] [--repeat N] [NAME...]"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import describe
from tests.bench.registry import Bench, Room, discover
from tests.bench.report import Outcome, between_markers, cells, table

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "performance.md"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/bench", description="Measure, and print or write a table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those whose name contains it")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, once: does it run?")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--repeat", type=int, metavar="N", help="measure each N times")
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build" / "bench",
        help="where journals are written; on the disk that is to be measured (default: build/bench)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.write and (chosen.names or chosen.quick):
        parser.error("--write wants the whole, measured in full: no NAME and no --quick")
    if chosen.repeat is not None and chosen.repeat < 1:
        parser.error("--repeat must be at least 1")
    return chosen


def measure(bench: Bench, directory: Path, *, repeat: int, quick: bool) -> Outcome:
    """Run one bench `repeat` times, each in a fresh directory; what it raises becomes its outcome."""
    outcome = Outcome(bench)
    for _ in range(repeat):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            reading = bench.run(Room(directory, quick))
        except Exception as error:  # noqa: BLE001 -- shown in the table and in the exit code
            outcome.error = f"{type(error).__name__}: {error}"
            break
        outcome.values.append(reading.value)
        outcome.note = reading.note
    shutil.rmtree(directory, ignore_errors=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(arguments)
    benches = [b for b in discover() if not chosen.names or any(name in b.name for name in chosen.names)]
    if chosen.list:
        for bench in benches:
            print(f"{bench.name:<40} {bench.group}: {bench.title}")
        return 0
    if not benches:
        print("script/bench: no bench has such a name; --list shows them", file=sys.stderr)
        return 2
    chosen.directory.mkdir(parents=True, exist_ok=True)
    machine = describe(chosen.directory)
    print("\n".join(machine), flush=True)
    outcomes = []
    for bench in benches:
        repeat = 1 if chosen.quick else chosen.repeat or bench.repeat
        outcome = measure(bench, chosen.directory / "room", repeat=repeat, quick=chosen.quick)
        outcomes.append(outcome)
        title, middle, extent, note = cells(outcome)
        print(f"{bench.group + ': ' + title:<70} {middle:>18}  {extent:<24} {note}", flush=True)
    failed = any(outcome.error for outcome in outcomes)
    if chosen.write and not failed:
        PAGE.write_text(
            between_markers(PAGE.read_text(encoding="utf-8"), table(outcomes, machine)), encoding="utf-8"
        )
        print(f"written to {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
