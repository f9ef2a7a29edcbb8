"""Public API of Tickertape: `import tickertape as tt` (names are imported lazily).

Each name is imported at its first use, so `tickertape serve` does not load the client, and the client does
not load the server.

Example:
    >>> with tt.Client("desk", uri) as client:
    ...     client.publish("orders", {"id": 1})
    ...     client.publish_flush()
    ...     [message.json() for message in client.replay("orders")]
    [{'id': 1}]
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tickertape.base.bookmarks import Bookmark
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
        BadLink,
        BadMessage,
        BadName,
        BadOption,
        BadOrderBy,
        BadPath,
        BadQuery,
        BadSowKey,
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
        LinkRefused,
        LogonRequired,
        LogonTimeout,
        MessageTooLarge,
        NameInUse,
        NotAJournal,
        NotAQueue,
        NotAStore,
        NotBuilt,
        NotReady,
        NotTickertape,
        PeerError,
        PublisherCollision,
        PublisherTakenOver,
        PublishRejected,
        QueryTooSlow,
        Refused,
        SlowClient,
        SowFull,
        SowIncomplete,
        SpillFailed,
        StagingFailed,
        StagingFull,
        StoreCorrupt,
        StoreError,
        StoreFailed,
        StoreFull,
        StoreLocked,
        StoreOwnerMismatch,
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
    from tickertape.client.aio.client import AsyncClient
    from tickertape.client.aio.ha_client import AsyncHAClient
    from tickertape.client.aio.streams import AsyncMessageStream, AsyncSowResult
    from tickertape.client.aio.transactions import AsyncClientTransaction
    from tickertape.client.api.command import Command
    from tickertape.client.api.start_points import EPOCH, MOST_RECENT, NOW
    from tickertape.client.api.table import Table
    from tickertape.client.blocking.client import Client
    from tickertape.client.blocking.ha_client import HAClient
    from tickertape.client.blocking.streams import MessageStream, SowResult
    from tickertape.client.blocking.transactions import ClientTransaction
    from tickertape.client.bookmark_store import (
        BookmarkStore,
        ConflatingRecoveryPointAdapter,
        LoggedBookmarkStore,
        MemoryBookmarkStore,
        RecoveryPointAdapter,
        RingBookmarkStore,
        SowRecoveryPointAdapter,
    )
    from tickertape.client.common.connection_state import ConnectionState
    from tickertape.client.common.handlers import Handler
    from tickertape.client.ha.authenticator import Authenticator, DefaultAuthenticator
    from tickertape.client.ha.delay_strategy import (
        DelayStrategy,
        ExponentialDelayStrategy,
        FixedDelayStrategy,
    )
    from tickertape.client.ha.server_chooser import ConnectionInfo, DefaultServerChooser, ServerChooser
    from tickertape.client.ha.subscription_manager import (
        MemorySubscriptionManager,
        StoredSubscription,
        SubscriptionManager,
    )
    from tickertape.client.protocol.transactions import CommittedTransaction
    from tickertape.client.publish_store import (
        AppendingPublishStore,
        ClaimingPublishStore,
        FilePublishStore,
        HybridPublishStore,
        LogonNotingPublishStore,
        MemoryPublishStore,
        PublishStore,
    )
    from tickertape.client.publishing.pending_deletes import DeleteResult
    from tickertape.security.tls_options import TLS

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
    "AsyncSowResult",
    "AuthenticationFailed",
    "Authenticator",
    "BadBatch",
    "BadBody",
    "BadBookmark",
    "BadCommand",
    "BadFilter",
    "BadFrame",
    "BadLink",
    "BadMessage",
    "BadName",
    "BadOption",
    "BadOrderBy",
    "BadPath",
    "BadQuery",
    "BadSowKey",
    "BadTopic",
    "BadVersion",
    "Bookmark",
    "BookmarkExpired",
    "BookmarkStore",
    "BookmarkStoreFull",
    "BookmarkUnknown",
    "ClaimingPublishStore",
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
    "DeleteResult",
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
    "LinkRefused",
    "LoggedBookmarkStore",
    "LogonNotingPublishStore",
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
    "NotBuilt",
    "NotReady",
    "NotTickertape",
    "PeerError",
    "PublishRejected",
    "PublishStore",
    "PublisherCollision",
    "PublisherTakenOver",
    "QueryTooSlow",
    "RecoveryPointAdapter",
    "Refused",
    "RingBookmarkStore",
    "ServerChooser",
    "SlowClient",
    "SowFull",
    "SowIncomplete",
    "SowRecoveryPointAdapter",
    "SowResult",
    "SpillFailed",
    "StagingFailed",
    "StagingFull",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreOwnerMismatch",
    "StoreVersion",
    "StoredSubscription",
    "StreamEnded",
    "SubscriptionExists",
    "SubscriptionManager",
    "SubscriptionUnknown",
    "Table",
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
    "tickertape.client.protocol.transactions": ("CommittedTransaction",),
    "tickertape.client.aio.transactions": ("AsyncClientTransaction",),
    "tickertape.client.blocking.transactions": ("ClientTransaction",),
    "tickertape.base.bookmarks": ("Bookmark",),
    "tickertape.client.api.start_points": ("EPOCH", "MOST_RECENT", "NOW"),
    "tickertape.base.version": ("__version__",),
    "tickertape.batch": ("Message", "MessageBatch"),
    "tickertape.client.aio.client": ("AsyncClient",),
    "tickertape.client.aio.ha_client": ("AsyncHAClient",),
    "tickertape.client.aio.streams": ("AsyncMessageStream", "AsyncSowResult"),
    "tickertape.client.api.table": ("Table",),
    "tickertape.client.ha.authenticator": ("Authenticator", "DefaultAuthenticator"),
    "tickertape.client.blocking.client": ("Client",),
    "tickertape.client.bookmark_store": (
        "BookmarkStore",
        "ConflatingRecoveryPointAdapter",
        "LoggedBookmarkStore",
        "MemoryBookmarkStore",
        "RecoveryPointAdapter",
        "RingBookmarkStore",
        "SowRecoveryPointAdapter",
    ),
    "tickertape.client.ha.server_chooser": ("ConnectionInfo", "DefaultServerChooser", "ServerChooser"),
    "tickertape.client.api.command": ("Command",),
    "tickertape.client.ha.delay_strategy": (
        "DelayStrategy",
        "ExponentialDelayStrategy",
        "FixedDelayStrategy",
    ),
    "tickertape.client.blocking.ha_client": ("HAClient",),
    "tickertape.client.publish_store": (
        "AppendingPublishStore",
        "ClaimingPublishStore",
        "FilePublishStore",
        "HybridPublishStore",
        "LogonNotingPublishStore",
        "MemoryPublishStore",
        "PublishStore",
    ),
    "tickertape.client.common.connection_state": ("ConnectionState",),
    "tickertape.client.blocking.streams": ("MessageStream", "SowResult"),
    "tickertape.client.common.handlers": ("Handler",),
    "tickertape.client.publishing.pending_deletes": ("DeleteResult",),
    "tickertape.client.ha.subscription_manager": (
        "MemorySubscriptionManager",
        "StoredSubscription",
        "SubscriptionManager",
    ),
    "tickertape.security.tls_options": ("TLS",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        # Python suggests a near name from `name` and `obj` when it prints the error.
        raise AttributeError(
            f"module 'tickertape' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    value: object = getattr(import_module(_HOME_OF.get(name, "tickertape.base.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _close_clients() -> None:
    exits = sys.modules.get("tickertape.client.api.exit_flush")
    if exits is not None:
        exits.close_all()


# On import, not with the first client: exit handlers that the application registers later run first.
atexit.register(_close_clients)
