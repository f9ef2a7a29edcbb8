"""Command line of the comparison: python -m tests.bench.peers [--quick] [--seconds N] [--rows NAME...]"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench.machine import describe
from tests.bench.peers.contenders import CONTENDERS, OURS
from tests.bench.peers.installed import ROOT
from tests.bench.peers.report import PICTURES, between_markers, comparisons, page_part, pictures
from tests.bench.peers.results import Results, load, resumed
from tests.bench.peers.rows import Row, choose
from tests.bench.peers.running import Plan, Run, show_progress

PAGE: Final = ROOT / "docs" / "performance.md"
FILE: Final = ROOT / "build" / "peers.json"
SECONDS: Final = 60.0
TURNS: Final = 3
QUICK_SECONDS: Final = 1.0
QUICK_POINTS: Final = ("depth-1", "depth-256", "sync-6", "proof-synced", "proof-written")
PEERS: Final = tuple(dict.fromkeys(c.peer for c in CONTENDERS if c.name != OURS))
POINT_PART: Final = 6
"""A point of a curve takes this part of a row."""


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/bench peers", description="Measure other brokers beside Tickertape, in turns."
    )
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    parser.add_argument("--quick", action="store_true", help="one short turn of each: does it run?")
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="seconds of a contender in a row (default: 60)"
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only rows with such a name")
    parser.add_argument(
        "--contenders", nargs="+", default=[], choices=PEERS, help="only these beside Tickertape"
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument("--write", action="store_true", help="put tables and pictures into the documentation")
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build" / "peers",
        help="directory of all servers, on the measured disk (default: build/peers)",
    )
    parser.add_argument(
        "--file", type=Path, default=FILE, help="results of the run (default: build/peers.json)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.seconds is not None and chosen.seconds <= 0:
        parser.error("--seconds must be above 0")
    if chosen.write and (chosen.quick or chosen.rows or chosen.contenders):
        parser.error("--write wants all rows, measured in full: no --quick, --rows or --contenders")
    return chosen


def make_plan(chosen: argparse.Namespace) -> Plan:
    """Return the plan of a command line."""
    seconds = chosen.seconds or (QUICK_SECONDS if chosen.quick else SECONDS)
    rows: list[Row] = choose(chosen.rows)
    if chosen.quick and not chosen.rows:
        rows = [row for row in rows if not row.curve or row.name in QUICK_POINTS]
    return Plan(
        rows,
        seconds=seconds,
        point_seconds=seconds if chosen.quick else seconds / POINT_PART,
        turns=1 if chosen.quick else TURNS,
        directory=chosen.directory.absolute(),
        file=chosen.file.absolute(),
        peers=chosen.contenders,
    )


def describe_plan(plan: Plan) -> str:
    """Return rows, contenders, and the time that they take."""
    contenders = sum(len(plan.available(row)[0]) for row in plan.rows)
    minutes = plan.total() / 60
    return (
        f"{len(plan.rows)} rows and points, {contenders} figures of contenders, {plan.seconds:g} s a row and "
        f"{plan.point_seconds:g} s a point: about {minutes:.0f} minutes"
    )


def prepare(chosen: argparse.Namespace, plan: Plan) -> Results:
    """Return the results to start from. Raises `ValueError` if a run cannot continue."""
    settings: dict[str, object] = {
        "seconds": plan.seconds,
        "point_seconds": plan.point_seconds,
        "turns": plan.turns,
    }
    results = resumed(plan.file, settings) if chosen.resume else Results(settings=settings)
    plan.directory.mkdir(parents=True, exist_ok=True)
    if not results.machine:
        results.machine = describe(plan.directory)
        results.machine.append(describe_turns(plan))
    for row in plan.rows:
        for contender in plan.available(row)[0]:
            if contender.name not in results.versions and contender.server.counted:
                results.versions[contender.name] = contender.server.version()
    return results


def describe_turns(plan: Plan) -> str:
    return (
        f"{plan.turns} turn{'s' if plan.turns > 1 else ''} of {plan.seconds / plan.turns:g} s for each "
        f"contender of a row, {plan.point_seconds:g} s for each point of a curve, the first sixth dropped"
    )


def write(results: Results) -> None:
    """Put the tables and the pictures into the documentation."""
    page = between_markers(PAGE.read_text(encoding="utf-8"), page_part(results))
    folder = PAGE.parent / PICTURES
    folder.mkdir(exist_ok=True)
    for old in folder.glob("peers-*.svg"):
        old.unlink()
    for name, picture in pictures(results).items():
        (folder / name).write_text(picture, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(arguments)
    plan = make_plan(chosen)
    if chosen.list:
        for row in plan.rows:
            print(f"{row.name:<24} {row.title}")
        return 0
    if not plan.rows:
        print("script/bench: Unknown row. List the rows with --list.", file=sys.stderr)
        return 2
    try:
        results = prepare(chosen, plan)
    except ValueError as error:
        print(f"script/bench: Cannot resume: {error}.", file=sys.stderr)
        return 2
    print("\n".join([*results.machine, *results.versions.values(), describe_plan(plan)]), flush=True)
    try:
        Run(plan, results, show_progress).perform()
    except KeyboardInterrupt:
        print("\ninterrupted: continue with --resume", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(plan.directory, ignore_errors=True)
    results = load(plan.file)
    show_progress("")
    print(page_part(results))
    failed = [
        f"{row}: {key}: {measured.failed}"
        for row, contenders in results.rows.items()
        for key, measured in contenders.items()
        if measured.failed.startswith("failed")
    ]
    print("\n".join(failed), file=sys.stderr)
    if chosen.write and comparisons(results):
        write(results)
        print(f"written to {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
