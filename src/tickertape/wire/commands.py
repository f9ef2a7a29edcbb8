"""Protocol commands: names, fields and meaning (docs/formats/wire.md has the bytes).

Commands are immutable and keyword-only. They are encoded as MessagePack maps without fields at their default.
The tag field `c` is the name of the command. One message batch follows a command that carries messages.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tickertape.base.limits import (
    filter_bytes_max,
    goodbye_mismatches_max,
    link_feature_characters_max,
    link_text_bytes_max,
    message_bytes_max,
    notice_rows_bytes_max,
    sow_keys_per_command_max,
    subscriptions_per_connection_max,
)

WIRE_VERSION: Final = 0
PREFACE: Final = b"tktape/" + bytes([48 + WIRE_VERSION])
"""First eight bytes of every connection, sent by the client. The last byte is the version as a digit."""

Count = Annotated[int, msgspec.Meta(ge=0)]
"""Non-negative number. A receiver refuses a command with a negative one."""
Keys = Annotated[tuple[str, ...], msgspec.Meta(max_length=sow_keys_per_command_max)]
"""Keys of records: generated or explicit ones. A receiver refuses too many before it decodes them."""
Rows = Annotated[bytes, msgspec.Meta(max_length=notice_rows_bytes_max)]
"""Rows of a notice. A receiver refuses too many before it decodes them."""
CanonicalKeys = Annotated[tuple[bytes, ...], msgspec.Meta(max_length=sow_keys_per_command_max)]
"""Canonical keys of records, for clients that compute them."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="c"):
    """Base class of all commands."""


# -- from the client ----------------------------------------------------------------------------------


class Logon(Command, tag="logon", frozen=True, kw_only=True):
    """First command of a connection. The publisher id derives from the client name `name`.

    `heartbeat_ms` is the heartbeat interval of both sides, 0 for none (see `Heartbeat`).

    A client with a publish store sends `persisted` and `session`. `persisted` is its claim: all its messages
    up to this sequence were acknowledged or refused, by any server. 0 makes no claim.
    """

    name: str
    versions: tuple[int, ...] = (WIRE_VERSION,)
    user: str | None = None
    password: str | None = None
    software: str = ""
    options: str = ""
    heartbeat_ms: Count = 0
    persisted: Count = 0
    session: Count = 0
    """Number of this logon, above the numbers of all earlier logons of the publish store."""

    def __repr__(self) -> str:
        return f"Logon(name={self.name!r})"  # never show a password


class Publish(Command, tag="p", frozen=True, kw_only=True):
    """A batch of one run. `frame` numbers the publish frames of the connection from 1, without gaps.

    With `sequenced` the run has the publisher's own increasing sequence numbers. Otherwise the server
    assigns them under the derived publisher id. Non-persistent topics use such frames, separately.
    """

    frame: Count
    sequenced: bool = False


class Subscribe(Command, tag="sub", frozen=True, kw_only=True):
    """Start a subscription. With `bookmark` (or `positions`) it reads the log, otherwise only new messages.

    `options` is the comma-separated option string of AMPS. `credit` is the initial flow-control
    credit in cost bytes. `until_caught_up` ends the subscription at the last message accepted before the
    command. `positions` (start, end) reads a part of the log of `journal`. With `numbered` each `Deliver` has
    the positions of its messages.
    """

    id: Count
    sub_id: str
    topic: str
    bookmark: str | None = None
    filter: str | None = None
    options: str = ""
    credit: Count
    until_caught_up: bool = False
    positions: tuple[Count, Count] | None = None
    journal: str | None = None
    numbered: bool = False


class Unsubscribe(Command, tag="unsub", frozen=True, kw_only=True):
    """End subscriptions of this connection. An unknown id rejects the whole command."""

    id: Count
    sub_ids: tuple[str, ...]


class Pause(Command, tag="pause", frozen=True, kw_only=True):
    """Pause bookmark subscriptions and keep their positions. An unknown id rejects the whole command.

    Messages sent before the pause still arrive.
    """

    id: Count
    sub_ids: tuple[str, ...]


class Resume(Command, tag="resume", frozen=True, kw_only=True):
    """Resume paused bookmark subscriptions.

    Subscriptions at the same position and rate share reads of the log. Their messages arrive in log order.
    """

    id: Count
    sub_ids: tuple[str, ...]


class Credit(Command, tag="cr", frozen=True, kw_only=True):
    """Grant `bytes` more flow-control credit, after the application consumed messages of that cost."""

    sub_id: str
    bytes: Count


class Credits(Command, tag="crs", frozen=True, kw_only=True):
    """`Credit` for several subscriptions, with one entry of `bytes` per id."""

    sub_ids: tuple[str, ...]
    bytes: tuple[Count, ...]


class Flush(Command, tag="flush", frozen=True, kw_only=True):
    """Request an `Ack` once everything sent before on this connection is `persisted` or `processed`."""

    id: Count
    level: str = "persisted"


class Resolve(Command, tag="res", frozen=True, kw_only=True):
    """Ask which positions a start point or range of a topic covers now, without subscribing.

    With `positions` (start, end) of the journal `journal`, ask for the end of a read instead of a bookmark.
    The read takes at most `messages_max` messages and `bytes_max` bytes of bodies (0: unlimited), and at
    least one message. `filter` is validated as in a subscribe, and adds `types` to the answer.
    """

    id: Count
    topic: str
    bookmark: str
    options: str = ""
    filter: str | None = None
    positions: tuple[Count, Count] | None = None
    journal: str | None = None
    messages_max: Count = 0
    bytes_max: Count = 0


class Transaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of a transaction. Its messages use the derived publisher id of the client name `publisher`.

    In a `space` names are increasing decimal numbers, such as the batch ids of a streaming query. A number at
    or below the highest committed number counts as committed. Without a space each name is independent.
    """

    publisher: str
    space: str = ""
    name: str


class Stage(Command, tag="stg", frozen=True, kw_only=True):
    """A batch of one run without sequence numbers for a part of a transaction.

    It is appended to the batches that this connection staged for the part, or starts the part. The server
    answers with `Ack` once the batch is written.
    """

    id: Count
    transaction: Transaction
    part: str


class Prepare(Command, tag="prep", frozen=True, kw_only=True):
    """Complete a part that this connection staged. The server answers with `Staged` once it is durable.

    From then on the part survives the connection and a restart of the server. With `topics`, no part is
    completed: the server only checks that a transaction may have messages of these topics, and answers with
    0 messages.
    """

    id: Count
    transaction: Transaction
    part: str
    topics: tuple[str, ...] = ()


class Commit(Command, tag="cmt", frozen=True, kw_only=True):
    """Append the messages of these parts to the log in this order, atomically.

    Other staged parts of the transaction are discarded. The server answers with `Committed`.
    """

    id: Count
    transaction: Transaction
    parts: tuple[str, ...] = ()


class Abort(Command, tag="abt", frozen=True, kw_only=True):
    """Discard the staged parts of a transaction. The server answers with `Ack`."""

    id: Count
    transaction: Transaction


class Sow(Command, tag="sow", frozen=True, kw_only=True):
    """Query the records of a topic or pattern. The answers are `Ack`, `GroupBegin`, `Records`, `GroupEnd`.

    `sub_id` is the id of the query, a subscription id. `keys` or `canonical` select records by key, together
    with `filter`: a record must match both. `top_n` and `skip_n` select a part of the result in the order of
    `order_by`. `batch_size` is the number of records of a frame, 0: the server decides. `options` and
    `credit` are those of `Subscribe`.

    With `follow` the subscription continues with the messages after the result, without a gap. `bookmark`
    requests the records at an earlier time.
    """

    id: Count
    sub_id: str
    topic: str
    filter: str | None = None
    keys: Keys = ()
    canonical: CanonicalKeys = ()
    order_by: str = ""
    top_n: Count | None = None
    skip_n: Count = 0
    batch_size: Count = 0
    options: str = ""
    credit: Count
    follow: bool = False
    bookmark: str | None = None


# -- from the server ----------------------------------------------------------------------------------


class LogonReplication(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Replication in the answer to a logon: the log may lack messages of the client below `last_persisted`.

    So the client sends again all messages without an acknowledgement."""

    start: Count
    """Number of this run of the server, above 0."""
    group: str = ""
    """Group of the server. Empty: it has no links, and its log has messages of an earlier replication."""
    behind: bool = False
    """Whether the log lacks some of the messages that the client claims."""


class LoggedOn(Command, tag="logged_on", frozen=True, kw_only=True):
    """Successful logon. `last_persisted` is the highest durable sequence number of this publisher, or 0."""

    version: Count
    software: str
    instance: str
    journal: str
    epoch: Count
    publisher: Count
    last_persisted: Count
    recorded: tuple[str, ...] | None = None
    """Names and patterns of the persistent topics, or None if every topic is persistent."""
    validated: tuple[str, ...] = ()
    """Names and patterns of topics that validate the bodies or the keys of messages."""
    queues: tuple[str, ...] | None = None
    """Names of the queues. None from servers without SOW topics."""
    message_bytes_max: Count = message_bytes_max
    filter_bytes_max: Count = filter_bytes_max
    subscriptions_per_connection_max: Count = subscriptions_per_connection_max
    replication: LogonReplication | None = None
    """None: the server does not replicate, and its log has no holes."""


class Ack(Command, tag="ack", frozen=True, kw_only=True):
    """Result of the command `id`. `code` is an error code, or empty for success.

    For a subscribe with a bookmark, `start` is the position of the first message it may deliver. `found`
    reports whether the bookmark was known.
    """

    id: Count
    code: str = ""
    text: str = ""
    start: Count | None = None
    found: bool = True
    after: str = ""
    """Bookmark of the last message before `start`, `0` if no message precedes it, empty if unknown.

    A client that reconnects before its first message resumes there.
    """
    available: str = ""
    """First bookmark in the log, for `bookmark_expired` and a non-empty log."""
    places: Rows = b""
    """Places before `start`, as in `PersistedNotice`. The first belongs to the log of the server."""
    backlog: Count = 0
    """Largest number of unacknowledged messages of a queue subscription, 0 for other subscriptions."""


class Resolved(Command, tag="resolved", frozen=True, kw_only=True):
    """Answer to `Resolve`: positions `start` (inclusive) to `end` (exclusive) of journal `journal`.

    `topic` is the topic of the messages if it differs from the requested one. `types` maps message types to
    known topics that are not JSON.
    """

    id: Count
    journal: str
    start: Count
    end: Count
    topic: str = ""
    types: dict[str, tuple[str, ...]] = {}


class Staged(Command, tag="stgd", frozen=True, kw_only=True):
    """Result of `Prepare`: the part is durable and has `messages` messages."""

    id: Count
    messages: Count


class Committed(Command, tag="cmtd", frozen=True, kw_only=True):
    """Result of `Commit`: the transaction is in the log.

    Its last message has the bookmark `publisher|sequence|` (`sequence` 0: the transaction is empty).
    `repeated` reports a transaction that was committed before, so that this commit changed nothing. In a
    space, `highest` is then the highest committed number.
    """

    id: Count
    repeated: bool = False
    messages: Count = 0
    publisher: Count = 0
    sequence: Count = 0
    highest: Count = 0


class Persisted(Command, tag="d", frozen=True, kw_only=True):
    """Persistent publishes up to `frame`, and the publisher's sequence numbers up to `sequence`, are durable.

    `level` is `local` (synced to this machine's disk), `replicated(N)` (also to the disks of N synchronous
    destinations) or `written` (sync policy `interval` or `never`, here or there).
    """

    frame: Count
    sequence: Count = 0
    level: str = "local"


_REPLICATED: Final = "replicated("
_LEVEL_DIGITS_MAX: Final = 9


def weaker(level: str, other: str) -> str:
    """Return the weaker of two levels: `written`, then `local`, then `replicated(N)` by N."""
    return min(level, other, key=_strength)


def _strength(level: str) -> int:
    if level == "written":
        return -1
    number = level[len(_REPLICATED) : -1] if level.startswith(_REPLICATED) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) <= _LEVEL_DIGITS_MAX else 0


class Processed(Command, tag="pr", frozen=True, kw_only=True):
    """Non-persistent publish `frame` was passed to its subscribers. It says nothing about other frames."""

    frame: Count


class Rejected(Command, tag="rej", frozen=True, kw_only=True):
    """The server rejected publish `frame` (messages up to `sequence` if sequenced) and will never store it.

    With `refused` it rejected only these messages: sequence numbers if sequenced, otherwise indices in the
    frame from 0. It stores the others and answers the frame as if it never had the rejected ones.
    """

    frame: Count
    sequence: Count = 0
    code: str
    text: str
    refused: tuple[Count, ...] = ()


class Deliver(Command, tag="m", frozen=True, kw_only=True):
    """A batch for `sub_id`. `next` is the position after the last considered message (persistent topics).

    With `sub_ids` the batch is for several subscriptions, and clients process its messages in batch order.
    `counts` has the number of messages per subscription, `indices` the increasing indices for each. Both are
    consecutive little-endian u32. Every message is for at least one subscription.

    With `queue` the messages come from the queue of that name and keep their original topics. `lease` is the
    end of their lease in microseconds since 1970 UTC, 0 for no end. With `once` the messages have already
    left the queue and are never redelivered.

    `positions` (for `numbered` subscriptions) has the log positions of the messages, increasing little-endian
    u64. It has only the first position if the others follow without gaps.
    """

    sub_id: str = ""
    next: Count = 0
    sub_ids: tuple[str, ...] = ()
    counts: bytes = b""
    indices: bytes = b""
    queue: str = ""
    lease: Count = 0
    once: bool = False
    positions: bytes = b""


class Completed(Command, tag="done", frozen=True, kw_only=True):
    """The replay reached its end, or the end of the log at the subscribe. Sent once, in order."""

    sub_id: str
    next: Count


class Ended(Command, tag="end", frozen=True, kw_only=True):
    """End of a subscription. `code` is empty if its range is complete."""

    sub_id: str
    code: str = ""
    text: str = ""


class PersistedNotice(Command, tag="pn", frozen=True, kw_only=True):
    """New recovery point `publisher|sequence|` for bookmark subscriptions: the last persisted message.

    The server has sent the subscriptions `sub_ids` all their messages up to this bookmark. They may resume
    there. The bookmarked message need not match them. Sent at most once a second, and only if the log grew.

    A server that replicates adds `places`: rows of 16 bytes with the u64 publisher and the u64 sequence of
    the bookmark of a place (docs/formats/wire.md). `missing` has rows of 24 bytes with u64 publisher, u64
    `after` and u64 `through`. A row with equal numbers starts the rows of a publisher: the log has no hole up
    to this sequence but those of its next rows, of the sequences above `after` up to `through`.

    `expired`: a link started behind rows that retention had removed from its source, so the subscriptions may
    lack these messages.
    """

    sub_ids: tuple[str, ...]
    publisher: Count
    sequence: Count
    places: Rows = b""
    missing: Rows = b""
    expired: bool = False


class GroupBegin(Command, tag="gb", frozen=True, kw_only=True):
    """Start of the result of query `sub_id` for one SOW topic: its records as of one position of the log.

    The records include all messages before `position` and no later ones. `as_of` is the bookmark of the last
    message before it, `0` without one.

    With `key`, a client computes the generated key of a record from the values of these fields in the body
    and from `domain`. With `pattern` the topic of the record is the first value.
    """

    sub_id: str
    topic: str
    """Name of the SOW topic."""
    as_of: str
    position: Count
    key: tuple[str, ...] = ()
    """Paths of the key fields."""
    domain: str = ""
    explicit: bool = False
    """Whether the key column of `Records` has the keys."""
    pattern: str = ""
    """Pattern of further topics of the SOW topic."""
    types: dict[str, tuple[str, ...]] = {}
    """Topics that are not JSON, by message type."""
    queue: bool = False
    """Whether `topic` is the name of a queue. Its messages available at `position` are the records."""


class Records(Command, tag="rec", frozen=True, kw_only=True):
    """Records of query `sub_id`: a batch of one run by the server, with one message for each record.

    `marks` has publisher, sequence and timestamp of each message, which the run cannot have. `queue` is the
    queue of the messages, empty for records of SOW topics.
    """

    sub_id: str
    marks: bytes
    queue: str = ""


class GroupEnd(Command, tag="ge", frozen=True, kw_only=True):
    """End of the result of query `sub_id`.

    `matches` counts the records that match the query, `topic_matches` all records of the queried topics, and
    `records` the records that were sent.
    """

    sub_id: str
    matches: Count
    topic_matches: Count
    records: Count


class Deleted(Command, tag="del", frozen=True, kw_only=True):
    """Result of a delete of records in publish `frame`: it is persisted.

    `sequence` is its sequence number, or its index in a frame without sequence numbers. `matches` counts the
    records that match the delete, `topic_matches` all records of the topic. With `more`, a bound of the
    delete left matching records. Repeat the delete for them. `position` is the position of the delete in the
    log. None: it is unknown. If `counted` is false, the log no longer has the delete, and the counts and
    `more` are unknown.
    """

    frame: Count
    sequence: Count = 0
    matches: Count
    topic_matches: Count
    deleted: Count
    more: bool = False
    position: Count | None = None
    counted: bool = True


class LinkMismatch(msgspec.Struct, frozen=True, array_like=True):
    """A reason to refuse a replication link."""

    check: Annotated[str, msgspec.Meta(min_length=1, max_length=link_feature_characters_max)]
    """Name of the check."""
    text: Annotated[str, msgspec.Meta(max_length=link_text_bytes_max)]


class Goodbye(Command, tag="bye", frozen=True, kw_only=True):
    """Last frame of the server before it closes the connection, with the reason.

    On a replication link either side sends it. `mismatches` has all reasons to refuse a link.
    """

    code: str
    text: str
    mismatches: Annotated[tuple[LinkMismatch, ...], msgspec.Meta(max_length=goodbye_mismatches_max)] = ()


# -- either side --------------------------------------------------------------------------------------


class Heartbeat(Command, tag="hb", frozen=True, kw_only=True):
    """Heartbeat: proves that the sender is alive.

    A client sends it with `interval_ms` to set the interval. From then on each side sends a heartbeat after
    that many milliseconds without other output. The server closes the connection after two intervals without
    input. 0 disables heartbeats.
    """

    interval_ms: Count | None = None


ClientCommand = (
    Logon
    | Publish
    | Subscribe
    | Unsubscribe
    | Pause
    | Resume
    | Credit
    | Credits
    | Flush
    | Resolve
    | Stage
    | Prepare
    | Commit
    | Abort
    | Sow
    | Heartbeat
)
ServerCommand = (
    LoggedOn
    | Ack
    | Resolved
    | Staged
    | Committed
    | Persisted
    | Processed
    | Rejected
    | Deliver
    | Completed
    | Ended
    | PersistedNotice
    | GroupBegin
    | Records
    | GroupEnd
    | Deleted
    | Goodbye
    | Heartbeat
)

CARRIES_BATCH: Final = (Publish, Deliver, Stage, Records)
