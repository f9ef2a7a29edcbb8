"""Schema: the shape of the answer of `/stats`, as plain data.

Times are seconds, or text in UTC; sizes are bytes; counts begin with this run of the server.
"""

from __future__ import annotations

import msgspec

from tickertape.base.version import __version__
from tickertape.engine.queues.snapshot import QueueSnapshot


class Syncs(msgspec.Struct, kw_only=True):
    """How long it took to write and sync commits, and to sync by itself (policy `interval`)."""

    policy: str
    """`always`, `interval` or `never`."""
    count: int
    total_seconds: float
    highest_seconds: float
    p50_seconds: float | None
    """Upper bound of the bucket in which the median lies; None before the first sync."""
    p99_seconds: float | None
    buckets: list[tuple[float, int]]
    """Upper bound and how many were at most that long, cumulative; those above the last bound count in
    `count` only."""


class Retention(msgspec.Struct, kw_only=True):
    """Retention: removed segments, and the obstacles to removing more."""

    first_bookmark: str | None
    """Of the first message that the log has; None when it has none, or it cannot be read."""
    first_time: str | None
    """Log time of that message."""
    retired_segments: int
    """Removed since the log began."""
    retired_bytes: int
    removed_segments: int
    """Removed by this run."""
    held_segments: int
    """Segments outside `retain` and `retain_size` that are still needed, checked at least once a minute."""
    held_bytes: int
    held_by: str | None
    """Name of the part that needs the oldest of them."""
    failures: int
    """Attempts of this run that failed; each is made again."""


class JournalState(msgspec.Struct, kw_only=True):
    """The log."""

    identity: str
    epoch: int
    first_position: int
    """Position of the first message that the log has."""
    persisted_end: int
    """Position after the last persisted message."""
    accepted_end: int
    """Position after the last accepted message, persisted or on its way."""
    log_time: str | None
    """Log time of the last persisted message; None when the log is empty."""
    segments: int
    bytes: int
    """Bytes of the log in use, without reserves."""
    file_bytes: int
    """Bytes of its segment files, reserves included: the bytes that `retain_size` bounds."""
    commits: int
    publishers: int
    """Publisher ids that the log knows."""
    pending_bytes: int
    """Accepted, and not yet on its way to the disk."""
    full: bool
    """No room for the next segment: publishes are refused."""
    retention: Retention
    syncs: Syncs


class Rates(msgspec.Struct, kw_only=True):
    """Per second, over the last `window_seconds`."""

    window_seconds: float
    persisted_messages: float
    persisted_bytes: float
    sent_messages: float
    sent_bytes: float
    commits: float


class Totals(msgspec.Struct, kw_only=True):
    """Counts since the start."""

    persisted_messages: int
    persisted_bytes: int
    unrecorded_messages: int
    unrecorded_bytes: int
    sent_messages: int
    """Delivered, each as often as it was sent."""
    sent_bytes: int
    duplicate_messages: int
    """Published again and dropped."""
    logons: int
    refused: dict[str, int]
    """Refused commands by error code; the connection went on."""
    ended: dict[str, int]
    """Connections that the server ended, by error code."""
    unreadable_messages: int
    """Bodies that a filter could not read, each as often as one tried; they match no filter on fields."""
    ended_subscriptions: dict[str, int]
    """Subscriptions that an error ended, by its code, damage in the log for instance; the connection went
    on."""


class SubscriptionState(msgspec.Struct, kw_only=True):
    """A subscription."""

    sub_id: str
    topic: str
    filter: str | None
    paused: bool = False
    rate: str | None = None
    """Rate limit of its delivery, in words; None without a limit."""
    conflation_seconds: float | None = None
    """Interval of its conflation; None without one."""
    live: bool = False
    """It gets accepted messages before they are persisted, once it has caught up."""
    reads_with: int | None = None
    """Other subscriptions that share its reads of the log, or the end of the log. None when the topic is not
    persistent."""
    recorded: bool
    position: int | None = None
    """Position of the next message that is considered for it; None when the topic is not recorded."""
    lag_messages: int | None = None
    """Messages of the log, of any topic, between that and the persisted end."""
    credit_bytes: int
    """Bytes that it may still be sent."""
    caught_up: bool
    blocked: bool
    """There is more for it, and no credit or no room in the connection."""
    backlog_bytes: int = 0
    """Unrecorded messages that wait for it."""
    queues: list[str] = []
    """The queues that it consumes."""
    unsettled: int | None = None
    """Messages of theirs that it holds; None when it consumes none."""
    max_backlog: int | None = None
    """How many it may."""


class SessionState(msgspec.Struct, kw_only=True):
    """A connection that logged on."""

    client: str
    address: str
    """`host:port`; empty for a Unix socket."""
    connected_seconds: float
    published_messages: int
    published_bytes: int
    sent_messages: int
    sent_bytes: int
    outbox_bytes: int
    """Bytes that wait to be written to it."""
    backlog_bytes: int
    """Bytes that wait for its subscriptions, in memory or on disk, beside those."""
    offline: bool
    """Its backlog is written to disk."""
    subscription_count: int
    subscriptions: list[SubscriptionState]


class TopicState(msgspec.Struct, kw_only=True):
    """A topic."""

    name: str
    recorded: bool
    messages: int
    """Since the start of the server: the log may hold more."""
    bytes: int
    last_bookmark: str | None
    """Of the last message since the start; None before it."""
    last_time: str | None
    subscriptions: int | None
    """None when there are more subscriptions than are counted."""


class MemoryState(msgspec.Struct, kw_only=True):
    """Use of memory."""

    anonymous_bytes: int | None
    """Resident memory that no file backs; None if the system does not report it."""
    tail_cache_bytes: int
    """The end of the log that is kept in memory."""
    outbox_bytes: int
    """Bytes that wait to be written to all connections."""
    inbound_bytes: int
    """Large frames that are not complete yet, all connections together."""


class SlowClientsState(msgspec.Struct, kw_only=True):
    """Messages that wait for slow clients and are not in the log."""

    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    """Bytes of spill files."""
    disk_limit_bytes: int
    waiting_connections: int
    """Connections for which something waits."""
    offline_connections: int
    """Those of them whose messages are written to disk."""
    offline_starts: int
    """Since the start, as all counts below."""
    offline_stops: int
    written_bytes: int
    """Written to disk."""
    read_bytes: int
    """Read back."""
    failures: int
    """Writes and reads that failed."""
    live_fallbacks: int
    """Number of times a `live` subscription was too slow and went back to the log."""


class TransactionsState(msgspec.Struct, kw_only=True):
    """Transactions: staged parts and outcomes."""

    committed: int
    """Written to the log, since the start, as the next three counts."""
    repeated: int
    """Commits of transactions that were committed before; they changed nothing."""
    aborted: int
    expired: int
    """Dropped because they were not used for `expire_after`."""
    staged_parts: int
    """Staged now and not committed."""
    staged_bytes: int
    """Bytes of these parts on disk."""
    staged_limit_bytes: int
    waiting: int
    """Commits that were asked for and are not answered yet, each transaction once."""


class Stats(msgspec.Struct, kw_only=True):
    """The answer of `/stats`."""

    version: str = __version__
    instance: str
    state: str
    """`ready`, `draining` or `failed`."""
    reason: str | None
    """Why it is not ready."""
    pid: int
    started: str
    uptime_seconds: float
    journal: JournalState
    totals: Totals
    rates: Rates | None = None
    """None in the first second."""
    connections: int
    session_count: int
    sessions: list[SessionState]
    """The oldest ones, as many as are listed."""
    sessions_left_out: int
    subscription_count: int
    subscriptions_left_out: int
    """Not listed below the sessions above."""
    topics: list[TopicState]
    memory: MemoryState
    slow_clients: SlowClientsState
    transactions: TransactionsState
    queues: list[QueueSnapshot] = msgspec.field(default_factory=list)
