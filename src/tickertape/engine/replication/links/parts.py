"""Parts of the engine that replication links use."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.journal.journal import Journal


class LinkParts(NamedTuple):
    """The parts of one engine."""

    instance: str
    software: str
    journal: Journal
    directory: PublisherDirectory
    catalog: TopicCatalog
    writer: LogWriter
    outbox: Outbox
    clock: EngineClock
    reads: LogReads
    throttle: ReadThrottle
    heartbeats: HeartbeatMonitor
