"""Random choice of commands and options for workloads, and the covered pairs of options.

Must never send anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import combinations, product
from random import Random
from typing import Any, Final

from tickertape.wire.commands import ClientCommand, ServerCommand

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
CHANGE: Final[Rows] = (
    ("how", ("upsert", "batch", "delta", "delete by keys", "delete by filter", "delete by data")),
    ("topic", ("generated", "explicit", "pattern", "expiring")),
    ("life", ("none", "short", "two days")),
    ("size", ("small", "large")),
    ("answer", ("awaited", "not awaited")),
)
"""Changes of records. `answer`: of a delete, or of a flush."""
QUERY: Final[Rows] = (
    ("command", ("sow", "sow_and_subscribe")),
    ("topic", ("generated", "explicit", "pattern", "one of a pattern", "expiring")),
    ("filter", ("none", "field")),
    ("keys", ("all", "some")),
    ("order", ("none", "values", "texts descending")),
    ("top", ("all", "some")),
    ("skip", ("none", "some")),
    ("batch", ("server", "one", "seven")),
    ("select", ("all", "some")),
    ("times", ("none", "asked")),
    ("credit", ("default", "small")),
    ("taken by", ("handler", "stream")),
    ("store", ("none", "memory")),
)
"""Queries of records."""
TABLES: Final = (PUBLISH, READ, CONSUME)
SOW_TABLES: Final = (CHANGE, QUERY)
PAST: Final = ("replay", "range", "positions")
"""Commands that read the stored log and end."""


def _never(one: str, *others: str) -> set[tuple[str, str]]:
    """Return the pairs of `one` with each of the others, which exclude each other."""
    return {(one, other) for other in others}


IMPOSSIBLE: Final = frozenset(
    {
        # A store requires a resumable subscription. A replay ends with its connection.
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
        # A non-persistent topic has no stored messages, and a subscription to new messages has no start
        # point.
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
        # Only a store can discard messages. Conflated messages are discarded on arrival.
        *_never("store=none", "discards=late"),
        *_never("discards=late", "pace=conflated"),
        # A batch has no keys and no lifetimes. A delete has no body, except by data.
        *_never("how=batch", "topic=explicit", "life=short", "life=two days"),
        *(
            pair
            for how in ("keys", "filter", "data")
            for pair in _never(f"how=delete by {how}", "life=short", "life=two days", "size=large")
        ),
        *_never("how=delete by data", "topic=explicit"),
        # Only following queries have handlers and stores. Only a result on its own has keys.
        *_never("command=sow", "taken by=handler", "store=memory"),
        *_never("command=sow_and_subscribe", "keys=some"),
        *_never("top=all", "skip=some"),
    }
)  # fmt: skip


def pairs_of(options: Options) -> list[tuple[str, str]]:
    """Return every pair of chosen options."""
    said = [f"{name}={value}" for name, value in options.items()]
    return list(combinations(said, 2))


@cache
def possible(table: Rows) -> list[tuple[str, str]]:
    """Return every pair of options that a table allows together."""
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
    """Return one allowed choice per option that includes `fixed`. None: no such choice exists."""
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
    """Draws options for a simulation, and counts pairs as `pair: a & b`.

    Every other draw is the next of a list that covers all pairs, so that consecutive simulations have each
    pair. The other draws are random.
    """

    def __init__(self, seed: int, rng: Random, counts: Counter[str]) -> None:
        self._seed = seed
        self._rng = rng
        self._counts = counts
        self._drawn: Counter[Rows] = Counter()
        self.fixed: Options = {}
        """Options that every application uses."""

    def draw(self, table: Rows, **fixed: str) -> Options:
        """Return one value of each option."""
        fixed = {**{name: self.fixed[name] for name, _ in table if name in self.fixed}, **fixed}
        number = self._drawn[table]
        self._drawn[table] += 1
        if (self._seed + number) % 2:
            cover = covering(table)
            drawn = cover[(self._seed // 2 + number // 2 * ((len(cover) + 1) // 2)) % len(cover)]
            if all(drawn[name] == value for name, value in fixed.items()):
                return dict(drawn)
        options = _any(self._rng, table, fixed)
        assert options is not None, f"no options fit {fixed}"
        return options

    def done(self, options: Options) -> None:
        """Count the pairs of options of a completed command."""
        self._counts.update(f"pair: {a} & {b}" for a, b in pairs_of(options))


def missing(counts: Mapping[str, int], tables: tuple[Rows, ...] = TABLES + SOW_TABLES) -> list[str]:
    """Return pairs of `tables` and commands that did not occur."""
    every = [pair for table in tables for pair in possible(table)]
    commands = [name for name in COMMANDS if (SOW_TABLES if name in SOW_COMMANDS else TABLES)[0] in tables]
    wanted = [f"pair: {a} & {b}" for a, b in every] + [f"command: {name}" for name in commands]
    return [name for name in wanted if not counts.get(name)]


SOW_COMMANDS: Final = frozenset({"Sow", "GroupBegin", "Records", "GroupEnd", "Deleted"})
"""Commands for records."""
COMMANDS: Final = tuple(sorted(kind.__name__ for kind in {*ClientCommand.__args__, *ServerCommand.__args__}))
"""All commands of the wire, of both sides."""


def json_body(number: int, by: str, size: str) -> dict[str, Any]:
    """Return the body of a message: publisher, number, and a field for filters."""
    return {"by": by, "n": number, "even": number % 2 == 0, "pad": "x" * (900 if size == "large" else 5)}


FILTER: Final = "/even = true"
SELECT: Final = ["-/", "+/by", "+/n", "+/even"]
"""Selected fields of `json_body`."""
