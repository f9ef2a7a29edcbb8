"""Prometheus metrics: names, types and labels, made from one report.

Invariant: the number of label values is bounded. Labels are counted topics, configured queues and SOW topics,
and links. Sessions are not a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tickertape.base.bookmarks import parse_timestamp
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.sow.snapshot import SowSnapshot
from tickertape.server.admin.schema import (
    PAUSED,
    Durations,
    LinkStatus,
    SlowClientsState,
    SowState,
    Stats,
    TransactionsState,
)

_P: Final = "tickertape_"


def _first_seconds(stats: Stats) -> float | None:
    time = stats.journal.retention.first_time
    return None if time is None else parse_timestamp(time) / 1e6


_TOTALS: Final[tuple[tuple[str, str, Callable[[Stats], int]], ...]] = (
    ("persisted_messages", "Messages persisted.", lambda s: s.totals.persisted_messages),
    ("persisted_bytes", "Body bytes of persisted messages.", lambda s: s.totals.persisted_bytes),
    ("unrecorded_messages", "Messages of non-persistent topics.", lambda s: s.totals.unrecorded_messages),
    ("unrecorded_bytes", "Body bytes of non-persistent topics.", lambda s: s.totals.unrecorded_bytes),
    ("sent_messages", "Messages sent to subscribers (one count per send).", lambda s: s.totals.sent_messages),
    ("sent_bytes", "Body bytes sent to subscribers.", lambda s: s.totals.sent_bytes),
    ("duplicate_messages", "Duplicate messages dropped.", lambda s: s.totals.duplicate_messages),
    ("unreadable_messages", "Bodies that filters could not read.", lambda s: s.totals.unreadable_messages),
    ("logons", "Client logons.", lambda s: s.totals.logons),
    ("journal_commits", "Commits written to the log.", lambda s: s.journal.commits),
    ("journal_removed_segments", "Old segments removed.", lambda s: s.journal.retention.removed_segments),
    (
        "journal_retention_failures",
        "Failed segment removals (each is retried).",
        lambda s: s.journal.retention.failures,
    ),
)
_GAUGES: Final[tuple[tuple[str, str, Callable[[Stats], float | None]], ...]] = (
    ("ready", "1 when the server is ready, 0 when it drains or has failed.", lambda s: s.state == "ready"),
    ("uptime_seconds", "Seconds since the server became ready.", lambda s: s.uptime_seconds),
    ("connections", "Open client connections.", lambda s: s.connections),
    ("sessions", "Connections that logged on.", lambda s: s.session_count),
    ("subscriptions", "Subscriptions.", lambda s: s.subscription_count),
    (
        "event_loop_longest_step_seconds",
        "Longest step of the event loop since the start.",
        lambda s: s.event_loop.highest_seconds,
    ),
    ("journal_first_position", "First position in the log.", lambda s: s.journal.first_position),
    ("journal_persisted_position", "End of the persisted messages.", lambda s: s.journal.persisted_end),
    ("journal_accepted_position", "End of the accepted messages.", lambda s: s.journal.accepted_end),
    ("journal_segments", "Segments of the log.", lambda s: s.journal.segments),
    ("journal_bytes", "Bytes of the log in use.", lambda s: s.journal.bytes),
    (
        "journal_file_bytes",
        "Size of the segment files, with preallocated space.",
        lambda s: s.journal.file_bytes,
    ),
    (
        "journal_retired_segments",
        "Segments removed since the journal was created.",
        lambda s: s.journal.retention.retired_segments,
    ),
    (
        "journal_held_segments",
        "Segments past retention that are still in use.",
        lambda s: s.journal.retention.held_segments,
    ),
    (
        "journal_held_bytes",
        "Size of the segments past retention that are still in use.",
        lambda s: s.journal.retention.held_bytes,
    ),
    ("journal_first_timestamp_seconds", "Log time of the first message in the log.", _first_seconds),
    ("journal_publishers", "Publisher ids known to the log.", lambda s: s.journal.publishers),
    ("journal_pending_bytes", "Accepted bytes not sent to the disk yet.", lambda s: s.journal.pending_bytes),
    ("journal_full", "1 when the disk has no space for the next segment.", lambda s: s.journal.full),
    ("memory_anonymous_bytes", "Resident memory not backed by a file.", lambda s: s.memory.anonymous_bytes),
    ("memory_tail_cache_bytes", "Tail of the log cached in memory.", lambda s: s.memory.tail_cache_bytes),
    ("memory_outbox_bytes", "Bytes waiting to be written to connections.", lambda s: s.memory.outbox_bytes),
    ("memory_inbound_bytes", "Memory of incomplete large frames.", lambda s: s.memory.inbound_bytes),
    ("slow_clients_memory_bytes", "Slow client backlog in memory.", lambda s: s.slow_clients.memory_bytes),
    ("slow_clients_disk_bytes", "Slow client backlog on disk.", lambda s: s.slow_clients.disk_bytes),
    ("slow_clients_waiting", "Connections with a backlog.", lambda s: s.slow_clients.waiting_connections),
    (
        "slow_clients_offline",
        "Connections whose backlog spills to disk.",
        lambda s: s.slow_clients.offline_connections,
    ),
    ("transactions_staged_parts", "Staged transaction parts.", lambda s: s.transactions.staged_parts),
    ("transactions_staged_bytes", "Disk space of staged parts.", lambda s: s.transactions.staged_bytes),
    ("transactions_waiting", "Transactions being committed.", lambda s: s.transactions.waiting),
    (
        "subscription_lag_messages_max",
        "Largest lag of a listed subscription, in positions behind the persisted end.",
        lambda s: max((u.lag_messages or 0 for x in s.sessions for u in x.subscriptions), default=0),
    ),
)  # fmt: skip

_SLOW_TOTALS: Final[tuple[tuple[str, str, Callable[[SlowClientsState], int]], ...]] = (
    ("slow_clients_offline_starts", "Connections that started to spill to disk.", lambda s: s.offline_starts),
    ("slow_clients_offline_stops", "Connections that stopped spilling to disk.", lambda s: s.offline_stops),
    ("slow_clients_written_bytes", "Bytes written to spill files.", lambda s: s.written_bytes),
    ("slow_clients_read_bytes", "Bytes read from spill files.", lambda s: s.read_bytes),
    ("slow_clients_failures", "Failed reads and writes of spill files.", lambda s: s.failures),
    ("slow_clients_live_fallbacks", "Live subscriptions that fell back.", lambda s: s.live_fallbacks),
)


_TRANSACTION_TOTALS: Final[tuple[tuple[str, str, Callable[[TransactionsState], int]], ...]] = (
    ("transactions_committed", "Committed transactions.", lambda t: t.committed),
    ("transactions_repeated", "Repeated commits of committed transactions.", lambda t: t.repeated),
    ("transactions_aborted", "Aborted transactions.", lambda t: t.aborted),
    ("transactions_expired", "Expired transactions.", lambda t: t.expired),
)


_SOW_GAUGES: Final[tuple[tuple[str, str, Callable[[SowState], float | None]], ...]] = (
    ("stopped", "1 when damage of the log has stopped all SOW topics.", lambda s: int(s.failure is not None)),
    ("folded_position", "The records include the log below it.", lambda s: s.folded_position),
    ("lag_bytes", "Persisted bytes that the records do not include.", lambda s: s.lag_bytes),
    ("memory_bytes", "Memory of all SOW topics.", lambda s: s.memory_bytes),
    ("memory_limit_bytes", "Limit of this memory.", lambda s: s.memory_limit_bytes),
    ("queries", "Unfinished queries of records.", lambda s: s.queries),
    ("oldest_query_seconds", "Age of the oldest query.", lambda s: s.oldest_query_seconds),
    ("results_bytes", "Memory of query results.", lambda s: s.results_bytes),
)
_SOW_TOPIC_GAUGES: Final[tuple[tuple[str, str, Callable[[SowSnapshot], float | None]], ...]] = (
    ("records", "Records.", lambda t: t.records),
    ("topic_memory_bytes", "Memory of a SOW topic.", lambda t: t.memory_bytes),
    ("live_bytes", "Bytes of bodies in blocks that belong to a record.", lambda t: t.live_bytes),
    ("block_bytes", "Used bytes of blocks.", lambda t: t.block_bytes),
    ("blocks", "Blocks of bodies.", lambda t: t.blocks),
    ("garbage_ratio", "Part of the used bytes of blocks that no record needs.", lambda t: t.garbage_ratio),
    ("held_bytes", "Freed blocks that query results need.", lambda t: t.held_bytes),
    ("index_bytes", "Memory of the key index and the hash indexes.", lambda t: t.index_bytes),
    ("column_bytes", "Memory of the columns of fields that filters compare.", lambda t: t.column_bytes),
    ("changes_bytes", "Memory of kept changes.", lambda t: t.changes_bytes),
    ("complete", "1 if the records include all messages.", lambda t: int(t.complete)),
    ("checkpoint_position", "End of the log in the checkpoint.", lambda t: t.checkpoint.position),
    ("checkpoint_bytes", "Size of the checkpoint.", lambda t: t.checkpoint.bytes),
    (
        "checkpoint_seconds",
        "Time since the newest checkpoint, or since nothing was to be written.",
        lambda t: t.checkpoint.seconds,
    ),
    ("checkpoint_interval_seconds", "Interval of checkpoints.", lambda t: t.checkpoint.interval_seconds),
)
_SOW_TOPIC_COUNTERS: Final[tuple[tuple[str, str, Callable[[SowSnapshot], int]], ...]] = (
    ("deleted", "Deleted records.", lambda t: t.deleted),
    ("expired", "Expired records.", lambda t: t.expired),
    ("refused_messages", "Messages refused without a valid key.", lambda t: t.refused),
    ("unkeyed_messages", "Messages of the log without a valid key.", lambda t: t.unkeyed),
    ("checkpoint_failures", "Failed checkpoints.", lambda t: t.checkpoint.failures),
)


_QUEUE_GAUGES: Final[tuple[tuple[str, str, Callable[[QueueSnapshot], float | None]], ...]] = (
    ("depth", "Messages in a queue.", lambda q: q.depth),
    ("ready", "Messages ready for delivery.", lambda q: q.ready),
    ("leased", "Messages leased to a consumer.", lambda q: q.leased),
    ("inactive", "Messages beyond the target depth.", lambda q: q.inactive),
    ("consumers", "Consuming subscriptions.", lambda q: q.consumers),
    ("backlog", "Messages delivered and not acknowledged.", lambda q: q.backlog),
    ("max_backlog", "Limit of unacknowledged messages.", lambda q: q.max_backlog),
    ("oldest_seconds", "Age of the oldest message.", lambda q: q.oldest_seconds),
    ("oldest_lease_seconds", "Age of the oldest lease.", lambda q: q.oldest_lease_seconds),
    ("seconds_behind", "Lag of a queue behind the log.", lambda q: q.seconds_behind),
    ("stopped", "1 when a read error has stopped the queue.", lambda q: int(q.failure is not None)),
)
_QUEUE_COUNTERS: Final[tuple[tuple[str, str, Callable[[QueueSnapshot], int]], ...]] = (
    ("entered", "Messages that entered a queue.", lambda q: q.entered),
    ("filtered", "Messages rejected by the filter of a queue.", lambda q: q.filtered),
    ("unrecorded", "Messages of its topics that are not persistent.", lambda q: q.unrecorded),
    ("deferred_acknowledgements", "Acknowledgements of inactive messages.", lambda q: q.deferred),
)


_LINK_GAUGES: Final[tuple[tuple[str, str, Callable[[LinkStatus], float | None]], ...]] = (
    ("connected", "1 while the link is open.", lambda one: one.state in ("live", "resync")),
    ("refused", "1 while an operator must act.", lambda one: one.state == "refused"),
    ("position", "The destination has the log of the source below it.", lambda one: one.position),
    ("behind_messages", "Messages that the destination may lack.", lambda one: one.behind_messages),
    ("behind_seconds", "Age of the oldest of these messages.", lambda one: one.behind_seconds),
    ("sync", "1 while acknowledgements wait for the destination.", lambda one: one.level == "sync"),
    ("downgraded", "1 while a synchronous link is downgraded.", lambda one: one.level == "downgraded"),
    ("paused", "1 while an operator has paused the link.", lambda one: one.paused == PAUSED),
    ("pinned_position", "Lowest position that retention keeps for it.", lambda one: one.pinned_position),
    ("held_frames", "Received frames that wait for bodies.", lambda one: one.held_frames),
)
_LINK_COUNTERS: Final[tuple[tuple[str, str, Callable[[LinkStatus], int]], ...]] = (
    ("connects", "Opened links.", lambda one: one.connects),
    ("disconnects", "Ended links.", lambda one: one.disconnects),
    ("messages", "Sent or received messages.", lambda one: one.messages),
    ("bytes", "Sent or received bytes.", lambda one: one.bytes),
    ("named_messages", "Messages sent or received by name only.", lambda one: one.named_messages),
    ("requested_messages", "Named messages with requested bodies.", lambda one: one.requested_messages),
    ("downgrades", "Downgrades of a synchronous link.", lambda one: one.downgrades),
)


class _Report(Collector):
    """Metrics source of one report."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        stats = self._stats
        about = {"version": stats.version, "instance_name": stats.instance, "journal": stats.journal.identity}
        yield InfoMetricFamily(f"{_P}server", "The server.", value=about)
        for name, text, value_of in _GAUGES:
            value = value_of(stats)
            if value is not None:
                yield GaugeMetricFamily(_P + name, text, value=float(value))
        for name, text, total_of in _TOTALS:
            yield CounterMetricFamily(_P + name, text, value=total_of(stats))
        text = "Duration of the write and sync of a commit, in seconds."
        yield _histogram("journal_sync_seconds", text, stats.journal.syncs)
        text = "Duration of a step of the event loop, in seconds. Clients wait meanwhile."
        yield _histogram("event_loop_step_seconds", text, stats.event_loop)
        text = "Rejected commands, by error code. The connection stays open."
        yield _by_code("refused_commands", text, stats.totals.refused)
        yield _by_code("ended_connections", "Connections closed by the server.", stats.totals.ended)
        text = "Subscriptions ended by an error. The connection stays open."
        yield _by_code("ended_subscriptions", text, stats.totals.ended_subscriptions)
        for name, text, slow_of in _SLOW_TOTALS:
            yield CounterMetricFamily(_P + name, text, value=slow_of(stats.slow_clients))
        for name, text, transactions_of in _TRANSACTION_TOTALS:
            yield CounterMetricFamily(_P + name, text, value=transactions_of(stats.transactions))
        yield from self._topics()
        yield from _queue_metrics(stats.queues)
        if stats.sow is not None:
            yield from _sow_metrics(stats.sow)
        if stats.links:
            yield from _link_metrics(stats.links)

    def _topics(self) -> Iterable[Metric]:
        labels = ["topic", "recorded"]
        messages = CounterMetricFamily(f"{_P}topic_messages", "Messages of a topic.", labels=labels)
        sizes = CounterMetricFamily(f"{_P}topic_bytes", "Body bytes of a topic.", labels=labels)
        subscriptions = GaugeMetricFamily(f"{_P}topic_subscriptions", "Subscriptions.", labels=labels)
        for topic in self._stats.topics:
            values = [topic.name, "true" if topic.recorded else "false"]
            messages.add_metric(values, topic.messages)
            sizes.add_metric(values, topic.bytes)
            if topic.subscriptions is not None:
                subscriptions.add_metric(values, topic.subscriptions)
        return messages, sizes, subscriptions


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    buckets = [
        *((str(bound), float(count)) for bound, count in durations.buckets),
        ("+Inf", float(durations.count)),
    ]
    return HistogramMetricFamily(_P + name, text, buckets=buckets, sum_value=durations.total_seconds)


def _by_code(name: str, text: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(_P + name, text, labels=["code"])
    for code, count in sorted(counts.items()):
        family.add_metric([code], count)
    return family


def _left(queue: QueueSnapshot) -> Iterator[tuple[Sequence[str], float]]:
    yield (queue.name, "acknowledged"), queue.acknowledged
    yield (queue.name, "taken"), queue.taken
    for reason, count in sorted(queue.expired.items()):
        yield (queue.name, reason), count


def _returned(queue: QueueSnapshot) -> Iterator[tuple[Sequence[str], float]]:
    for reason, count in sorted(queue.returned.items()):
        yield (queue.name, reason), count


_QUEUE_REASONS: Final = (
    ("left", "Messages that left a queue.", _left),
    ("returned", "Messages returned to a queue.", _returned),
)


def _queue_metrics(queues: Sequence[QueueSnapshot]) -> Iterator[Metric]:
    for name, text, gauge_of in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(f"{_P}queue_{name}", text, labels=["queue"])
        for queue in queues:
            value = gauge_of(queue)
            if value is not None:
                gauge.add_metric([queue.name], float(value))
        yield gauge
    for name, text, count_of in _QUEUE_COUNTERS:
        counter = CounterMetricFamily(f"{_P}queue_{name}", text, labels=["queue"])
        for queue in queues:
            counter.add_metric([queue.name], count_of(queue))
        yield counter
    for name, text, samples_of in _QUEUE_REASONS:
        counter = CounterMetricFamily(f"{_P}queue_{name}", text, labels=["queue", "reason"])
        for queue in queues:
            for labels, count in samples_of(queue):
                counter.add_metric(labels, count)
        yield counter


def _sow_metrics(sow: SowState) -> Iterator[Metric]:
    for name, text, state_of in _SOW_GAUGES:
        value = state_of(sow)
        if value is not None:
            yield GaugeMetricFamily(f"{_P}sow_{name}", text, value=float(value))
    text = "Publish frames refused with sow_full."
    yield CounterMetricFamily(f"{_P}sow_memory_refused_frames", text, value=sow.memory_refused_frames)
    for name, text, gauge_of in _SOW_TOPIC_GAUGES:
        gauge = GaugeMetricFamily(f"{_P}sow_{name}", text, labels=["topic"])
        for topic in sow.topics:
            value = gauge_of(topic)
            if value is not None:
                gauge.add_metric([topic.name], float(value))
        yield gauge
    for name, text, count_of in _SOW_TOPIC_COUNTERS:
        counter = CounterMetricFamily(f"{_P}sow_{name}", text, labels=["topic"])
        for topic in sow.topics:
            counter.add_metric([topic.name], count_of(topic))
        yield counter


def _link_metrics(links: Sequence[LinkStatus]) -> Iterator[Metric]:
    labels = ["link", "direction"]
    for name, text, gauge_of in _LINK_GAUGES:
        gauge = GaugeMetricFamily(f"{_P}link_{name}", text, labels=labels)
        for link in links:
            value = gauge_of(link)
            if value is not None:
                gauge.add_metric([link.name, link.direction], float(value))
        yield gauge
    for name, text, count_of in _LINK_COUNTERS:
        counter = CounterMetricFamily(f"{_P}link_{name}", text, labels=labels)
        for link in links:
            counter.add_metric([link.name, link.direction], count_of(link))
        yield counter


def exposition(stats: Stats, accept: str) -> tuple[bytes, str]:
    """Return the metrics of a report in the text format that `accept` asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Report(stats))
    encode, content_type = _encoder(accept)
    return encode(registry), content_type


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder that `accept` asks for, and its content type. Default: for an invalid version."""
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # it compares the version with numbers
        return choose_encoder("")
    return (encode, content_type) if content_type.isascii() else choose_encoder("")
