"""Frames in flight: publish frames without an answer, how one settles them, and what was refused.

Invariant: a message of a publish store is released only when it was persisted or rejected.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.errors import BadCommand, PublishRejected, TickertapeError, error_from_code
from tickertape.batch.derive import select
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import Effect, FailedWrite
from tickertape.client.publish_store.protocol import PublishStore, Stored
from tickertape.client.publishing.send_buffer import FrameInFlight, SendBuffer, SendBuffers
from tickertape.wire.commands import Persisted, Processed, Rejected


class Rejections:
    """Each is an effect at once; `take` gives those that a flush reports, as one error."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._first: TickertapeError | None = None
        self.count = 0
        """Messages that `take` has not told of."""
        self.report = True
        """Whether `take` is to hear of what is refused from now on."""

    def reporting(self, *, enabled: bool) -> None:
        """Report rejections with `take` from now on, or not."""
        self.report = enabled

    def add(self, command: Rejected, messages: int, batch: MessageBatch | None) -> None:
        """The server refused that many messages; `batch` holds them when there is a publish store."""
        reason = error_from_code(command.code, command.text)
        if self.report:
            self._first = self._first or reason
            self.count += messages
        error = PublishRejected(f"{command.code}: {command.text}")
        error.__cause__ = reason
        self._effects.append(FailedWrite(error, messages, batch))

    def take(self) -> TickertapeError | None:
        """Refusals since it was last asked, as one error."""
        first, count = self._first, self.count
        self._first, self.count = None, 0
        if first is None or count == 0:
            return None
        return PublishRejected(f"the server refused {count} message(s); the first time because: {first}")


def part(batch: MessageBatch, command: Rejected) -> tuple[MessageBatch, MessageBatch] | None:
    """Split `batch` into rejected messages and the rest; None when that is not a part of it."""
    refused = np.isin(batch.sequences, np.array(command.refused, np.uint64))
    if not 0 < int(refused.sum()) < batch.count:
        return None
    return select(batch, refused), select(batch, ~refused)


def partly(frame: FrameInFlight, command: Rejected) -> tuple[MessageBatch | None, FrameInFlight] | None:
    """Split `frame` into rejected messages, where a store keeps it, and the rest; None without a rest."""
    if frame.batch is None:
        left = frame.messages - len(command.refused)
        return (None, frame._replace(messages=left)) if left > 0 else None
    parts = part(frame.batch, command)
    if parts is None:
        return None
    refused, rest = parts
    return refused, frame._replace(messages=frame.messages - refused.count, batch=rest)


def check_frame(frame: int, sent: int) -> None:
    """Raise `BadCommand` for an answer to a frame that is none of the `sent` ones."""
    if not 0 < frame <= sent:
        raise BadCommand(f"the server answered publish frame {frame}; {sent} were sent")


def check_rejected(command: Rejected, frame: FrameInFlight) -> None:
    """Raise `BadCommand` when it names messages that are not in the frame, or no longer."""
    named = len(command.refused)
    if frame.batch is None:
        fits = named <= frame.messages and len(set(command.refused)) == named
    else:
        sequences = np.unique(np.array(command.refused, np.uint64))
        fits = len(sequences) == named and bool(np.isin(sequences, frame.batch.sequences).all())
    if not fits:
        raise BadCommand(f"the server refused messages that are not in publish frame {command.frame}")


class UnansweredFrames:
    """The frames in flight of both send buffers, which hold them.

    Each answer is checked before it settles anything: `BadCommand` is raised for one that does not fit.
    """

    def __init__(self, buffers: SendBuffers, effects: list[Effect]) -> None:
        self._buffers = buffers
        self.store: PublishStore | None = None
        self.rejections = Rejections(effects)
        self.frame = 0
        """The number of the last frame of this connection."""
        self.sent_sequence = 0
        """The highest sequence that was sent on any connection."""
        self.last_persisted = 0
        """Last persisted sequence, as reported at logon."""

    def use_store(self, store: PublishStore | None) -> None:
        """`store` holds recorded messages from here on."""
        self.store = store
        if store is not None:
            self.sent_sequence = store.last_sequence

    def connect(self, last_persisted: int) -> None:
        """A connection is ready, and the server reported this sequence."""
        self.frame, self.last_persisted = 0, last_persisted

    def sent(self, buffer: SendBuffer, stored: Stored) -> int:
        """`stored` is about to go out as a frame of `buffer`, whose number this is."""
        self.frame += 1
        buffer.idle = False
        batch = stored.batch
        self.sent_sequence = max(self.sent_sequence, stored.last)  # 0 of an unsequenced buffer
        kept = batch if buffer.sequenced else None
        buffer.in_flight[self.frame] = FrameInFlight(stored.first, stored.last, batch.count, kept)
        return self.frame

    def persisted(self, command: Persisted) -> int:
        """Settle every recorded frame up to the one named, and every sequence up to the one named.

        Up to which sequence the store let go; 0 when of nothing.
        """
        if command.frame:
            check_frame(command.frame, self.frame)
        known = max(self.sent_sequence, self.last_persisted)
        if self.store is not None and command.sequence > known:
            raise BadCommand(f"the server persisted sequence {command.sequence}; none above {known} was sent")
        buffer, sequence = self._buffers.recorded, command.sequence
        while buffer.in_flight and (number := next(iter(buffer.in_flight))) <= command.frame:
            sequence = max(sequence, buffer.in_flight.pop(number).last)
        if self.store is None or not sequence:
            return 0
        self.store.discard(sequence)
        return sequence

    def processed(self, command: Processed) -> list[SendBuffer]:
        """Settle one unrecorded frame; it says nothing about any other. Which buffer it was in."""
        check_frame(command.frame, self.frame)
        settled = []
        for buffer in (self._buffers.unrecorded, self._buffers.recorded):
            frame = buffer.in_flight.get(command.frame)
            if frame is not None:
                if frame.batch is not None:  # only a `Persisted` or `Rejected` settles what a store keeps
                    number = command.frame
                    raise BadCommand(f"the server processed publish frame {number}, which is to be persisted")
                del buffer.in_flight[command.frame]
                settled.append(buffer)
        return settled

    def rejected(self, command: Rejected) -> list[SendBuffer]:
        """Settle one frame that the server refused, or what it refused of one. Which buffer it was in, where
        nothing is left of it."""
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
            self.rejections.add(command, frame.messages, frame.batch)
            settled.append(buffer)
        return settled

    def _refused_in_part(self, buffer: SendBuffer, frame: FrameInFlight, command: Rejected) -> bool:
        """Let go of what was refused of a frame; the rest waits for its answer. False when none is left."""
        parts = partly(frame, command)
        if parts is None:
            return False
        refused, rest = parts
        if refused is not None and self.store is not None:
            self.store.replace(frame.first, frame.last, rest.batch)
        buffer.in_flight[command.frame] = rest
        self.rejections.add(command, frame.messages - rest.messages, refused)
        return True
