"""The work for one message, counted: bounded by its length, however many fields are read.

Steps do not count the work of functions in C: `tests/bench/hostile_input.py` times that.
"""

from __future__ import annotations

import pytest

from tests.helpers.costly_paths import BODIES, BYTES, PATHS, repeated
from tests.helpers.steps import steps_of
from tickertape.payload import Path, message_type, parse_select
from tickertape.payload.limits import path_steps_max, paths_per_reader_max

STEPS_PER_BYTE = 10
"""Of the interpreter, at most, to read any number of fields; 7 today, where each element is an object."""
FIX_STEPS_PER_BYTE = 20
STEPS_BESIDE = 20_000
"""What does not depend on the length of the body."""


@pytest.mark.slow
@pytest.mark.parametrize("paths", PATHS.values(), ids=PATHS)
def test_reading_takes_steps_for_the_length_of_a_body_and_not_for_its_paths(paths: list[Path]) -> None:
    reader = message_type("json").reader(paths)
    reader.decode(b'{"a":[]}')  # what is made late is made
    for name, body in BODIES.items():
        steps = steps_of(lambda: reader.decode(body))  # noqa: B023 -- called at once
        assert steps <= STEPS_PER_BYTE * len(body) + STEPS_BESIDE, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fix", "nvfix"])
@pytest.mark.parametrize("count", [1, 8, paths_per_reader_max])
def test_reading_fix_takes_steps_for_its_length(name: str, count: int) -> None:
    reader = message_type(name).reader([Path((str(n),)) for n in range(1, count + 1)])
    body = repeated(b"1=\x01")[: BYTES // 4 // 3 * 3] + b"1="
    assert steps_of(lambda: reader.decode(body)) <= FIX_STEPS_PER_BYTE * len(body) + STEPS_BESIDE


@pytest.mark.slow
def test_a_selection_takes_steps_for_its_depth_times_the_length_of_a_body() -> None:
    deep = "/a" * path_steps_max
    project = message_type("json").projector(parse_select(f"-/,+{deep}"))
    for name, body in BODIES.items():
        steps = steps_of(lambda: project(body))  # noqa: B023 -- called at once
        assert steps <= path_steps_max * len(body) + STEPS_BESIDE, name
