"""Options of the streaming source over a message queue.

Unknown options and options of the log source are rejected with their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tickertape.base.errors import BadOption
from tickertape.base.limits import lease_seconds_max, queue_backlog_max
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.units import parse_interval
from tickertape.spark.common.servers import ACCESS
from tickertape.spark.limits import source_lease_seconds_default, source_rows_default
from tickertape.spark.source.options import (
    Query,
    read_bytes,
    read_filter,
    read_mode,
    read_names,
    read_number,
    read_servers,
    read_timeout,
    read_value,
)

QUEUE: Final = "queue"
_NAMES: Final = (
    "servers",
    QUEUE,
    "filter",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "maxLeaseTime",
    "minPartitions",
    "mode",
    "timeout",
    *ACCESS,
)
_OF_THE_LOG: Final = (
    "topic",
    "topicPattern",
    "startingBookmark",
    "startingTimestamp",
    "endingBookmark",
    "endingTimestamp",
    "maxRowsPerPartition",
    "failOnDataLoss",
    "journal",
)
"""Options of the log source."""
_ROWS_MAX: Final = queue_backlog_max // 2


class QueueSourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a queue source."""

    servers: tuple[str, ...]
    """Texts from `server_text`, tried in this order."""
    queue: str
    filter: str | None
    rows_max: int
    """Maximum messages per micro-batch."""
    bytes_max: int | None
    """Maximum body bytes per micro-batch. A larger message is read alone."""
    lease_seconds_max: float
    """Maximum time for which the leases of a message are extended."""
    partitions_min: int
    strict: bool
    timeout_seconds: float


def names_queue(given: Mapping[str, str]) -> bool:
    """Return whether the options select a queue instead of the log."""
    return any(name.lower() == QUEUE for name in given)


def queue_options(given: Mapping[str, str], query: Query = Query.STREAM) -> QueueSourceOptions:
    """Parse `given`, the options of `spark.readStream`. Raises `BadOption`, `BadTopic`."""
    if query is Query.BATCH:
        raise BadOption(
            "Cannot read a queue as a batch: its messages are leased. Use spark.readStream with "
            "trigger(availableNow=True), or set option 'topic' to the underlying topic of the queue."
        )
    refused = {
        name: f"Cannot use option {name} with option queue. Leave one of them out." for name in _OF_THE_LOG
    }
    options = read_names(given, _NAMES, refused)
    queue = options[QUEUE]
    if is_pattern(queue):
        raise BadOption(f"Cannot use option 'queue': {queue!r} is a pattern. Name one queue.")
    check_topic(queue)
    size = options.get("maxBytesPerTrigger")
    return QueueSourceOptions(
        servers=read_servers(options),
        queue=queue,
        filter=read_filter(options.get("filter")),
        rows_max=read_number(options, "maxRowsPerTrigger", _ROWS_MAX) or source_rows_default,
        bytes_max=None if size is None else read_bytes("maxBytesPerTrigger", size),
        lease_seconds_max=_lease_time(options.get("maxLeaseTime")),
        partitions_min=read_number(options, "minPartitions", 2**31 - 1) or 1,
        strict=read_mode(options.get("mode", "PERMISSIVE")),
        timeout_seconds=read_timeout(options.get("timeout")),
    )


def _lease_time(value: str | None) -> float:
    if value is None:
        return source_lease_seconds_default
    seconds = read_value("maxLeaseTime", parse_interval, value)
    if not 0 < seconds <= lease_seconds_max:
        raise BadOption(
            f"Invalid option maxLeaseTime {value!r}. Use more than 0 and at most "
            f"{lease_seconds_max:.0f} seconds."
        )
    return seconds
