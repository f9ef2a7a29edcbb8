"""Owns the two lanes of a client: of recorded topics, and of the others; and which topic is in which.

Must never decide when to send or what a server records: it does the same thing to both lanes.
"""

from __future__ import annotations

from tickertape.base.limits import topics_remembered_max
from tickertape.client.publishing.send_buffer import SendBuffer


class SendBuffers:
    """Both lanes of one client."""

    __slots__ = ("of_topic", "recorded", "unrecorded")

    def __init__(self) -> None:
        self.recorded = SendBuffer()
        self.unrecorded = SendBuffer()
        self.of_topic: dict[str, SendBuffer] = {}
        """Where topics were published that may be published again."""

    def remember(self, topic: str, *, recorded: bool) -> SendBuffer:
        """The lane of a topic, which is known from now on."""
        if len(self.of_topic) >= topics_remembered_max:
            self.of_topic.clear()
        lane = self.of_topic[topic] = self.recorded if recorded else self.unrecorded
        return lane

    def close(self) -> None:
        """End the runs."""
        self.recorded.close()
        self.unrecorded.close()

    def disconnect(self) -> None:
        """Nothing that was sent will be answered, and what no store keeps is gone. No run is open."""
        self.of_topic.clear()
        for lane in (self.recorded, self.unrecorded):
            lane.idle = False
            lane.in_flight.clear()
            if not lane.sequenced:
                lane.clear()

    def repair(self) -> None:
        """As `SendBuffer.repair`."""
        self.recorded.repair()
        self.unrecorded.repair()

    @property
    def unsettled(self) -> bool:
        """Whether anything is gathered, or was sent and has no answer."""
        return any(lane.count or lane.in_flight for lane in (self.recorded, self.unrecorded))

    def oldest_in_flight(self) -> int | None:
        """The first frame that has no answer; None when all have one."""
        lanes = (self.recorded, self.unrecorded)
        return min((next(iter(lane.in_flight)) for lane in lanes if lane.in_flight), default=None)
