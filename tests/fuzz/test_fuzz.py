"""Input that nobody would send, made from good input by chance of a seed: nothing but what a target allows.

The counts are small here and larger with --full; `python -m tests.fuzz` goes on for as long as it is told,
guided by coverage where the library for that is installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS
from tests.helpers.processes import source_environment
from tickertape.base.limits import frame_bytes_max

CORPUS = Path(__file__).parent / "corpus"
CASES = 2000
"""Runs of the cheapest target; a costly one has fewer."""
FULL_FACTOR = 50
COVERAGE_SECONDS = 30
SECONDS_MAX = 0.05
"""Time of the processor that one input may take."""
BYTES_MAX = frame_bytes_max + (1 << 20)
"""Memory that one input may take, the room that the largest frame asks for with its first bytes included;
measured for one in `MEASURED`, because measuring slows everything."""
MEASURED = 8


def cases(name: str, *, full: bool) -> int:
    return max(CASES // TARGETS[name].cost, 20) * (FULL_FACTOR if full else 1)


def inputs(name: str, seed: int, count: int) -> Iterator[bytes]:
    """Good input with mutations; most with their checksums put right."""
    target = TARGETS[name]
    seeds = target.seeds()
    rng = Random(f"{name} {seed}")
    for _ in range(count):
        data = mutated(rng.choice(seeds), seeds, target.words, rng)
        yield target.mend(data) if rng.random() < 0.8 else data


def seconds_of(run: Callable[[bytes], str], data: bytes) -> float:
    begin = time.thread_time()
    run(data)
    return time.thread_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_nothing_but_what_is_allowed_comes_of_bad_input(name: str, full: bool) -> None:
    target = TARGETS[name]
    outcomes: Counter[str] = Counter()
    for number, data in enumerate(inputs(name, 1, cases(name, full=full))):
        begin = time.thread_time()
        try:
            outcomes[target.run(data)] += 1
            # The first of all makes what the others use; what is slow by itself is slow again.
            if time.thread_time() - begin > SECONDS_MAX:
                assert min(seconds_of(target.run, data) for _ in range(3)) <= SECONDS_MAX
        except BaseException:
            print(f"case {number} of {name}: bytes.fromhex({data.hex()!r})")
            raise
    assert len(outcomes) > 1, "what it makes is neither all good nor all hopeless"
    assert max(outcomes.values()) < 0.98 * outcomes.total()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_no_input_takes_much_memory(name: str, full: bool) -> None:
    run = TARGETS[name].run
    tracemalloc.start()
    try:
        for data in inputs(name, 2, max(cases(name, full=full) // MEASURED, 10)):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            run(data)
            assert tracemalloc.get_traced_memory()[1] - before <= BYTES_MAX, data.hex()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", list(TARGETS))
def test_good_input_passes(name: str) -> None:
    target = TARGETS[name]
    for data in target.seeds():
        target.run(data)
        assert target.mend(data) == data, "mending changes nothing in what is whole"


@pytest.mark.parametrize(
    "path", sorted(CORPUS.rglob("*.bin")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_what_once_was_a_defect_is_none_any_more(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.full
@pytest.mark.parametrize("name", list(TARGETS))
def test_coverage_finds_nothing_either(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install -e '.[fuzz]')")
    environment = source_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, str(COVERAGE_SECONDS)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr, "it ran to its end"
