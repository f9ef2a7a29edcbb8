"""Owns the public names, as docs and examples type them: `import tickertape as tt`.

Must never import more than the standard library when it is itself imported: names are fetched when they are
first used, so that `tickertape serve` starts without the client and the client without the server.
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tickertape.base.bookmarks import EPOCH, MOST_RECENT, NOW, Bookmark
    from tickertape.base.errors import (
        AlreadyLoggedOn,
        ArchiveFailed,
        AuthenticationFailed,
        BadBatch,
        BadBody,
        BadBookmark,
        BadCommand,
        BadFilter,
        BadFrame,
        BadMessage,
        BadName,
        BadOption,
        BadPath,
        BadTopic,
        BadVersion,
        BookmarkExpired,
        BookmarkStoreFull,
        BookmarkUnknown,
        Closed,
        ConfigurationError,
        CorruptBatch,
        Disconnected,
        Forked,
        FrameStalled,
        FrameTooLarge,
        HeartbeatMissed,
        JournalCorrupt,
        JournalError,
        JournalFailed,
        JournalFull,
        JournalLocked,
        JournalVersion,
        LimitReached,
        LogonRequired,
        LogonTimeout,
        MessageTooLarge,
        NameInUse,
        NotAJournal,
        NotAQueue,
        NotAStore,
        NotReady,
        NotTickertape,
        PeerError,
        PublisherCollision,
        PublisherTakenOver,
        PublishRejected,
        Refused,
        SlowClient,
        SpillFailed,
        StagingFailed,
        StagingFull,
        StoreCorrupt,
        StoreError,
        StoreFailed,
        StoreFull,
        StoreLocked,
        StoreOfAnother,
        StoreVersion,
        StreamEnded,
        SubscriptionExists,
        SubscriptionUnknown,
        TickertapeError,
        TimedOut,
        TlsFailed,
        TlsRequired,
        TopicNotRecorded,
        TransactionBusy,
        TransactionTooLarge,
        TransactionUnknown,
        UsageError,
        WrongJournal,
    )
    from tickertape.base.version import __version__
    from tickertape.batch import Message, MessageBatch
    from tickertape.client.aio import AsyncClient
    from tickertape.client.aio_committing import AsyncClientTransaction
    from tickertape.client.aio_ha import AsyncHAClient
    from tickertape.client.async_streams import AsyncMessageStream
    from tickertape.client.authenticators import Authenticator, DefaultAuthenticator
    from tickertape.client.blocking import Client
    from tickertape.client.bookmark_store import (
        BookmarkStore,
        ConflatingRecoveryPointAdapter,
        LoggedBookmarkStore,
        MemoryBookmarkStore,
        RecoveryPointAdapter,
        RingBookmarkStore,
    )
    from tickertape.client.choosers import ConnectionInfo, DefaultServerChooser, ServerChooser
    from tickertape.client.command import Command
    from tickertape.client.committing import ClientTransaction
    from tickertape.client.delays import DelayStrategy, ExponentialDelayStrategy, FixedDelayStrategy
    from tickertape.client.ha import HAClient
    from tickertape.client.publish_store import (
        AppendingPublishStore,
        FilePublishStore,
        HybridPublishStore,
        MemoryPublishStore,
        PublishStore,
    )
    from tickertape.client.states import ConnectionState
    from tickertape.client.streams import MessageStream
    from tickertape.client.subscribing import Handler
    from tickertape.client.subscription_manager import (
        MemorySubscriptionManager,
        StoredSubscription,
        SubscriptionManager,
    )
    from tickertape.client.transaction import CommittedTransaction
    from tickertape.security.contexts import TLS

__all__ = [
    "EPOCH",
    "MOST_RECENT",
    "NOW",
    "TLS",
    "AlreadyLoggedOn",
    "AppendingPublishStore",
    "ArchiveFailed",
    "AsyncClient",
    "AsyncClientTransaction",
    "AsyncHAClient",
    "AsyncMessageStream",
    "AuthenticationFailed",
    "Authenticator",
    "BadBatch",
    "BadBody",
    "BadBookmark",
    "BadCommand",
    "BadFilter",
    "BadFrame",
    "BadMessage",
    "BadName",
    "BadOption",
    "BadPath",
    "BadTopic",
    "BadVersion",
    "Bookmark",
    "BookmarkExpired",
    "BookmarkStore",
    "BookmarkStoreFull",
    "BookmarkUnknown",
    "Client",
    "ClientTransaction",
    "Closed",
    "Command",
    "CommittedTransaction",
    "ConfigurationError",
    "ConflatingRecoveryPointAdapter",
    "ConnectionInfo",
    "ConnectionState",
    "CorruptBatch",
    "DefaultAuthenticator",
    "DefaultServerChooser",
    "DelayStrategy",
    "Disconnected",
    "ExponentialDelayStrategy",
    "FilePublishStore",
    "FixedDelayStrategy",
    "Forked",
    "FrameStalled",
    "FrameTooLarge",
    "HAClient",
    "Handler",
    "HeartbeatMissed",
    "HybridPublishStore",
    "JournalCorrupt",
    "JournalError",
    "JournalFailed",
    "JournalFull",
    "JournalLocked",
    "JournalVersion",
    "LimitReached",
    "LoggedBookmarkStore",
    "LogonRequired",
    "LogonTimeout",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "MemorySubscriptionManager",
    "Message",
    "MessageBatch",
    "MessageStream",
    "MessageTooLarge",
    "NameInUse",
    "NotAJournal",
    "NotAQueue",
    "NotAStore",
    "NotReady",
    "NotTickertape",
    "PeerError",
    "PublishRejected",
    "PublishStore",
    "PublisherCollision",
    "PublisherTakenOver",
    "RecoveryPointAdapter",
    "Refused",
    "RingBookmarkStore",
    "ServerChooser",
    "SlowClient",
    "SpillFailed",
    "StagingFailed",
    "StagingFull",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreOfAnother",
    "StoreVersion",
    "StoredSubscription",
    "StreamEnded",
    "SubscriptionExists",
    "SubscriptionManager",
    "SubscriptionUnknown",
    "TickertapeError",
    "TimedOut",
    "TlsFailed",
    "TlsRequired",
    "TopicNotRecorded",
    "TransactionBusy",
    "TransactionTooLarge",
    "TransactionUnknown",
    "UsageError",
    "WrongJournal",
    "__version__",
]

_HOMES: Final = {
    "tickertape.client.transaction": ("CommittedTransaction",),
    "tickertape.client.aio_committing": ("AsyncClientTransaction",),
    "tickertape.client.committing": ("ClientTransaction",),
    "tickertape.base.bookmarks": ("EPOCH", "MOST_RECENT", "NOW", "Bookmark"),
    "tickertape.base.version": ("__version__",),
    "tickertape.batch": ("Message", "MessageBatch"),
    "tickertape.client.aio": ("AsyncClient",),
    "tickertape.client.aio_ha": ("AsyncHAClient",),
    "tickertape.client.async_streams": ("AsyncMessageStream",),
    "tickertape.client.authenticators": ("Authenticator", "DefaultAuthenticator"),
    "tickertape.client.blocking": ("Client",),
    "tickertape.client.bookmark_store": (
        "BookmarkStore",
        "ConflatingRecoveryPointAdapter",
        "LoggedBookmarkStore",
        "MemoryBookmarkStore",
        "RecoveryPointAdapter",
        "RingBookmarkStore",
    ),
    "tickertape.client.choosers": ("ConnectionInfo", "DefaultServerChooser", "ServerChooser"),
    "tickertape.client.command": ("Command",),
    "tickertape.client.delays": ("DelayStrategy", "ExponentialDelayStrategy", "FixedDelayStrategy"),
    "tickertape.client.ha": ("HAClient",),
    "tickertape.client.publish_store": (
        "AppendingPublishStore",
        "FilePublishStore",
        "HybridPublishStore",
        "MemoryPublishStore",
        "PublishStore",
    ),
    "tickertape.client.states": ("ConnectionState",),
    "tickertape.client.streams": ("MessageStream",),
    "tickertape.client.subscribing": ("Handler",),
    "tickertape.client.subscription_manager": (
        "MemorySubscriptionManager",
        "StoredSubscription",
        "SubscriptionManager",
    ),
    "tickertape.security.contexts": ("TLS",),
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


def _close_clients() -> None:
    exits = sys.modules.get("tickertape.client.exits")
    if exits is not None:
        exits.close_all()


# Here and not with the first client: handlers that an application registers after its import run before.
atexit.register(_close_clients)
