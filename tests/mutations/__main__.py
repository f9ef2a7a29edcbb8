"""Mutation tests by hand: `python -m tests.mutations [NAME...]`, `--gate` or `--slice`, else every defect.

Prints the broken guarantee of each, the tier that has to detect it, the time, and the test that did. The exit
code is 1 when a defect survives, shows nothing, or is detected in another tier. It is 2 without any defect.
Must never plant one in the project itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutations.gate import GATE, SLICE
from tests.mutations.harness import MutationError, Noticed, notice
from tests.mutations.mutation import Mutation
from tests.mutations.planted import MUTATIONS

_COLUMNS = "{:<82} {:<13} {:<12} {:>4}  {}"


def main(arguments: Sequence[str]) -> int:
    """Plant the chosen defects, and return the exit code."""
    chosen = list(_chosen(arguments))
    if not chosen:
        print(f"no defect has one of {list(arguments)} in its name")
        return 2
    print(_COLUMNS.format("defect", "breaks", "tier", "s", "noticed by"))
    survivors = elsewhere = broken = 0
    for mutation in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tickertape-mutation-") as scratch:
            try:
                noticed = notice(mutation, Path(scratch))
            except (MutationError, subprocess.TimeoutExpired) as error:
                print(f"{mutation.name}: shows nothing: {error}", flush=True)
                broken += 1
                continue
        survivors += noticed is None
        elsewhere += noticed is not None and noticed.tier != mutation.tier
        print(row(mutation, noticed, time.monotonic() - began), flush=True)
    print(
        f"{survivors} of {len(chosen)} survive, {elsewhere} were noticed in another tier than expected, "
        f"{broken} show nothing"
    )
    return 1 if survivors or elsewhere or broken else 0


def _chosen(arguments: Sequence[str]) -> Iterator[Mutation]:
    named = {"--gate": GATE, "--slice": SLICE}
    exactly = {name for argument in arguments for name in named.get(argument, ())}
    parts = [argument for argument in arguments if argument not in named]
    for mutation in MUTATIONS:
        if not arguments or mutation.name in exactly or any(part in mutation.name for part in parts):
            yield mutation


def row(mutation: Mutation, noticed: Noticed | None, seconds: float) -> str:
    """Return a line of the table."""
    who = "SURVIVES"
    if noticed is not None:
        how = (noticed.how.splitlines() or [""])[0][:90]
        who = f"{noticed.test.removeprefix('tests.')}  {how}"
    return _COLUMNS.format(mutation.name, mutation.promise, mutation.tier, f"{seconds:.0f}", who)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
