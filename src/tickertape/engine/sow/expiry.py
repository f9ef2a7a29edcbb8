"""Record expiry: writes the expiry of records whose life has ended to the log.

A record stays visible until its expiry is persisted and folded.

Invariants:
- Nothing expires early. A life counts from the order stamp of the message, by the wall clock.
- A step writes one record of one SOW topic, with at most `sow_expiry_step_max` keys.
- Nothing is written while the journal is full, has failed or is closing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from tickertape.batch import BatchBuilder
from tickertape.batch.format import Int64s
from tickertape.engine.limits import sow_delete_record_bytes_max, sow_expiry_step_max
from tickertape.engine.runtime.clock import EngineClock, earlier
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.sow.accepted import AcceptedRows, TopicDelete
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, encode
from tickertape.engine.sow.state.expiry import LifeQueue
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.wire.sow_command import SOW_TOPIC

_RETRY_SECONDS: Final = 1.0
_KEY_BYTES_MAX: Final = sow_delete_record_bytes_max - 64 * sow_expiry_step_max
"""Key bytes of one record, with space for its other columns."""


class RecordExpiry:
    """The expiry of the records of all SOW topics."""

    def __init__(
        self,
        topics: Iterable[StateTopic],
        writer: LogWriter,
        clock: EngineClock,
        accepted: AcceptedRows,
    ) -> None:
        self._lives: dict[StateTopic, LifeQueue] = {
            topic: topic.fold.lives for topic in topics if topic.fold.lives is not None
        }
        self._writer = writer
        self._clock = clock
        self._accepted = accepted
        self._retry_at: float | None = None
        self.active: dict[StateTopic, None] = {}
        """SOW topics with work for `step`, in round-robin order. Callers must not change it."""

    def announce(self) -> None:
        """Consider the deadlines of records that were folded."""
        if self._lives:
            self._clock.announce(self)

    def stop(self) -> None:
        """Expire nothing more."""
        self._lives.clear()
        self.active.clear()

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        if self._writer.commits.stopping:
            return None
        if self._retry_at is not None:
            return self._retry_at
        first: float | None = None
        for topic, lives in self._lives.items():
            if topic not in self.active:
                first = earlier(first, lives.next_due())
        return self._clock.reached(first)

    def wake(self) -> None:
        """Let `step` handle everything that is due."""
        if not self._lives or self._writer.commits.stopping:
            return
        if self._retry_at is not None:
            if self._clock.mono < self._retry_at:
                return
            self._retry_at = None
        for topic, lives in self._lives.items():
            if _is_due(lives, self._time):
                self.active[topic] = None

    def step(self) -> None:
        """Write one expiry record, or postpone it while the journal accepts none."""
        self._clock.announce(self)
        if self._writer.commits.stopping:
            self.active.clear()
            return
        topic = next(iter(self.active))
        del self.active[topic]
        lives = self._lives[topic]
        if topic in self._accepted.held:
            self._retry_at = self._clock.mono + _RETRY_SECONDS  # a delete searches for its records
            return
        if not self._expire(topic, lives, self._time):
            self._retry_at = self._clock.mono + _RETRY_SECONDS
            self.active.clear()
        elif _is_due(lives, self._time):
            self.active[topic] = None

    @property
    def _time(self) -> int:
        """Time that decides about lives, in microseconds."""
        return self._clock.wall

    def _expire(self, topic: StateTopic, lives: LifeQueue, now: int) -> bool:
        """Expire some records of a topic. Return False if the log has no space for them."""
        ends = topic.ends_of(slots := lives.due(now))
        slots = lives.confirm(slots, ends, now)
        if not len(slots):
            return True
        keys = topic.fold.keys.keys_of(slots)
        # A record has at least one key, because keys are short.
        count = sum(size <= _KEY_BYTES_MAX for size in accumulate(map(len, keys)))
        self._queue(topic, slots[count:])
        slots, keys = slots[:count], keys[:count]
        rows = topic.fold.records.rows(slots)
        publishers = topic.fold.records.publishers.ids(rows.publishers)
        builder = DeleteBuilder(topic.name, topic.key_fingerprint, DeleteKind.EXPIRED)
        builder.add(keys, publishers, rows.sequences, rows.order_stamps, topics=topic.topics_of(keys))
        record = builder.build()
        made = BatchBuilder()
        made.add(SOW_TOPIC, encode(record), kind=1)
        batch = made.build()
        if not self._writer.commits.can_accept(encoded_size(batch)):
            self._queue(topic, slots)
            return False
        self._writer.append_control(batch)
        self._accepted.appended(batch, (), [TopicDelete(topic, 0, record)])
        return True

    def _queue(self, topic: StateTopic, slots: Int64s) -> None:
        """Queue records again whose expiry is not written."""
        if len(slots):
            self._lives[topic].add(slots, topic.ends_of(slots))


def _is_due(lives: LifeQueue, now: int) -> bool:
    at = lives.next_due()
    return at is not None and at <= now
