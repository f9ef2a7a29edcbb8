"""Interpreter steps for one message: bounded by body length, not by the number of fields.

Steps do not count the work of functions in C: `tests/bench/hostile_input.py` times that.
"""

from __future__ import annotations

import pytest

from tests.helpers.costly_paths import BODIES, BYTES, PATHS, repeated
from tests.helpers.steps import steps_of
from tickertape.payload import Path, message_type, parse_select
from tickertape.payload.limits import path_steps_max, paths_per_reader_max

STEPS_PER_BYTE = 10
"""Maximum interpreter steps to read any number of fields (7 today, with objects as elements)."""
FIX_STEPS_PER_BYTE = 20
STEPS_BESIDE = 20_000
"""Steps that do not depend on the length of the body."""


@pytest.mark.slow
@pytest.mark.parametrize("paths", PATHS.values(), ids=PATHS)
def test_json_reader_steps_grow_with_body_length_and_not_with_paths(paths: list[Path]) -> None:
    reader = message_type("json").reader(paths)
    reader.decode(b'{"a":[]}')  # creates the lazy parts first
    for name, body in BODIES.items():
        steps = steps_of(lambda: reader.decode(body))  # noqa: B023 -- called at once
        assert steps <= STEPS_PER_BYTE * len(body) + STEPS_BESIDE, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fix", "nvfix"])
@pytest.mark.parametrize("count", [1, 8, paths_per_reader_max])
def test_fix_reader_steps_grow_with_body_length(name: str, count: int) -> None:
    reader = message_type(name).reader([Path((str(n),)) for n in range(1, count + 1)])
    body = repeated(b"1=\x01")[: BYTES // 4 // 3 * 3] + b"1="
    assert steps_of(lambda: reader.decode(body)) <= FIX_STEPS_PER_BYTE * len(body) + STEPS_BESIDE


@pytest.mark.slow
def test_projection_steps_grow_with_depth_times_body_length() -> None:
    deep = "/a" * path_steps_max
    project = message_type("json").projector(parse_select(f"-/,+{deep}"))
    for name, body in BODIES.items():
        steps = steps_of(lambda: project(body))  # noqa: B023 -- called at once
        assert steps <= path_steps_max * len(body) + STEPS_BESIDE, name
