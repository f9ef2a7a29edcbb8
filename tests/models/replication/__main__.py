"""Table of all variants: `python -m tests.models.replication [SEEDS]`."""

from __future__ import annotations

import argparse
import sys

from tests.models.replication.judge import FAILURES, failures
from tests.models.replication.variants import VARIANTS


def main() -> None:
    """Print the number of schedules with each failure, as a table of Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.models.replication", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=1_000, help="schedules of each variant")
    parser.add_argument("--only", default="", help="variants with this text in their name")
    options = parser.parse_args()
    sys.stdout.write(f"| {options.seeds:,} schedules each | {' | '.join(FAILURES)} |\n")
    sys.stdout.write(f"|---|{'---|' * len(FAILURES)}\n")
    for variant in VARIANTS:
        if options.only in variant.name:
            found = failures(range(options.seeds), variant.rules, variant.setup)
            sys.stdout.write(f"| {variant.name} | {' | '.join(f'{found[kind]:,}' for kind in FAILURES)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
