"""The work for one message: bounded by its length, however many fields are read, whatever it looks like."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from tests.helpers.steps import steps_of
from tickertape.payload import Path, message_type, parse_select
from tickertape.payload.limits import path_steps_max, paths_per_reader_max

BYTES = 64 * 1024


def repeated(piece: bytes) -> bytes:
    return (piece * (BYTES // len(piece)))[:-1]


BODIES = {
    "many names": b"{" + b",".join(b'"k%d":1' % n for n in range(6000)) + b"}",
    "few names, often": b"{" + repeated(b'"a":1,"b":{},') + b"}",
    "empty objects": b'{"a":[' + repeated(b"{},") + b"]}",
    "objects": b'{"a":[' + repeated(b'{"b":1},') + b"]}",
    "arrays in objects": b'{"a":[' + repeated(b'{"a":[{"a":[{"b":1}]}]},') + b"]}",
    "empty arrays": b'{"a":[' + repeated(b"[],") + b"]}",
    "another shape": b'{"a":[1],' + b",".join(b'"f%d":{"b":1}' % n for n in range(4000)) + b"}",
}
PATHS = {
    "many fields": [Path((f"f{n}",)) for n in range(paths_per_reader_max)],
    "many below one": [Path(("a", f"x{n}")) for n in range(paths_per_reader_max)],
    "many elements": [Path(("a", n)) for n in range(paths_per_reader_max)],
    "elements and all": [Path(("a", n, "b")) for n in range(100)] + [Path(("a", "b"))],
    "every depth": [Path(("a",) * n) for n in range(1, path_steps_max + 1)],
    "two forms": [Path(("a", "a", "a", "b")), Path(("a", 0, "a", "a", "b"))],
}


def least(work: Callable[[], object]) -> float:
    """Seconds of this thread, the least of a few runs: the machine may be busy."""
    seconds = []
    for _ in range(4):
        begin = time.thread_time()
        work()
        seconds.append(time.thread_time() - begin)
    return min(seconds)


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


# What functions in C do is not counted in steps: once a night it is timed.


@pytest.mark.full
@pytest.mark.parametrize("paths", PATHS.values(), ids=PATHS)
def test_reading_costs_no_more_than_a_few_decodings_of_the_whole(paths: list[Path]) -> None:
    reader = message_type("json").reader(paths)
    reader.decode(b'{"a":[]}')  # what is made late is made
    for name, body in BODIES.items():
        whole = least(lambda: msgspec.json.decode(body))  # noqa: B023 -- called at once
        reading = least(lambda: reader.decode(body))  # noqa: B023 -- called at once
        assert reading < 12 * whole + 0.001, name


@pytest.mark.full
@pytest.mark.parametrize("name", ["fix", "nvfix"])
@pytest.mark.parametrize("count", [1, 8, paths_per_reader_max])
def test_reading_fix_is_one_pass(name: str, count: int) -> None:
    reader = message_type(name).reader([Path((str(n),)) for n in range(1, count + 1)])
    fields = repeated(b"1=\x01")
    body, half = fields + b"=", fields[: len(fields) // 2 // 3 * 3] + b"1="
    assert least(lambda: reader.decode(body)) < 8 * least(lambda: reader.decode(half)) + 0.001


@pytest.mark.full
def test_a_selection_costs_no_more_than_its_depth_in_decodings() -> None:
    deep = "/a" * path_steps_max
    project = message_type("json").projector(parse_select(f"-/,+{deep}"))
    for name, body in BODIES.items():
        whole = least(lambda: msgspec.json.decode(body))  # noqa: B023 -- called at once
        selecting = least(lambda: project(body))  # noqa: B023 -- called at once
        assert selecting < 2 * path_steps_max * whole + 0.001, name
