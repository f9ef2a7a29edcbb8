"""Bulk publishing: splits iterables and Arrow columns into chunks of one batch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tickertape.base.errors import BadBatch, BadMessage, UsageError
from tickertape.base.limits import message_cost_bytes
from tickertape.base.text_format import wrong_type
from tickertape.batch import BatchBuilder
from tickertape.batch.arrow import array_pieces, body_arrays, encode_array
from tickertape.batch.encode import EncodedBodies, encode_bodies, lengths_in
from tickertape.batch.format import FLAG_DELTA, I8, check_head
from tickertape.batch.message_batch import MessageBatch
from tickertape.payload.bodies import encode, encode_all

LOOKED_AT_ONCE: Final = 2048
"""Messages of a list that are encoded and measured together."""


class MakeBatch(Protocol):
    """Factory of the batch of a chunk."""

    def __call__(self, *, publisher: int = 0, first_sequence: int = 0) -> MessageBatch: ...


class Chunk(NamedTuple):
    """Number of messages, total size of their bodies in bytes, and the factory of their batch."""

    messages: int
    body_bytes: int
    make: MakeBatch


def checked(batch: MessageBatch) -> MessageBatch:
    """Return `batch` if every server and publish store can parse it. Does not check the bodies.

    An unreadable batch would end each connection on which a publish store sends it, and would block all
    later messages. Raises `BadMessage`.
    """
    try:
        check_head(batch.head, batch.nbytes)
    except BadBatch as error:
        raise BadMessage(
            f"Cannot publish these messages: {str(error).rstrip('.')}. Check the source of the bodies."
        ) from error
    return batch


def chunks_of_messages(
    topic: str, messages: Iterable[object], chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    """Yield chunks of about `chunk_bytes()` of cost from `messages`, encoded as in `publish`.

    Raises `UsageError` if `messages` is not iterable, `BadMessage` for a message that cannot be encoded, and
    `MessageTooLarge`. Chunks of earlier messages may already have been yielded.
    """
    if not isinstance(messages, Iterable):
        raise UsageError(wrong_type("messages", messages, "a list or another iterable"))
    if isinstance(messages, (list, tuple)):
        return _chunks_of_list(topic, messages, chunk_bytes)
    return _chunks_of_others(topic, messages, chunk_bytes)


def _chunks_of_list(
    topic: str, messages: Sequence[object], chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    rest: list[bytes] = []
    for looked in range(0, len(messages), LOOKED_AT_ONCE):
        bodies = rest + encode_all(messages[looked : looked + LOOKED_AT_ONCE])
        last = looked + LOOKED_AT_ONCE >= len(messages)
        lengths = lengths_in(bodies)
        ends = (lengths + message_cost_bytes).cumsum(dtype=I8)
        start = begin = 0
        while start < len(bodies):
            stop = int(ends.searchsorted(begin + chunk_bytes(), side="right"))
            if stop == len(bodies) and not last:
                break  # more messages may fit
            stop = max(stop, start + 1)
            end = int(ends[stop - 1])
            yield _chunk(topic, encode_bodies(bodies[start:stop], lengths[start:stop]))
            start, begin = stop, end
        rest = bodies[start:]


def _chunks_of_others(
    topic: str, messages: Iterable[object], chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    # One by one: the size of the next message is unknown, and memory use is bounded.
    bodies: list[bytes] = []
    size, limit = 0, chunk_bytes()
    for data in messages:
        body = data if type(data) is bytes else encode(data)
        cost = len(body) + message_cost_bytes
        if bodies and size + cost > limit:
            yield _chunk(topic, encode_bodies(bodies))
            bodies, size, limit = [], 0, chunk_bytes()
        bodies.append(body)
        size += cost
    if bodies:
        yield _chunk(topic, encode_bodies(bodies))


def chunks_from_arrow(
    topic: str, source: object, column: str | None, chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    """Yield chunks of about `chunk_bytes()` of cost from an Arrow table or array, without copying.

    Raises `UsageError` for a missing column, `BadMessage` for unsupported types and for nulls, and
    `MessageTooLarge`. Earlier chunks may already have been yielded.
    """
    for array in body_arrays(source, column):
        for piece in array_pieces(array, chunk_bytes()):
            yield _chunk(topic, encode_array(piece))


def _chunk(topic: str, encoded: EncodedBodies) -> Chunk:
    return Chunk(encoded.messages, len(encoded.joined), partial(encoded.batch, topic))


def delta_maker(topic: str, body: bytes, expiration_ms: int, correlation_id: str, key: str) -> MakeBatch:
    """Return the factory of the batch of one delta. Raises `BadMessage` for invalid labels."""
    builder = BatchBuilder()
    builder.add(
        topic,
        body,
        expiration_ms=expiration_ms,
        correlation_id=correlation_id,
        key=key,
        flags=FLAG_DELTA,
    )
    return builder.build
