"""SOW recovery point adapter: keeps recovery points as records of a topic on a server.

The record of a subscription has its client name, its id and the bookmarks of its recovery point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from tickertape.base.bookmarks import AtBookmarks, Bookmark, parse_bookmark
from tickertape.base.errors import StoreCorrupt, TickertapeError, UsageError
from tickertape.base.names import check_client_name, check_topic
from tickertape.base.text_format import shown

_NAME: Final = "clientName"
_SUB_ID: Final = "subId"
_BOOKMARK: Final = "bookmark"
_EPOCH: Final = "0"


class RecordClient(Protocol):
    """The calls of a blocking client that the adapter uses."""

    @property
    def name(self) -> str:
        """The client name."""

    @property
    def connected(self) -> bool:
        """Whether the client is logged on."""

    @property
    def publish(self) -> Any:
        """See `Client.publish`."""

    @property
    def publish_flush(self) -> Any:
        """See `Client.publish_flush`."""

    @property
    def sow(self) -> Any:
        """See `Client.sow`."""

    @property
    def sow_delete(self) -> Any:
        """See `Client.sow_delete`."""


class SowRecoveryPointAdapter:
    """Recovery point adapter that keeps the points in a SOW topic of a server.

    A client can resume on another machine without files. The server needs a SOW topic with the keys
    `["/clientName", "/subId"]`, for JSON messages. Each discard publishes one message, so use the adapter
    inside a `ConflatingRecoveryPointAdapter`. If the process ends before the server has persisted a point,
    the point is lost and messages are redelivered. A purge can be lost in the same way: the point then
    remains.

    The adapter needs a separate client, because the client of the subscriptions would wait for itself. Use
    an `HAClient`: its publish store keeps points while it is disconnected.

    Args:
        client: A blocking client for the adapter alone. `close` of the adapter does not close it.
        tracked_client_name: Name of the client of the subscriptions, the same on every machine.
        topic: Name of the SOW topic. Default `"tickertape/bookmark_store"`.

    Raises:
        UsageError: `client` is the client of the subscriptions, or not a blocking client.
        BadName: `tracked_client_name` is invalid.
        BadTopic: `topic` is invalid. `load` also raises it if `topic` is not a SOW topic.
        StoreCorrupt: Raised by `load` if a record of the topic is not a recovery point.

    All other errors of `load`, `update`, `purge` and `close`: see `Client.sow`, `Client.publish`,
    `Client.sow_delete` and `Client.publish_flush`.

    Example:
        >>> points = tt.HAClient("risk-points", servers=[uri])
        >>> points.connect_and_logon()
        >>> adapter = tt.SowRecoveryPointAdapter(points, "risk")
        >>> store = tt.MemoryBookmarkStore(tt.ConflatingRecoveryPointAdapter(adapter))
        >>> with tt.HAClient("risk", servers=[uri], bookmark_store=store) as client:
        ...     stream = client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="orders")
        >>> store.close()
        >>> points.close()
    """

    def __init__(
        self, client: RecordClient, tracked_client_name: str, topic: str = "tickertape/bookmark_store"
    ) -> None:
        check_client_name(tracked_client_name)
        check_topic(topic)
        # Asyncio clients have the same calls, which return coroutines.
        if not hasattr(type(client), "sow_delete") or hasattr(type(client), "__aenter__"):
            raise UsageError(
                f"Cannot use {type(client).__name__} for recovery points: it is not a blocking client. "
                "Pass a Client or HAClient."
            )
        if client.name == tracked_client_name:
            raise UsageError(
                f"Cannot use client {tracked_client_name!r} for its own recovery points: it would wait for "
                "its own deliveries. Pass a client with another name."
            )
        self.client = client
        """The client of the adapter."""
        self.tracked_client_name = tracked_client_name
        """Name of the client whose subscriptions are stored."""
        self.topic = topic
        """Name of the SOW topic."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.tracked_client_name!r} in {self.topic!r}>"

    def load(self) -> Iterable[tuple[str, Sequence[Bookmark]]]:
        """Wait until earlier updates are persisted, and return the subscription ids with their bookmarks."""
        self.client.publish_flush()
        return [self._point(record.json()) for record in self.client.sow(self.topic, self._own)]

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Publish the recovery point of a subscription without waiting until it is persisted."""
        point = ",".join(map(str, bookmarks)) or _EPOCH
        self.client.publish(self.topic, {**self._key(sub_id), _BOOKMARK: point})

    def purge(self, sub_id: str | None = None) -> None:
        """Delete the record of a subscription. With None, delete all records of this client.

        Does not wait for the answer of the server."""
        if sub_id is None:
            self.client.sow_delete(self.topic, filter=self._own, wait=False)
        else:
            self.client.sow_delete(self.topic, data=self._key(sub_id), wait=False)

    def close(self) -> None:
        """Wait until the points are persisted, if the client is connected. Does not close the client."""
        if self.client.connected:
            self.client.publish_flush()

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        """Filter for the records of the tracked client."""
        return f"/{_NAME} = '{self.tracked_client_name.replace(chr(39), chr(39) * 2)}'"

    def _key(self, sub_id: str) -> dict[str, str]:
        return {_NAME: self.tracked_client_name, _SUB_ID: sub_id}

    def _point(self, record: dict[str, Any]) -> tuple[str, Sequence[Bookmark]]:
        sub_id, text = record.get(_SUB_ID), record.get(_BOOKMARK)
        if isinstance(sub_id, str) and text == _EPOCH:
            return sub_id, []
        try:
            point = parse_bookmark(text) if isinstance(text, str) else None
        except TickertapeError:
            point = None
        if not isinstance(sub_id, str) or not isinstance(point, AtBookmarks) or point.unknown:
            raise StoreCorrupt(
                f"Cannot load recovery points from {shown(self.topic)}: the record {shown(str(record))} is "
                "not a recovery point. Delete it with sow_delete(), or use a topic for recovery points alone."
            )
        return sub_id, list(point.bookmarks)
