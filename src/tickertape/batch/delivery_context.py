"""Delivery context: properties that a subscription adds to its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tickertape.batch.format import UInt64s
    from tickertape.batch.queue_lease import Lease


class Discards(Protocol):
    """A bookmark store, from the point of view of messages."""

    def discard(self, sub_id: str, publisher: int, sequence: int, /) -> bool:
        """Discard a message. Return False if it was already discarded."""

    def discard_all(self, sub_id: str, publishers: int | UInt64s, sequences: UInt64s, /) -> int:
        """Discard messages. Return the number of newly discarded ones."""


class SowKeys(Protocol):
    """Keys of the records of a query, which the client computes."""

    def key(self, topic: str, body: bytes, /) -> str | None:
        """Return the generated key of a record, or None without one."""


class DeliveryContext(Protocol):
    """Properties of a subscription that apply to all messages it delivers."""

    @property
    def sub_id(self) -> str:
        """Id of the subscription."""

    @property
    def with_bookmark(self) -> bool:
        """Whether messages show their bookmark."""

    @property
    def with_timestamp(self) -> bool:
        """Whether messages show the time when the server accepted them."""

    @property
    def command(self) -> str:
        """Name of the command that delivers the messages (see `Message.command`)."""

    @property
    def store(self) -> Discards | None:
        """Bookmark store that records discarded messages, or None."""

    @property
    def came_again(self) -> bool:
        """Whether the batch may have redelivered messages (delivered before, but not discarded)."""

    @property
    def lease(self) -> Lease | None:
        """Lease on messages from a queue, or None for other subscriptions."""

    @property
    def sow_keys(self) -> SowKeys | None:
        """Keys of records, or None for messages that do not come from a query."""
