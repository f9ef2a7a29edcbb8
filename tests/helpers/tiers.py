"""Tiers: divides a test with many parts between every run and `script/test --full`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest


def parts(count: int, every_run: int = 1) -> list[Any]:
    """Return `range(count)` for `parametrize`. Numbers from `every_run` on run only in the full tier."""
    return [n if n < every_run else pytest.param(n, marks=pytest.mark.full) for n in range(count)]


def seeds_of(part: range, counts: Counter[str], least: Mapping[str, int]) -> Iterator[int]:
    """Generate the seeds of one part of a simulation that counts its events.

    The part with seed 0, which every run has, requires each event as often as `least` says: it continues with
    further seeds until then, up to three times its size. Another part may miss a rare event.
    """
    yield from part
    seed = part.stop
    while part.start == 0 and (seldom := [event for event in least if counts[event] < least[event]]):
        assert seed < 3 * part.stop, f"too seldom to show anything about it: {seldom}, {dict(counts)}"
        yield seed
        seed += 1
