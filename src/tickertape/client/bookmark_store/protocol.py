"""Protocols of a bookmark store and of a recovery point adapter.

A store remembers what was delivered and what the application is done with, and says where to resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import UsageError
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s


@runtime_checkable
class RecoveryPointAdapter(Protocol):
    """Keeps recovery points in a place of its own, beside any store. Stores call it one call at a time.

    One that works through a client has it as its attribute `client`, so that it can be refused where it is
    the very client whose state it keeps.
    """

    def load(self) -> Iterable[tuple[str, Sequence[Bookmark]]]:
        """The subscriptions kept, each with its bookmarks, as `update` was given them last."""

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """The recovery point of a subscription has moved."""

    def purge(self, sub_id: str | None = None) -> None:
        """Forget a subscription, or all of them."""

    def close(self) -> None:
        """Nothing more comes."""


@runtime_checkable
class BookmarkStore(Protocol):
    """Remembers, for each subscription id, what was delivered and what the application discarded.

    A store serves one client at a time. The client calls it from its threads and the application from its
    own, so a store locks for itself. Publishers and sequences are unsigned 64-bit; `publishers` is one number
    for all, or an array with one for each row. Sequences of a publisher rise in the order of delivery.
    """

    @property
    def adapter(self) -> RecoveryPointAdapter | None:
        """What keeps recovery points beside it, if anything."""

    def started(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """The server resolved where a subscription begins: right after the earliest of these; none is the
        beginning of the log. Its first recovery point; nothing happens when it has one."""

    def resumed(self, sub_id: str, *, forget_beyond: bool = False) -> None:
        """The subscription is about to be placed (again): what is undiscarded may be delivered again, once.

        `forget_beyond` lets everything behind the recovery point be delivered again, discarded or not: for
        conflated subscriptions, whose messages are put together differently each time."""

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """A batch came. Which rows are for the application; None = all of them. The others were discarded,
        or are duplicates. Raises `BookmarkStoreFull`: then none is to be handed on."""

    def is_discarded(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Whether a message would not be delivered again: it was discarded, or is below what was seen."""

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """The application is done with a message. False when it was before, or the message never came."""

    def discard_all(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> int:
        """The application is done with many; of how many it was not before."""

    def persisted(self, sub_id: str, bookmark: Bookmark) -> None:
        """Everything of the subscription up to `bookmark` was delivered."""

    def most_recent(self, sub_id: str) -> list[Bookmark]:
        """What MOST_RECENT stands for: the server resumes right after the earliest of them. Empty stands for
        EPOCH: nothing is known of this id, or nothing of the beginning is discarded."""

    def undiscarded_count(self, sub_id: str) -> int:
        """Messages delivered and not discarded."""

    def subscriptions(self) -> list[str]:
        """The ids that the store knows."""

    def purge(self, sub_id: str | None = None) -> None:
        """Forget a subscription, or all: it begins anew."""

    def close(self) -> None:
        """Let go of files. Everything else then raises `Closed`."""


def columns_of(batch: MessageBatch) -> tuple[Publishers, UInt64s]:
    """Publishers and sequences of a batch, as stores take them."""
    if batch.run_count == 1:
        return batch.run(0).publisher, batch.sequences
    return batch.publishers, batch.sequences


def bind(store: BookmarkStore, name: str) -> None:
    """Tell a store which client uses it, if it has `bind_client_name`. Raises what that raises."""
    told = getattr(store, "bind_client_name", None)
    if told is not None:
        told(name)


def refuse_own_client(store: BookmarkStore, client: object) -> None:
    """Raise `UsageError` when the adapter of `store` works through `client`: its updates would wait for the
    very deliveries that cause them."""
    adapter: object = store.adapter
    while adapter is not None:
        if getattr(adapter, "client", None) is client:
            raise UsageError(
                f"the {type(adapter).__name__} of this client's bookmark store works through that client; "
                "give it a client of its own"
            )
        adapter = getattr(adapter, "inner", None)
