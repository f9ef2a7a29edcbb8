"""Statistics: counters of one run of the engine, by topic and by error code.

Counters start at zero with each run, because the log does not store message counts by topic. A batch costs a
few steps for each of its topics. Topics beyond `topics_counted_max` are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch
from tickertape.engine.limits import topics_counted_max
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC

OTHER_TOPICS: Final = "(other topics)"
"""Name for the sum of topics beyond `topics_counted_max`. Its brackets would make a pattern, so topics cannot
use this name."""


class TopicCounters:
    """Counters of one topic since the start."""

    __slots__ = ("bytes", "messages", "publisher", "recorded", "sequence", "timestamp")

    def __init__(self, *, recorded: bool) -> None:
        self.recorded = recorded
        self.messages = 0
        """Persisted messages of a persistent topic, accepted messages of a non-persistent topic."""
        self.bytes = 0
        """Total size of their bodies."""
        self.publisher = 0
        self.sequence = 0
        """Sequence of the last message. With `publisher` it forms the bookmark. 0 if it has no bookmark."""
        self.timestamp = 0
        """When the server accepted the last message, in microseconds since 1970 UTC. 0 if unknown."""

    @property
    def bookmark(self) -> str:
        """Bookmark of the last message, or an empty string."""
        return f"{self.publisher}|{self.sequence}|" if self.sequence else ""


class Statistics:
    """Counters of one broker. They only increase. Any thread may read them at any time."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounters] = {}
        """Counters by name, in order of first use."""
        self.others: dict[bool, TopicCounters] = {}
        """Counters of topics beyond the limit, by whether the topics are persistent."""
        self.commits = 0
        """Persisted commits with messages."""
        self.persisted_messages = 0
        """Persisted messages, without control records of the server."""
        self.persisted_bytes = 0
        """Total size of their bodies."""
        self.unrecorded_messages = 0
        self.unrecorded_bytes = 0
        self.sent_messages = 0
        """Delivered messages, counted once for each delivery."""
        self.sent_bytes = 0
        self.logons = 0
        self.refused: Counter[str] = Counter()
        """Rejected commands and publish frames, by error code."""
        self.ended: Counter[str] = Counter()
        """Connections that the server closed, by error code."""
        self.ended_subscriptions: Counter[str] = Counter()
        """Subscriptions that ended with an error, by error code."""

    def name_topics(self, names: Iterable[str]) -> None:
        """Create counters for configured topics, up to the limit."""
        for name in names:
            self._topic(name, recorded=True)

    def logged_on(self) -> None:
        """Count a logon."""
        self.logons += 1

    def sent(self, messages: int, body_bytes: int) -> None:
        """Count delivered messages."""
        self.sent_messages += messages
        self.sent_bytes += body_bytes

    def refuse(self, error: TickertapeError) -> None:
        """Count a rejection."""
        self.refused[error.code] += 1

    def end(self, error: TickertapeError) -> None:
        """Count a connection that the server closed."""
        self.ended[error.code] += 1

    def end_subscription(self, error: TickertapeError) -> None:
        """Count a subscription that ended with an error."""
        self.ended_subscriptions[error.code] += 1

    def persisted(self, batch: MessageBatch) -> None:
        """Count a persisted commit."""
        messages, size = self._count(batch, recorded=True)
        self.persisted_messages += messages
        self.persisted_bytes += size
        self.commits += 1

    def unrecorded(self, batch: MessageBatch) -> None:
        """Count a batch of non-persistent topics."""
        messages, size = self._count(batch, recorded=False)
        self.unrecorded_messages += messages
        self.unrecorded_bytes += size

    def _topic(self, name: str, *, recorded: bool) -> TopicCounters:
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if len(self.topics) < topics_counted_max:
            topic = self.topics[name] = TopicCounters(recorded=recorded)
            return topic
        return self.others.setdefault(recorded, TopicCounters(recorded=recorded))

    def _count(self, batch: MessageBatch, *, recorded: bool) -> tuple[int, int]:
        if len(batch.topics) > 1:
            return self._count_mixed(batch, recorded=recorded)
        name = batch.topics[0]
        if name == CONTROL_TOPIC:
            return 0, 0
        topic = self.topics.get(name) or self._topic(name, recorded=recorded)
        topic.messages += batch.count
        topic.bytes += batch.body_bytes
        if recorded:
            run = batch.last_run
            topic.publisher, topic.timestamp = run.publisher, run.timestamp
            topic.sequence = (
                int(batch.sequences[-1])
                if batch.has_sequences
                else run.first_sequence + run.message_count - 1
            )
        return batch.count, batch.body_bytes

    def _count_mixed(self, batch: MessageBatch, *, recorded: bool) -> tuple[int, int]:
        index = batch.topic_index
        assert index is not None
        offsets = batch.offsets
        counts = np.bincount(index, minlength=len(batch.topics)).tolist()
        sizes = np.bincount(index, weights=offsets[1:] - offsets[:-1], minlength=len(batch.topics)).tolist()
        # Assignment with repeated indices keeps the last value: the index of each topic's last message.
        last = np.zeros(len(batch.topics), np.int64)
        last[index] = np.arange(batch.count)
        runs = np.searchsorted(batch.run_starts, last, side="right") - 1
        rows = batch.runs[runs]
        sequences = (
            batch.sequences[last]
            if batch.has_sequences
            else rows["first_sequence"] + (last - batch.run_starts[runs]).astype(np.uint64)
        )
        ends = zip(rows["publisher"].tolist(), sequences.tolist(), rows["timestamp"].tolist(), strict=True)
        messages = size = 0
        for name, count, nbytes, end in zip(batch.topics, counts, sizes, ends, strict=True):
            if name == CONTROL_TOPIC or not count:
                continue
            topic = self._topic(name, recorded=recorded)
            topic.messages += count
            topic.bytes += int(nbytes)
            if recorded:
                topic.publisher, topic.sequence, topic.timestamp = end
            messages += count
            size += int(nbytes)
        return messages, size
