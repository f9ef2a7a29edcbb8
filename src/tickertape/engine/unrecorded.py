"""Owns plain subscriptions to topics that are not recorded: what is published goes to whoever is there.

Must never keep more for one subscription than `unrecorded_backlog_bytes_max`: its connection is ended as slow
instead, so that nothing is dropped in silence.
"""

from __future__ import annotations

from collections import deque

from tickertape.base.limits import batch_bytes_max, outbox_bytes_max, unrecorded_backlog_bytes_max
from tickertape.batch import MessageBatch, select_topic, slice_batch
from tickertape.engine.effects import Effect, Send
from tickertape.engine.session import Session
from tickertape.engine.subscription import affordable
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

    def publish(self, batch: MessageBatch) -> list[Session]:
        """Hand a batch to its subscribers; returns the sessions that are too slow and must be ended."""
        slow: dict[int, Session] = {}
        for topic in batch.topics:
            subs = self._by_topic.get(topic)
            chosen = select_topic(batch, topic) if subs else None
            if chosen is None:
                continue
            for sub in list(subs or ()):
                rest = chosen if sub.backlog else self._send(sub, chosen)
                if rest is None:
                    continue
                # A selection is a view of what was published: kept as it is, a few bytes would hold a whole
                # frame.
                sub.backlog.append(MessageBatch.parse(rest.encode()))
                sub.backlog_bytes += rest.nbytes
                if sub.backlog_bytes > unrecorded_backlog_bytes_max:
                    slow[sub.session.conn] = sub.session
        return list(slow.values())

    def drain(self, sub: LiveSubscription) -> None:
        """Send what credit and the connection allow."""
        while sub.backlog:
            batch = sub.backlog.popleft()
            sub.backlog_bytes -= batch.nbytes
            rest = self._send(sub, batch)
            if rest is not None:
                sub.backlog.appendleft(rest)
                sub.backlog_bytes += rest.nbytes
                return

    def _send(self, sub: LiveSubscription, batch: MessageBatch) -> MessageBatch | None:
        """Send as much of a batch as credit and the connection allow; what is left, or None."""
        start = 0
        while start < batch.count and sub.session.writable:
            fitting = affordable(batch, start, batch.count, min(sub.credit, outbox_bytes_max))
            if (
                fitting == 0
                and sub.credit < sub.window
                and not affordable(batch, start, start + 1, sub.credit)
            ):
                break
            part = slice_batch(batch, start, start + max(fitting, 1))
            while part.nbytes > batch_bytes_max and part.count > 1:
                part = slice_batch(batch, start, start + part.count // 2)
            start += part.count
            sub.credit -= part.cost
            sub.session.sent(part)
            self._effects.append(Send(sub.session.conn, encode_frame(Deliver(sub_id=sub.sub_id), part)))
        return None if start == batch.count else slice_batch(batch, start, batch.count)
