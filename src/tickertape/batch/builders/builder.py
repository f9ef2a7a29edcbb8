"""Batch builder: collects the messages of a publisher into a batch of one run.

The common case, one topic without optional columns, costs one comparison and one append per message. Other
topics, gaps and labels are recorded with their message index and expanded in `build`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tickertape.base.errors import BadMessage, MessageTooLarge, UsageError
from tickertape.base.limits import headers_bytes_max, message_bytes_max
from tickertape.base.text_format import shown_number
from tickertape.batch.encode import (
    assemble,
    encode_bodies,
    label_bytes,
    new_run,
    topic_bytes,
)
from tickertape.batch.format import (
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADER_BYTES,
    HEADERS,
    I1,
    I4,
    I8,
    KEYS,
    KIND_CONTROL,
    KINDS,
    MESSAGE_FLAGS,
    RUN_BYTES,
    SEQUENCE_END,
    SEQUENCES,
    U8,
    AnyArray,
    Columns,
    Int32s,
    Labels,
    UInt64s,
    offsets_from,
)
from tickertape.batch.message_batch import MessageBatch

_EMPTY_BYTES: Final = HEADER_BYTES + RUN_BYTES + 8 + 8 * 8
"""Header, run, the ends of the two mandatory offset tables, and padding."""
_WIDTHS: Final = {
    SEQUENCES: 8,
    EXPIRATIONS: 8,
    CORRELATION_IDS: 4,
    KEYS: 4,
    KINDS: 1,
    HEADERS: 4,
    MESSAGE_FLAGS: 1,
}
_TOPIC_INDEX_WIDTH: Final = 4
_EXPIRATION_END: Final = 1 << 63


class _Extra(NamedTuple):
    """Optional values of the message with index `at`."""

    at: int
    expiration_ms: int
    correlation_id: bytes
    key: bytes
    kind: int
    headers: bytes
    flags: int


class BatchBuilder:
    """Collects messages into one run. `build` may be called at any time, `clear` starts a new run.

    A rejected message leaves the builder unchanged.
    """

    __slots__ = (
        "_bodies",
        "_changes",
        "_columns",
        "_extras",
        "_first",
        "_fixed_bytes",
        "_gaps",
        "_next",
        "_topic",
        "_topics",
        "_width",
        "body_bytes",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all messages."""
        self.body_bytes = 0
        self._bodies: list[bytes] = []
        self._topic: str | None = None  # topic of the last message, most likely also of the next one
        self._topics: dict[str, int] = {}
        self._changes: list[tuple[int, int]] = []  # (index of message, number of its topic)
        self._first: int | None = None
        self._next: int | None = None  # the next sequence without a gap, or None for messages without one
        self._gaps: list[tuple[int, int]] = []  # (index of message, skipped sequences before it)
        self._extras: list[_Extra] = []
        self._columns = 0
        self._width = 4  # encoded bytes per message, without its body and texts
        self._fixed_bytes = _EMPTY_BYTES

    def repair(self) -> None:
        """Repair the builder after an exception in the middle of `add`, such as one of a signal handler.

        A message counts as added when its body is stored. Values of a message without a body are removed.
        """
        count = len(self._bodies)
        while self._extras and self._extras[-1].at >= count:
            self._extras.pop()
        while self._gaps and self._gaps[-1][0] >= count:
            self._gaps.pop()
        self.body_bytes = sum(map(len, self._bodies))
        if self._next is not None:
            self._next = (self._first or 0) + count + sum(gap for _, gap in self._gaps) if count else None

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def size_bytes(self) -> int:
        """Upper bound of the encoded size in bytes. The real size is at most 128 bytes less."""
        return self.body_bytes + self._width * len(self._bodies) + self._fixed_bytes

    @property
    def topic_count(self) -> int:
        """Number of distinct topics."""
        return len(self._topics)

    def has_topic(self, topic: str) -> bool:
        """Return whether a message has this topic."""
        return topic in self._topics

    def add(
        self,
        topic: str,
        body: bytes,
        *,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
        sequence: int | None = None,
        kind: int = 0,
        headers: bytes = b"",
        flags: int = 0,
    ) -> None:
        """Add a message. `expiration_ms` 0, and an empty `correlation_id`, `key` or `headers`, mean none.

        Pass an increasing `sequence` for every message of the run, or for none. Without sequences, `build`
        numbers the messages. `kind` is 1 for a control record, and `flags` are message flags. Raises
        `MessageTooLarge`, `BadTopic` (too long, or invalid Unicode) or `BadMessage`.
        """
        size = len(body)
        if (
            topic != self._topic
            or sequence != self._next
            or size > message_bytes_max
            or expiration_ms
            or correlation_id
            or key
            or kind
            or headers
            or flags
        ):
            self._widen(topic, size, sequence, expiration_ms, correlation_id, key, kind, headers, flags)
        self._bodies.append(body)
        self.body_bytes += size
        if sequence is not None:
            self._next = sequence + 1

    def _widen(
        self,
        topic: str,
        size: int,
        sequence: int | None,
        expiration_ms: int,
        correlation_id: str,
        key: str,
        kind: int,
        headers: bytes,
        flags: int,
    ) -> None:
        """Handle the uncommon cases of `add`. Validation precedes every change."""
        if size > message_bytes_max:
            raise MessageTooLarge(
                f"Invalid message to {topic!r}: {size} bytes is too large. "
                f"Use at most {message_bytes_max} bytes."
            )
        if sequence != self._next:
            self._check_sequence(sequence)
        if not 0 <= expiration_ms < _EXPIRATION_END:
            raise BadMessage(
                f"Invalid expiration '{shown_number(expiration_ms)} ms'. Use 0 to {_EXPIRATION_END - 1} ms."
            )
        if not 0 <= kind <= KIND_CONTROL:
            raise BadMessage(f"Invalid kind '{kind}'. Use 0 to {KIND_CONTROL}.")
        correlation_text = label_bytes(correlation_id, "correlation id") if correlation_id else b""
        key_text = label_bytes(key, "key") if key else b""
        if len(headers) > headers_bytes_max:
            raise BadMessage(
                f"Invalid headers of {len(headers)} bytes. Use at most {headers_bytes_max} bytes."
            )
        if topic != self._topic:
            self._change_topic(topic)
        if sequence != self._next:
            self._note_gap(sequence)
        if expiration_ms or correlation_text or key_text or kind or headers or flags:
            self._extras.append(
                _Extra(len(self._bodies), expiration_ms, correlation_text, key_text, kind, headers, flags)
            )
            for bit, value in (
                (EXPIRATIONS, expiration_ms),
                (CORRELATION_IDS, correlation_text),
                (KEYS, key_text),
                (KINDS, kind),
                (HEADERS, headers),
                (MESSAGE_FLAGS, flags),
            ):
                if value:
                    self._need(bit)
            self._fixed_bytes += len(correlation_text) + len(key_text) + len(headers)

    def _check_sequence(self, sequence: int | None) -> None:
        if sequence is None or (self._next is None and self._bodies):
            raise BadMessage("Invalid sequence. Give every message of a run a sequence, or none.")
        if not (self._next or 0) <= sequence < SEQUENCE_END:
            raise BadMessage(f"Invalid sequence {sequence}. Use increasing unsigned 64-bit numbers.")

    def _note_gap(self, sequence: int | None) -> None:
        if self._next is None or sequence is None:
            self._first = sequence
        else:
            self._gaps.append((len(self._bodies), sequence - self._next))
            self._need(SEQUENCES)

    def _change_topic(self, topic: str) -> None:
        number = self._topics.get(topic)
        if number is None:
            size = topic_bytes(topic)
            number = self._topics[topic] = len(self._topics)
            self._fixed_bytes += 4 + size
            if number == 1:
                self._width += _TOPIC_INDEX_WIDTH
        self._changes.append((len(self._bodies), number))
        self._topic = topic

    def _need(self, bit: int) -> None:
        if not self._columns & bit:
            self._columns |= bit
            self._width += _WIDTHS[bit]
            self._fixed_bytes += 4

    def build(self, publisher: int = 0, first_sequence: int = 0, timestamp: int = 0) -> MessageBatch:
        """Return all messages as one run. They stay in the builder until `clear`.

        `first_sequence` is for messages that were added without a sequence, and otherwise 0 or the sequence
        of the first message. `timestamp` is in microseconds since 1970 UTC. Raises `UsageError` without
        messages or for invalid numbers, `MessageTooLarge` for bodies of 2 GiB or more in total.
        """
        if self._first is not None:
            if first_sequence not in (0, self._first):
                raise UsageError(
                    f"Invalid first sequence {first_sequence}. "
                    f"Use 0 or {self._first}, the sequence of the first message."
                )
            if self._next is not None and self._next > SEQUENCE_END:  # not checked in the fast path of `add`
                raise UsageError(f"Invalid sequence {self._next - 1}. Use unsigned 64-bit numbers.")
            first_sequence = self._first
        encoded = encode_bodies(self._bodies)
        runs = new_run(publisher, first_sequence, timestamp, encoded.messages, encoded.crc)
        columns, extras = self._columns, self._extras
        optional = None
        if columns or len(self._topics) > 1:
            optional = Columns(
                topic_index=self._topic_index() if len(self._topics) > 1 else None,
                sequences=self._sequence_column() if columns & SEQUENCES else None,
                expirations=(
                    self._spread([e.expiration_ms for e in extras], I8) if columns & EXPIRATIONS else None
                ),
                correlation_ids=(
                    self._labels([e.correlation_id for e in extras]) if columns & CORRELATION_IDS else None
                ),
                keys=self._labels([e.key for e in extras]) if columns & KEYS else None,
                kinds=self._spread([e.kind for e in extras], I1) if columns & KINDS else None,
                headers=self._labels([e.headers for e in extras]) if columns & HEADERS else None,
                message_flags=(
                    self._spread([e.flags for e in extras], I1) if columns & MESSAGE_FLAGS else None
                ),
            )
        return assemble(
            runs=runs,
            offsets=encoded.offsets,
            bodies=encoded.joined,
            topics=tuple(self._topics),
            optional=optional,
        )

    def _topic_index(self) -> Int32s:
        changes = np.array(self._changes, I8)
        lengths = np.diff(changes[:, 0], append=len(self._bodies))
        return np.repeat(changes[:, 1].astype(I4), lengths)

    def _sequence_column(self) -> UInt64s:
        steps = np.ones(len(self._bodies), U8)
        steps[0] = self._first or 0
        for index, gap in self._gaps:
            steps[index] += np.uint64(gap)
        return steps.cumsum(dtype=U8)

    def _spread(self, values: list[int], kind: np.dtype[Any]) -> AnyArray:
        """Return a column with the values of the messages that have extras, and 0 for others."""
        column = np.zeros(len(self._bodies), kind)
        column[[e.at for e in self._extras]] = values
        return column

    def _labels(self, texts: list[bytes]) -> Labels:
        return Labels(offsets_from(self._spread(list(map(len, texts)), I4)), b"".join(texts))
