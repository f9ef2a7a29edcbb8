"""Schema of the answer of `/stats`.

Durations are in seconds, times are UTC text, sizes are in bytes. Counters start at 0 when the server starts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.version import __version__
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.sow.snapshot import SowSnapshot


class Durations(msgspec.Struct, kw_only=True):
    """Histogram of durations since the server started."""

    count: int
    total_seconds: float
    highest_seconds: float
    p50_seconds: float | None
    """Upper bound of the bucket with the median. None before the first duration."""
    p99_seconds: float | None
    buckets: list[tuple[float, int]]
    """Upper bound and cumulative count of each bucket. Durations above the last bound are in `count` only."""


class Syncs(Durations, kw_only=True):
    """Durations of synced commits, and of separate syncs (policy `interval`)."""

    policy: str
    """`always`, `interval` or `never`."""


class Retention(msgspec.Struct, kw_only=True):
    """Retention: removed segments, and segments that cannot be removed yet."""

    first_bookmark: str | None
    """Bookmark of the first message in the log. None if the log is empty or the message is unreadable."""
    first_time: str | None
    """Log time of that message."""
    retired_segments: int
    """Segments removed since the journal was created."""
    retired_bytes: int
    removed_segments: int
    """Segments removed since the server started."""
    held_segments: int
    """Segments past `retain` or `retain_size` that are still in use. Checked at least once a minute."""
    held_bytes: int
    held_by: str | None
    """Name of the component that uses the oldest of them."""
    failures: int
    """Failed removals since the server started. Each is retried."""


class JournalState(msgspec.Struct, kw_only=True):
    """The log."""

    identity: str
    epoch: int
    first_position: int
    """Position of the first message in the log."""
    persisted_end: int
    """Position after the last persisted message."""
    accepted_end: int
    """Position after the last accepted message, persisted or not."""
    log_time: str | None
    """Log time of the last persisted message. None if the log is empty."""
    segments: int
    bytes: int
    """Bytes of the log in use, without preallocated space."""
    file_bytes: int
    """Size of the segment files, with preallocated space. `retain_size` limits this size."""
    commits: int
    publishers: int
    """Publisher ids known to the log."""
    pending_bytes: int
    """Accepted bytes not submitted to the disk yet."""
    full: bool
    """Whether the disk has no space for the next segment. The server then rejects publishes."""
    retention: Retention
    syncs: Syncs


class Rates(msgspec.Struct, kw_only=True):
    """Rates per second over the last `window_seconds`."""

    window_seconds: float
    persisted_messages: float
    persisted_bytes: float
    sent_messages: float
    sent_bytes: float
    commits: float


class Totals(msgspec.Struct, kw_only=True):
    """Counters since the server started."""

    persisted_messages: int
    persisted_bytes: int
    unrecorded_messages: int
    unrecorded_bytes: int
    sent_messages: int
    """Messages sent to subscribers. A message counts once for each send."""
    sent_bytes: int
    duplicate_messages: int
    """Duplicate messages dropped."""
    logons: int
    refused: dict[str, int]
    """Rejected commands by error code. Their connections stay open."""
    ended: dict[str, int]
    """Connections closed by the server, by error code."""
    unreadable_messages: int
    """Failed attempts of filters to read a body. An unreadable body matches no filter on fields."""
    ended_subscriptions: dict[str, int]
    """Subscriptions ended by an error (for example log corruption), by error code. Their connections stay
    open."""


class SubscriptionState(msgspec.Struct, kw_only=True):
    """A subscription."""

    sub_id: str
    topic: str
    filter: str | None
    paused: bool = False
    rate: str | None = None
    """Text of its rate limit. None without a limit."""
    conflation_seconds: float | None = None
    """Interval of its conflation. None without conflation."""
    live: bool = False
    """Whether the server sends it accepted messages before they are persisted, once it has caught up."""
    reads_with: int | None = None
    """Number of other subscriptions that share its log reads or its live delivery. None for a non-persistent
    topic."""
    recorded: bool
    position: int | None = None
    """Position of the next message to evaluate for it. None for a non-persistent topic."""
    lag_messages: int | None = None
    """Number of messages, of any topic, between `position` and the persisted end."""
    credit_bytes: int
    """Flow-control credit in bytes."""
    caught_up: bool
    blocked: bool
    """Whether it has messages to send but no credit, or the outbox of its connection is full."""
    backlog_bytes: int = 0
    """Size of its backlog of non-persistent messages."""
    queues: list[str] = []
    """The queues that it consumes."""
    unsettled: int | None = None
    """Number of queue messages it holds unacknowledged. None if it consumes no queue."""
    max_backlog: int | None = None
    """Limit of `unsettled`."""


class SessionState(msgspec.Struct, kw_only=True):
    """A connection that logged on."""

    client: str
    address: str
    """`host:port`. Empty for a Unix socket."""
    connected_seconds: float
    published_messages: int
    published_bytes: int
    sent_messages: int
    sent_bytes: int
    outbox_bytes: int
    """Bytes waiting to be written to it."""
    backlog_bytes: int
    """Backlog of its subscriptions in memory or on disk, without the outbox."""
    offline: bool
    """Whether its backlog spills to disk."""
    subscription_count: int
    subscriptions: list[SubscriptionState]


class TopicState(msgspec.Struct, kw_only=True):
    """A topic."""

    name: str
    recorded: bool
    messages: int
    """Messages since the server started. The log may hold more."""
    bytes: int
    last_bookmark: str | None
    """Bookmark of the last message since the server started. None before the first."""
    last_time: str | None
    subscriptions: int | None
    """None if the server has more subscriptions than it counts per topic (`subscriptions_counted_max`)."""


class MemoryState(msgspec.Struct, kw_only=True):
    """Memory usage."""

    anonymous_bytes: int | None
    """Resident memory not backed by a file. None if the system does not report it."""
    tail_cache_bytes: int
    """Tail of the log cached in memory."""
    outbox_bytes: int
    """Bytes waiting to be written, over all connections."""
    inbound_bytes: int
    """Memory of incomplete large frames, over all connections."""


class SlowClientsState(msgspec.Struct, kw_only=True):
    """Backlogs of slow clients, for messages that are not in the log."""

    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    """Bytes of spill files."""
    disk_limit_bytes: int
    waiting_connections: int
    """Connections with a backlog."""
    offline_connections: int
    """Connections whose backlog spills to disk."""
    offline_starts: int
    """Counter since the server started, as all fields below."""
    offline_stops: int
    written_bytes: int
    """Bytes written to spill files."""
    read_bytes: int
    """Bytes read from spill files."""
    failures: int
    """Failed reads and writes of spill files."""
    live_fallbacks: int
    """Fallbacks of slow `live` subscriptions to reading the log."""


class TransactionsState(msgspec.Struct, kw_only=True):
    """Transactions: staged parts and outcomes."""

    committed: int
    """Transactions committed since the server started. The next three counters start then, too."""
    repeated: int
    """Repeated commits of committed transactions, which change nothing."""
    aborted: int
    expired: int
    """Transactions dropped after `expire_after` without use."""
    staged_parts: int
    """Parts that are staged now."""
    staged_bytes: int
    """Size of the staged parts on disk."""
    staged_limit_bytes: int
    waiting: int
    """Transactions with an unanswered commit request."""


class SowState(msgspec.Struct, kw_only=True):
    """SOW topics, and queries of their records."""

    folded_position: int
    """The records include the messages of the log below this position."""
    lag_bytes: int
    """Persisted bytes that the records do not include yet. Above 8 MiB, publishers to SOW topics wait."""
    failure: str | None
    """Why no SOW topic is served any more. None while they are."""
    memory_bytes: int
    """Memory of all records that counts against `sow_bytes_max`: without free slots and kept changes."""
    memory_limit_bytes: int
    """`sow_bytes_max` of `[limits]`."""
    memory_refused_frames: int
    """Publish frames that were refused with `sow_full` since the start."""
    queries: int
    """Queries that are not finished."""
    oldest_query_seconds: float | None
    """Time since the request of the oldest of them. None without queries."""
    results_bytes: int
    """Memory of their results."""
    results_limit_bytes: int
    """Limit of `results_bytes`. Above it, the oldest query ends with `query_too_slow`."""
    topics: list[SowSnapshot]


PAUSED: Final = "operator"
"""`LinkStatus.paused` of a link that an operator has paused."""


class LinkStatus(msgspec.Struct, kw_only=True):
    """A replication link: a configured destination, or a server that opened a link to this one."""

    name: str
    """Name of the other instance."""
    direction: str
    """`out` for a destination, `in` for a source."""
    state: str
    """`live`, `resync` (it brings older messages), `opening`, `down`, or `refused` (an operator must act)."""
    address: str
    """Address of the connection, or of the next attempt to connect. Empty for a Unix socket and without a
    connection of a source."""
    log: str
    """Log id of the other instance. Empty: unknown."""
    position: int
    """Position in the log of the source: the destination has everything before it on its disk."""
    behind_messages: int
    """Messages and records of the source that the destination may lack. 0 for a source."""
    behind_seconds: float
    """Seconds since the oldest of them was persisted here. 0 without one, and for a source."""
    level: str
    """`sync` (acknowledgements wait for the destination), `downgraded` (they do not, until an upgrade), or
    `async`. Empty for a source."""
    pinned_position: int | None
    """Lowest position that retention keeps for the destination. None: nothing is kept for it."""
    held_frames: int
    """Received frames that wait for the bodies of named messages. 0 for a destination."""
    paused: str
    """Cause for which this server takes nothing from the source now, or `operator` for a destination that is
    paused. Empty without one."""
    error: str
    """Text of the last error. Empty without one."""
    retry_seconds: float
    """Seconds until the next attempt to connect. 0 without one."""
    connects: int
    """Opened links since the server started, as all counters below."""
    disconnects: int
    messages: int
    """Sent or received messages and records."""
    bytes: int
    """Cost of their rows."""
    named_messages: int
    """Messages that were only named, not sent, because the destination should have them."""
    requested_messages: int
    """Named messages whose bodies the destination requested."""
    downgrades: int


class HoleStatus(msgspec.Struct, kw_only=True):
    """Sequences of a publisher that other servers have or may have, and this log lacks."""

    client: str
    """Name of the publisher. Empty: unknown."""
    publisher: int
    """Its publisher id."""
    first: int
    last: int
    proven: bool
    """Whether other servers have the messages for certain."""


class HolesList(msgspec.Struct, kw_only=True):
    """The answer of `/holes`."""

    holes: list[HoleStatus]
    left_out: int
    """Holes beyond the limit of the list (`holes_listed_max`)."""


class Stats(msgspec.Struct, kw_only=True):
    """The answer of `/stats`. Its parts are read one after the other, while the server serves clients."""

    version: str = __version__
    instance: str
    state: str
    """`ready`, `waiting` (a synchronous destination is not connected, with `ready = "synchronous"`),
    `draining` or `failed`."""
    reason: str | None
    """Cause when the state is not `ready`. A ready server reports destinations for which acknowledgements
    wait."""
    pid: int
    started: str
    uptime_seconds: float
    journal: JournalState
    event_loop: Durations
    """Durations of the steps of the event loop. While one runs, all clients wait."""
    totals: Totals
    rates: Rates | None = None
    """None in the first half second."""
    connections: int
    session_count: int
    sessions: list[SessionState]
    """The oldest sessions, up to `sessions_listed_max`."""
    sessions_left_out: int
    subscription_count: int
    subscriptions_left_out: int
    """Subscriptions not listed in `sessions`."""
    topics: list[TopicState]
    memory: MemoryState
    slow_clients: SlowClientsState
    transactions: TransactionsState
    queues: list[QueueSnapshot] = msgspec.field(default_factory=list)
    sow: SowState | None = None
    """None without SOW topics."""
    links: list[LinkStatus] = msgspec.field(default_factory=list)
    """Replication links: destinations in the order of the configuration, then sources."""
