"""Compare benches of two checkouts: python -m tests.bench.compare OTHER [--rounds N] [--whole] NAME...

Rounds are interleaved, and the order of the two checkouts alternates, so that both see the same times of the
machine. The result is the median of the ratios of all rounds with a bootstrap 95 % interval. A ratio above 1
means that this checkout is better than OTHER. The exit code is 1 when an interval does not reach 0.98.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tests.bench.registry import Bench, discover
from tests.bench.report import number

HERE: Final = Path(__file__).resolve().parent.parent.parent
ROUND_SECONDS_MAX: Final = 900
RESAMPLES: Final = 10_000
REACHED_MIN: Final = 0.98

_RUN: Final = """
import gc, json, sys, shutil
from pathlib import Path
from tests.bench.__main__ import measure
from tests.bench.registry import LOG_BYTES, LOG_BYTES_QUICK, Room, Shared, discover
directory, quick, names = Path(sys.argv[1]), sys.argv[2] == "quick", sys.argv[3:]
shared = Shared(directory / "shared")
room = Room(directory / "room", quick, shared, LOG_BYTES_QUICK if quick else LOG_BYTES)
for bench in discover():
    if bench.name in names:
        gc.collect()
        gc.freeze()  # a full collection of all imported objects takes 15 ms, and hits one checkout only
        outcome = measure(bench, room, repeat=1)
        if outcome.error:
            sys.exit(f"{bench.name}: {outcome.error}")
        if skipped := getattr(outcome, "skipped", None):  # older checkouts have no skips
            print(f"{bench.name}: {skipped}", file=sys.stderr)
            continue
        print(json.dumps([bench.name, outcome.values[0]]), flush=True)
shutil.rmtree(directory)
"""


def measured(checkout: Path, names: Sequence[str], *, quick: bool) -> dict[str, float]:
    """Return one value of each bench in one checkout. Raises `subprocess.CalledProcessError`."""
    directory = checkout / "build" / "compare"
    directory.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join((str(checkout / "src"), str(checkout)))
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(directory), "quick" if quick else "whole", *names],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=ROUND_SECONDS_MAX,
        check=True,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def ratio(bench: Bench, new: float, old: float) -> float:
    """Return the factor by which `new` is better than `old`."""
    return new / old if bench.higher_is_better else old / new


def interval(ratios: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    values = np.asarray(ratios)
    chosen = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[chosen], axis=1), (2.5, 97.5))
    return float(low), float(high)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.compare", description="Compare with another checkout.")
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("names", nargs="+", metavar="NAME", help="benches whose name contains it")
    parser.add_argument("--rounds", type=int, default=30, help="number of measurements of each (default: 30)")
    parser.add_argument("--whole", action="store_true", help="full counts instead of a twentieth")
    chosen = parser.parse_args(arguments)
    benches = [bench for bench in discover() if any(name in bench.name for name in chosen.names)]
    names = [bench.name for bench in benches]
    readings: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(chosen.rounds):
        order = [HERE, chosen.other.resolve()]
        values = {
            checkout: measured(checkout, names, quick=not chosen.whole)
            for checkout in (order if turn % 2 else reversed(order))
        }
        for name in names:
            if name in values[order[0]] and name in values[order[1]]:
                readings[name].append((values[order[0]][name], values[order[1]][name]))
        print(f"round {turn + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
    reached = True
    print("| measurement | other | this | ratio | 95 % interval |\n|---|---|---|---|---|")
    for bench in benches:
        if not (pairs := readings[bench.name]):
            print(f"| {bench.title} | not measured in both | | | |")
            continue
        ratios = [ratio(bench, new, old) for new, old in pairs]
        low, high = interval(ratios)
        reached &= high >= REACHED_MIN
        old, new = (number(float(np.median([pair[at] for pair in pairs]))) for at in (1, 0))
        middle = float(np.median(ratios))
        print(f"| {bench.title} | {old} {bench.unit} | {new} | {middle:.3f} | {low:.3f} to {high:.3f} |")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
