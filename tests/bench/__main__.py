"""Runs the benches: python -m tests.bench [--list] [--quick] [--write] [NAME...]"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import describe
from tests.bench.registry import LOG_BYTES, LOG_BYTES_QUICK, Bench, Room, Shared, Skipped, discover
from tests.bench.report import Outcome, between_markers, line, table
from tickertape.base.errors import TickertapeError
from tickertape.base.units import parse_size

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
        "--log-size", type=_size, metavar="SIZE", help="bodies in the large log: 4GB, --quick 64MB"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build" / "bench",
        help="directory of journals, on the measured disk (default: build/bench)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.write and (chosen.names or chosen.quick or chosen.log_size):
        parser.error("--write wants the whole, measured in full: no NAME, no --quick, no --log-size")
    if chosen.repeat is not None and chosen.repeat < 1:
        parser.error("--repeat must be at least 1")
    chosen.log_size = chosen.log_size or (LOG_BYTES_QUICK if chosen.quick else LOG_BYTES)
    return chosen


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except TickertapeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def measure(bench: Bench, room: Room, *, repeat: int) -> Outcome:
    """Run one bench `repeat` times, each in a new directory. An exception or a skip becomes the outcome."""
    outcome = Outcome(bench)
    for _ in range(repeat):
        shutil.rmtree(room.directory, ignore_errors=True)
        room.directory.mkdir(parents=True)
        try:
            reading = bench.run(room)
        except Skipped as reason:
            outcome.skipped = str(reason)
            break
        except Exception as error:  # noqa: BLE001 -- shown in the table and in the exit code
            outcome.error = f"{type(error).__name__}: {error}"
            break
        outcome.values.append(reading.value)
        outcome.note = reading.note
    shutil.rmtree(room.directory, ignore_errors=True)
    return outcome


def measure_all(benches: Sequence[Bench], chosen: argparse.Namespace) -> list[Outcome]:
    """Run the benches one after the other, with the progress on standard error."""
    shared = Shared(chosen.directory / "shared")
    room = Room(chosen.directory / "room", chosen.quick, shared, chosen.log_size)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for number, bench in enumerate(benches, 1):
            _progress(f"{number}/{len(benches)} after {time.monotonic() - began:.0f} s: {bench.name}")
            repeat = 1 if chosen.quick else chosen.repeat or bench.repeat
            outcomes.append(measure(bench, room, repeat=repeat))
            _progress("")
            print(line(outcomes[-1]), flush=True)
    finally:
        shutil.rmtree(shared.directory, ignore_errors=True)
    print(f"{len(benches)} benches in {time.monotonic() - began:.0f} s", flush=True)
    return outcomes


def _progress(text: str) -> None:
    """Print the progress: on a terminal in a temporary line, elsewhere in lines of their own."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(arguments)
    benches = [b for b in discover() if not chosen.names or any(name in b.name for name in chosen.names)]
    if chosen.list:
        for bench in benches:
            print(f"{bench.name:<40} {bench.group}: {bench.title}")
        return 0
    if not benches:
        print("script/bench: Unknown bench. List the benches with --list.", file=sys.stderr)
        return 2
    chosen.directory = chosen.directory.absolute()  # Spark's tasks and TLS refuse a relative path
    chosen.directory.mkdir(parents=True, exist_ok=True)
    machine = describe(chosen.directory)
    print("\n".join(machine), flush=True)
    outcomes = measure_all(benches, chosen)
    failed = any(outcome.error for outcome in outcomes)
    if chosen.write and not failed:
        page = between_markers(PAGE.read_text(encoding="utf-8"), table(outcomes, machine))
        PAGE.write_text(page, encoding="utf-8")
        print(f"written to {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
