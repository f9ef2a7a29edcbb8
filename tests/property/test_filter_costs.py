"""No accepted filter takes long for any message: its steps are counted.

Steps do not count the work of functions in C: `tests/bench/hostile_input.py` times that.
"""

from __future__ import annotations

import sys
from functools import cache
from random import Random
from types import FrameType
from typing import Any

import pytest

from tests.helpers.costly_filters import BODY_BYTES, accepted_filter, costly_bodies, costly_filters
from tests.helpers.filter_texts import FilterTexts
from tickertape.filter import Filter, compile_filter
from tickertape.payload import message_type

STEPPED = 8
STEPPED_FULL = 1_000
"""Filters made by chance whose steps are counted, with every body."""
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
    """Return the lines of Python that a call executes, those of loops each time."""
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
def test_filter_steps_grow_with_the_body_and_not_with_pairs_of_values(name: str, full: bool) -> None:
    found = filters()[name]
    found.select([b"{}"])
    some = set(bodies()) if full else {"ones", "numeric texts", "mixed", "one hash", "wide"}
    for kind, body in bodies().items():
        if kind not in some:
            continue
        assert len(body) <= BODY_BYTES
        steps = steps_of(lambda body=body: found.select([body]))
        assert steps <= STEPS_PER_BYTE * BODY_BYTES + STEPS_PER_PART * found.work, (kind, steps)


@pytest.mark.slow
def test_random_filter_steps_grow_with_the_body(full: bool) -> None:
    rng = Random("steps")
    texts = FilterTexts(rng.choice)
    for _ in range(STEPPED_FULL if full else STEPPED):
        found = accepted_filter(rng, texts)
        found.select([b"{}"])
        for kind, body in bodies().items():
            steps = steps_of(lambda body=body: found.select([body]))  # noqa: B023 -- called at once
            assert steps <= STEPS_PER_BYTE * BODY_BYTES + STEPS_PER_PART * found.work, (found.text, kind)
