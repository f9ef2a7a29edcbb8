"""Manual fuzzing for any length of time: `python -m tests.fuzz TARGET [SECONDS]`, `all` for each.

Guided by coverage with atheris (`pip install -e '.[fuzz]'`), random without it. A defect ends the run: the
input is written to the working directory, and belongs into `corpus/TARGET/` after the correction. Must never
import the package before it can be instrumented.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.target import Target

SECONDS_DEFAULT: Final = 60
INPUT_BYTES_MAX: Final = 1 << 16


def main(arguments: list[str]) -> int:
    """Run the targets. Return the exit code, 0 without a defect."""
    if not arguments:
        print(__doc__)
        return 2
    name, seconds = arguments[0], int(arguments[1]) if len(arguments) > 1 else SECONDS_DEFAULT
    if name == "all":
        return _all(seconds)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: by chance, without coverage")
        _by_chance(name, seconds)
        return 0
    _by_coverage(name, seconds)
    return 0


def _all(seconds: int) -> int:
    from tests.fuzz.targets import TARGETS

    for name in TARGETS:
        print(f"-- {name}", flush=True)
        code = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", name, str(seconds)], check=False
        ).returncode
        if code:
            return code
    return 0


def _by_chance(name: str, seconds: int) -> None:
    from tests.fuzz.corpora import committed
    from tests.fuzz.mutations import mutated
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    seeds = [*target.seeds(), *committed(name)]
    seed = int.from_bytes(os.urandom(4), "little")
    rng = Random(seed)
    until = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < until:
        data = target.mend(mutated(rng.choice(seeds), seeds, target.words, rng))
        Path("crash-last").write_bytes(data)
        target.outcome(data)
        runs += 1
    Path("crash-last").unlink(missing_ok=True)
    print(f"{name}: {runs} runs of seed {seed}, nothing found")


def _by_coverage(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["tickertape"]):
        from tests.fuzz.corpora import committed
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    seeds = [*target.seeds(), *committed(name)]
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "found"
        found.mkdir()
        for number, seed in enumerate(seeds):
            (found / f"seed-{number}").write_bytes(seed)
        flags = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-rss_limit_mb=4096"]
        atheris.Setup([name, *flags, str(found)], target.outcome, custom_mutator=_mutator(target, seeds))
        atheris.Fuzz()  # ends the process


def _mutator(target: Target, seeds: Sequence[bytes]) -> object:
    """Mutate mostly as libFuzzer does, sometimes by our mutations, then correct checksums, which block every
    path.
    """
    import atheris

    from tests.fuzz.mutations import mutated

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.7:
            changed = bytes(atheris.Mutate(data, size_max))
        else:
            changed = mutated(data, seeds, target.words, rng)
        return target.mend(changed)[:size_max]

    return mutate


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
