"""`stats`: print statistics of a running server, read from its admin address."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from operator import attrgetter

import click

from tickertape.base.text_format import shown
from tickertape.base.units import parse_interval
from tickertape.cli.limits import watch_seconds_min
from tickertape.cli.support.admin_client import admin_option, stats_of
from tickertape.cli.support.option_types import parsed
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import counted, echo_table, number, safe, safe_whole
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.server.admin.schema import (
    Durations,
    Rates,
    Retention,
    SessionState,
    SlowClientsState,
    SowState,
    Stats,
    TransactionsState,
)


def _watched(value: str) -> float:
    seconds = parse_interval(value)
    if seconds < watch_seconds_min:
        raise click.BadParameter(f"Invalid interval {shown(value)}. Use at least {watch_seconds_min:g} s.")
    return seconds


@click.command(short_help="Show statistics of a running server.")
@admin_option
@output_option
@click.option(
    "--watch",
    metavar="S",
    callback=parsed(_watched),
    help="Repeat every S seconds (at least 0.1) until Ctrl-C. With --output json: one object per line.",
)
def stats(admin: str, as_json: bool, watch: float | None) -> None:
    """Show statistics of a running server: log, rates, syncs, memory, queues, records, connections and
    subscriptions.

    Counters start at 0 when the server starts. The lag of a subscription is the number of messages, of any
    topic, between its position and the persisted end of the log.

    \b
    tickertape stats
    tickertape stats --admin http://127.0.0.1:9008 --watch 2s
    tickertape stats --output json | jq .journal.syncs.p99_seconds
    """
    while True:
        body, report = stats_of(admin)
        if watch is not None and not as_json and sys.stdout.isatty():
            click.clear()
        if as_json:
            click.echo(body)
        else:
            _show(report)
        if watch is None:
            return
        sys.stdout.flush()
        time.sleep(watch)


def _show(report: Stats) -> None:
    for name, text in _lines(report):
        click.echo(f"{name:<13}{text}")
    if report.sessions:
        click.echo()
        _show_sessions(report)


def _retention(retention: Retention) -> Iterator[tuple[str, str]]:
    if retention.first_bookmark is not None:
        yield "first", f"{retention.first_bookmark} at {retention.first_time}"
    if retention.retired_segments:
        removed = counted(retention.retired_segments, "segment")
        yield "removed", f"{removed}, {counted(retention.retired_bytes, 'byte')}, by retention"
    if retention.held_segments:
        held = counted(retention.held_segments, "old segment")
        held_by = safe_whole(retention.held_by or "")
        yield "held", f"{held}, {counted(retention.held_bytes, 'byte')}, needed by {held_by}"


def _lines(report: Stats) -> Iterator[tuple[str, str]]:
    journal, totals, memory = report.journal, report.totals, report.memory
    reason = f" ({safe_whole(report.reason)})" if report.reason else ""
    state = f"{report.state}{reason}, up {number(report.uptime_seconds)} s"
    yield "server", f"{safe(report.instance)}, version {report.version}, process {report.pid}, {state}"
    positions = f"positions {journal.first_position} to {journal.persisted_end} (exclusive)"
    files = f"{counted(journal.segments, 'segment')}, {counted(journal.bytes, 'byte')}"
    full = ", NO SPACE FOR THE NEXT SEGMENT" if journal.full else ""
    yield "log", f"{positions}, {files}, {counted(journal.publishers, 'publisher')}{full}"
    yield from _retention(journal.retention)
    persisted = f"{counted(totals.persisted_messages, 'message')}, {counted(totals.persisted_bytes, 'byte')}"
    yield "persisted", f"{persisted}, {counted(journal.commits, 'commit')}"
    yield "sent", f"{counted(totals.sent_messages, 'message')}, {counted(totals.sent_bytes, 'byte')}"
    yield from _rates(report.rates)
    yield "syncs", f"{journal.syncs.policy}: {_durations(journal.syncs)}"
    yield "loop steps", _durations(report.event_loop)
    waiting = f"outboxes {memory.outbox_bytes:,}, unfinished frames {memory.inbound_bytes:,}"
    tail = f"tail of the log {memory.tail_cache_bytes:,}"
    yield "memory", f"{number(memory.anonymous_bytes)} bytes anonymous, {tail}, {waiting}"
    yield from _slow(report.slow_clients)
    yield from _transactions(report.transactions)
    yield from _queues(report.queues)
    yield from _sow(report.sow)
    by_code = ("refused", totals.refused), ("ended", totals.ended), ("subs ended", totals.ended_subscriptions)
    for name, counts in by_code:
        if counts:
            yield name, ", ".join(f"{safe(code)} {count:,}" for code, count in sorted(counts.items()))
    clients = f"{counted(report.connections, 'connection')}, {report.session_count:,} logged on"
    yield "clients", f"{clients}, {counted(report.subscription_count, 'subscription')}"


def _rates(rates: Rates | None) -> Iterator[tuple[str, str]]:
    if rates is not None:
        persisted = f"{number(rates.persisted_messages)} messages/s, {number(rates.persisted_bytes)} bytes/s"
        sent = f"{number(rates.sent_messages)} messages/s, {number(rates.sent_bytes)} bytes/s"
        yield "rates", f"persisted {persisted}, sent {sent}"


def _slow(slow: SlowClientsState) -> Iterator[tuple[str, str]]:
    if slow.offline_starts or slow.waiting_connections:
        behind = f"{counted(slow.waiting_connections, 'connection')} behind"
        where = f"{slow.memory_bytes:,} bytes in memory, {slow.disk_bytes:,} on disk"
        yield "slow", f"{behind}, {slow.offline_connections:,} offline, {where}"


def _transactions(transactions: TransactionsState) -> Iterator[tuple[str, str]]:
    if transactions.committed or transactions.staged_parts:
        staged = f"{counted(transactions.staged_parts, 'part')} staged, {transactions.staged_bytes:,} bytes"
        ends = f"{transactions.aborted:,} aborted, {transactions.expired:,} expired"
        ends = f"{transactions.committed:,} committed, {ends}"
        yield "transactions", f"{ends}, {staged}, {transactions.waiting:,} waiting"


def _queues(queues: list[QueueSnapshot]) -> Iterator[tuple[str, str]]:
    if queues:
        depth, leased = sum(queue.depth for queue in queues), sum(queue.leased for queue in queues)
        yield "queues", f"{len(queues):,} with {counted(depth, 'message')}, {leased:,} leased"


def _sow(sow: SowState | None) -> Iterator[tuple[str, str]]:
    if sow is None:
        return
    records = sum(topic.records for topic in sow.topics)
    memory = f"{sow.memory_bytes:,} of {sow.memory_limit_bytes:,} bytes"
    lag = f", {counted(sow.lag_bytes, 'byte')} behind" if sow.lag_bytes else ""
    yield "sow", f"{counted(len(sow.topics), 'topic')} with {counted(records, 'record')}, {memory}{lag}"
    if sow.failure is not None:
        yield "sow stopped", safe_whole(sow.failure)
    if sow.queries:
        oldest = f"oldest {number(sow.oldest_query_seconds)} s"
        results = f"{counted(sow.results_bytes, 'byte')} of results"
        yield "sow queries", f"{sow.queries:,} running, {oldest}, {results}"
    for topic in sow.topics:
        if not topic.complete:
            yield "sow part", f"{safe(topic.name)}: {safe_whole(topic.incomplete_because or '')}"
    late = max((topic.checkpoint for topic in sow.topics), key=attrgetter("seconds"), default=None)
    if late is not None:
        failures = sum(topic.checkpoint.failures for topic in sow.topics)
        failed = f", {failures:,} failed" if failures else ""
        yield "checkpoints", f"oldest {number(late.seconds)} s{failed}"


def _durations(of: Durations) -> str:
    half, most = _milliseconds(of.p50_seconds), _milliseconds(of.p99_seconds)
    longest = _milliseconds(of.highest_seconds)
    return f"{of.count:,}, p50 {half}, p99 {most}, longest {longest}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g} ms"


def _show_sessions(report: Stats) -> None:
    columns = ("client", "address", "topic", "state", "lag", "published", "sent", "credit", "outbox")
    echo_table(columns, [row for session in report.sessions for row in _rows(session)], left=4)
    if report.sessions_left_out or report.subscriptions_left_out:
        click.echo(
            f"not listed: {counted(report.sessions_left_out, 'session')}, "
            f"{counted(report.subscriptions_left_out, 'subscription')}"
        )


def _rows(session: SessionState) -> Iterator[tuple[str, ...]]:
    name, address = safe(session.client), session.address or "-"
    traffic = number(session.published_messages), number(session.sent_messages)
    outbox = number(session.outbox_bytes)
    if not session.subscriptions:
        yield name, address, "-", "-", "-", *traffic, "-", outbox
    for sub in session.subscriptions:
        state = "caught up" if sub.caught_up else "blocked" if sub.blocked else "behind"
        yield (
            *(name, address, safe(sub.topic), state, number(sub.lag_messages)),
            *traffic,
            *(number(sub.credit_bytes), outbox),
        )
        name = address = outbox = ""
        traffic = "", ""
