"""Owns the public names, as docs and examples type them: `import tickertape as tt`.

Must never import anything when it is itself imported: names are fetched when they are first used, so that
`tickertape serve` starts without the client and the client without the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tickertape.base.bookmarks import EPOCH, MOST_RECENT, NOW, Bookmark
    from tickertape.base.errors import (
        BadBody,
        BadBookmark,
        BadFilter,
        BadMessage,
        BadOption,
        BadTopic,
        BookmarkUnknown,
        Closed,
        ConfigurationError,
        Disconnected,
        MessageTooLarge,
        NameInUse,
        NotReady,
        PublisherTakenOver,
        PublishRejected,
        Refused,
        StoreFull,
        StreamEnded,
        SubscriptionExists,
        SubscriptionUnknown,
        TickertapeError,
        TimedOut,
        TopicNotRecorded,
    )
    from tickertape.base.version import __version__
    from tickertape.batch import Message, MessageBatch
    from tickertape.client.blocking import Client
    from tickertape.client.publish_store import MemoryPublishStore, PublishStore
    from tickertape.client.streams import MessageStream

__all__ = [
    "EPOCH",
    "MOST_RECENT",
    "NOW",
    "BadBody",
    "BadBookmark",
    "BadFilter",
    "BadMessage",
    "BadOption",
    "BadTopic",
    "Bookmark",
    "BookmarkUnknown",
    "Client",
    "Closed",
    "ConfigurationError",
    "Disconnected",
    "MemoryPublishStore",
    "Message",
    "MessageBatch",
    "MessageStream",
    "MessageTooLarge",
    "NameInUse",
    "NotReady",
    "PublishRejected",
    "PublishStore",
    "PublisherTakenOver",
    "Refused",
    "StoreFull",
    "StreamEnded",
    "SubscriptionExists",
    "SubscriptionUnknown",
    "TickertapeError",
    "TimedOut",
    "TopicNotRecorded",
    "__version__",
]

_HOMES: Final = {
    "tickertape.base.bookmarks": ("EPOCH", "MOST_RECENT", "NOW", "Bookmark"),
    "tickertape.base.version": ("__version__",),
    "tickertape.batch": ("Message", "MessageBatch"),
    "tickertape.client.blocking": ("Client",),
    "tickertape.client.publish_store": ("MemoryPublishStore", "PublishStore"),
    "tickertape.client.streams": ("MessageStream",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tickertape' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF.get(name, "tickertape.base.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
