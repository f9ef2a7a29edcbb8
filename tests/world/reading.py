"""One reading of a simulation: its options, and the messages that the application received.

Must never request anything itself, nor judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

import tickertape as tt
from tests.world.apps import TOPICS, UNRECORDED, Seen
from tests.world.choices import FILTER, PAST, SELECT, Options

PATTERN: Final = "^[ab]$"
RATE: Final = 200
"""Messages a second, of those who ask for a rate."""


class Asked(NamedTuple):
    """When a reading of the past was asked for."""

    length: int
    """Length of the log."""
    at: float
    """Seconds of the loop."""


@dataclass
class Reading:
    """One subscription or reading of the past."""

    options: Options
    topic: str
    sub_id: str
    start: str = tt.EPOCH
    """Where a reading of the past begins."""
    behind: bytes | None = None
    """Body of the message after which it starts. None: the start of the log."""
    until: bytes | None = None
    """Body of the last message of a bounded range, which then includes `behind`."""
    seen: list[Seen] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    """Where in `seen` each of its streams begins."""
    asked: Asked | None = None
    """Of a reading of the past: when it was asked for the last time."""
    whole: bool = False
    """For a replay: whether it is complete."""
    wrong: list[bytes] = field(default_factory=list)
    """Bodies with something else than it asked for."""
    lives: list[int] = field(default_factory=list)
    """Indexes in `seen` at which a process starts without knowledge of earlier messages."""
    moments: list[float] = field(default_factory=list)
    """Arrival time of each of `seen`."""
    late: list[tuple[bytes, tt.Message]] = field(default_factory=list)
    """Messages that it will discard, and their bodies."""
    discarded: set[bytes] = field(default_factory=set)
    final: int | None = None
    """For a plain subscription: messages seen before it was placed after the last fault."""

    @property
    def plain(self) -> bool:
        """Return whether it starts with new messages."""
        return self.options["command"] == "subscribe"

    @property
    def past(self) -> bool:
        """Return whether it ends with the stored messages."""
        return self.options["command"] in PAST

    @property
    def conflated(self) -> bool:
        """Return whether newer messages may replace older ones."""
        return self.options["pace"] == "conflated"

    def forget(self, *, all_discarded_again: bool) -> None:
        """Handle the end of the reading process."""
        if self.options["store"] != "disk":
            self.lives.append(len(self.seen))
        self.late.clear()
        if self.options["store"] != "disk" or all_discarded_again:
            self.discarded.clear()  # everything is redelivered, or messages discarded beyond a gap

    def restart_reading(self) -> None:
        """Discard all received messages."""
        for kept in (self.seen, self.lives, self.moments):
            kept.clear()

    def content(self) -> dict[str, Any]:
        """Return the arguments that select the content."""
        options = self.options
        given: dict[str, Any] = {
            "filter": FILTER if options["filter"] == "field" else None,
            "depth": "4KB" if options["credit"] == "small" else None,
        }
        if options["command"] != "positions":
            given["select"] = SELECT if options["select"] == "some" else None
            given["timestamp"] = options["times"] == "asked"
            given |= self._pace()
        return given

    def _pace(self) -> dict[str, Any]:
        pace = self.options["pace"]
        if pace == "rate":
            return {"rate": RATE}
        if pace == "short gaps":
            return {"rate": "20x", "rate_max_gap": 0.1}
        return {"conflation": 0.05, "conflation_key": "/by"} if pace == "conflated" else {}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the request."""
        options = self.options
        given = self.content()
        if not self.plain:
            given["fully_durable"] = options["delivery"] == "fully durable"
            given["pause"] = options["pace"] == "paused"
        if options["command"] in ("epoch", "most recent"):
            # A conflated subscription that restarts from the epoch misses newer messages of a key that it has
            # discarded: it resumes instead.
            again = self.conflated and options["store"] != "none" and self.seen
            given["bookmark"] = tt.EPOCH if options["command"] == "epoch" and not again else tt.MOST_RECENT
            if options["delivery"] == "live":
                given["live"] = True
                if options["taken by"] == "stream":
                    # The server may lose delivered messages and with them the start point. A subscription
                    # with a handler resumes by itself and never needs this.
                    given["bookmark_not_found"] = "epoch"
        return given

    def replacement(self) -> dict[str, Any]:
        """Return the arguments of a replacement that continues at the current position."""
        given = {**self.content(), "replace": True}
        if not self.plain:
            given["fully_durable"] = self.options["delivery"] == "fully durable"
            given["live"] = self.options["delivery"] == "live"
        return given


def topic_of(options: Options, rng: Random) -> str:
    """Return the topic of a reading."""
    if options["topic"] == "not recorded":
        return UNRECORDED
    return rng.choice(TOPICS) if options["topic"] == "literal" else PATTERN


def somewhere(reading: Reading, known: list[Seen], rng: Random) -> None:
    """Start a range after one of these messages of the log, and perhaps end it at another."""
    first, last = sorted(rng.choices(range(len(known)), k=2), reverse=rng.random() < 0.1)
    reading.behind, reading.start = known[first].body, known[first].bookmark
    if rng.random() < 0.5:
        reading.until = known[last].body
        reading.start = f"[{known[first].bookmark}:{known[last].bookmark}]"
