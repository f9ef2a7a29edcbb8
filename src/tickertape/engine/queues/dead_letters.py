"""Dead letters: publishes expired messages of a queue to its dead-letter topic.

Invariants:
- An expired message waits until its dead letter is in the log, also after a crash. None is lost. A crash
  between the two records may duplicate a dead letter.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import dead_letter_label_bytes_max, queue_frame_messages_max
from tickertape.engine.queues.message_reader import Fetched, MessageReader, QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state.bit_sliced_index import first_places
from tickertape.engine.queues.state.messages import PendingDeadLetter
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, bitmap_of, ranges_of


class DeadLetterPublisher:
    """Publishes the dead letters of one queue."""

    def __init__(self, queue: FeedQueue, access: QueueAccess, holder: object) -> None:
        self._queue = queue
        self._queue_log = access.log
        self._topic = queue.definition.dead_letter
        self._reader = MessageReader(access, None, holder)
        self._room = 0
        """Bytes that the log must accept for the next letters, or 0 if unknown."""

    @property
    def failure(self) -> TickertapeError | None:
        """The error if messages cannot be read."""
        return self._reader.failure

    @property
    def has_work(self) -> bool:
        """Whether `step` has dead letters to publish."""
        return bool(self._queue.state.doomed) and not self._reader.waiting and self._can_write()

    @property
    def stuck(self) -> bool:
        """Whether dead letters wait because the log cannot accept them."""
        return bool(self._queue.state.doomed) and not self._can_write()

    def release_memory(self) -> None:
        """Allow other readers to use the memory."""
        self._reader.release_memory()

    def step(self) -> None:
        """Publish the oldest dead letters whose messages are in memory."""
        doomed = self._queue.state.doomed
        wanted = first_places(doomed, queue_frame_messages_max)
        if self._topic is None:
            # The queue had a dead-letter topic before and has none now: remove the messages.
            self._publish(bitmap_of(wanted), None)
            return
        fetched = self._reader.get(wanted)
        if fetched is None:
            return
        self._room = 2 * fetched.batch.nbytes
        if self._can_write():
            self._room = 0
            self._publish(bitmap_of(fetched.positions), self._letters(fetched, self._topic))
            if not self._queue.state.doomed:
                self._reader.discard()

    def _can_write(self) -> bool:
        return self._queue_log.can_write() and self._queue_log.can_write(self._room)

    def _publish(self, positions: BitMap64, letters: MessageBatch | None) -> None:
        if letters is not None:
            self._queue_log.append(letters)
        outcome = Outcome(OutcomeKind.DEAD_LETTERED, ranges_of(positions))
        self._queue.apply(outcome)
        self._queue_log.write(self._queue.name, [outcome])

    def _letters(self, fetched: Fetched, topic: str) -> MessageBatch:
        builder = BatchBuilder()
        batch, state = fetched.batch, self._queue.state
        for index, position in enumerate(fetched.positions.tolist()):
            builder.add(
                topic,
                bytes(batch.body(index)),
                correlation_id=self._label(batch, index, state.doom_of(position)),
                key=batch.key(index) or "",
            )
        return builder.build()

    def _label(self, batch: MessageBatch, index: int, doom: PendingDeadLetter) -> str:
        label = {
            "queue": self._queue.name,
            "topic": batch.topic(index),
            "bookmark": batch.bookmark(index),
            "reason": doom.reason.text,
            "deliveries": doom.tries.deliveries,
            "cancels": doom.tries.cancels,
        }
        original = batch.correlation_id(index)
        if original:
            while len(msgspec.json.encode(original)) > dead_letter_label_bytes_max:
                original = original[: len(original) * 3 // 4]
            label["correlation_id"] = original
        return msgspec.json.encode(label).decode()
