"""Owns what a workload asks for: commands and options, drawn by chance, and which pairs of them came up.

Must never send anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from random import Random
from typing import Any, Final

Options = dict[str, str]
Table = Mapping[str, tuple[str, ...]]

PUBLISH: Final[Table] = {
    "how": ("one", "batch", "transaction"),
    "life": ("none", "two days"),
    "label": ("none", "correlation"),
    "key": ("none", "some"),
    "size": ("small", "large"),
}
READ: Final[Table] = {
    "command": ("subscribe", "epoch", "most recent", "replay"),
    "topic": ("literal", "pattern"),
    "filter": ("none", "field"),
    "taken by": ("handler", "stream"),
    "store": ("none", "memory", "disk"),
    "discards": ("at once", "late"),
    "delivery": ("durable", "live", "fully durable"),
    "pace": ("free", "rate", "paused"),
    "credit": ("default", "small"),
    "select": ("all", "some"),
}
CONSUME: Final[Table] = {
    "backlog": ("1", "20"),
    "settles": ("one by one", "in batches", "when full"),
    "gives back": ("never", "sometimes", "expires", "sleeps"),
    "extends": ("never", "sometimes"),
    "filter": ("none", "field"),
}

IMPOSSIBLE: Final = frozenset(
    {
        # A store is for what may be resumed; a replay ends with its connection, and has no handler.
        ("command=subscribe", "store=memory"),
        ("command=subscribe", "store=disk"),
        ("command=most recent", "store=none"),
        ("command=replay", "store=memory"),
        ("command=replay", "store=disk"),
        ("command=replay", "taken by=handler"),
        ("command=replay", "delivery=live"),
        # What begins with what comes has no place in the log.
        ("command=subscribe", "delivery=live"),
        ("command=subscribe", "delivery=fully durable"),
        ("command=subscribe", "pace=rate"),
        ("command=subscribe", "pace=paused"),
        ("delivery=live", "pace=rate"),
        ("delivery=live", "pace=paused"),
        # A batch of bodies has nothing beside them.
        ("how=batch", "life=two days"),
        ("how=batch", "label=correlation"),
        ("how=batch", "key=some"),
        # Who keeps no store has nothing to discard.
        ("store=none", "discards=late"),
        ("command=subscribe", "discards=late"),
        ("command=replay", "discards=late"),
    }
)


def pairs_of(options: Options) -> list[tuple[str, str]]:
    """Every pair of what was chosen."""
    said = [f"{name}={value}" for name, value in options.items()]
    return list(combinations(said, 2))


def possible(table: Table) -> list[tuple[str, str]]:
    """Every pair that a table can give."""
    found = []
    for (name, values), (other, others) in combinations(table.items(), 2):
        found += [(f"{name}={value}", f"{other}={another}") for value in values for another in others]
    return [pair for pair in found if pair not in IMPOSSIBLE]


def _fits(options: Options, name: str, value: str) -> bool:
    return all(
        (f"{other}={chosen}", f"{name}={value}") not in IMPOSSIBLE for other, chosen in options.items()
    )


class Chooser:
    """Draws options, and counts pairs as `pair: a & b`."""

    def __init__(self, rng: Random, counts: Counter[str]) -> None:
        self._rng = rng
        self._counts = counts

    def draw(self, table: Table, **fixed: str) -> Options:
        """One of each, in the order of the table: any that can stand beside those before it."""
        options: Options = {}
        for name, values in table.items():
            can = [fixed[name]] if name in fixed else [v for v in values if _fits(options, name, v)]
            options[name] = self._rng.choice(can)
        return options

    def done(self, options: Options) -> None:
        """What was drawn was carried out, and answered."""
        self._counts.update(f"pair: {a} & {b}" for a, b in pairs_of(options))


def missing(counts: Mapping[str, int]) -> list[str]:
    """Pairs that never came up."""
    every = [pair for table in (PUBLISH, READ, CONSUME) for pair in possible(table)]
    return [f"{a} & {b}" for a, b in every if not counts.get(f"pair: {a} & {b}")]


def json_body(number: int, by: str, size: str) -> dict[str, Any]:
    """What is published: who and the how many-th it is, and a field to filter on."""
    return {"by": by, "n": number, "even": number % 2 == 0, "pad": "x" * (900 if size == "large" else 5)}


FILTER: Final = "/even = true"
SELECT: Final = ["-/", "+/by", "+/n", "+/even"]
"""Fields that are sent of `json_body` to who asks for some."""
