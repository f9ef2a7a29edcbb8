"""Frames in flight: publish frames without an answer, and how an answer settles them.

Invariant: a message of a publish store is released only when it was persisted or rejected.
"""

from __future__ import annotations

from tickertape.client.common.effects import Effect
from tickertape.client.publish_store.protocol import PublishStore, Stored
from tickertape.client.publishing.rejections import (
    Rejections,
    check_frame,
    check_persisted,
    check_processed,
    check_rejected,
    partly,
)
from tickertape.client.publishing.send_buffer import FrameInFlight, SendBuffer, SendBuffers
from tickertape.wire.commands import Persisted, Processed, Rejected


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
        known = None if self.store is None else max(self.sent_sequence, self.last_persisted)
        check_persisted(command, self.frame, known)
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
                check_processed(command, frame)
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
