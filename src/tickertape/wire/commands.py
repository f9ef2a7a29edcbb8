"""Protocol commands: names, fields and meaning (docs/formats/wire.md has the bytes).

Commands are immutable, take keywords only, and are encoded as MessagePack maps without fields at their
default. The tag field `c` is the name of the command. A command that carries messages is followed in its
frame by one message batch.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tickertape.base.limits import filter_bytes_max, message_bytes_max, subscriptions_per_connection_max

WIRE_VERSION: Final = 0
PREFACE: Final = b"tktape/" + bytes([48 + WIRE_VERSION])
"""The eight bytes with which a client opens every connection; the last one is the version as a digit."""

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number that is never negative; a receiver refuses the command otherwise."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="c"):
    """Base of all commands."""


# -- from the client ----------------------------------------------------------------------------------


class Logon(Command, tag="logon", frozen=True, kw_only=True):
    """First command of a connection. `name` is the client name, from which the publisher id is made.

    `heartbeat_ms`: the interval of the heartbeats of both sides, 0 for none; see `Heartbeat`."""

    name: str
    versions: tuple[int, ...] = (WIRE_VERSION,)
    user: str | None = None
    password: str | None = None
    software: str = ""
    options: str = ""
    heartbeat_ms: Count = 0

    def __repr__(self) -> str:
        return f"Logon(name={self.name!r})"  # a password is shown nowhere


class Publish(Command, tag="p", frozen=True, kw_only=True):
    """A batch of one run. `frame` numbers the publish frames of the connection from 1, without gaps.

    `sequenced`: the run carries the publisher's own rising sequences. Otherwise the server assigns them
    under the derived publisher id; unrecorded topics travel like that, in frames of their own.
    """

    frame: Count
    sequenced: bool = False


class Subscribe(Command, tag="sub", frozen=True, kw_only=True):
    """Start a subscription. With `bookmark` (or `positions`) it reads the log, without it only new messages.

    `options` is the comma-separated option string of the reference. `credit` is the number of cost bytes the
    server may send at first. `until_caught_up` ends it at the last message accepted when the command arrived.
    `positions` (start, end) reads a part of the log by position, of the journal `journal` only; with
    `numbered` each `Deliver` says where its messages stand.
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
    """End subscriptions of this connection; an unknown id refuses the whole command."""

    id: Count
    sub_ids: tuple[str, ...]


class Pause(Command, tag="pause", frozen=True, kw_only=True):
    """Pause bookmark subscriptions and keep their positions. An unknown id rejects the whole command.
    Messages sent before still arrive."""

    id: Count
    sub_ids: tuple[str, ...]


class Resume(Command, tag="resume", frozen=True, kw_only=True):
    """Resume paused bookmark subscriptions. Those at the same position and rate share reads of the log:
    messages arrive in log order across them."""

    id: Count
    sub_ids: tuple[str, ...]


class Credit(Command, tag="cr", frozen=True, kw_only=True):
    """The application consumed `bytes` of cost: the server may send as much again."""

    sub_id: str
    bytes: Count


class Credits(Command, tag="crs", frozen=True, kw_only=True):
    """As `Credit`, for several: as many `bytes` as `sub_ids`."""

    sub_ids: tuple[str, ...]
    bytes: tuple[Count, ...]


class Flush(Command, tag="flush", frozen=True, kw_only=True):
    """Answered by `Ack` when everything sent before on this connection is `persisted` or `processed`."""

    id: Count
    level: str = "persisted"


class Resolve(Command, tag="res", frozen=True, kw_only=True):
    """Ask which positions a start point or range of a topic covers now, without subscribing.

    With `positions` (start, end) of the journal `journal` instead of a bookmark: up to where a reading of
    them gets that takes at most `messages_max` messages and `bytes_max` bytes of bodies, 0 for any number, or
    one message. `filter` is checked as a subscribe would; with it the answer has `types`."""

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
    """What names a transaction: `publisher` is the name of the client under whose derived publisher id its
    messages come.

    With a `space`, names are numbers in decimal that rise, as the batches of a query do: a number at or below
    the highest one committed was committed. Without one, each name is a transaction of its own."""

    publisher: str
    space: str = ""
    name: str


class Stage(Command, tag="stg", frozen=True, kw_only=True):
    """A batch of one run without sequences for a part of a transaction, behind what this connection staged
    for that part before; else the part begins with it. Answered with `Ack` once it is written."""

    id: Count
    transaction: Transaction
    part: str


class Prepare(Command, tag="prep", frozen=True, kw_only=True):
    """Nothing more comes for a part that this connection staged. Answered with `Staged` once it is durable:
    from then on it outlives the connection and the server."""

    id: Count
    transaction: Transaction
    part: str


class Commit(Command, tag="cmt", frozen=True, kw_only=True):
    """Put the messages of these parts, in this order, into the log: all at once or none. What else is staged
    for the transaction is dropped. Answered with `Committed`."""

    id: Count
    transaction: Transaction
    parts: tuple[str, ...] = ()


class Abort(Command, tag="abt", frozen=True, kw_only=True):
    """Discard the staged parts of a transaction. Answered with `Ack`."""

    id: Count
    transaction: Transaction


# -- from the server ----------------------------------------------------------------------------------


class LoggedOn(Command, tag="logged_on", frozen=True, kw_only=True):
    """The logon succeeded. `last_persisted` is this publisher's highest durable sequence, 0 when none."""

    version: Count
    software: str
    instance: str
    journal: str
    epoch: Count
    publisher: Count
    last_persisted: Count
    recorded: tuple[str, ...] | None = None
    """Names and patterns of the recorded topics, or None when every topic is."""
    validated: tuple[str, ...] = ()
    """The topics that can refuse a message for its body."""
    message_bytes_max: Count = message_bytes_max
    filter_bytes_max: Count = filter_bytes_max
    subscriptions_per_connection_max: Count = subscriptions_per_connection_max


class Ack(Command, tag="ack", frozen=True, kw_only=True):
    """Result of the command with that `id`; `code` is empty for success, else an error code.

    For a subscribe with a bookmark `start` says where it really begins: the position of the first message it
    may deliver, and `found` whether the bookmark asked for was known.
    """

    id: Count
    code: str = ""
    text: str = ""
    start: Count | None = None
    found: bool = True
    after: str = ""
    """Where that is, for a client that has to take it up again before its first message: the bookmark of the
    last message before it, `0` when there is none; empty when it is not known, or yet to come."""
    available: str = ""
    """With `bookmark_expired`: the first bookmark that the log still has, if it has a message."""
    backlog: Count = 0
    """Of a subscription to queues: how many unacknowledged messages it may hold; 0 for any other."""


class Resolved(Command, tag="resolved", frozen=True, kw_only=True):
    """Answer to `Resolve`: positions `start` (inclusive) and `end` (exclusive) of journal `journal`.

    `topic`: the one that the messages were published to, when that is another than was asked for. `types`: by
    message type the topics that are not JSON, as far as they are known.
    """

    id: Count
    journal: str
    start: Count
    end: Count
    topic: str = ""
    types: dict[str, tuple[str, ...]] = {}


class Staged(Command, tag="stgd", frozen=True, kw_only=True):
    """Result of `Prepare`: the part is durable and has this number of messages."""

    id: Count
    messages: Count


class Committed(Command, tag="cmtd", frozen=True, kw_only=True):
    """The outcome of `Commit`: the transaction is in the log. `repeated`: it was before, and nothing was
    done. Else the last of its messages has the bookmark `publisher|sequence|` (`sequence` 0: it has none).

    `highest`: where it was repeated in a space, the highest number that was committed there."""

    id: Count
    repeated: bool = False
    messages: Count = 0
    publisher: Count = 0
    sequence: Count = 0
    highest: Count = 0


class Persisted(Command, tag="d", frozen=True, kw_only=True):
    """Every recorded publish up to `frame`, and this publisher's sequences up to `sequence`, are durable.

    `level` is `local` (synced to this machine's disk) or `written` (sync policy `interval` or `never`).
    """

    frame: Count
    sequence: Count = 0
    level: str = "local"


class Processed(Command, tag="pr", frozen=True, kw_only=True):
    """The unrecorded publish `frame` was handed to its subscribers; says nothing about any other frame."""

    frame: Count


class Rejected(Command, tag="rej", frozen=True, kw_only=True):
    """Publish `frame` (messages up to `sequence` when sequenced) was refused and will never be in the log.

    With `refused` only these messages of it were: by sequence when it is sequenced, else by their number in
    the frame from 0. The others are taken, and the frame is answered as if it had never had the refused ones.
    """

    frame: Count
    sequence: Count = 0
    code: str
    text: str
    refused: tuple[Count, ...] = ()


class Deliver(Command, tag="m", frozen=True, kw_only=True):
    """A batch for `sub_id`. `next`: the position after the last message considered (recorded topics).

    With `sub_ids` it is for several subscriptions, whose messages are to be handed on in the order of the
    batch: `counts` says how many are for each of them, `indices` which, rising for each; both are
    little-endian u32, one after the other. Every message is for at least one of them.

    With `queue` the messages come out of the queue of that name, and keep the topics they were published to.
    `lease` is when the lease on them ends, microseconds since 1970 UTC, 0 when it has no end; `once`: they
    have left the queue already, nothing of them comes again.

    `positions`, when the subscription is `numbered`: where the messages stand in the log, little-endian u64,
    rising; only the first of them when the others follow it without gaps."""

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
    """The replay has caught up with the log as of the subscribe, or reached its stop; sent once, in order."""

    sub_id: str
    next: Count


class Ended(Command, tag="end", frozen=True, kw_only=True):
    """The subscription is over. `code` is empty when its range is complete."""

    sub_id: str
    code: str = ""
    text: str = ""


class PersistedNotice(Command, tag="pn", frozen=True, kw_only=True):
    """The last persisted message of the log has the bookmark `publisher|sequence|`, and the bookmark
    subscriptions `sub_ids` were sent everything of theirs up to it: they may resume there.

    Sent at most once a second, and only when the log has moved; it need not match the subscription."""

    sub_ids: tuple[str, ...]
    publisher: Count
    sequence: Count


class Goodbye(Command, tag="bye", frozen=True, kw_only=True):
    """The server closes the connection after this frame, and why."""

    code: str
    text: str


# -- either side --------------------------------------------------------------------------------------


class Heartbeat(Command, tag="hb", frozen=True, kw_only=True):
    """Heartbeat: proves that the sender is alive.

    From a client with `interval_ms`: from now on each side sends a heartbeat when it has sent nothing else
    for that many milliseconds, and the server closes the connection when nothing arrived for two intervals.
    0 disables heartbeats.
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
    | Goodbye
    | Heartbeat
)

CARRIES_BATCH: Final = (Publish, Deliver, Stage)
