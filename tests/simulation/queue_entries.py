"""State of the queue oracle: queued messages, consumers, and filter texts with their meaning.

Must never use any code of the engine: filters are Python functions beside their text, states are words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tickertape.engine.runtime.queue_definition import QueueDefinition

Key = tuple[int, int]
"""Publisher and sequence."""
Body = dict[str, Any]

MICROS: Final = 1_000_000
SLACK: Final = MICROS
"""Delay after which an expired message or lease must be gone: a second, in microseconds."""
NEVER: Final = 1 << 62
"""Later than every time of a test, in microseconds."""

CONDITIONS: Final[dict[str, Callable[[Body], bool]]] = {
    "TRUE": lambda _: True,
    "/g = 'a'": lambda body: body["g"] == "a",
    "/g = 'b'": lambda body: body["g"] == "b",
    "/g != 'c'": lambda body: body["g"] != "c",
    "/p > 1": lambda body: body["p"] > 1,
    "/b = 1": lambda body: body["b"] == 1,
    "/n % 5 != 0": lambda body: body["n"] % 5 != 0,
}
"""The conditions that tests use."""
PRIORITIES: Final[dict[str, Callable[[Body], int]]] = {"/p": lambda body: int(body["p"])}


def make_body(number: int, group: str = "a", priority: int = 0, barrier: int = 0) -> bytes:
    """Return the body of a message as tests publish it."""
    return msgspec.json.encode({"n": number, "g": group, "p": priority, "b": barrier})


def passes(condition: str | None, body: Body) -> bool:
    """Return whether a message passes a filter, or no filter is set."""
    return condition is None or CONDITIONS[condition](body)


@dataclass(eq=False)
class Entry:
    """A message in a queue. `unsure`: it may have left already, which is invisible from outside."""

    position: int
    key: Key
    topic: str
    raw: bytes
    body: Body
    priority: int
    barrier: bool
    arrived: int
    """Microseconds since 1970 UTC, like all times here."""
    expires: int
    state: str = "ready"
    """ready, leased, leaving (settled, not yet durable), returning (cancelled, not yet durable), done"""
    why: str = ""
    """For a leaving or done message: acknowledged, taken, or the reason of its expiry."""
    by: Key | None = None
    """The settlement that decided it."""
    holder: Consumer | None = None
    ends: tuple[int, int] = (NEVER, NEVER)
    """The lease ends neither before the first nor after the second."""
    deliveries: tuple[int, int] = (0, 0)
    """Unsuccessful ones: at least, at most."""
    cancels: tuple[int, int] = (0, 0)
    soft: int = 0
    """Returns since the last idle state: a crash may undo them."""
    unsure: bool = False
    since: int = 0
    """The interval between two rests in which it became ready, or done."""
    delivered: str = "no"
    """For a barrier: no, yes, or perhaps (in an earlier run, or it was returned)."""

    @property
    def here(self) -> bool:
        """Still in the queue for certain."""
        return self.state in ("ready", "leased") and not self.unsure

    def stays(self, now: int) -> bool:
        """Here for certain, and with no reason to leave just now."""
        end = self.ends[0] if self.state == "leased" else self.expires
        return self.here and now < end

    @property
    def rank(self) -> tuple[int, int]:
        """Return the rank: the lowest is delivered first."""
        return (-self.priority, self.position)


@dataclass(eq=False)
class Consumer:
    """A subscription to queues."""

    conn: int
    sub_id: str
    queues: tuple[str, ...]
    backlog: int
    condition: str | None
    orders: dict[str, int]
    """For each of its queues, its place among all consumers. A replace to another queue adds it as new."""
    earlier: list[str | None] = field(default_factory=list)
    """Its filters since the last idle state."""
    fresh: bool = True
    """New, or replaced, since the last idle state."""
    wider: int = 0
    """Its largest backlog since the last idle state: messages in flight stay with the consumer."""
    before: set[str] = field(default_factory=set)
    """The queues that it had since then."""
    held: set[tuple[str, Key]] = field(default_factory=set)
    """Messages delivered and not settled, for certain."""
    maybe: set[tuple[str, Key]] = field(default_factory=set)
    """Messages that it may still hold."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """For each queue, the time (microseconds) until which others may be preferred, because a lease of this
    consumer may have expired. A settlement can end this earlier."""

    def takes(self, body: Body) -> bool:
        """Return whether its filter, or a recent earlier one, lets a message pass."""
        return any(passes(condition, body) for condition in (self.condition, *self.earlier))

    def surely_takes(self, body: Body) -> bool:
        """Return whether all its filters let a message pass."""
        return all(passes(condition, body) for condition in (self.condition, *self.earlier))


class QueueState:
    """The oracle's knowledge of one queue."""

    def __init__(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self.name = definition.name
        self.topic = re.compile(definition.topic)
        self.entries: dict[Key, Entry] = {}
        """In the order in which they entered."""
        self.letters: dict[Key, int] = {}
        """Dead letters in the log, by the message they were."""
        self.letters_now: set[Key] = set()
        """Dead letters since the last idle state."""
        self.letters_twice: set[Key] = set()
        """Dead letters that may repeat: a crash preceded their record in the log."""
        self.recent: list[tuple[Consumer, Entry]] = []
        """Deliveries since the last idle state."""
        self.open_before: set[Key] = set()
        """Messages available for delivery at the last idle state."""
        self.left: Counter[str] = Counter()
        """Why messages left in this life of the engine."""
        self.last_served = -1
        """Place of the consumer that got the last message."""

    def admits(self, topic: str, body: Body) -> bool:
        """Return whether a message enters."""
        underlying = self.definition.topic
        fits = bool(self.topic.search(topic)) if _is_pattern(underlying) else topic == underlying
        return fits and passes(self.definition.filter, body)

    def enter(self, position: int, key: Key, topic: str, raw: bytes, stamp: int, life_ms: int) -> None:
        """Add a persisted message if the queue admits it."""
        if key in self.entries:
            return
        body: Body = msgspec.json.decode(raw)
        if not self.admits(topic, body):
            return
        definition, barrier = self.definition, self.definition.barrier_expression
        self.entries[key] = Entry(
            position,
            key,
            topic,
            raw,
            body,
            PRIORITIES[definition.priority](body) if definition.priority else 0,
            barrier is not None and passes(barrier, body),
            stamp,
            self._expires(stamp, life_ms),
        )

    def _expires(self, stamp: int, life_ms: int) -> int:
        own = stamp + life_ms * 1000 if life_ms else NEVER
        general = NEVER
        if self.definition.expiration is not None:
            general = stamp + int(self.definition.expiration * MICROS)
        model = self.definition.expiration_model
        if model == "queue":
            return general
        if model == "message":
            return own if life_ms else general
        return min(own, general)

    def of(self, *states: str) -> list[Entry]:
        """Return the entries in these states."""
        return [entry for entry in self.entries.values() if entry.state in states]

    def active(self) -> set[Key] | None:
        """Return the messages that a limit on active messages lets the queue deliver. None: all."""
        depth = self.definition.target_queue_depth
        if depth is None:
            return None
        here = [entry.key for entry in self.entries.values() if entry.state != "done"]
        return set(here[:depth])

    def barred(self, entry: Entry, now: int) -> bool:
        """Return whether a barrier certainly holds a message back."""
        for other in self.entries.values():
            if other.position >= entry.position:
                return False
            if entry.barrier and (other.stays(now) or self._held_once(other)):
                return True
            if other.barrier and other.stays(now) and other.delivered == "no":
                return True
        return False

    def free(self, entry: Entry) -> bool:
        """Return whether certainly no barrier holds a message back."""
        for other in self.entries.values():
            if other.position >= entry.position:
                return True
            there = other.state != "done" or other.unsure
            if entry.barrier and (there or self._held_once(other)):
                return False
            if other.barrier and there and other.delivered != "yes":
                return False
        return True

    def open_now(self) -> set[Key]:
        """Return the messages that are available for certain to a consumer with free backlog."""
        active = self.active()
        return {
            entry.key
            for entry in self.of("ready")
            if entry.here and (active is None or entry.key in active) and self.free(entry)
        }

    def _held_once(self, entry: Entry) -> bool:
        """Return whether an at-most-once message has a connected holder that has not acknowledged it."""
        holder = entry.holder
        return self.definition.at_most_once and holder is not None and (self.name, entry.key) in holder.held


def _is_pattern(topic: str) -> bool:
    return any(mark in topic for mark in "^$*+?[](){}|\\")
