"""Publisher: accepts messages, settlements and deletes of records, which a batch sender sends.

A step that must not be interrupted by a signal handler sets `unfinished` (see `BatchSender`).
"""

from __future__ import annotations

from tickertape.base.limits import (
    batch_bytes_target,
    message_bytes_max,
    message_cost_bytes,
    sow_searches_per_frame_max,
)
from tickertape.base.names import check_topic
from tickertape.client.common.effects import Waiter
from tickertape.client.publish_store.protocol import Stored
from tickertape.client.publishing import store_checks as checks
from tickertape.client.publishing.batch_sender import BatchSender
from tickertape.client.publishing.bulk import MakeBatch, checked, delta_maker
from tickertape.client.publishing.send_buffer import NO_OWNER, AppendRun, SendBuffer, StoreAppend
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC


class Publisher(BatchSender):
    """Publishing part of the client protocol state machine: the calls that accept messages."""

    def publish(
        self,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
        owner: int = NO_OWNER,
        *,
        delta: bool = False,
    ) -> int | None:
        """Accept one message. Return its sequence, or None for a non-persistent topic or without a store.

        `owner` identifies the calling thread. After consecutive calls with one owner, `run` is open for it.
        `delta`: the server merges the body into the record of the message.
        Raises `BadTopic`, `MessageTooLarge`, `Disconnected`, `StoreFull`, `StoreError`, `PublisherTakenOver`.
        After an exception the message was not accepted.
        """
        self._close_run()
        try:
            buffer = self._buffers.of_topic.get(topic) or self._buffer_for(topic)
        except TypeError:
            check_topic(topic)  # an unhashable topic is not a string
            raise
        size = len(body) + message_cost_bytes
        if buffer.size + size > buffer.limit:
            self._make_room(buffer, size, self.server_topics.message_bytes_max)
        sequence = buffer.base + buffer.count if buffer.sequenced else None
        appending = None if sequence is None else self._appending
        if appending is not None and sequence is not None:
            if delta:  # such stores have no column for deltas: each one is a batch
                labels = expiration_ms, correlation_id, key
                return self.publish_whole(topic, 1, len(body), delta_maker(topic, body, *labels))
            appending.append(sequence, topic, body, expiration_ms, correlation_id, key)
        buffer.add(topic, body, expiration_ms, correlation_id, key, delta)
        if buffer.idle or buffer.size >= batch_bytes_target:
            try:
                self._flush_buffer(buffer)
            except Exception:
                self._take_back(buffer)
                raise
        elif appending is not None:
            write = appending.writer(topic) if buffer.plain else None
            self.kept = StoreAppend(buffer, write) if write is not None else None
        elif owner == self._last_owner and owner != NO_OWNER:
            self.run = buffer.open(owner, len(body))
        else:
            self._last_owner = owner
        return sequence

    def publish_again(self, run: AppendRun, index: int, body: bytes) -> int | None:
        """Publish a body that the owner of a closed `run` appended as `bodies[index]`, unless it was sent."""
        if run.taken is None:
            self._close_run()
        if run.taken is not None and index < run.taken:
            return None if run.base is None else run.base + index
        return self.publish(run.topic, body, owner=run.owner)

    def check_settles(self) -> None:
        """Raise the errors that `settle` raises without a connection."""
        self._buffer_for(QUEUE_TOPIC, own=True)

    def settle(self, body: bytes) -> bool:
        """Publish a settlement: the only publish path for `QUEUE_TOPIC`. Raises as `publish` does.

        Return whether it waits for the answer to earlier frames.
        """
        buffer = self._add_own(QUEUE_TOPIC, body)
        # Also while frames are being written: the batcher waits for acknowledgements, which are conflated.
        busy = self._writing and not self._resending.active
        if buffer.idle or busy or buffer.size >= batch_bytes_target:
            self._flush_buffer(buffer)
        return bool(buffer.count and buffer.in_flight)

    def delete(self, body: bytes, waiter: Waiter | None = None) -> int | None:
        """Publish a delete of records: the only publish path for `SOW_TOPIC`. Return and raise as `publish`
        does.

        Its answer resolves `waiter`. Such a delete is sent at once, in a frame of its own.
        """
        if self._ended:
            raise self._closed_error()
        if waiter is not None and self._recorded.count:
            self._flush_buffer(self._recorded)
        buffer = self._add_own(SOW_TOPIC, body)
        sequence = buffer.base + buffer.count - 1 if buffer.sequenced else None
        full = buffer.size >= batch_bytes_target or buffer.deletes >= sow_searches_per_frame_max
        if waiter is not None or buffer.idle or full:
            try:
                self._flush_buffer(buffer)
            except Exception:
                self._take_back(buffer)
                raise
        if waiter is not None:
            self.deletes.add(waiter, sequence, self._outstanding.frame)
        return sequence

    def _add_own(self, topic: str, body: bytes) -> SendBuffer:
        buffer = self._buffer_for(topic, own=True)
        self._close_run()
        size = len(body) + message_cost_bytes
        if buffer.size + size > buffer.limit:
            self._make_room(buffer, size)
        if buffer.sequenced and self._appending is not None:
            self._appending.append(buffer.base + buffer.count, topic, body, 0, "", "")
        buffer.deletes += topic == SOW_TOPIC  # before `add`: after an interruption it is too high
        buffer.add(topic, body)
        return buffer

    def publish_whole(self, topic: str, count: int, body_bytes: int, make: MakeBatch) -> int | None:
        """Accept `count` messages (at least 1) that `make` encodes as a batch of one run.

        `body_bytes` is the total size of their bodies. Their cost should not exceed `chunk_bytes` by much.
        Return the sequence of the last message. Raises as `publish` does.
        """
        self._close_run()
        try:
            buffer = self._buffers.of_topic.get(topic) or self._buffer_for(topic)
        except TypeError:
            check_topic(topic)  # an unhashable topic is not a string
            raise
        if buffer.count:
            self._flush_buffer(buffer)
        most = self.server_topics.message_bytes_max if count == 1 else message_bytes_max
        self._make_room(buffer, body_bytes + count * message_cost_bytes, most)
        if not buffer.sequenced:
            batch = checked(make())
            self.unfinished = True
            self._transmit(buffer, Stored(0, 0, batch))
            return None
        self._drop_stored(buffer)
        first = buffer.base
        batch = checked(make(publisher=self._publisher, first_sequence=first))
        self.unfinished = True
        stored = Stored(first, first + count - 1, batch)
        assert self.store is not None
        checks.keep(self.store.put, stored)
        self._transmit_put(stored)
        return first + count - 1
