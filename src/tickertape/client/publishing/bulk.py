"""Bulk publishing: cuts iterables and Arrow columns into chunks of one batch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tickertape.base.errors import BadBatch, BadMessage, UsageError
from tickertape.base.limits import message_cost_bytes
from tickertape.batch.arrow import array_pieces, body_arrays, encode_array
from tickertape.batch.encode import EncodedBodies, encode_bodies, lengths_in
from tickertape.batch.format import I8, check_head
from tickertape.batch.message_batch import MessageBatch
from tickertape.payload.bodies import encode, encode_all

LOOKED_AT_ONCE: Final = 2048
"""Messages of a list that are encoded and measured together."""


class MakeBatch(Protocol):
    """Makes the batch of one run that is published as a whole."""

    def __call__(self, *, publisher: int = 0, first_sequence: int = 0) -> MessageBatch: ...


class Chunk(NamedTuple):
    """So many messages, the bytes of their bodies, and how they become a batch."""

    messages: int
    body_bytes: int
    make: MakeBatch


def checked(batch: MessageBatch) -> MessageBatch:
    """`batch`, if every server and every publish store can read it back; its bodies are not looked at.

    A batch that nobody can read would end each connection on which a publish store sends it, and hold back
    everything behind it. Raises `BadMessage`.
    """
    try:
        check_head(batch.head, batch.nbytes)
    except BadBatch as error:
        raise BadMessage(
            f"Cannot publish these messages: {error}. Check where the bodies come from."
        ) from error
    return batch


def chunks_of_messages(
    topic: str, messages: Iterable[object], chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    """`messages`, encoded as `publish` does, in pieces of about `chunk_bytes()` of cost.

    Raises `UsageError` for what cannot be iterated, `BadMessage` for a message that cannot be encoded,
    `MessageTooLarge`; some before it may have been given.
    """
    if not isinstance(messages, Iterable):
        raise UsageError(f"messages are a list or what can be iterated, not {type(messages).__name__}")
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
                break  # there may be room for more
            stop = max(stop, start + 1)
            end = int(ends[stop - 1])
            yield _chunk(topic, encode_bodies(bodies[start:stop], lengths[start:stop]))
            start, begin = stop, end
        rest = bodies[start:]


def _chunks_of_others(
    topic: str, messages: Iterable[object], chunk_bytes: Callable[[], int]
) -> Iterator[Chunk]:
    # Taken one by one: nobody knows how large the next one is, and memory has a bound.
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
    """The bodies of an Arrow table or array in pieces of about `chunk_bytes()` of cost, not copied.

    Raises `UsageError` where there is no such column, `BadMessage` for other types and for nulls,
    `MessageTooLarge`; some before may have been given.
    """
    for array in body_arrays(source, column):
        for piece in array_pieces(array, chunk_bytes()):
            yield _chunk(topic, encode_array(piece))


def _chunk(topic: str, encoded: EncodedBodies) -> Chunk:
    return Chunk(encoded.messages, len(encoded.joined), partial(encoded.batch, topic))
