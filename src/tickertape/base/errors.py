"""All errors that Tickertape raises or sends, each with a stable code.

An error says what happened, where, and what to do. There are two families: `UsageError` (a mistake of the
caller in this process) and `PeerError` (invalid data from the network or from a disk). `error_from_code`
turns a code from the network back into its class.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


PUBLIC_MODULE: Final = "tickertape"
"""Module that tracebacks show for errors: the one from which users import them."""


class TickertapeError(Exception):
    """Base of all errors. `code` is stable across versions; the text is for people."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # The errors of this module that name no code have their own name as one: BadTopic has bad_topic.
        if cls.__module__ == __name__:
            if "code" not in cls.__dict__:
                cls.code = _CAPITAL.sub("_", cls.__name__).lower()
            cls.__module__ = PUBLIC_MODULE


TickertapeError.__module__ = PUBLIC_MODULE


# -- the caller ---------------------------------------------------------------------------------------


class UsageError(TickertapeError):
    """The caller requested an impossible operation."""

    code = "usage"


class BadBookmark(UsageError, ValueError):
    """A timestamp, range or bookmark that cannot be read."""


class BadOption(UsageError, ValueError):
    """An option that does not exist, is malformed, excludes another, or is not built yet."""


class LimitReached(UsageError):
    """A limit of the server is reached; the text names it. What there is goes on."""


class BadTopic(UsageError, ValueError):
    """A topic name that is empty, too long, or a pattern where a literal is needed."""


class BadName(UsageError, ValueError):
    """A client name that is empty, too long, or has control characters."""


class BadFilter(UsageError, ValueError):
    """A content filter that cannot be used."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position
        """Where in the text of the filter (or path), in characters from 0; it does not travel."""


class BadPath(BadFilter):
    """A path to a field that cannot be read, or that the message type cannot have."""


class MessageTooLarge(UsageError, ValueError):
    """A message above `message_bytes_max`."""


class BadMessage(UsageError, ValueError):
    """A body that cannot be encoded, or cannot be decoded as requested."""


class BadBody(UsageError, ValueError):
    """A message that the server refused: its body is not what its validated topic says."""


class ConfigurationError(UsageError):
    """A configuration file or command line that cannot be used."""

    code = "bad_configuration"


class TopicNotRecorded(UsageError):
    """A bookmark subscription to a topic that the transaction log does not record."""


class NotAQueue(UsageError):
    """A topic that is acknowledged is not the name of a queue of this server."""


class BookmarkUnknown(UsageError):
    """The log does not hold the bookmark and the subscription asked to fail then."""


class BookmarkExpired(UsageError):
    """A start or end lies in a part of the log that retention has removed; nothing was skipped."""

    def __init__(self, message: str = "", *, available: str = "") -> None:
        super().__init__(message)
        self.available = available
        """The first bookmark in the log; empty if the log has no message, or the server did not report it."""


class SubscriptionExists(UsageError):
    """The subscription id is in use on this connection."""


class SubscriptionUnknown(UsageError):
    """No subscription of this connection has that id."""


class PublishRejected(UsageError):
    """The server refused messages; they are not in the log and will not be."""


class PublisherTakenOver(UsageError):
    """Another process published under this client name; what this one holds may be stored or not."""


class TransactionTooLarge(UsageError, ValueError):
    """A transaction is larger than its bound."""


class TransactionUnknown(UsageError):
    """The transaction to commit is not staged: it never was, was aborted, expired, or is incomplete."""


class TransactionBusy(UsageError):
    """It is being committed just now: its parts stay as they are."""


class WrongJournal(UsageError):
    """Positions, files or a data directory belong to another journal or instance than this server's."""


class TimedOut(UsageError, TimeoutError):
    """A deadline passed; the outcome is unknown and nothing was undone."""


class StreamEnded(UsageError):
    """The message stream is over; `end_reason` on the stream says why."""


class Closed(UsageError):
    """The client or server object was closed by its owner."""


class Forked(UsageError):
    """A forked process used a client or stream of its parent."""


class StoreFull(UsageError):
    """The publish store is full and is configured to raise instead of waiting."""


class Disconnected(TickertapeError, ConnectionError):
    """Not connected, or the connection was lost; the outcome of calls in flight is unknown."""


class HeartbeatMissed(Disconnected):
    """Nothing came from the other side for as long as the heartbeat allows: it counts as dead."""

    code = "heartbeat"


class TlsFailed(Disconnected):
    """The TLS connection failed: a certificate was not accepted, or the peer does not use TLS."""


class Refused(TickertapeError):
    """The server refused the logon or ended the connection, and said why."""


class AuthenticationFailed(Refused):
    """The server wants a token, and the logon had none, a wrong one, or one that is not for this client."""


class TlsRequired(Refused):
    """The address takes connections with TLS only."""


class NameInUse(Refused):
    """Another connection holds or took over this client name."""


class PublisherCollision(Refused):
    """Two client names hash to one publisher id; choose another name."""


class NotReady(Refused):
    """The server accepts no publishes: its disk failed, is full, or it is draining."""


class SlowClient(Refused):
    """The connection was closed because it did not read its subscriptions."""


# -- the peer -----------------------------------------------------------------------------------------


class PeerError(TickertapeError):
    """The peer violated the protocol."""

    code = "peer"


class NotTickertape(PeerError):
    """The peer does not speak this protocol at all."""


class BadVersion(PeerError):
    """The peer speaks no version of the protocol that we speak."""


class BadFrame(PeerError):
    """A frame whose lengths, padding or checksum are wrong."""


class FrameTooLarge(PeerError):
    """A frame above the limit that holds at this point of the connection."""


class BadCommand(PeerError):
    """A command that does not exist, has wrong fields, or comes from the wrong side."""


class BadBatch(PeerError):
    """A message batch whose structure is wrong."""


class CorruptBatch(PeerError):
    """A message batch whose bodies do not match their checksum."""


class LogonRequired(PeerError):
    """A command came before the logon."""


class AlreadyLoggedOn(PeerError):
    """A second logon on one connection."""


class LogonTimeout(PeerError):
    """The peer connected and did not log on in time."""


class FrameStalled(PeerError):
    """The peer began a large frame and did not go on with it while others waited for the memory."""


# -- the journal --------------------------------------------------------------------------------------


class JournalError(TickertapeError):
    """The data directory cannot be used as it is; nothing in it was changed."""

    code = "journal"


class NotAJournal(JournalError):
    """The directory is not empty and has no identity, or does not exist and must not be created."""


class JournalLocked(JournalError):
    """Another process holds the data directory."""


class JournalVersion(JournalError):
    """The directory was written by a newer format than this program knows."""


class JournalCorrupt(JournalError):
    """Bytes that were once durable cannot be read back."""

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset


class JournalFailed(JournalError):
    """A write or sync failed; nothing more is acknowledged until a restart."""


class SpillFailed(JournalError):
    """The directory for what waits for slow clients cannot be used, or something in it not be read back."""


class StagingFull(JournalError):
    """The space for staged transactions is full."""


class StagingFailed(JournalError):
    """A file of a staged transaction could not be written or read."""


class JournalFull(JournalError):
    """The next segment cannot be allocated; publishes are rejected until there is space."""


class ArchiveFailed(TickertapeError):
    """The archive cannot be read, or a table is not the archive that it should be; nothing was skipped."""

    def __init__(self, message: str = "", *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        """A file that the table names is not there; it does not travel."""


# -- stores of a client -------------------------------------------------------------------------------


class StoreError(TickertapeError):
    """A store on disk cannot be used as it is; nothing in it was changed."""

    code = "store"


class NotAStore(StoreError):
    """The path does not hold a store."""


class StoreLocked(StoreError):
    """Another process, or another object of this one, holds the store."""


class StoreOfAnother(StoreError):
    """The store belongs to another client name."""


class StoreVersion(StoreError):
    """The store was written by a newer format than this program knows."""


class StoreCorrupt(StoreError):
    """Stored data cannot be read back."""

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset


class StoreFailed(StoreError):
    """The file system refused something: permissions, a full disk, a failed write."""


class BookmarkStoreFull(StoreError):
    """A bookmark store has no room for more undiscarded messages, subscriptions or publishers."""


def _all_subclasses(root: type[TickertapeError]) -> list[type[TickertapeError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_all_subclasses(child))
    return found


_BY_CODE: dict[str, type[TickertapeError]] = {c.code: c for c in _all_subclasses(TickertapeError)}


def error_from_code(code: str, text: str, *, available: str = "") -> TickertapeError:
    """Return the error that `code` names, with `text`; an unknown code gives the base class. `available` is
    for `BookmarkExpired`."""
    if code == BookmarkExpired.code:
        return BookmarkExpired(text, available=available)
    return _BY_CODE.get(code, TickertapeError)(text)


def all_codes() -> dict[str, type[TickertapeError]]:
    """Every stable code and its class (the documentation test compares them)."""
    return dict(_BY_CODE)
