"""Owns the short way of a message into a publish store that is given each one at once: one more for the batch
that is gathered.

Must never begin a batch or end one, nor make room: `Publishing.publish` does. It is used under the client's
lock, for as long as it is `open`. A message is in the store before it is gathered: interrupted in between,
its number is given again.
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.base.limits import message_cost_bytes
from tickertape.client.publishing.send_buffer import SendBuffer

Write = Callable[[int, bytes], bool]
"""Keeps the message of a sequence; False where the store has to do more than write, and nothing was done."""


class StoreAppend:
    """More messages of one topic, each straight into the store."""

    __slots__ = ("open", "publish", "topic")

    def __init__(self, lane: SendBuffer, write: Write) -> None:
        self.topic = lane.topic
        self.open = True
        bodies, base, limit = lane.bodies, lane.base, lane.limit

        def publish(body: bytes) -> int | None:
            size = lane.size + len(body) + message_cost_bytes
            if size >= limit or not self.open:
                return None
            sequence = base + len(bodies)
            if not write(sequence, body):
                return None
            bodies.append(body)
            lane.size = size
            return sequence

        self.publish: Callable[[bytes], int | None] = publish
        """The sequence of the message; None where it has to go the long way, and nothing was done."""
