"""Delivery context: what a subscription adds to the batches that it delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tickertape.batch.format import UInt64s
    from tickertape.batch.queue_lease import Lease


class Discards(Protocol):
    """A bookmark store, as messages see it."""

    def discard(self, sub_id: str, publisher: int, sequence: int, /) -> bool:
        """Discard a message. False if it was discarded before."""

    def discard_all(self, sub_id: str, publishers: int | UInt64s, sequences: UInt64s, /) -> int:
        """Discard messages. Return how many were not discarded before."""


class DeliveryContext(Protocol):
    """Properties of a subscription that hold for all messages it delivers."""

    @property
    def sub_id(self) -> str:
        """Id of the subscription."""

    @property
    def with_bookmark(self) -> bool:
        """Whether messages show their bookmark."""

    @property
    def with_timestamp(self) -> bool:
        """Whether messages show the time at which the server accepted them."""

    @property
    def command(self) -> str:
        """The command that delivers the messages: `publish`, `sow`, ..."""

    @property
    def store(self) -> Discards | None:
        """The store for discarded messages; None without a bookmark store."""

    @property
    def came_again(self) -> bool:
        """Whether the batch may have redelivered messages, delivered before and not discarded then."""

    @property
    def lease(self) -> Lease | None:
        """The lease on messages from a queue; None for other subscriptions."""
