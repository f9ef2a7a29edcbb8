"""Owns what a checkpoint says of queues: what a start need not read of the log again.

Of every queue it says from where its fold may begin: below that nothing is needed any more. Of those with
`file_backed_metadata` it has the whole state. Must never be taken for the truth: one that does not fit is not
used. docs/formats/queue-checkpoint.md shows the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from pyroaring import BitMap64

from tickertape.engine.queue.definition import QueueDefinition
from tickertape.engine.queue.expiry import Expiry
from tickertape.engine.queue.order import Order
from tickertape.engine.queue.queue import Queue
from tickertape.engine.queue.records import Reason
from tickertape.engine.queue.state import Doom, QueueState, Tries


class StoredState(msgspec.Struct, array_like=True):
    """The state of one queue, sets of positions as pyroaring writes them. What is leased is ready in it."""

    ready: bytes
    inactive: bytes
    doomed: list[tuple[int, Reason, int, int]]
    """Position, reason, deliveries, cancels."""
    tries: list[tuple[int, int, int]]
    """Position, deliveries, cancels."""
    counts: tuple[int, int, int, int]
    """Entered, acknowledged, taken, buried."""
    returned: dict[Reason, int]
    expired: dict[Reason, int]
    order: tuple[bytes, list[tuple[int, bytes]]]
    expiry: bytes


class Covered(msgspec.Struct, array_like=True):
    """What a checkpoint says of one queue."""

    queue: str
    fingerprint: bytes
    messages: int
    """Messages below this position were considered, or are needed no more."""
    records: int
    """Records below this position were applied, or are needed no more."""
    state: StoredState | None = None
    """None: messages and records from there on are all that is needed."""


NO_FINGERPRINT: Final = b""
"""Of a queue that had stopped."""
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(list[Covered]).decode


def encode_covered(covered: Iterable[Covered]) -> bytes:
    """The body of the file."""
    return _ENCODE(list(covered))


def decode_covered(body: bytes) -> list[Covered]:
    """What a body says. Raises `ValueError` for what is none."""
    try:
        return _DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"a checkpoint of queues that cannot be read: {error}") from None


def fingerprint(definition: QueueDefinition, types: Iterable[tuple[str, str]]) -> bytes:
    """What of a definition decides what enters, and what is found out about it then. `types`: the topics of
    the queue that are not JSON, and what they are."""
    return _ENCODE(
        [
            definition.topic,
            definition.filter,
            definition.semantics,
            definition.priority,
            definition.barrier_expression,
            definition.expiration,
            definition.expiration_model,
            definition.target_queue_depth,
            definition.recovery_point,
            sorted(types),
        ]
    )


def covered_of(queue: Queue, mark: bytes, accepted_end: int) -> Covered:
    """What may be said of a queue once the log is persisted up to `accepted_end`."""
    if queue.definition.file_backed_metadata:
        return Covered(queue.name, mark, queue.considered, accepted_end, _stored(queue))
    needed = needed_by(queue)
    return Covered(queue.name, mark, needed, needed)


def stopped_of(queue: Queue) -> Covered:
    """What is said of a queue that cannot go on, whose state is not known: from where on it needs the log. No
    start uses it."""
    needed = needed_by(queue)
    return Covered(queue.name, NO_FINGERPRINT, needed, needed)


def needed_by(queue: Queue) -> int:
    """Below which position a queue needs nothing of the log."""
    oldest = queue.state.oldest()
    return queue.considered if oldest is None else min(oldest, queue.considered)


def needed_from(covered: Covered) -> int:
    """Below which position a queue needs nothing of the log, for who has no queue: no less than it does."""
    lowest = [covered.messages, covered.records]
    if covered.state is not None:
        held = [BitMap64.deserialize(covered.state.ready), BitMap64.deserialize(covered.state.inactive)]
        lowest += [positions.min() for positions in held if positions]
        lowest += [doomed[0] for doomed in covered.state.doomed]
    return min(lowest)


def restore(queue: Queue, stored: StoredState) -> None:
    """Bring a queue to a stored state. Raises `ValueError` for what is none."""
    state = QueueState(queue.definition.target_queue_depth)
    state.ready = BitMap64.deserialize(stored.ready)
    state.inactive = BitMap64.deserialize(stored.inactive)
    for position, reason, deliveries, cancels in stored.doomed:
        state.restore_doomed(position, Doom(reason, Tries(deliveries, cancels)))
    for position, deliveries, cancels in stored.tries:
        state.restore_tries(position, Tries(deliveries, cancels))
    state.entered, state.acknowledged, state.taken, state.buried = stored.counts
    state.returned, state.expired = dict(stored.returned), dict(stored.expired)
    definition = queue.definition
    expiry = Expiry.of(definition.expiration, definition.expiration_model, stored.expiry)
    order = Order(state, prioritised=definition.priority is not None)
    barriers, levels = stored.order
    order.restore(BitMap64.deserialize(barriers), [(at, BitMap64.deserialize(one)) for at, one in levels])
    queue.take_over(state, expiry, order)


def _stored(queue: Queue) -> StoredState:
    state = queue.state
    barriers, levels = queue.order.stored()
    return StoredState(
        (state.ready | state.leased).serialize(),
        state.inactive.serialize(),
        [(at, doom.reason, *doom.tries) for at in state.doomed for doom in [state.doom_of(at)]],
        [(at, *state.tries_of(at)) for at in state.deliveries.positions() - state.doomed],
        (state.entered, state.acknowledged, state.taken, state.buried),
        state.returned,
        state.expired,
        (barriers.serialize(), [(priority, level.serialize()) for priority, level in levels]),
        queue.expiry.stored(),
    )
