"""No accepted filter takes long for any message: steps are counted, time is measured against a known loop."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from functools import cache
from random import Random
from types import FrameType
from typing import Any

import pytest

from tests.helpers.costly_filters import BODY_BYTES, costly_bodies, costly_filters
from tests.helpers.filter_texts import FilterTexts
from tickertape.base.errors import BadFilter
from tickertape.filter import Filter, compile_filter
from tickertape.payload import message_type

PAIRS = 150
FULL_PAIRS = 20_000
SECONDS_MAX = 0.005
REFERENCE_SECONDS = 0.00042
"""What `reference` takes on the machine that the figures are from, when it has nothing else to do."""
STEPS_PER_BYTE = 4
STEPS_PER_PART = 400


@cache
def bodies() -> dict[str, bytes]:
    return costly_bodies(Random(1))


@cache
def filters() -> dict[str, Filter]:
    kind = message_type("json")
    return {name: compile_filter(text, kind) for name, text in costly_filters().items()}


def steps_of(run: Any) -> int:
    """Lines of Python that a call executes, those of loops each time."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", list(costly_filters()))
def test_the_steps_grow_with_the_body_and_not_with_its_pairs(name: str, full: bool) -> None:
    found = filters()[name]
    found.select([b"{}"])
    some = set(bodies()) if full else {"ones", "numeric texts", "mixed", "one hash", "wide"}
    for kind, body in bodies().items():
        if kind not in some:
            continue
        assert len(body) <= BODY_BYTES
        steps = steps_of(lambda body=body: found.select([body]))
        assert steps <= STEPS_PER_BYTE * BODY_BYTES + STEPS_PER_PART * found.work, (kind, steps)


def reference() -> float:
    """A loop of which the machine does always the same."""
    begin = time.thread_time()
    total = 0
    for number in range(10_000):
        total += number & 7
    assert total
    return time.thread_time() - begin


@pytest.fixture
def no_collections() -> Iterator[None]:
    """A collection would go through everything else that lives in the process of the tests."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def seconds_of(found: Filter, body: bytes) -> float:
    """The best of three, as it were on a machine that does nothing else."""
    best = 1e9
    for _ in range(3):
        slowness = reference() / REFERENCE_SECONDS
        begin = time.thread_time()
        found.select([body])
        spent = time.thread_time() - begin
        slowness = max(1.0, slowness, reference() / REFERENCE_SECONDS)
        best = min(best, spent / slowness)
    return best


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_collections")
def test_no_accepted_filter_takes_longer_than_five_milliseconds_for_a_message(full: bool) -> None:
    """R13: the costly ones with each body, then made by chance."""
    rng = Random("costs 1")
    texts = FilterTexts(rng.choice)
    every = list(bodies().values())
    slow = []
    for _ in range(FULL_PAIRS if full else PAIRS):
        found = rng.choice(list(filters().values()))
        if rng.random() < 0.4:
            joined = rng.choice([" AND ", " OR "]).join(texts.filter() for _ in range(rng.randrange(1, 9)))
            try:
                found = compile_filter(joined, message_type("json"))
            except BadFilter:
                continue
        body = rng.choice(every)
        spent = seconds_of(found, body)
        # Others use the machine too: what is slow is slow again.
        if spent > SECONDS_MAX and min(seconds_of(found, body) for _ in range(3)) > SECONDS_MAX:
            slow.append((round(spent * 1e3, 1), found.text[:60], body[:20]))
    assert not slow, slow
