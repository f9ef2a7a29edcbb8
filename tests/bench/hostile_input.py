"""Bodies and filters built to be slow: the longest time for one message, and for its length.

Tests count the interpreter's steps for the same input. C functions are timed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import msgspec

from tests.bench.registry import Reading, Room, bench
from tests.helpers.costly_filters import accepted_filter, costly_bodies, costly_filters
from tests.helpers.costly_paths import BODIES, PATHS, repeated
from tests.helpers.filter_texts import FilterTexts
from tickertape.filter import compile_filter
from tickertape.payload import Path, message_type, parse_select
from tickertape.payload.limits import path_steps_max, paths_per_reader_max

FILTERS = 200
TRIES = 4


def _least(work: Callable[[], object]) -> float:
    """Return the shortest time of a few runs, in seconds of this thread."""
    seconds = []
    for _ in range(TRIES):
        begin = time.thread_time()
        work()
        seconds.append(time.thread_time() - begin)
    return min(seconds)


@bench(
    "hostile input",
    "filters built to be slow and made by chance, 64 KiB bodies built to be slow: the slowest message",
    unit="ms",
    repeat=1,
    floor=6.5,
    aim=5,
)
def slowest_filter(room: Room) -> Reading:
    kind = message_type("json")
    filters = [compile_filter(text, kind) for text in costly_filters().values()]
    rng = Random("costs")
    texts = FilterTexts(rng.choice)
    filters += [accepted_filter(rng, texts) for _ in range(room.count(FILTERS))]
    bodies = list(costly_bodies(Random(1)).values())
    worst, text = 0.0, ""
    for one in filters:
        for body in bodies:
            spent = _least(lambda: one.select([body]))  # noqa: B023 -- called at once
            worst, text = max((worst, text), (spent, one.text))
    return Reading(worst * 1e3, f"{len(filters)} filters, {len(bodies)} bodies each, {text[:30]}")


def _worst(work: Callable[[bytes], object]) -> float:
    """Return the least ratio, over all bodies, of a decoding of the whole to some work."""
    ratios = []
    for body in BODIES.values():
        whole = _least(lambda: msgspec.json.decode(body))  # noqa: B023 -- called at once
        ratios.append(whole / _least(lambda: work(body)))  # noqa: B023 -- called at once
    return min(ratios)


@bench(
    "hostile input",
    "decoding a JSON body of 64 KiB, against reading the most fields from it",
    unit="x",
    floor=1 / 12,
    aim=1 / 6,
)
def reading_json(_: Room) -> Reading:
    ratios = []
    for paths in PATHS.values():
        reader = message_type("json").reader(paths)
        reader.decode(b'{"a":[]}')  # creates objects on first use
        ratios.append(_worst(reader.decode))
    return Reading(min(ratios), "the worst of all bodies and sets of paths")


@bench(
    "hostile input",
    "decoding a JSON body of 64 KiB, against projecting its deepest field",
    unit="x",
    floor=1 / (2 * path_steps_max),
    aim=1 / path_steps_max,
)
def projecting_json(_: Room) -> Reading:
    deep = "/a" * path_steps_max
    return Reading(_worst(message_type("json").projector(parse_select(f"-/,+{deep}"))), "the worst body")


@bench(
    "hostile input",
    "reading the most fields from half a FIX message, against all of its 64 KiB",
    unit="x",
    floor=1 / 8,
    aim=1 / 3,
)
def reading_fix(_: Room) -> Reading:
    reader = message_type("fix").reader([Path((str(n),)) for n in range(1, paths_per_reader_max + 1)])
    fields = repeated(b"1=\x01")
    whole, half = fields + b"=", fields[: len(fields) // 2 // 3 * 3] + b"1="
    ratio = _least(lambda: reader.decode(half)) / _least(lambda: reader.decode(whole))
    return Reading(ratio, "0.5 is linear")
