"""Owns what a workload asks for: commands and options, drawn by chance, and which pairs of them came up.

Must never send anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import combinations, product
from random import Random
from typing import Any, Final

from tickertape.wire.commands import Command

Options = dict[str, str]
Rows = tuple[tuple[str, tuple[str, ...]], ...]

PUBLISH: Final[Rows] = (
    ("how", ("one", "batch", "transaction", "dropped transaction", "not recorded", "refused")),
    ("life", ("none", "two days")),
    ("label", ("none", "correlation")),
    ("key", ("none", "some")),
    ("size", ("small", "large")),
    ("flushed", ("no", "persisted", "processed")),
)
READ: Final[Rows] = (
    ("command", ("subscribe", "epoch", "most recent", "replay", "range", "positions")),
    ("topic", ("literal", "pattern", "not recorded")),
    ("filter", ("none", "field")),
    ("taken by", ("handler", "stream")),
    ("store", ("none", "memory", "disk")),
    ("discards", ("at once", "late")),
    ("delivery", ("durable", "live", "fully durable")),
    ("pace", ("free", "rate", "short gaps", "paused", "conflated")),
    ("credit", ("default", "small")),
    ("select", ("all", "some")),
    ("times", ("none", "asked")),
    ("on the way", ("nothing", "replaced", "halted")),
    ("beside", ("nothing", "a twin")),
)
CONSUME: Final[Rows] = (
    ("backlog", ("1", "20")),
    ("settles", ("one by one", "in batches", "when full", "by bookmark")),
    ("gives back", ("never", "sometimes", "expires", "sleeps")),
    ("extends", ("never", "sometimes")),
    ("filter", ("none", "field")),
    ("browses", ("never", "sometimes")),
)
PAST: Final = ("replay", "range", "positions")
"""What reads the log as it stands, and ends."""


def _never(one: str, *others: str) -> set[tuple[str, str]]:
    """`one` stands beside none of them."""
    return {(one, other) for other in others}


IMPOSSIBLE: Final = frozenset(
    {
        # A store is for what may be resumed; what reads the past ends with its connection.
        *_never("command=most recent", "store=none"),
        *(
            pair
            for command in PAST
            for pair in _never(
                f"command={command}", "store=memory", "store=disk", "taken by=handler", "delivery=live",
                "discards=late", "topic=not recorded", "on the way=replaced", "on the way=halted",
                "beside=a twin",
            )
        ),
        # What begins with what comes has no place in the log, and what is in no log cannot be read later.
        *_never("command=epoch", "topic=not recorded"),
        *_never("command=most recent", "topic=not recorded"),
        *_never(
            "command=subscribe", "store=memory", "store=disk", "delivery=live", "delivery=fully durable",
            "pace=rate", "pace=short gaps", "pace=paused", "discards=late", "on the way=halted",
        ),
        *_never(
            "delivery=live", "pace=rate", "pace=short gaps", "pace=paused", "pace=conflated",
            "on the way=halted",
        ),
        # Positions are read as they are, with their times.
        *_never(
            "command=positions", "delivery=fully durable", "pace=rate", "pace=short gaps", "pace=paused",
            "pace=conflated", "select=some", "times=none",
        ),
        # Those that have handlers do it.
        *_never("taken by=stream", "on the way=replaced", "on the way=halted", "beside=a twin"),
        # A batch of bodies has nothing beside them.
        *_never("how=batch", "life=two days", "label=correlation", "key=some"),
        # Who keeps no store has nothing to discard; what is conflated is discarded as it comes.
        *_never("store=none", "discards=late"),
        *_never("discards=late", "pace=conflated"),
    }
)  # fmt: skip


def pairs_of(options: Options) -> list[tuple[str, str]]:
    """Every pair of what was chosen."""
    said = [f"{name}={value}" for name, value in options.items()]
    return list(combinations(said, 2))


@cache
def possible(table: Rows) -> list[tuple[str, str]]:
    """Every pair that a table can give: there are options for the rest that stand beside both."""
    return [
        (f"{name}={value}", f"{other}={another}")
        for (name, values), (other, others) in combinations(table, 2)
        for value, another in product(values, others)
        if _any(Random(0), table, {name: value, other: another}) is not None
    ]


def _fits(options: Options, name: str, value: str) -> bool:
    return all(
        (f"{other}={chosen}", f"{name}={value}") not in IMPOSSIBLE for other, chosen in options.items()
    )


def _any(rng: Random, table: Rows, fixed: Options, before: Options | None = None) -> Options | None:
    """One of each, `fixed` ones among them, all of which can stand beside each other; None if there is
    none."""
    before = before or {}
    if len(before) == len(table):
        return before
    name, values = table[len(before)]
    for value in (fixed[name],) if name in fixed else rng.sample(values, len(values)):
        if _fits(before, name, value):
            found = _any(rng, table, fixed, {**before, name: value})
            if found is not None:
                return found
    return None


@cache
def covering(table: Rows) -> list[Options]:
    """Few options among which each possible pair is."""
    rng = Random(0)
    left = set(possible(table))
    found: list[Options] = []
    while left:
        seldom = rng.sample(sorted(left), min(30, len(left)))
        fixed = [dict(said.split("=") for said in pair) for pair in seldom]
        among = [options for one in fixed if (options := _any(rng, table, one)) is not None]
        best = max(among, key=lambda options: len(left.intersection(pairs_of(options))))
        left.difference_update(pairs_of(best))
        found.append(best)
    return found


class Chooser:
    """Draws options for a world, and counts pairs as `pair: a & b`.

    Every other drawing is the next one of those that cover all pairs, so that some worlds in a row have each
    pair; the others are any."""

    def __init__(self, seed: int, rng: Random, counts: Counter[str]) -> None:
        self._seed = seed
        self._rng = rng
        self._counts = counts
        self._drawn: Counter[Rows] = Counter()
        self.fixed: Options = {}
        """Options that everybody chooses."""

    def draw(self, table: Rows, **fixed: str) -> Options:
        """One of each."""
        fixed = {**{name: self.fixed[name] for name, _ in table if name in self.fixed}, **fixed}
        number = self._drawn[table]
        self._drawn[table] += 1
        if (self._seed + number) % 2:
            cover = covering(table)
            drawn = cover[(self._seed // 2 + number // 2 * ((len(cover) + 1) // 2)) % len(cover)]
            if all(drawn[name] == value for name, value in fixed.items()):
                return dict(drawn)
        options = _any(self._rng, table, fixed)
        assert options is not None, f"nothing stands beside {fixed}"
        return options

    def done(self, options: Options) -> None:
        """What was drawn was carried out, and answered."""
        self._counts.update(f"pair: {a} & {b}" for a, b in pairs_of(options))


def missing(counts: Mapping[str, int]) -> list[str]:
    """Pairs and commands that never came up."""
    every = [pair for table in (PUBLISH, READ, CONSUME) for pair in possible(table)]
    wanted = [f"pair: {a} & {b}" for a, b in every] + [f"command: {name}" for name in COMMANDS]
    return [name for name in wanted if not counts.get(name)]


COMMANDS: Final = tuple(sorted(command.__name__ for command in Command.__subclasses__()))
"""All that is said on the wire, by either side."""


def json_body(number: int, by: str, size: str) -> dict[str, Any]:
    """What is published: who and the how many-th it is, and a field to filter on."""
    return {"by": by, "n": number, "even": number % 2 == 0, "pad": "x" * (900 if size == "large" else 5)}


FILTER: Final = "/even = true"
SELECT: Final = ["-/", "+/by", "+/n", "+/even"]
"""Fields that are sent of `json_body` to who asks for some."""
