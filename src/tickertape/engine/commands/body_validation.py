"""Body validation: splits off messages that are too large or do not match the type of their topic.

A frame with valid and invalid messages is split. Bodies are not changed. Bodies of other topics are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tickertape.base.client_limits import message_too_large
from tickertape.base.errors import BadBody, TickertapeError
from tickertape.base.limits import message_bytes_max
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, Stamp, merge, select
from tickertape.engine.limits import refused_per_command_messages_max
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.payload import MessageType
from tickertape.wire.commands import Publish, Rejected
from tickertape.wire.settlement import QUEUE_TOPIC


class PartialRejection(NamedTuple):
    """The rejections of a publish frame with invalid messages, and the rest of the frame."""

    rejections: list[Rejected]
    rest: MessageBatch | None
    """Copy of the valid messages. None if all messages are invalid."""
    numbers: Sequence[int]
    """Their numbers in the frame."""
    error: TickertapeError


class BodyValidation:
    """Validation against the topic catalog, and of the size of messages."""

    def __init__(self, catalog: TopicCatalog, bytes_max: int = message_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._types = catalog.validated

    def split(
        self, command: Publish, batch: MessageBatch, numbers: Sequence[int] | None = None
    ) -> PartialRejection | None:
        """Split the invalid messages from a frame. None, the usual case, if all messages are valid.

        `numbers` are the numbers of the messages in the frame. None: all."""
        if batch.body_bytes > self._bytes_max and (long := self._too_long(batch)):
            size = int(batch.offsets[long[0] + 1] - batch.offsets[long[0]])
            split = refusing(command, batch, long, message_too_large(size, self._bytes_max), numbers)
            if split.rest is None:
                return split
            more = self.split(command, split.rest, split.numbers)
            if more is None:
                return split
            return more._replace(rejections=[*split.rejections, *more.rejections], error=split.error)
        if not self._types or self._types.keys().isdisjoint(batch.topics):
            return None
        bad, reason = self._bad(batch)
        if not bad:
            return None
        text = _text(command, batch, bad, f"{self._types[batch.topic(bad[0])].name}: {reason}")
        return refusing(command, batch, bad, BadBody(text), numbers)

    def _too_long(self, batch: MessageBatch) -> list[int]:
        """Return the indices of messages that are too large. Settlements are not messages."""
        long = np.diff(batch.offsets) > self._bytes_max
        if QUEUE_TOPIC in batch.topics:
            own = np.array([topic == QUEUE_TOPIC for topic in batch.topics])
            long &= ~(own if batch.topic_index is None else own[batch.topic_index])
        found: list[int] = long.nonzero()[0].tolist()
        return found

    def _bad(self, batch: MessageBatch) -> tuple[list[int], str]:
        """Return the indices of messages that do not conform to their topic, and the reason of the first."""
        offsets = batch.offsets.tolist()
        bodies = batch.bodies.tobytes()
        bad: list[int] = []
        first, reason = batch.count, ""
        for kind in dict.fromkeys(self._types[topic] for topic in batch.topics if topic in self._types):
            which = self._judged(batch, kind)
            found, why = kind.unreadable([bodies[offsets[i] : offsets[i + 1]] for i in which])
            if found and which[found[0]] < first:
                first, reason = which[found[0]], why
            bad.extend(which[i] for i in found)
        bad.sort()
        return bad, reason

    def _judged(self, batch: MessageBatch, kind: MessageType) -> Sequence[int]:
        """Return the indices of messages whose topic is validated as type `kind`."""
        judged = [self._types.get(topic) is kind for topic in batch.topics]
        if batch.topic_index is None or all(judged):
            return range(batch.count)
        found: list[int] = np.array(judged)[batch.topic_index].nonzero()[0].tolist()
        return found


def _text(command: Publish, batch: MessageBatch, bad: list[int], reason: str) -> str:
    first = bad[0]
    which = f"with sequence {batch.sequences[first]}" if command.sequenced else f"number {first}"
    return (
        f"Cannot store {len(bad)} of {batch.count} messages: their bodies are invalid. The first is the one "
        f"{which}: a body of {int(batch.offsets[first + 1] - batch.offsets[first])} bytes for "
        f"{shown(batch.topic(first))} is not {reason.rstrip('.')}. Correct the bodies and publish them again."
    )


def refusing(
    command: Publish,
    batch: MessageBatch,
    bad: list[int],
    error: TickertapeError,
    numbers: Sequence[int] | None = None,
) -> PartialRejection:
    """Reject the messages `bad` (indices, ascending, at least one). `numbers` are the numbers of the messages
    of `batch` in the frame. None: all."""
    last = int(batch.sequences[bad[-1]]) if command.sequenced else 0
    code, text = error.code, str(error)
    known = range(batch.count) if numbers is None else numbers
    if len(bad) == len(known) and numbers is None:
        return PartialRejection(
            [Rejected(frame=command.frame, sequence=last, code=code, text=text)], None, (), error
        )
    names = batch.sequences[bad].tolist() if command.sequenced else [known[index] for index in bad]
    step = refused_per_command_messages_max
    rejections = [
        Rejected(frame=command.frame, sequence=last, code=code, text=text, refused=tuple(part))
        for part in (names[at : at + step] for at in range(0, len(names), step))
    ]
    if len(bad) == batch.count:
        return PartialRejection(rejections, None, (), error)
    good = np.ones(batch.count, np.bool_)
    good[bad] = False
    rest = select(batch, good)
    if not command.sequenced and rest.has_sequences:
        # The server assigns consecutive sequences, so the sequences of the batch are dropped.
        run = rest.first_run
        rest = merge([rest], [Stamp(run.publisher ^ 1, run.first_sequence, run.timestamp)])
    left = [known[index] for index in good.nonzero()[0].tolist()]
    return PartialRejection(rejections, MessageBatch.parse(rest.encode()), left, error)
