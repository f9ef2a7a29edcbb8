"""Frames in flight: unacknowledged publish frames, their settlement, and rejected messages.

Invariant: a message leaves the publish store only when it was persisted or rejected.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.errors import BadCommand, PublishRejected, TickertapeError, error_from_code
from tickertape.batch.derive import select
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import Effect, FailedWrite
from tickertape.client.publish_store.protocol import PublishStore, Stored
from tickertape.client.publishing.pending_deletes import PendingDeletes
from tickertape.client.publishing.send_buffer import FrameInFlight, SendBuffer, SendBuffers
from tickertape.wire.commands import Deleted, Persisted, Processed, Rejected
from tickertape.wire.sow_command import SOW_TOPIC


class Rejections:
    """Rejected messages: each rejection is an effect at once, and `take` returns one error for a flush."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._first: TickertapeError | None = None
        self.count = 0
        """Rejected messages that `take` has not reported."""
        self.report = True
        """Whether `take` reports new rejections."""

    def reporting(self, *, enabled: bool) -> None:
        """Set whether `take` reports new rejections."""
        self.report = enabled

    def add(self, command: Rejected, messages: int, batch: MessageBatch | None) -> None:
        """Record a rejection of `messages` messages. `batch` holds them if the client has a publish store."""
        reason = error_from_code(command.code, command.text)
        if self.report:
            self._first = self._first or reason
            self.count += messages
        error = PublishRejected(f"{command.code}: {command.text}")
        error.__cause__ = reason
        self._effects.append(FailedWrite(error, messages, batch))

    def take(self) -> TickertapeError | None:
        """Return one error for all rejections since the last call, or None. Its cause is the first reason."""
        first, count = self._first, self.count
        self._first, self.count = None, 0
        if first is None or count == 0:
            return None
        messages = "1 message" if count == 1 else f"{count} messages"
        error = PublishRejected(f"The server rejected {messages}. First reason: {first}")
        error.__cause__ = first
        return error


def part(batch: MessageBatch, command: Rejected) -> tuple[MessageBatch, MessageBatch] | None:
    """Split `batch` into rejected messages and the rest. Return None if it rejects none or all."""
    refused = np.isin(batch.sequences, np.array(command.refused, np.uint64))
    if not 0 < int(refused.sum()) < batch.count:
        return None
    return select(batch, refused), select(batch, ~refused)


def partly(frame: FrameInFlight, command: Rejected) -> tuple[MessageBatch | None, FrameInFlight] | None:
    """Split `frame` into rejected messages (None without a store) and the rest, or return None."""
    if frame.batch is None:
        left = frame.messages - len(command.refused)
        return (None, frame._replace(messages=left)) if left > 0 else None
    parts = part(frame.batch, command)
    if parts is None:
        return None
    refused, rest = parts
    return refused, frame._replace(messages=frame.messages - refused.count, batch=rest)


def check_frame(frame: int, sent: int) -> None:
    """Raise `BadCommand` for an answer to a frame that was not sent. `sent` is the last frame number."""
    if not 0 < frame <= sent:
        raise BadCommand(
            f"Unexpected answer to publish frame {frame}: only {sent} frames were sent. Update the server."
        )


def check_rejected(command: Rejected, frame: FrameInFlight) -> None:
    """Raise `BadCommand` if the rejection names messages outside `frame`, or settled ones."""
    named = len(command.refused)
    if frame.batch is None:
        fits = named <= frame.messages and len(set(command.refused)) == named
    else:
        sequences = np.unique(np.array(command.refused, np.uint64))
        fits = len(sequences) == named and bool(np.isin(sequences, frame.batch.sequences).all())
    if not fits:
        raise BadCommand(
            f"Invalid rejection: its messages are not in publish frame {command.frame}. Update the server."
        )


class UnansweredFrames:
    """Answers to the frames in flight of both send buffers.

    Each answer is checked before it settles anything. An inconsistent answer raises `BadCommand`.
    """

    def __init__(self, buffers: SendBuffers, effects: list[Effect]) -> None:
        self._buffers = buffers
        self.store: PublishStore | None = None
        self.rejections = Rejections(effects)
        self.deletes = PendingDeletes(effects)
        """Calls that wait for the answers to their deletes."""
        self.frame = 0
        """Number of the last frame sent on this connection."""
        self.sent_sequence = 0
        """Highest sequence sent on any connection."""
        self.last_persisted = 0
        """Last persisted sequence, as reported at logon."""
        self.replicating = False
        """Whether the server may lack messages below `last_persisted`."""

    def use_store(self, store: PublishStore | None) -> None:
        """Use `store` for messages of persistent topics from now on."""
        self.store = store
        if store is not None:
            self.sent_sequence = store.last_sequence

    def connect(self, last_persisted: int, *, replicating: bool) -> None:
        """Start a new connection with the last persisted sequence that the server reported."""
        self.frame, self.last_persisted, self.replicating = 0, last_persisted, replicating

    def sent(self, buffer: SendBuffer, stored: Stored) -> int:
        """Register `stored` as the next frame of `buffer` and return the frame number."""
        self.frame += 1
        buffer.idle = False
        batch = stored.batch
        self.sent_sequence = max(self.sent_sequence, stored.last)  # 0 of an unsequenced buffer
        kept = batch if buffer.sequenced else None
        buffer.in_flight[self.frame] = FrameInFlight(stored.first, stored.last, batch.count, kept)
        return self.frame

    def persisted(self, command: Persisted) -> int:
        """Settle every frame of persistent topics and every sequence up to the ones in `command`.

        Return the sequence up to which the store discarded messages, or 0.
        """
        if command.frame:
            check_frame(command.frame, self.frame)
        known = max(self.sent_sequence, self.last_persisted)
        if self.store is not None and command.sequence > known:
            raise BadCommand(
                f"Invalid acknowledgement: sequence {command.sequence} is persisted, but the highest "
                f"sequence sent is {known}. Update the server."
            )
        buffer, sequence = self._buffers.recorded, command.sequence
        while buffer.in_flight and (number := next(iter(buffer.in_flight))) <= command.frame:
            sequence = max(sequence, buffer.in_flight.pop(number).last)
        self.deletes.persisted(command.frame, sequence)
        if self.store is None or not sequence:
            return 0
        self.store.discard(sequence)
        return sequence

    def deleted(self, command: Deleted) -> None:
        """Process the answer to a delete, which precedes the acknowledgement of its frame."""
        check_frame(command.frame, self.frame)
        frame = self._buffers.recorded.in_flight.get(command.frame)
        if frame is None or (frame.batch is not None and SOW_TOPIC not in frame.batch.topics):
            raise BadCommand(
                f"Unexpected answer to a delete in publish frame {command.frame}: it has no unanswered "
                "delete. Update the server."
            )
        self.deletes.answered(command, frame)

    def processed(self, command: Processed) -> list[SendBuffer]:
        """Settle one frame of non-persistent topics and no other. Return the buffer that held it."""
        check_frame(command.frame, self.frame)
        settled = []
        for buffer in (self._buffers.unrecorded, self._buffers.recorded):
            frame = buffer.in_flight.get(command.frame)
            if frame is not None:
                if frame.batch is not None:  # only `Persisted` or `Rejected` settles stored messages
                    number = command.frame
                    raise BadCommand(
                        f"Invalid acknowledgement: publish frame {number} is processed, but it must be "
                        "persisted. Update the server."
                    )
                del buffer.in_flight[command.frame]
                settled.append(buffer)
        return settled

    def rejected(self, command: Rejected) -> list[SendBuffer]:
        """Settle a rejected frame, or the rejected messages of one. Return the buffer of a frame that is
        completely settled."""
        check_frame(command.frame, self.frame)
        settled = []
        for buffer in (self._buffers.recorded, self._buffers.unrecorded):
            frame = buffer.in_flight.get(command.frame)
            if frame is None:
                continue
            check_rejected(command, frame)
            if command.refused and self._refused_in_part(buffer, frame, command):
                continue
            del buffer.in_flight[command.frame]
            if frame.batch is not None and self.store is not None:
                self.store.replace(frame.first, frame.last, None)
            if not self.deletes.rejected(command, frame):
                self.rejections.add(command, frame.messages, frame.batch)
            settled.append(buffer)
        return settled

    def _refused_in_part(self, buffer: SendBuffer, frame: FrameInFlight, command: Rejected) -> bool:
        """Settle the rejected part of a frame and keep the rest in flight. Return False without a rest."""
        parts = partly(frame, command)
        if parts is None:
            return False
        refused, rest = parts
        if refused is not None and self.store is not None:
            self.store.replace(frame.first, frame.last, rest.batch)
        buffer.in_flight[command.frame] = rest
        self.rejections.add(command, frame.messages - rest.messages, refused)
        return True
