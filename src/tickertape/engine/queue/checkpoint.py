"""Owns the checkpoint of queues: what a start need not read of the log again.

Of every queue it says from where its fold may begin: below it nothing is needed any more. Of those with
`file_backed_metadata` it has the whole state. Must never be needed: a lost one costs time, never data.
docs/formats/queue-checkpoint.md shows the bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from tickertape.engine.queue.definition import QueueDefinition

CHECKPOINT_FILE: Final = "queues.checkpoint"
_MAGIC: Final = b"tktqueue"
_VERSION: Final = 0


class StoredState(msgspec.Struct, array_like=True):
    """The state of one queue, sets of positions as pyroaring writes them."""

    ready: bytes
    inactive: bytes
    doomed: list[tuple[int, int, int, int]]
    """Position, reason, deliveries, cancels."""
    tries: list[tuple[int, int, int]]
    """Position, deliveries, cancels."""
    counters: tuple[int, int, int, int, dict[int, int], dict[int, int], int, int]
    order: tuple[bytes, list[tuple[int, bytes]]]
    expiry: bytes


class Covered(msgspec.Struct, array_like=True):
    """What a checkpoint says of one queue."""

    queue: str
    fingerprint: bytes
    messages: int
    """Messages below this position were considered (or are needed no more)."""
    records: int
    """Records below this position were applied (or are)."""
    state: StoredState | None = None


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(list[Covered]).decode


def encode_checkpoint(journal_id: bytes, covered: list[Covered]) -> bytes:
    """The content of the file."""
    body = _ENCODE(covered)
    head = _MAGIC + bytes([_VERSION]) + journal_id + len(body).to_bytes(8, "little")
    return head + crc32c(head + body).to_bytes(4, "little") + body


def decode_checkpoint(data: bytes, journal_id: bytes) -> list[Covered]:
    """What a file says. Raises `ValueError` for what is none, is damaged or of another journal."""
    head_bytes = len(_MAGIC) + 1 + len(journal_id) + 8
    head, crc, body = data[:head_bytes], data[head_bytes : head_bytes + 4], data[head_bytes + 4 :]
    if head[: len(_MAGIC)] != _MAGIC or len(crc) < 4:
        raise ValueError("it is no checkpoint of queues")
    if head[len(_MAGIC)] != _VERSION:
        raise ValueError(f"it has version {head[len(_MAGIC)]}, this program writes {_VERSION}")
    if crc32c(head + body) != int.from_bytes(crc, "little"):
        raise ValueError("it does not match its checksum")
    if head[len(_MAGIC) + 1 : -8] != journal_id:
        raise ValueError("it is of another journal")
    try:
        return _DECODE(body)
    except msgspec.DecodeError as error:
        raise ValueError(f"it cannot be read: {error}") from None


def fingerprint(definition: QueueDefinition, types: str) -> bytes:
    """What of a definition decides what enters and what is found out about it. `types`: the message types of
    its topics."""
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
            types,
        ]
    )
