"""Plants every defect, one after the other, and prints who noticed: python -m tests.mutations [NAME...]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.harness import notice
from tests.mutations.planted import MUTATIONS


def main(names: list[str]) -> int:
    survivors = 0
    for mutation in MUTATIONS:
        if names and not any(name in mutation.name for name in names):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tickertape-mutation-") as scratch:
            noticed = notice(mutation, Path(scratch))
        survivors += noticed is None
        who = "SURVIVES" if noticed is None else noticed.test.removeprefix("tests.")
        how = "" if noticed is None else noticed.how.splitlines()[0][:90]
        print(f"{mutation.name:<72} {time.monotonic() - began:4.0f} s  {who}  {how}", flush=True)
    print(f"{survivors} of {len(MUTATIONS)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
