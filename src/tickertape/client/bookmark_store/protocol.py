"""Protocols of a bookmark store and of a recovery point adapter.

A bookmark store tracks delivered and discarded messages, and provides the point from which to resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import UsageError
from tickertape.base.text_format import wrong_type
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles


@runtime_checkable
class RecoveryPointAdapter(Protocol):
    """Storage of recovery points in addition to a bookmark store.

    A store makes one call at a time (the last paragraph has an exception).

    An adapter that publishes needs a separate client for this, in its attribute `client`. A client raises
    `UsageError` for a bookmark store whose adapter publishes with the same client.

    An adapter may also have `offer`, which stores then call instead of `update` (see
    `ConflatingRecoveryPointAdapter`). Stores call `purge` and `close` of these adapters also during
    `offer`.
    """

    def load(self) -> Iterable[tuple[str, Sequence[Bookmark]]]:
        """Return the stored subscription ids with the bookmarks of their last `update`."""

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Replace the stored recovery point of a subscription. The new point may equal the old one.

        Args:
            sub_id: Subscription id.
            bookmarks: The bookmarks that `load` must return, one per publisher. Empty: the start of the log.
                For servers that replicate, also places, and two more bookmarks for each hole.

        The store calls `update` under its lock, so a slow adapter delays other calls of the store. It calls
        `update` in `started`, `discard`, `discard_all`, `persisted` and `close` (see `BookmarkStore`). An
        exception of `update` goes to the caller of the store, except in `close`.

        An adapter that publishes the points to the same server would cause an endless loop: each published
        point moves the end of the log, so the client calls `persisted`, about once a second, and
        `persisted` calls `update`. For such an adapter the store skips `update` in 59 of 60 calls, so that
        the loop makes about one update a minute.
        """

    def purge(self, sub_id: str | None = None) -> None:
        """Remove a subscription, or all subscriptions."""

    def close(self) -> None:
        """Release all resources. No other call follows."""


@runtime_checkable
class BookmarkStore(Protocol):
    """Store of the delivered and discarded messages of each subscription id.

    A store serves one client at a time. Threads of the client and of the application call it, so a store
    needs its own lock. Publishers and sequences are unsigned 64-bit numbers. The parameter `sequences` of
    the methods is a numpy array with one number per message. The parameter `publishers` is one number for
    all messages, or an array with one number per message. Sequences of a publisher increase in the order of
    delivery, except for late messages of servers that replicate.

    A store may also have `bind_client_name(name)`, which a client calls with its name before it uses the
    store. The method raises `StoreOwnerMismatch` if the store belongs to another client name.
    """

    @property
    def adapter(self) -> RecoveryPointAdapter | None:
        """Recovery point adapter of the store, or None."""

    def started(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Record where the server has started the subscription: right after the earliest of `bookmarks`.

        Without bookmarks it is the start of the log. This place becomes the first recovery point. The call
        has no effect if the subscription already has a recovery point."""

    def resumed(self, sub_id: str, *, forget_beyond: bool = False) -> None:
        """Prepare for a subscribe or resubscribe, which may deliver known messages a second time.

        `log` then accepts a known message again, unless it is discarded.

        `forget_beyond`: `log` also accepts discarded messages after the recovery point. The client sets it
        for conflated subscriptions, which receive different messages each time."""

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Record a received batch, and return which of its messages the client delivers to the application.

        Returns:
            A boolean numpy array with one value per message: True to deliver it, False if it was discarded
            or is a duplicate. None: deliver all.

        Raises:
            BookmarkStoreFull: The store has no space. The client does not deliver the batch.
        """

    def is_discarded(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Return whether the application discarded the message, or the message is too old for delivery.

        A message is too old if the store has not recorded it, but has recorded a later message of its
        publisher. The method `log` drops discarded and too old messages. It also drops duplicates of messages
        that it has accepted since the last call of `resumed`.
        """

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Discard a processed message. Return False if it was already discarded or never delivered."""

    def discard_all(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> int:
        """Discard processed messages. Return the number of messages that this call has discarded."""

    def persisted(
        self,
        sub_id: str,
        bookmark: Bookmark,
        places: Sequence[Bookmark] = (),
        holes: Sequence[OpenHoles] | None = None,
    ) -> None:
        """Record the bookmark of a `persisted` notice from the server.

        All messages of the subscription up to `bookmark` were delivered. The message of `bookmark` itself may
        be one that does not match the filter.

        Args:
            sub_id: Subscription id.
            bookmark: The bookmark.
            places: Places of a server that replicates: bookmarks of logs, not of messages. `most_recent` has
                them from the time on at which all messages before the notice are discarded. A place replaces
                the earlier one of its publisher id. The client passes this argument and `holes` only for
                servers that replicate.
            holes: For each publisher the sequences that its log lacks, if they changed. Messages in them may
                arrive after higher ones. None: unknown, the client made the notice.
        """

    def most_recent(self, sub_id: str) -> list[Bookmark]:
        """Return the bookmarks that the client sends for the start point MOST_RECENT.

        The server resumes right after the earliest of them.

        An empty list means EPOCH: the id is unknown, or the subscription started at EPOCH and its first
        message is not discarded."""

    def undiscarded_count(self, sub_id: str) -> int:
        """Return the number of delivered messages that are not discarded."""

    def subscriptions(self) -> list[str]:
        """Return the known subscription ids."""

    def purge(self, sub_id: str | None = None) -> None:
        """Forget a subscription, or all subscriptions (None). MOST_RECENT then means EPOCH."""

    def close(self) -> None:
        """Release files. All later calls except `close` raise `Closed`."""


def columns_of(batch: MessageBatch) -> tuple[Publishers, UInt64s]:
    """Return the publishers and sequences of a batch in the form that stores use."""
    if batch.run_count == 1:
        return batch.first_run.publisher, batch.sequences
    return batch.publishers, batch.sequences


def check_store(store: object) -> None:
    """Raise `UsageError` if `store` is not a bookmark store."""
    if not isinstance(store, BookmarkStore):
        raise UsageError(wrong_type("bookmark store", store, "a BookmarkStore, such as MemoryBookmarkStore"))


def bind(store: BookmarkStore, name: str) -> None:
    """Call `bind_client_name` of a store if it has this method. Raises its errors."""
    told = getattr(store, "bind_client_name", None)
    if told is not None:
        told(name)


def refuse_own_client(store: BookmarkStore, client: object) -> None:
    """Raise `UsageError` if the adapter of `store` uses `client`: its updates would wait for the deliveries
    that cause them."""
    for adapter, of_adapter in publishing_adapters(store.adapter):
        if of_adapter is client:
            raise UsageError(
                f"Cannot use the bookmark store: its {type(adapter).__name__} uses the same client. Use a "
                "separate client for the adapter."
            )


def publishing_adapters(adapter: object) -> Iterator[tuple[object, object]]:
    """Yield an adapter and its inner adapters that publish, each with its client."""
    while adapter is not None:
        client = getattr(adapter, "client", None)
        if client is not None:
            yield adapter, client
        adapter = getattr(adapter, "inner", None)
