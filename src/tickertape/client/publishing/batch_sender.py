"""Batch sender: sends and stores collected messages, and keeps them until they are settled.

Messages for persistent topics are sent in order, with sequences if the client has a publish store.
Messages for non-persistent topics are sent separately and without sequences.

A buffer is sent at once if all its frames are acknowledged. Otherwise it collects messages until the next
acknowledgement or `batch_bytes_target`. With conflated acknowledgements it collects only while the connection
is writing earlier frames (`unwritten_frame`).

Invariant: a message leaves the publish store only when it was persisted or rejected.

A signal handler may raise an exception between any two steps. A step that must not be interrupted sets
`unfinished`. After an exception `interrupted` repairs the state, and the connection must end.
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
    UsageError,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import batch_bytes_target, message_bytes_max
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
from tickertape.client.publishing.in_flight import UnansweredFrames
from tickertape.client.publishing.resend import AFTER_RESEND, ResendSteps, StoreResend
from tickertape.client.publishing.send_buffer import (
    CLOSED,
    NO_OWNER,
    AppendRun,
    SendBuffer,
    SendBuffers,
    StoreAppend,
)
from tickertape.client.publishing.server_topics import Flags, ServerTopics
from tickertape.wire.commands import Deleted, Flush, Persisted, Processed, Publish, Rejected


class BatchSender:
    """Sending part of the publisher: collected messages, frames in flight, and resends.

    `send(command, batch)` sends a publish frame, or a `Flush` that requests a delayed acknowledgement. All
    other effects are appended to `effects`.
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
        """The store, if it receives each message before `publish` returns. It excludes append runs."""
        self._buffers = SendBuffers()
        self._claims = checks.Claims()
        self._recorded, self._unrecorded = self._buffers.recorded, self._buffers.unrecorded
        self.server_topics = ServerTopics()
        """Topics as the server reported them at logon."""
        self._refusal: TickertapeError | None = Disconnected(
            "Cannot publish: the client is not connected. Call connect() first."
        )
        self._ended = False
        """The application is closing the client: new messages are refused."""
        self._storing = True
        self.eager = False
        """Acknowledgements are conflated: collected messages do not wait for one."""
        self._writing = False
        self._storing_failed = False
        """Whether the store error was already reported to the application."""
        self._taken_over: PublisherTakenOver | None = None
        self._outstanding = UnansweredFrames(self._buffers, effects)
        self._resending = StoreResend(self._buffers, self.server_topics)
        self._resend_end = 0
        self._own_from = 1
        """First sequence that this client assigned in its publish store, or 1 if no client of the store had
        logged on before."""
        self.kept: StoreAppend | None = None
        """Fast path that appends the next messages directly to the store, if possible."""
        self._last_owner = NO_OWNER
        self.deletes = self._outstanding.deletes
        """Calls that wait for the answers to their deletes."""
        self.rejections = self._outstanding.rejections
        """Rejections since the last report."""
        self.starved = False
        """Whether a publish failed for lack of space since the last `StoreHasRoom`."""
        self.run: AppendRun = CLOSED
        """The open run, or `CLOSED`. Its owner publishes by appending to it (see `AppendRun`)."""
        self.unfinished = False
        """Frames are incomplete or not yet passed to the connection. `finished` resets it."""

    # -- the application --------------------------------------------------------------------------------

    def flush(self) -> int:
        """Send the collected messages. Return the number of their last frame, for `answered`."""
        for buffer in (self._recorded, self._unrecorded):
            if buffer.count:
                self._flush_buffer(buffer)
        return AFTER_RESEND if self._resending.active else self._outstanding.frame

    def answered(self, frame: int) -> bool:
        """Return whether all frames up to `frame` (as returned by `flush`) are answered."""
        if frame == AFTER_RESEND:
            if self._resending.active:
                return False
            frame = self._resend_end
        oldest = self._buffers.oldest_in_flight()
        return oldest is None or frame < oldest

    def unpersisted_count(self) -> int:
        """Return the number of messages in the publish store that are not persisted, with collected ones."""
        if self.store is None:
            return 0
        return self.store.unpersisted_count() + self._recorded.count

    def unsettled(self) -> bool:
        """Return whether a collected or sent message has no answer yet, or will never have one."""
        return self._buffers.unsettled or self._taken_over is not None or self._resending.active

    def end(self) -> None:
        """Refuse new messages with `Closed` from now on. Accepted messages and settlements are still sent."""
        self._ended = True
        self._close_run()
        self._buffers.of_topic.clear()

    def unanswered_count(self) -> int:
        """Return the number of messages that are lost if the process ends now: unanswered ones without a
        publish store, and all in a memory store."""
        buffers = (self._recorded, self._unrecorded)
        kept = not isinstance(self.store, MemoryPublishStore)
        loose = [buffer for buffer in buffers if not buffer.sequenced]
        count = sum(
            buffer.count + sum(frame.messages for frame in buffer.in_flight.values()) for buffer in loose
        )
        return count if kept else count + self.unpersisted_count()

    def check_taken_over(self) -> None:
        """Raise `PublisherTakenOver` if another process published under this client name."""
        if self._taken_over is not None:
            raise self._taken_over

    def finished(self) -> None:
        """Mark the step as complete: the connection has all of its frames."""
        self.unfinished = False

    def interrupted(self) -> None:
        """Discard the incomplete step after an exception. The connection must end.

        Stored messages are resent on the next connection. Without a store the outcome of messages in flight
        is unknown, as for every lost connection.
        """
        self._close_run()
        self._buffers.repair()
        self._drop_stored(self._recorded)
        self.unfinished = False

    @property
    def chunk_bytes(self) -> int:
        """Preferred maximum cost of one `publish_whole` call."""
        store = self.store
        return batch_bytes_target if store is None else min(batch_bytes_target, store.bytes_max // 2)

    def set_store(self, store: PublishStore | None, now: Now) -> None:
        """Use `store` from now on.

        Raises `StoreError`, `UsageError` while the old store holds messages, and `BadCommand` if the server
        has no sequences left for this client name. After `PublisherTakenOver` and `TopicNotRecorded` the old
        store may hold messages, because they are never sent.
        """
        given_up = self._taken_over is not None or self._resending.refused is not None
        checks.check_new_store(store, 0 if given_up else self.unpersisted_count())
        other = UsageError("Cannot confirm the delete: the client has another publish store now. Repeat it.")
        self.deletes.lost(other, resent=False)
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

    def connecting(self, now: Now, *, eager: bool) -> checks.Claim:
        """Prepare for a new connection. `eager`: it requests conflated acknowledgements.

        Return the claim of its logon. Raises `StoreError`."""
        self.eager = eager
        return self._claims.next(self.store, now)

    def forked(self) -> None:
        """Close the open run in a forked child."""
        self.run = CLOSED

    # -- the connection ---------------------------------------------------------------------------------

    @property
    def _connected(self) -> bool:
        return self._refusal is None

    def logged_on(self, last_persisted: int, now: Now, *, replicating: bool = False) -> None:
        """Start a new connection: discard persisted messages and resend the rest in order.

        `replicating`: the server may lack messages below `last_persisted`, so all are sent again.
        If another process published under this name, the store keeps its messages (`check_taken_over`).
        Raises `StoreError`, and `TopicNotRecorded` if this server cannot persist the stored messages.
        """
        self._buffers.of_topic.clear()
        self._close_run()
        try:
            if self._recorded.count:
                self._flush_buffer(self._recorded)  # while disconnected: into the store, then resent
            self._refusal = None
            self._outstanding.connect(last_persisted, replicating=replicating)
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
        """Handle the loss of the connection: store the collected messages.

        `refusal` is the error of later publishes that the store does not accept. `storing`: whether the store
        accepts messages while disconnected. Returns the result of `put_gathered`.
        """
        self._refusal = refusal
        if not storing:
            self.deletes.lost(refusal, resent=False)
        self._writing = False
        self._report_moved()
        self._resending.stop()
        self._storing = storing
        self._close_run()
        self.server_topics.assume(self._own_from, self._recorded.base + self._recorded.count - 1)
        self._buffers.disconnect()
        return self.put_gathered()

    def put_gathered(self) -> StoreError | None:
        """Call `flush` and return the error of the store, or None. Never raises.

        After an error the messages stay collected. The error is reported once until the store works again.
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
        """Settle every frame of persistent topics and every sequence up to the ones in `command`."""
        sequence = self._outstanding.persisted(command)
        if sequence:
            self._resending.discarded(sequence)
            self._measure()
        self._after_ack(self._recorded)

    def deleted(self, command: Deleted) -> None:
        """Process the answer to a delete of records."""
        self._outstanding.deleted(command)

    @property
    def unwritten_frame(self) -> int:
        """The frame that the driver must report with `written`, or 0."""
        return self._outstanding.frame if self._writing else 0

    def written(self, frame: int) -> None:
        """Handle that the connection wrote every frame up to `frame`. After the last one, send the collected
        messages.

        Without collected messages the connection is idle: the next message is sent at once. Raises
        `StoreError`.
        """
        if not self._writing or frame < self._outstanding.frame:
            return
        held = self._resending.active  # messages of persistent topics follow the backlog
        buffers = [self._unrecorded] if held else [self._unrecorded, self._recorded]
        for buffer in buffers:
            if buffer.count:
                self._flush_buffer(buffer)
        if frame == self._outstanding.frame:
            for buffer in buffers:
                buffer.idle = True
            self._writing = False  # last: after an exception, the report is still due

    def processed(self, command: Processed) -> None:
        """Settle one frame of non-persistent topics and no other."""
        for buffer in self._outstanding.processed(command):
            self._after_ack(buffer)

    def rejected(self, command: Rejected) -> None:
        """Settle a rejected frame, or the rejected messages of one."""
        buffers = self._outstanding.rejected(command)
        self._measure()
        for buffer in buffers:
            self._after_ack(buffer)

    # -- inside -----------------------------------------------------------------------------------------

    def _buffer_for(self, topic: str, *, own: bool = False) -> SendBuffer:
        if not own:
            check_topic(topic)
            if self._ended:
                raise self._closed_error()
        self.check_taken_over()
        recorded = topic in self.server_topics
        if self._refusal is not None:
            stored = recorded and self._recorded.sequenced and self._storing
            if not stored or isinstance(self._refusal, Closed):
                raise self._refusal.with_traceback(None)  # otherwise the traceback grows with each call
        return self._recorded if own else self._buffers.remember(topic, recorded=recorded)

    def _closed_error(self) -> Closed:
        return Closed(f"Cannot use client {self._name!r}: it is closed. Create a new client.")

    def _make_room(self, buffer: SendBuffer, size: int, most: int = message_bytes_max) -> None:
        store = self.store if buffer.sequenced else None
        checks.check_size(size, store, most)
        if buffer.count and buffer.size + size > batch_bytes_target:
            self._flush_buffer(buffer)
        if store is not None and buffer.size + size > checks.free_bytes(store):
            if buffer.count:
                self._flush_buffer(buffer)  # the size before was an estimate
            if size > checks.free_bytes(store):
                if self.eager and self._connected and not self.starved:
                    self._send_frame(Flush(id=0), None)  # otherwise the store stays full for an interval
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
        """Remove the last collected message, for which `publish` raises, after an error of the store."""
        self._drop_stored(buffer)
        if buffer.count:
            buffer.drop_last()

    def _drop_stored(self, buffer: SendBuffer) -> None:
        # After an interruption between store and buffer: drop messages that are already stored.
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
        """Resend the stored messages, unless another process published under this name."""
        store, buffer, last = self.store, self._recorded, self._outstanding.last_persisted
        self._resending.stop()
        if store is None:
            return
        self._taken_over = checks.taken_over(self._name, store.held(), self._outstanding.sent_sequence, last)
        if self._taken_over is not None:
            self.deletes.lost(self._taken_over, resent=False)
            return
        if not self._outstanding.replicating:
            store.discard(self.server_topics.last_certain(store.held(), last))
        if last >= buffer.base:
            buffer.base = checks.first_sequence(last, now)
        self._resending.begin(store)
        self._resend()

    def _resend(self) -> None:
        """Send as much of the backlog as the resend window allows."""
        known = self._resending.refused is not None
        try:
            done = self._send_again(self._resending.steps())
        except TopicNotRecorded as error:
            if not known:
                self._effects.append(ReportError(error))
            # Ignore this server's topics, so that messages published from now on are stored too.
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
    """Record in the store that messages are accepted as persistent from now on, also after a restart."""
    if isinstance(store, LogonNotingPublishStore) and store.never_logged_on:
        store.note_logon()
