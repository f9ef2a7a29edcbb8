"""Rejected publishes: kept until they are reported, and checks of the server's answers."""

from __future__ import annotations

import numpy as np

from tickertape.base.errors import BadCommand, PublishRejected, TickertapeError, error_from_code
from tickertape.batch.derive import select
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import Effect, FailedWrite
from tickertape.client.publishing.send_buffer import FrameInFlight
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


def check_persisted(command: Persisted, sent: int, known: int | None) -> None:
    """Raise `BadCommand` for a frame that is none of the `sent` ones, or a sequence above those `known` to be
    given; None where there are none."""
    if command.frame:
        check_frame(command.frame, sent)
    if known is not None and command.sequence > known:
        raise BadCommand(f"the server persisted sequence {command.sequence}; none above {known} was sent")


def check_processed(command: Processed, frame: FrameInFlight) -> None:
    """Raise `BadCommand` for a frame that a store keeps: only a `Persisted` or `Rejected` settles it."""
    if frame.batch is not None:
        raise BadCommand(f"the server processed publish frame {command.frame}, which is to be persisted")


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
