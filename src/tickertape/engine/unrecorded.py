"""Owns plain subscriptions to topics that are not recorded: what is published goes to whoever is there.

Must never keep more for one subscription than `unrecorded_backlog_bytes_max`: its connection is ended as slow
instead, so that nothing is dropped in silence.
"""

from __future__ import annotations

from collections import deque

from tickertape.base.limits import unrecorded_backlog_bytes_max
from tickertape.batch import MessageBatch, select_topic
from tickertape.engine.effects import Effect, Send
from tickertape.engine.sessions import Session
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


class LiveSubscription:
    """A subscription to an unrecorded topic."""

    def __init__(self, session: Session, sub_id: str, topic: str, credit: int) -> None:
        self.session = session
        self.sub_id = sub_id
        self.topic = topic
        self.credit = credit
        self.window = credit
        self.backlog: deque[MessageBatch] = deque()
        self.backlog_bytes = 0


class Unrecorded:
    """All subscriptions to unrecorded topics."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._by_topic: dict[str, dict[LiveSubscription, None]] = {}

    def add(self, sub: LiveSubscription) -> None:
        """Begin to deliver to it."""
        self._by_topic.setdefault(sub.topic, {})[sub] = None

    def remove(self, sub: LiveSubscription) -> None:
        """It is over."""
        subs = self._by_topic.get(sub.topic, {})
        subs.pop(sub, None)
        if not subs:
            self._by_topic.pop(sub.topic, None)
        sub.session.live.pop(sub.sub_id, None)

    def publish(self, batch: MessageBatch) -> list[Session]:
        """Hand a batch to its subscribers; returns the sessions that are too slow and must be ended."""
        slow: dict[int, Session] = {}
        for topic in batch.topics:
            subs = self._by_topic.get(topic)
            chosen = select_topic(batch, topic) if subs else None
            if chosen is None:
                continue
            for sub in list(subs or ()):
                if not sub.backlog and self._send(sub, chosen):
                    continue
                # A selection is a view of what was published: kept as it is, a few bytes would hold a whole
                # frame.
                sub.backlog.append(MessageBatch.parse(chosen.encode()))
                sub.backlog_bytes += chosen.nbytes
                if sub.backlog_bytes > unrecorded_backlog_bytes_max:
                    slow[sub.session.conn] = sub.session
        return list(slow.values())

    def drain(self, sub: LiveSubscription) -> None:
        """Send what credit and the connection allow."""
        while sub.backlog and self._send(sub, sub.backlog[0]):
            sub.backlog_bytes -= sub.backlog.popleft().nbytes

    def _send(self, sub: LiveSubscription, batch: MessageBatch) -> bool:
        """Send a batch unless credit or the connection forbid it; whether it was sent."""
        if not sub.session.writable or (batch.cost > sub.credit and sub.credit < sub.window):
            return False
        sub.credit -= batch.cost
        self._effects.append(Send(sub.session.conn, encode_frame(Deliver(sub_id=sub.sub_id), batch)))
        return True
