"""Fuzzing with seeded mutations of valid input: targets cause only their allowed exceptions.

The counts are small here, and larger with --full. `python -m tests.fuzz` continues for any length of time,
guided by coverage if that library is installed.
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
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.corpora import (
    CORPORA,
    CORPORA_BYTES_MAX,
    CORPUS,
    INPUT_BYTES_MAX,
    committed,
    made,
)
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target, taken
from tests.fuzz.targets import TARGETS
from tests.helpers.processes import source_environment
from tests.helpers.steps import steps_of
from tickertape.base.errors import BadFilter, BadTopic, TickertapeError
from tickertape.base.limits import frame_bytes_max
from tickertape.filter.limits import pattern_steps_max

CASES = 1000
"""Runs of the cheapest target. A costly one has fewer."""
FULL_FACTOR = 100
NAMED = ("frame_reader", "wire_server", "batch", "filter_text", "segment", "config")
"""External input has more runs: frames, messages, filters, segments and configuration."""
NAMED_CASES_FULL = 300_000
COVERAGE_SECONDS = 30
SECONDS_MAX = 0.05
"""Maximum processor time of one input, checked with --full only."""
STEPS_MAX = 40 * pattern_steps_max
"""Python instructions that one input may take, counted for one in `STEPPED`. Regular expressions take most:
up to `pattern_steps_max` steps of some 30 instructions."""
STEPS_A_BYTE_MAX = 1_000
"""Beside these, for each byte of the input: filters take about 550."""
STEPPED = 32
BYTES_MAX = frame_bytes_max + (1 << 20)
"""Maximum memory of one input, including the buffer of the largest frame. Measured for one of `MEASURED`
inputs, because measuring is slow.
"""
MEASURED = 8
KEPT_MIN = 10
"""A target with fewer committed inputs has no corpus, only inputs that once found a defect."""


def cases(name: str, *, full: bool) -> int:
    if full and name in NAMED:
        return NAMED_CASES_FULL
    return max(CASES // TARGETS[name].cost, 20) * (FULL_FACTOR if full else 1)


def inputs(name: str, seed: int, count: int) -> Iterator[bytes]:
    """Generate mutations of valid and committed input, most with corrected checksums."""
    target = TARGETS[name]
    good = target.seeds()
    kept = committed(name)
    rng = Random(f"{name} {seed}")
    for _ in range(count):
        seeds = kept if len(kept) >= KEPT_MIN and rng.random() < 0.4 else good
        data = mutated(rng.choice(seeds), good, target.words, rng)
        yield target.mend(data) if rng.random() < 0.8 else data


def seconds_of(run: Callable[[bytes], str], data: bytes) -> float:
    begin = time.thread_time()
    run(data)
    return time.thread_time() - begin


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(TARGETS))
def test_target_with_mutated_input_raises_only_allowed_exceptions(name: str, full: bool) -> None:
    target = TARGETS[name]
    outcomes: Counter[str] = Counter()
    for number, data in enumerate(inputs(name, 1, cases(name, full=full))):
        begin = time.thread_time()
        try:
            outcomes[target.outcome(data)] += 1
            # The first input creates shared objects. An input that is slow by itself is slow on repetition.
            if full and time.thread_time() - begin > SECONDS_MAX:
                assert min(seconds_of(target.outcome, data) for _ in range(3)) <= SECONDS_MAX
        except BaseException:
            print(f"case {number} of {name}: bytes.fromhex({data.hex()!r})")
            raise
    assert len(outcomes) > 1, "the mutations are neither all valid nor all invalid"
    assert max(outcomes.values()) < 0.98 * outcomes.total()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_target_with_mutated_input_runs_in_bounded_steps(name: str, full: bool) -> None:
    run = TARGETS[name].outcome
    run(next(inputs(name, 3, 1)))  # creates shared objects
    for data in inputs(name, 3, max(cases(name, full=full) // STEPPED, 10)):
        most = STEPS_MAX + STEPS_A_BYTE_MAX * len(data)
        assert steps_of(lambda: run(data)) <= most, data.hex()  # noqa: B023 -- called at once


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_target_with_mutated_input_uses_bounded_memory(name: str, full: bool) -> None:
    run = TARGETS[name].outcome
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
def test_target_with_valid_input_accepts_unchanged_input(name: str) -> None:
    target = TARGETS[name]
    for data in target.seeds():
        target.outcome(data)
        assert target.mend(data) == data, "mending leaves valid input unchanged"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_target_with_committed_corpus_raises_only_allowed_exceptions(name: str, full: bool) -> None:
    """Inputs that are hostile or once found a defect. Each allowed exception occurs."""
    target, refused = TARGETS[name], set[type]()
    for path in sorted((CORPUS / name).glob("*.bin")):
        data = path.read_bytes()
        try:
            if full and seconds_of(target.outcome, data) > SECONDS_MAX:
                assert min(seconds_of(target.outcome, data) for _ in range(3)) <= SECONDS_MAX
            target.run(data)
        except target.allowed as error:
            refused.add(type(error))
        except BaseException:
            print(path)
            raise
    if name in chain.from_iterable(CORPORA.values()):
        assert not [kind for kind in target.allowed if not any(issubclass(one, kind) for one in refused)]


def test_corpus_directories_belong_to_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= {*TARGETS}


@pytest.mark.parametrize("what", list(CORPORA))
def test_corpus_of_each_external_input_has_valid_and_hostile_files(what: str) -> None:
    for name in CORPORA[what]:
        names = [path.name for path in (CORPUS / name).iterdir()]
        assert sum(file.startswith("good-") for file in names)
        assert sum(file.startswith("hostile-") for file in names) >= 10


def test_corpus_files_are_below_the_size_limits() -> None:
    sizes = [path.stat().st_size for path in CORPUS.rglob("*.bin")]
    assert max(sizes) < INPUT_BYTES_MAX
    assert sum(sizes) < CORPORA_BYTES_MAX


def test_corpus_generated_twice_is_equal() -> None:
    for name in chain.from_iterable(CORPORA.values()):
        seeds = TARGETS[name].seeds()
        assert made(name, seeds) == made(name, seeds)
        assert all(data in seeds for file, data in made(name, seeds).items() if file.startswith("good-"))


def test_targets_allow_only_specific_product_errors() -> None:
    """An allowed exception must never be so general that a defect passes for a refusal."""
    for target in TARGETS.values():
        for kind in target.allowed:
            assert issubclass(kind, TickertapeError | ValueError), kind
            assert kind is not TickertapeError


def _raising(error: Exception) -> Target:
    def run(data: bytes) -> str:
        raise error

    return Target(run, list, allowed=(BadFilter,))


def test_target_raises_exceptions_that_are_not_allowed() -> None:
    assert _raising(BadFilter("x", 0)).outcome(b"") == "bad_filter"
    for error in (ValueError("x"), AssertionError(), BadTopic("x")):
        with pytest.raises(type(error)):
            _raising(error).outcome(b"")


def test_target_error_after_acceptance_is_a_defect() -> None:
    def run(data: bytes) -> str:
        with taken():
            raise BadFilter("x")

    with pytest.raises(AssertionError):
        Target(run, list, allowed=(BadFilter,)).outcome(b"")


def test_target_allowed_error_with_long_or_unprintable_text_is_a_defect() -> None:
    for text in ("x" * 5000, "\x1b[2J"):
        with pytest.raises(AssertionError):
            _raising(BadFilter(text, 0)).outcome(b"")


@pytest.mark.full
@pytest.mark.parametrize("name", list(TARGETS))
def test_target_with_coverage_guided_fuzzing_finds_no_defect(name: str, tmp_path: Path) -> None:
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
    assert "Done " in done.stderr, "the run was complete"
