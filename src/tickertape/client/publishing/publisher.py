"""Publisher: accepts, batches and sends messages, and keeps them until they are settled.

Recorded topics travel in order, and sequenced when there is a store; unrecorded ones apart and unsequenced. A
buffer is sent at once when no frame of it is unacknowledged, else it gathers until the next acknowledgement
or `batch_bytes_target`. With conflated acknowledgements it gathers only while the connection is busy writing
earlier frames (`unwritten_frame`).

Invariant: a message of a publish store is released only when it was persisted or rejected.

An exception that a signal handler raises may come between any two steps. Every step that cannot stand alone
is announced in `unfinished`; what is then left is put right by `interrupted`, and the connection has to end.
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.base.errors import (
    Closed,
    Disconnected,
    PublisherTakenOver,
    StoreError,
    TickertapeError,
    TopicNotRecorded,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import batch_bytes_target, message_bytes_max, message_cost_bytes
from tickertape.base.names import check_topic, publisher_id
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import Effect, ReportError, StoreHasRoom
from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.client.publish_store.protocol import (
    AppendingPublishStore,
    LogonNotingPublishStore,
    PublishStore,
    Stored,
)
from tickertape.client.publishing import store_checks as checks
from tickertape.client.publishing.bulk import MakeBatch, checked
from tickertape.client.publishing.in_flight import UnansweredFrames
from tickertape.client.publishing.resend import AFTER_RESEND, ResendSteps, StoreResend
from tickertape.client.publishing.send_buffer import (
    CLOSED,
    NOBODY,
    AppendRun,
    SendBuffer,
    SendBuffers,
    StoreAppend,
)
from tickertape.client.publishing.server_topics import Flags, ServerTopics
from tickertape.wire.commands import Flush, Persisted, Processed, Publish, Rejected
from tickertape.wire.settlement import QUEUE_TOPIC


class Publisher:
    """The publishing half of the client machine.

    `send(command, batch)` puts a frame on the connection, or a `Flush` that asks for the acknowledgement
    which the server holds back; `effects` is where this half leaves the others.
    """

    def __init__(
        self, name: str, send: Callable[[Publish | Flush, MessageBatch | None], None], effects: list[Effect]
    ) -> None:
        self._name = name
        self._publisher = publisher_id(name)
        self._send_frame = send
        self._effects = effects
        self.store: PublishStore | None = None
        self._appending: AppendingPublishStore | None = None
        """The store, when it is given each message before `publish` returns. Then there are no runs."""
        self._buffers = SendBuffers()
        self._recorded, self._unrecorded = self._buffers.recorded, self._buffers.unrecorded
        self.server_topics = ServerTopics()
        """Topics as the server reported them at logon."""
        self._refusal: TickertapeError | None = Disconnected("not connected: call connect() first")
        self._ended = False
        """The application is closing the client: nothing more is accepted."""
        self._storing = True
        self.eager = False
        """Acknowledgements are conflated: gathered messages do not wait for one."""
        self._writing = False
        self._storing_failed = False
        """Whether the application was told that the store takes nothing."""
        self._taken_over: PublisherTakenOver | None = None
        self._outstanding = UnansweredFrames(self._buffers, effects)
        self._resending = StoreResend(self._buffers, self.server_topics)
        self._resend_end = 0
        self._own_from = 1
        """The first sequence that this client gave to messages of its publish store; 1 where no client of
        the store has logged on before."""
        self.kept: StoreAppend | None = None
        """Fast path that appends the next messages straight to the store, where possible."""
        self._last_owner = NOBODY
        self.rejections = self._outstanding.rejections
        """What the server refused since it was last reported."""
        self.starved = False
        """Whether a publish found no room since there was more."""
        self.run: AppendRun = CLOSED
        """The open run: its owner publishes by appending to it (see `AppendRun`); else `CLOSED`."""
        self.unfinished = False
        """Frames were begun that are not complete, or not with the connection, until `finished`."""

    # -- the application --------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
        owner: int = NOBODY,
    ) -> int | None:
        """Accept one message; its sequence when there is a store and the topic is recorded, else None.

        `owner` says which thread calls; if it calls again and again, `run` will be for it.
        Raises `BadTopic`, `MessageTooLarge`, `Disconnected`, `StoreFull`, `StoreError`, `PublisherTakenOver`;
        then nothing was accepted.
        """
        self._close_run()
        try:
            buffer = self._buffers.of_topic.get(topic) or self._buffer_for(topic)
        except TypeError:
            check_topic(topic)  # what cannot even be looked up is no text
            raise
        size = len(body) + message_cost_bytes
        if buffer.size + size > buffer.limit:
            self._make_room(buffer, size, self.server_topics.message_bytes_max)
        sequence = buffer.base + buffer.count if buffer.sequenced else None
        appending = None if sequence is None else self._appending
        if appending is not None and sequence is not None:
            appending.append(sequence, topic, body, expiration_ms, correlation_id, key)
        buffer.add(topic, body, expiration_ms, correlation_id, key)
        if buffer.idle or buffer.size >= batch_bytes_target:
            try:
                self._flush_buffer(buffer)
            except Exception:
                self._take_back(buffer)
                raise
        elif appending is not None:
            write = appending.writer(topic) if buffer.plain else None
            self.kept = StoreAppend(buffer, write) if write is not None else None
        elif owner == self._last_owner and owner != NOBODY:
            self.run = buffer.open(owner, len(body))
        else:
            self._last_owner = owner
        return sequence

    def publish_again(self, run: AppendRun, index: int, body: bytes) -> int | None:
        """The owner of `run` put `bodies[index]` there and found it closed: `publish`, unless in time."""
        if run.taken is None:
            self._close_run()
        if run.taken is not None and index < run.taken:
            return None if run.base is None else run.base + index
        return self.publish(run.topic, body, owner=run.owner)

    def check_settles(self) -> None:
        """Raise what `settle` would raise without a connection."""
        self._buffer_for(QUEUE_TOPIC, own=True)

    def settle(self, body: bytes) -> bool:
        """As `publish`, of a settlement: only here is `QUEUE_TOPIC` published to. Whether it is kept until
        there is an answer to what was sent before."""
        buffer = self._buffer_for(QUEUE_TOPIC, own=True)
        self._close_run()
        size = len(body) + message_cost_bytes
        if buffer.size + size > buffer.limit:
            self._make_room(buffer, size)
        if buffer.sequenced and self._appending is not None:
            self._appending.append(buffer.base + buffer.count, QUEUE_TOPIC, body, 0, "", "")
        buffer.add(QUEUE_TOPIC, body)
        # While frames are written too: the batcher waits for acknowledgements, which are conflated then.
        busy = self._writing and not self._resending.active
        if buffer.idle or busy or buffer.size >= batch_bytes_target:
            self._flush_buffer(buffer)
        return bool(buffer.count and buffer.in_flight)

    def publish_whole(self, topic: str, count: int, body_bytes: int, make: MakeBatch) -> int | None:
        """Accept `count` messages, at least one, about `chunk_bytes` at most, that `make` puts into a batch
        of one run; `body_bytes` is the size of their bodies. Returns the sequence of the last and raises as
        `publish` does."""
        self._close_run()
        try:
            buffer = self._buffers.of_topic.get(topic) or self._buffer_for(topic)
        except TypeError:
            check_topic(topic)  # what cannot even be looked up is no text
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

    def flush(self) -> int:
        """Send what is gathered; the number of the last frame of it, for `answered`."""
        for buffer in (self._recorded, self._unrecorded):
            if buffer.count:
                self._flush_buffer(buffer)
        return AFTER_RESEND if self._resending.active else self._outstanding.frame

    def answered(self, frame: int) -> bool:
        """Whether every frame up to this one, as `flush` gave it, has its answer."""
        if frame == AFTER_RESEND:
            if self._resending.active:
                return False
            frame = self._resend_end
        oldest = self._buffers.oldest_in_flight()
        return oldest is None or frame < oldest

    def unpersisted_count(self) -> int:
        """Messages of the publish store that are not known to be persisted, gathered ones included."""
        if self.store is None:
            return 0
        return self.store.unpersisted_count() + self._recorded.count

    def unsettled(self) -> bool:
        """Whether anything gathered or sent on this connection has no answer yet, or never will have."""
        return self._buffers.unsettled or self._taken_over is not None or self._resending.active

    def end(self) -> None:
        """Refuse messages with `Closed` from here on. Accepted ones go on, and so do settlements."""
        self._ended = True
        self._close_run()
        self._buffers.of_topic.clear()

    def unanswered_count(self) -> int:
        """Messages that end with this process when nobody waits for their answer: sent or gathered without a
        publish store, or held by one in memory."""
        buffers = (self._recorded, self._unrecorded)
        kept = not isinstance(self.store, MemoryPublishStore)
        loose = [buffer for buffer in buffers if not buffer.sequenced]
        count = sum(
            buffer.count + sum(frame.messages for frame in buffer.in_flight.values()) for buffer in loose
        )
        return count if kept else count + self.unpersisted_count()

    def check_taken_over(self) -> None:
        """Raise `PublisherTakenOver` when another process published under this name."""
        if self._taken_over is not None:
            raise self._taken_over

    def finished(self) -> None:
        """The connection has all frames of the step."""
        self.unfinished = False

    def interrupted(self) -> None:
        """An exception came in the middle of a step: forget what is half done. The connection has to end.

        What the store has is sent again on the next one; without a store the outcome of what was in flight
        is unknown, as always when a connection is lost.
        """
        self._close_run()
        self._buffers.repair()
        self._drop_stored(self._recorded)
        self.unfinished = False

    @property
    def chunk_bytes(self) -> int:
        """Cost that `publish_whole` should get at a time."""
        store = self.store
        return batch_bytes_target if store is None else min(batch_bytes_target, store.bytes_max // 2)

    def set_store(self, store: PublishStore | None, now: Now) -> None:
        """Use `store` from here on. Raises `StoreError`; `UsageError` while the old one still holds messages;
        `BadCommand` when the server has no sequences left for this client name.

        After `PublisherTakenOver` and `TopicNotRecorded` the old one may hold them: nobody sends them.
        """
        given_up = self._taken_over is not None or self._resending.refused is not None
        checks.check_new_store(store, 0 if given_up else self.unpersisted_count())
        buffer = self._recorded
        never = False
        if store is not None:
            checks.check_sequences_left(self._name, self._outstanding.last_persisted)
            store.attach(self._name)
            never = isinstance(store, LogonNotingPublishStore) and store.never_logged_on
            if self.server_topics.known:
                _note_logon(store)
        self._close_run()
        if self._connected and buffer.count:
            self._flush_buffer(buffer)
        self._taken_over = None
        self._resending.use_other_store()
        self.store = store
        self._outstanding.use_store(store)
        self._appending = store if isinstance(store, AppendingPublishStore) else None
        buffer.sequenced = store is not None
        if store is not None:
            buffer.base = checks.next_sequence(store, self._outstanding.last_persisted, now)
            self._own_from = 1 if never else buffer.base
            self.server_topics.restart(self._own_from, store.last_sequence)
        self._buffers.of_topic.clear()
        if self._connected:
            self._resume(now)
        self._measure()

    def connecting(self, *, eager: bool) -> None:
        """A connection is opened; `eager`: it asks for conflated acknowledgements."""
        self.eager = eager

    def forked(self) -> None:
        """Close the open run: this is a forked child."""
        self.run = CLOSED

    # -- the connection ---------------------------------------------------------------------------------

    @property
    def _connected(self) -> bool:
        return self._refusal is None

    def logged_on(self, last_persisted: int, now: Now) -> None:
        """A new connection is ready: discard what is persisted, resend the rest in order.

        When another process published under this name, what is held stays as it is (`check_taken_over`).
        Raises `StoreError`, and `TopicNotRecorded` when this server cannot take what the store holds.
        """
        self._buffers.of_topic.clear()
        self._close_run()
        try:
            if self._recorded.count:
                self._flush_buffer(self._recorded)  # while disconnected: into the store, and sent from there
            self._refusal = None
            self._outstanding.connect(last_persisted)
            self._buffers.connect()
            self.server_topics.assume(self._own_from, self._recorded.base - 1)
            _note_logon(self.store)
            self._resume(now)
        except TopicNotRecorded:
            raise
        except Exception as error:
            raise checks.as_store_error(error) from error
        self._storing_failed = False
        self._measure()

    def lost(self, refusal: TickertapeError, *, storing: bool = True) -> StoreError | None:
        """The connection is gone: keep what the store must keep; `refusal` is raised where it cannot.

        `storing`: whether the store takes what is published meanwhile. Returns what `put_gathered` returns.
        """
        self._refusal = refusal
        self._writing = False
        self._report_moved()
        self._resending.stop()
        self._storing = storing
        self._close_run()
        self.server_topics.assume(self._own_from, self._recorded.base + self._recorded.count - 1)
        self._buffers.disconnect()
        return self.put_gathered()

    def put_gathered(self) -> StoreError | None:
        """As `flush`, but never raises: why a store could not take what is gathered, which stays so.

        The application is told, once until the store works again.
        """
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - a store of the application may raise anything
            failure = checks.as_store_error(error)
            if not self._storing_failed:
                self._effects.append(ReportError(checks.not_stored(failure, self._recorded.count)))
            self._storing_failed = True
            return failure
        self._storing_failed = False
        return None

    def persisted(self, command: Persisted) -> None:
        """Settle every recorded frame up to the one named, and every sequence up to the one named."""
        sequence = self._outstanding.persisted(command)
        if sequence:
            self._resending.discarded(sequence)
            self._measure()
        self._after_ack(self._recorded)

    @property
    def unwritten_frame(self) -> int:
        """The frame that the driver reports with `written`; 0 when it has nothing to report."""
        return self._outstanding.frame if self._writing else 0

    def written(self, frame: int) -> None:
        """The connection took every frame up to `frame`. If it was the last, send the gathered messages.

        Without gathered messages the connection is idle: the next message is sent at once. Raises
        `StoreError`.
        """
        if not self._writing or frame < self._outstanding.frame:
            return
        held = self._resending.active  # messages of recorded topics follow the backlog
        buffers = [self._unrecorded] if held else [self._unrecorded, self._recorded]
        for buffer in buffers:
            if buffer.count:
                self._flush_buffer(buffer)
        if frame == self._outstanding.frame:
            for buffer in buffers:
                buffer.idle = True
            self._writing = False  # last: after an exception, the report is still due

    def processed(self, command: Processed) -> None:
        """Settle one unrecorded frame; it says nothing about any other."""
        for buffer in self._outstanding.processed(command):
            self._after_ack(buffer)

    def rejected(self, command: Rejected) -> None:
        """Settle one frame that the server refused, or what it refused of one."""
        buffers = self._outstanding.rejected(command)
        self._measure()
        for buffer in buffers:
            self._after_ack(buffer)

    # -- inside -----------------------------------------------------------------------------------------

    def _buffer_for(self, topic: str, *, own: bool = False) -> SendBuffer:
        if not own:
            check_topic(topic)
            if self._ended:
                raise Closed("the client was closed")
        self.check_taken_over()
        recorded = topic in self.server_topics
        if self._refusal is not None:
            stored = recorded and self._recorded.sequenced and self._storing
            if not stored or isinstance(self._refusal, Closed):
                raise self._refusal.with_traceback(None)  # else it grows with each call
        return self._recorded if own else self._buffers.remember(topic, recorded=recorded)

    def _make_room(self, buffer: SendBuffer, size: int, most: int = message_bytes_max) -> None:
        store = self.store if buffer.sequenced else None
        checks.check_size(size, store, most)
        if buffer.count and buffer.size + size > batch_bytes_target:
            self._flush_buffer(buffer)
        if store is not None and buffer.size + size > checks.free_bytes(store):
            if buffer.count:
                self._flush_buffer(buffer)  # stored, it takes what it takes: before, that was only estimated
            if size > checks.free_bytes(store):
                if self.eager and self._connected and not self.starved:
                    self._send_frame(Flush(id=0), None)  # else the store stays full for an interval
                self.starved = True
                raise checks.store_full_error(store, size)

    def _close_run(self) -> None:
        self.run = CLOSED
        if self.kept is not None:
            self.kept.close()
            self.kept = None
        self._buffers.close()

    def _flush_buffer(self, buffer: SendBuffer) -> None:
        self._close_run()
        if not buffer.sequenced:
            batch = buffer.batch()
            self.unfinished = True
            buffer.clear()
            self._transmit(buffer, Stored(0, 0, batch))
            return
        self._drop_stored(buffer)
        if buffer.count:
            batch = buffer.batch(self._publisher)
            self.unfinished = True
            stored = Stored(buffer.base, buffer.base + buffer.count - 1, batch)
            assert self.store is not None
            checks.keep(self.store.put if self._appending is None else self._appending.seal, stored)
            self._transmit_put(stored)

    def _take_back(self, buffer: SendBuffer) -> None:
        """The store did not take what is gathered: its last message, which `publish` raises for, is not."""
        self._drop_stored(buffer)
        if buffer.count:
            buffer.drop_last()

    def _drop_stored(self, buffer: SendBuffer) -> None:
        # Interrupted between the store and the buffer: what the store has is no longer gathered.
        if self.store is not None and buffer.base <= self.store.last_sequence:
            buffer.clear(self.store.last_sequence + 1)

    def _transmit_put(self, stored: Stored) -> None:
        self._recorded.clear(stored.last + 1)
        self._measure()
        if self._connected and not self._resending.active:
            self._transmit(self._recorded, stored)

    def _transmit(self, buffer: SendBuffer, stored: Stored) -> int:
        frame = self._outstanding.sent(buffer, stored)
        self._send_frame(Publish(frame=frame, sequenced=buffer.sequenced), stored.batch)
        self._writing = self.eager
        return frame

    def _resume(self, now: Now) -> None:
        """Send again what the store holds, unless another process published under this name."""
        store, buffer, last = self.store, self._recorded, self._outstanding.last_persisted
        self._resending.stop()
        if store is None:
            return
        self._taken_over = checks.taken_over(self._name, store.held(), self._outstanding.sent_sequence, last)
        if self._taken_over is not None:
            return
        store.discard(self.server_topics.last_certain(store.held(), last))
        if last >= buffer.base:
            buffer.base = checks.first_sequence(last, now)
        self._resending.begin(store)
        self._resend()

    def _resend(self) -> None:
        """Send as much of the backlog as may be on its way."""
        known = self._resending.refused is not None
        try:
            done = self._send_again(self._resending.steps())
        except TopicNotRecorded as error:
            if not known:
                self._effects.append(ReportError(error))
            # As if this server had never been there: what is published from here on is kept, too.
            self.server_topics.take_back()
            self._buffers.of_topic.clear()
            self._refusal = Disconnected(str(error))
            raise
        if done:
            self._report_moved()
            self._resend_end = self._outstanding.frame
            self._after_ack(self._recorded)

    def _report_moved(self) -> None:
        moved = self._resending.take_moved()
        if moved is not None:
            self._effects.append(ReportError(moved))

    def _send_again(self, steps: ResendSteps) -> bool:
        try:
            stored, chosen = next(steps)
            while True:
                if chosen is None:
                    frame = self._transmit(self._recorded, stored)
                else:
                    frame = self._unsequence(stored, chosen)
                stored, chosen = steps.send(frame)
        except StopIteration as end:
            done: bool = end.value
            return done

    def _unsequence(self, stored: Stored, chosen: Flags) -> int:
        self._unrecorded.add_some(stored.batch, chosen)
        self._flush_buffer(self._unrecorded)
        return self._outstanding.frame

    def _after_ack(self, buffer: SendBuffer) -> None:
        if self._resending.active:
            self._resend()
        if self._resending.active and buffer is self._recorded:
            return
        if buffer.count:
            self._flush_buffer(buffer)
        elif self.eager or not buffer.in_flight:
            buffer.idle = self._connected and not self._writing

    def _measure(self) -> None:
        buffer, store = self._recorded, self.store
        buffer.limit = (
            batch_bytes_target if store is None else min(batch_bytes_target, checks.free_bytes(store))
        )
        if self.starved and store is not None:
            self.starved = False
            self._effects.append(StoreHasRoom())


def _note_logon(store: PublishStore | None) -> None:
    """From here on messages are accepted as recorded: the store has to know, should this process end."""
    if isinstance(store, LogonNotingPublishStore) and store.never_logged_on:
        store.note_logon()
