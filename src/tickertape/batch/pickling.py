"""Pickle messages and batches for other processes.

Clients, stores and leases are not pickled. Settling or discarding a copy raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tickertape.base.errors import UsageError
from tickertape.batch.derive import slice_batch
from tickertape.batch.message_batch import Message, MessageBatch

if TYPE_CHECKING:
    from tickertape.batch.delivery_context import DeliveryContext, SowKeys


class CopiedStore(msgspec.Struct, frozen=True):
    """Replacement for the bookmark store of the original. Discarding raises an error."""

    def discard(self, *_: object) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(
            "Cannot discard a copied message: its bookmark store belongs to the process that received it. "
            "Discard the original there."
        )

    discard_all = discard


class CopiedLease(msgspec.Struct, frozen=True):
    """Readable part of the original's lease."""

    queue: str
    expires: datetime | None

    def ack(self, *_: object) -> NoReturn:
        """Raise `UsageError`."""
        self.settle("acknowledge")

    def settle(self, action: str, *_: object) -> NoReturn:
        """Raise `UsageError`."""
        action = "acknowledge" if action == "ack" else action
        raise UsageError(
            f"Cannot {action} a copied message of queue {self.queue!r}: its lease belongs to the process "
            "that received it. Use the original there, or pass the bookmark of the message to Client.ack()."
        )


class CopiedContext(msgspec.Struct, frozen=True):
    """Context of a copy: the readable part of the original's subscription."""

    sub_id: str
    with_bookmark: bool
    with_timestamp: bool
    command: str
    came_again: bool
    store: CopiedStore | None
    lease: CopiedLease | None
    sow_keys: SowKeys | None


def reduced_batch(batch: MessageBatch) -> tuple[Callable[..., MessageBatch], tuple[Any, ...]]:
    """Return the value of `__reduce__` for a batch."""
    return batch_of, (batch.encode(), _copied(batch.context), batch.positions)


def reduced_message(message: Message) -> tuple[Callable[..., Message], tuple[Any, ...]]:
    """Return the value of `__reduce__` for a message, without the rest of its batch."""
    batch, index = message.batch, message.index
    return message_of, (slice_batch(batch, index, index + 1).encode(), _copied(batch.context))


def batch_of(encoded: bytes, context: CopiedContext | None, positions: Any) -> MessageBatch:
    """Return the copy of a batch. Raises `BadBatch`."""
    batch = MessageBatch.parse(encoded)
    # Protocols require settling objects. Those of a copy raise errors instead.
    batch.context = context  # type: ignore[assignment]
    if positions is not None:
        batch.positions = positions
    return batch


def message_of(encoded: bytes, context: CopiedContext | None) -> Message:
    """Return the copy of a message. Raises `BadBatch`."""
    batch = batch_of(encoded, context, None)
    return Message(batch.body(0), batch, 0)


def _copied(context: DeliveryContext | None) -> CopiedContext | None:
    if context is None:
        return None
    lease = context.lease
    return CopiedContext(
        sub_id=str(context.sub_id),
        with_bookmark=context.with_bookmark,
        with_timestamp=context.with_timestamp,
        command=context.command,
        came_again=context.came_again,
        store=None if context.store is None else CopiedStore(),
        lease=None if lease is None else CopiedLease(lease.queue, lease.expires),
        sow_keys=context.sow_keys,
    )
