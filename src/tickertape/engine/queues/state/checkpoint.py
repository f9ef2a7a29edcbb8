"""Queue checkpoint: the state of queues as bytes, so that a start reads less of the log.

For every queue it stores the position from which recovery must read. For queues with `file_backed_metadata`
it stores the whole state. The format is documented in docs/formats/queue-checkpoint.md.

Invariants:
- A checkpoint that does not match its definition or the log is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from tickertape.engine.queues.state.bit_sliced_index import BitSlices
from tickertape.engine.queues.state.delivery_order import DeliveryOrder
from tickertape.engine.queues.state.expiry import Expiry, ExpirySnapshot
from tickertape.engine.queues.state.messages import Attempts, PendingDeadLetter, QueueMessages
from tickertape.engine.queues.state.position_set_format import decode_set, encode_set, lowest_of, read_roaring
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.queues.state.records import Reason
from tickertape.engine.runtime.queue_definition import QueueDefinition


class StoredState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The state of one queue, with sets of positions as encoded by position_set_format.py.

    Leased messages are stored as ready."""

    ready: bytes
    inactive: bytes
    doomed: bytes
    reasons: list[bytes]
    """Reasons of pending dead letters, as bit slices, lowest bit first: one set per bit."""
    deliveries: list[bytes]
    """Failed deliveries of queued messages and pending dead letters, as bit slices. Cancels likewise."""
    cancels: list[bytes]
    counts: tuple[int, int, int, int]
    """Numbers of entered, acknowledged, taken and dead-lettered messages."""
    returned: dict[Reason, int]
    expired: dict[Reason, int]
    order: tuple[bytes, list[tuple[int, bytes]]]
    expiry: bytes


class OldState(msgspec.Struct, array_like=True):
    """State of version 0, with sets of positions as Roaring bitmaps."""

    ready: bytes
    inactive: bytes
    doomed: list[tuple[int, Reason, int, int]]
    """Position, reason, deliveries, cancels."""
    tries: list[tuple[int, int, int]]
    """Position, deliveries, cancels."""
    counts: tuple[int, int, int, int]
    returned: dict[Reason, int]
    expired: dict[Reason, int]
    order: tuple[bytes, list[tuple[int, bytes]]]
    expiry: bytes


class QueueCheckpoint(msgspec.Struct, array_like=True):
    """Checkpoint entry of one queue."""

    queue: str
    fingerprint: bytes
    messages: int
    """Messages below this position were considered, or are no longer needed."""
    records: int
    """Records below this position were applied, or are no longer needed."""
    state: StoredState | OldState | None = None
    """None: the messages and records from these positions on are sufficient."""


class StateSnapshot(NamedTuple):
    """The state of a queue, in sets that never change. Any thread may encode it."""

    ready: BitMap64
    leased: BitMap64
    inactive: BitMap64
    doomed: BitMap64
    reasons: list[BitMap64]
    deliveries: list[BitMap64]
    cancels: list[BitMap64]
    counts: tuple[int, int, int, int]
    returned: dict[Reason, int]
    expired: dict[Reason, int]
    barriers: BitMap64
    levels: dict[int, BitMap64]
    """Messages by priority. Some of them may have left the queue."""
    expiry: ExpirySnapshot

    @classmethod
    def of(cls, queue: Queue[Any]) -> StateSnapshot:
        """Copy the state of a queue."""
        state = queue.state
        barriers, levels = queue.order.snapshot()
        return cls(
            state.ready.copy(),
            state.leased.copy(),
            state.inactive.copy(),
            state.doomed.copy(),
            [held.copy() for held in state.reasons.slices],
            [held.copy() for held in state.deliveries.slices],
            [held.copy() for held in state.cancels.slices],
            (state.entered, state.acknowledged, state.taken, state.buried),
            dict(sorted(state.returned.items())),
            dict(sorted(state.expired.items())),
            barriers,
            levels,
            queue.expiry.snapshot(),
        )

    def encode(self) -> StoredState:
        """Encode all sets. This runs on the thread of a disk job, not in the engine."""
        ready = self.ready | self.leased
        inside = ready | self.inactive
        levels = [(priority, self.levels[priority] & inside) for priority in sorted(self.levels)]
        return StoredState(
            encode_set(ready),
            encode_set(self.inactive),
            encode_set(self.doomed),
            [encode_set(held) for held in self.reasons],
            [encode_set(held) for held in self.deliveries],
            [encode_set(held) for held in self.cancels],
            self.counts,
            self.returned,
            self.expired,
            (
                encode_set(self.barriers),
                [(priority, encode_set(level)) for priority, level in levels if level],
            ),
            self.expiry.encode(),
        )


class CheckpointSnapshot(NamedTuple):
    """A checkpoint entry before encoding, with the fields of `QueueCheckpoint`."""

    queue: str
    fingerprint: bytes
    messages: int
    records: int
    state: StateSnapshot | None = None

    def encode(self) -> QueueCheckpoint:
        """Encode the entry, including its state if present."""
        return QueueCheckpoint(*self[:4], None if self.state is None else self.state.encode())


class _Covered(QueueCheckpoint, array_like=True):
    state: StoredState | None = None


class _OldCovered(QueueCheckpoint, array_like=True):
    state: OldState | None = None


NO_FINGERPRINT: Final = b""
"""Fingerprint of a queue that had stopped."""
_VERSION: Final = 1
_SLICES_MAX: Final = 64
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(tuple[int, list[_Covered]]).decode
_DECODE_OLD: Final = msgspec.msgpack.Decoder(list[_OldCovered]).decode
_PARTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_NUMBERS_END: Final = 0x80
"""In MessagePack, a byte below this value is the integer itself."""


def encode_covered(covered: Iterable[QueueCheckpoint]) -> bytes:
    """Return the body of the checkpoint file."""
    return _ENCODE((_VERSION, list(covered)))


def encode_snapshots(snapshots: Iterable[CheckpointSnapshot]) -> bytes:
    """Return the body of the checkpoint file. The cost depends on the number of runs of positions."""
    return encode_covered(snapshot.encode() for snapshot in snapshots)


def decode_covered(body: bytes) -> list[QueueCheckpoint]:
    """Decode a body of this version or an older one. Raises `ValueError` for an invalid body."""
    try:
        parts = _PARTS(body)
        if not parts or bytes(parts[0])[0] >= _NUMBERS_END:  # version 0 does not store its version
            return [*_DECODE_OLD(body)]
        if (version := bytes(parts[0])[0]) != _VERSION:
            raise ValueError(f"the queue checkpoint has version {version}, not {_VERSION}")
        return [*_DECODE(body)[1]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"invalid queue checkpoint: {error}") from None


def fingerprint(definition: QueueDefinition, types: Iterable[tuple[str, str]]) -> bytes:
    """Return the parts of a definition that decide which messages enter and with which attributes.

    `types` contains the topics of the queue that are not JSON, with their message types."""
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


def snapshot_of(queue: Queue[Any], mark: bytes, accepted_end: int) -> CheckpointSnapshot:
    """Return the checkpoint entry of a queue. It is valid once the log is persisted up to `accepted_end`."""
    if queue.definition.file_backed_metadata:
        return CheckpointSnapshot(queue.name, mark, queue.considered, accepted_end, StateSnapshot.of(queue))
    needed = needed_by(queue)
    return CheckpointSnapshot(queue.name, mark, needed, needed)


def stopped_of(queue: Queue[Any]) -> CheckpointSnapshot:
    """Return the checkpoint entry of a stopped queue, whose state is unknown: only the position from which it
    needs the log. Recovery does not use it."""
    needed = needed_by(queue)
    return CheckpointSnapshot(queue.name, NO_FINGERPRINT, needed, needed)


def needed_by(queue: Queue[Any]) -> int:
    """Return the lowest position that a queue needs in the log."""
    oldest = queue.state.oldest()
    return queue.considered if oldest is None else min(oldest, queue.considered)


def needed_from(covered: QueueCheckpoint) -> int:
    """Return a lower bound of the lowest position that a queue needs, without the queue itself."""
    lowest: list[int | None] = [covered.messages, covered.records]
    state = covered.state
    if isinstance(state, StoredState):
        lowest += [lowest_of(state.ready), lowest_of(state.inactive), lowest_of(state.doomed)]
    elif state is not None:
        held = [read_roaring(data, covered.messages) for data in (state.ready, state.inactive)]
        lowest += [positions.min() for positions in held if positions]
        lowest += [doomed[0] for doomed in state.doomed]
    return min(position for position in lowest if position is not None)


def restore(queue: Queue[Any], covered: QueueCheckpoint) -> None:
    """Restore a queue from a stored state with positions below `covered.messages`. Raises `ValueError` for an
    invalid state."""
    stored, end = covered.state, covered.messages
    assert stored is not None
    read = decode_set if isinstance(stored, StoredState) else read_roaring
    state = QueueMessages(queue.definition.target_queue_depth)
    state.ready, state.inactive = read(stored.ready, end), read(stored.inactive, end)
    if isinstance(stored, StoredState):
        state.doomed = decode_set(stored.doomed, end)
        state.reasons = _slices(stored.reasons, end)
        state.deliveries, state.cancels = _slices(stored.deliveries, end), _slices(stored.cancels, end)
    else:
        for position, reason, *tries in stored.doomed:
            state.restore_doomed(_below(position, end), PendingDeadLetter(reason, Attempts(*tries)))
        for position, *tries in stored.tries:
            state.restore_tries(_below(position, end), Attempts(*tries))
    state.entered, state.acknowledged, state.taken, state.buried = stored.counts
    state.returned, state.expired = dict(stored.returned), dict(stored.expired)
    state.check()
    definition = queue.definition
    expiry = Expiry.of(definition.expiration, definition.expiration_model, stored.expiry, read, end)
    order = DeliveryOrder(state, prioritised=definition.priority is not None)
    barriers, levels = stored.order
    order.restore(read(barriers, end), [(at, read(level, end)) for at, level in levels])
    queue.take_over(state, expiry, order)


def _slices(stored: list[bytes], end: int) -> BitSlices:
    if len(stored) > _SLICES_MAX:
        raise ValueError(f"stored numbers have {len(stored)} bits, which is too many")
    return BitSlices([decode_set(data, end) for data in stored])


def _below(position: int, end: int) -> int:
    if not 0 <= position < end:
        raise ValueError(f"a stored message is at position {position}, not below {end}")
    return position
