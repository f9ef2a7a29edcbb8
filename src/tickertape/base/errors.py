"""Error classes that Tickertape raises or sends, each with a stable code.

An error text names the problem, its place and the remedy. `UsageError` reports a mistake of the caller in
this process, `PeerError` invalid data from the network or from a disk. `error_from_code` turns a code from
the network back into its class.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


PUBLIC_MODULE: Final = "tickertape"
"""Module that tracebacks show for errors: the one from which users import them."""


class TickertapeError(Exception):
    """Base class of all errors. `code` is stable across versions, the text is not."""

    code: ClassVar[str] = "error"
    """Stable code of the error, as in the error reference and on the wire."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # Errors of this module without an explicit code derive it from the class name (BadTopic: bad_topic).
        if cls.__module__ == __name__:
            if "code" not in cls.__dict__:
                cls.code = _CAPITAL.sub("_", cls.__name__).lower()
            cls.__module__ = PUBLIC_MODULE


TickertapeError.__module__ = PUBLIC_MODULE


# -- the caller ---------------------------------------------------------------------------------------


class UsageError(TickertapeError):
    """Base class of errors that the caller can act on: a mistake, a timeout, a limit, or a closed object."""

    code = "usage"


class BadBookmark(UsageError, ValueError):
    """Malformed timestamp, range, bookmark or start point."""


class BadOption(UsageError, ValueError):
    """Option that is unknown, malformed, in conflict with another option, or not implemented."""


class LimitReached(UsageError):
    """A limit of the server, or of a `Table`, was reached. The text names the limit. Other work continues."""


class BadTopic(UsageError, ValueError):
    """Topic name or pattern that is invalid, or a topic that the call does not support."""


class BadName(UsageError, ValueError):
    """Client name that is empty, too long, or contains control characters."""


class BadFilter(UsageError, ValueError):
    """Filter that is malformed, too long, too expensive, or uses unsupported fields."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position
        """Position in the text of the filter or path, in characters from 0. It is not sent over the wire."""


class BadPath(BadFilter):
    """Field path that is malformed or unsupported by the message type."""


class MessageTooLarge(UsageError, ValueError):
    """Message body above `message_bytes_max` (default 16 MB), or too large for the publish store. Also a
    batch of 2 GiB or more."""


class BadMessage(UsageError, ValueError):
    """Message body that cannot be encoded, or cannot be decoded as requested."""


class BadBody(UsageError, ValueError):
    """Message that the server rejected because its body does not pass the validation of its topic."""


class BadSowKey(UsageError, ValueError):
    """Message that the server rejected because it has no valid key for its SOW topic."""


class BadOrderBy(UsageError, ValueError):
    """Invalid sort order of a query, or a sort field that the message type does not support."""


class BadQuery(UsageError, ValueError):
    """SQL that is not a single SELECT, or that cannot run over the records of its topics."""


class QueryTooSlow(UsageError):
    """The server cancelled a query of records.

    Too many records changed during the query, or the results that wait for clients need too much memory.
    """


class ConfigurationError(UsageError):
    """Invalid configuration file or command line."""

    code = "bad_configuration"


class TopicNotRecorded(UsageError):
    """Bookmark subscription to a topic that is not persistent on this server, or messages for such a topic.

    Messages cause this error only if the publish store resends them, or if the client published them before
    its first logon.
    """


class NotAQueue(UsageError):
    """Acknowledgement or queue option for a name that is not a queue of this server."""


class BookmarkUnknown(UsageError):
    """Bookmark that is neither in the log nor in the archive. Raised for the end of a range, and for a
    start point with `bookmark_not_found=fail`."""


class BookmarkExpired(UsageError):
    """Retention has removed the start or the end of a replay from the log.

    The replay fails instead of skipping the removed messages silently.
    """

    def __init__(self, message: str = "", *, available: str = "") -> None:
        super().__init__(message)
        self.available = available
        """First bookmark in the log. Empty if the log is empty, or if the server did not report it."""


class SubscriptionExists(UsageError):
    """Subscription id that is already in use on this connection."""


class SubscriptionUnknown(UsageError):
    """Subscription id that does not exist on this connection."""


class PublishRejected(UsageError):
    """Messages that the server rejected. The server did not store them and never will."""


class PublisherTakenOver(UsageError):
    """Another process published under this client name.

    It is unknown whether the server stored the unacknowledged messages of this client.
    """


class TransactionTooLarge(UsageError, ValueError):
    """Transaction above `bytes_max` of `transaction()` or of the server, or with too many message batches."""


class TransactionUnknown(UsageError):
    """Commit of a transaction that is not staged on the server: never staged, aborted, expired or
    incomplete."""


class TransactionBusy(UsageError):
    """Transaction that is being committed and therefore cannot change."""


class WrongJournal(UsageError):
    """Positions, files or a data directory that belong to another journal or server."""


class TimedOut(UsageError, TimeoutError):
    """The timeout of a call expired. A request that the client already sent may still take effect."""


class StreamEnded(UsageError):
    """Message stream that has ended. The `end_reason` of the stream gives the cause."""


class NotBuilt(UsageError):
    """Request that is part of the protocol, but that this version of the server does not execute yet."""


class Closed(UsageError):
    """Use of a client or server object after it was closed."""


class Forked(UsageError):
    """Use of a client, stream or store of the parent process in a forked process."""


class StoreFull(UsageError):
    """The publish store is full, and the call cannot wait: in a handler, or with `when_full="raise"`."""


class Disconnected(TickertapeError, ConnectionError):
    """No connection, or the connection was lost. The outcome of calls that wait for an answer is unknown."""


class HeartbeatMissed(Disconnected):
    """The peer sent no data within the heartbeat timeout, so the connection counts as lost."""

    code = "heartbeat"


class TlsFailed(Disconnected):
    """TLS connection failed: a certificate was not accepted, or the peer does not use TLS."""


class Refused(TickertapeError):
    """The server refused the logon or closed the connection. The text gives the reason."""


class AuthenticationFailed(Refused):
    """Token that is missing, unknown, expired or revoked.

    Or a token that is not valid for the name of the client, or for the `publisher` of a transaction.
    """


class TlsRequired(Refused):
    """Connection without TLS to an address that requires TLS."""


class NameInUse(Refused):
    """Another connection uses or took over this client name."""


class PublisherCollision(Refused):
    """Two client names have the same publisher id. Choose another name."""


class NotReady(Refused):
    """The server is shutting down, or reached a limit of concurrent work: connections, searches, or
    subscriptions that are being replaced. Also raised by a call that would replace a query while its result
    is incomplete, and for a replication link that cannot be upgraded yet."""


class LinkRefused(Refused):
    """Replication link that an operator must correct.

    The servers do not fit, or the source removed messages that the destination lacks."""


class SlowClient(Refused):
    """The server closed the connection because the client read its messages too slowly."""


# -- the peer -----------------------------------------------------------------------------------------


class PeerError(TickertapeError):
    """Base class of errors for a peer that violated the protocol."""

    code = "peer"


class NotTickertape(PeerError):
    """The peer does not use the Tickertape protocol."""


class BadVersion(PeerError):
    """The peer and this side have no protocol version in common."""


class BadFrame(PeerError):
    """Frame with an invalid length, padding or checksum."""


class FrameTooLarge(PeerError):
    """Frame above the size limit. The limit is lower before the logon."""


class BadCommand(PeerError):
    """Command that is unknown, that has invalid fields, or that only the other side may send."""


class BadBatch(PeerError):
    """Message batch with an invalid structure."""


class BadLink(PeerError):
    """Invalid frame of a replication link: its order or its contents contradict earlier frames."""


class CorruptBatch(PeerError):
    """Message batch whose bodies do not match their checksum."""


class LogonRequired(PeerError):
    """Command that was sent before the logon."""


class AlreadyLoggedOn(PeerError):
    """Second logon on the same connection."""


class LogonTimeout(PeerError):
    """The peer connected but did not log on within 10 seconds (`logon_seconds_max`)."""


class FrameStalled(PeerError):
    """The peer paused within a large frame while other connections waited for the memory of that frame."""


# -- the journal --------------------------------------------------------------------------------------


class JournalError(TickertapeError):
    """Base class of errors of a data directory: it cannot be opened, read or written."""

    code = "journal"


class NotAJournal(JournalError):
    """Path that is not the data directory of a journal.

    It is a file, or a directory with files but without `identity.json`. Or it is an empty or missing
    directory, and the configuration has `create = false`.
    """


class JournalLocked(JournalError):
    """Data directory that is in use, by another process or by another object of this process."""


class JournalVersion(JournalError):
    """Data directory in a newer format than this version supports."""


class JournalCorrupt(JournalError):
    """Durable data that cannot be read back. `file` and `offset` (in bytes) locate the damage, if known."""

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.file = file
        """Damaged file, or empty."""
        self.offset = offset
        """Place of the damage in the file, in bytes."""


class SowIncomplete(JournalError):
    """A SOW topic has no usable checkpoint, and retention has removed its older messages from the log."""


class SowFull(JournalError):
    """The records of the SOW topics need more memory than `sow_bytes_max`. Deletes and updates that need no
    more memory are accepted."""


class JournalFailed(JournalError):
    """A write or sync failed. The server acknowledges nothing more until a restart."""


class SpillFailed(JournalError):
    """Spill directory (backlog of slow clients) that cannot be used or read back."""


class StagingFull(JournalError):
    """The disk space for staged transactions is used up."""


class StagingFailed(JournalError):
    """A file of a staged transaction cannot be written or read."""


class JournalFull(JournalError):
    """The next segment cannot be allocated. The server rejects publishes until space is free."""


class ArchiveFailed(TickertapeError):
    """Archive that cannot be read or extended, or Delta Lake table that is not the expected archive."""

    def __init__(self, message: str = "", *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        """Whether a file that the table references is missing. It is not sent over the wire."""


# -- stores of a client -------------------------------------------------------------------------------


class StoreError(TickertapeError):
    """Base class of errors of a store of the client. A full publish store raises `StoreFull`, which is a
    `UsageError`."""

    code = "store"


class NotAStore(StoreError):
    """Directory that contains files, but not a publish store."""


class StoreLocked(StoreError):
    """Store that is in use, by another process or by another object of this process."""


class StoreOwnerMismatch(StoreError):
    """Store that belongs to another client name."""


class StoreVersion(StoreError):
    """Publish store in a newer format than this version supports. A bookmark store raises `StoreCorrupt`
    instead."""


class StoreCorrupt(StoreError):
    """Stored data that cannot be read back. `file` and `offset` (in bytes) locate the damage, if known."""

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.file = file
        """Damaged file, or empty."""
        self.offset = offset
        """Place of the damage in the file, in bytes."""


class StoreFailed(StoreError):
    """File system error of a store: permissions, a full disk, or a failed write."""


class BookmarkStoreFull(StoreError):
    """Bookmark store that is full: too many messages since the first one that is not discarded, or no space
    for another subscription."""


def _all_subclasses(root: type[TickertapeError]) -> list[type[TickertapeError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_all_subclasses(child))
    return found


_BY_CODE: dict[str, type[TickertapeError]] = {c.code: c for c in _all_subclasses(TickertapeError)}


def error_from_code(code: str, text: str, *, available: str = "") -> TickertapeError:
    """Return the error of `code` with `text`, or a `TickertapeError` for an unknown code.

    `available` is for `BookmarkExpired`.
    """
    if code == BookmarkExpired.code:
        return BookmarkExpired(text, available=available)
    return _BY_CODE.get(code, TickertapeError)(text)


def all_codes() -> dict[str, type[TickertapeError]]:
    """Return every stable code with its class (the documentation test compares them)."""
    return dict(_BY_CODE)
