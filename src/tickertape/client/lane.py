"""Owns the messages that are gathered for the next frame of one kind, and the frames without an answer.

Must never decide when to send. The usual case, all messages to one topic without columns, costs an append.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.base.limits import batch_bytes_target
from tickertape.batch.builder import BatchBuilder, batch_from_bodies
from tickertape.batch.layout import MessageBatch


class InFlight(NamedTuple):
    """A frame that was sent: its sequences (0 when it has none), and its batch when a store keeps it."""

    first: int
    last: int
    messages: int
    batch: MessageBatch | None


class Lane:
    """One kind of publish frames: those of recorded topics, or those of unrecorded ones."""

    __slots__ = ("_builder", "bodies", "idle", "in_flight", "limit", "sequenced", "size", "topic")

    def __init__(self) -> None:
        self.topic = ""
        """The topic of all of `bodies`; empty when there are none."""
        self.bodies: list[bytes] = []
        self.size = 0
        """Cost of what is gathered; 0 when that is nothing."""
        self.limit = batch_bytes_target
        """What may be gathered without asking whether there is room."""
        self.idle = False
        """Connected, and nothing is unanswered."""
        self.sequenced = False
        self.in_flight: dict[int, InFlight] = {}
        self._builder = BatchBuilder()

    @property
    def count(self) -> int:
        """Messages gathered."""
        return len(self.bodies) + self._builder.count

    def add(
        self, topic: str, body: bytes, expiration_ms: int = 0, correlation_id: str = "", key: str = ""
    ) -> int:
        """Gather a message that does not simply go behind `bodies`; the bytes of its texts.

        Raises what `BatchBuilder.add` raises; then nothing was gathered.
        """
        plain = not (expiration_ms or correlation_id or key)
        if plain and not self.size:
            self.topic = topic
            self.bodies.append(body)
            return 0
        for earlier in self.bodies:
            self._builder.add(self.topic, earlier)
        self.bodies = []
        self.topic = ""
        self._builder.add(topic, body, expiration_ms=expiration_ms, correlation_id=correlation_id, key=key)
        return len(correlation_id) + len(key)

    def take(self, publisher: int = 0, first_sequence: int = 0) -> MessageBatch:
        """What was gathered, as one batch; the lane is empty then."""
        if self.bodies:
            batch = batch_from_bodies(
                self.topic, self.bodies, publisher=publisher, first_sequence=first_sequence
            )
        else:
            batch = self._builder.build(publisher=publisher, first_sequence=first_sequence)
        self.clear()
        return batch

    def clear(self) -> None:
        """Forget what was gathered."""
        self.bodies = []
        self.topic = ""
        self.size = 0
        if self._builder.count:
            self._builder.clear()
