"""Partitions: the part of a log that one task reads, and splitting of ranges."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from tickertape.base.errors import BadOption
from tickertape.spark.common.schema import ColumnSelection
from tickertape.spark.source.options import SourceOptions
from tickertape.wire.commands import Resolved

ROWS_WORTH_A_TASK: Final = 50_000
"""Positions that justify a second task, which takes about 0.1 s to start."""
PARTITIONS_DEFAULT: Final = 2
"""Default maximum of partitions for a short range: two cores can read at once."""
PARTITIONS_MAX: Final = 100_000
"""Maximum partitions. More overload the driver and indicate a mistake in an option."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The positions in `[start, end)` of `topic`, a name or a pattern, in the log `journal`."""

    servers: tuple[str, ...]
    journal: str
    topic: str
    start: int
    end: int
    timeout_seconds: float
    directory: str | None = None
    """Data directory of the log as seen by tasks. They then read files instead of a server."""
    filter: str | None = None
    types: tuple[tuple[str, str], ...] = ()
    """Topics and their message types, except JSON."""
    numbered: bool = False
    """Whether positions of messages are needed."""
    fail_on_data_loss: bool = True
    connect_seconds: float = 0.0
    """Time that a task waits for a server to answer."""


def split(start: int, end: int, *, partitions_min: int | None, rows_max: int) -> list[tuple[int, int]]:
    """Split the positions in `[start, end)` into parts of equal size, plus or minus one, in order.

    At least `partitions_min` parts unless fewer positions exist (None: depends on the size). No part exceeds
    `rows_max`. An empty range has one empty part. Raises `BadOption` above `PARTITIONS_MAX` parts.
    """
    size = max(0, end - start)
    if size == 0:
        return [(start, start)]
    if partitions_min is None:
        partitions_min = min(PARTITIONS_DEFAULT, -(-size // ROWS_WORTH_A_TASK))
    count = max(min(partitions_min, size), -(-size // rows_max))
    if count > PARTITIONS_MAX:
        raise BadOption(
            f"Cannot split {size:,} positions into {count:,} partitions: the maximum is {PARTITIONS_MAX:,}. "
            "Raise maxRowsPerPartition or lower minPartitions."
        )
    edges = [start + size * i // count for i in range(count + 1)]
    return list(pairwise(edges))


class ResolvedRange(NamedTuple):
    """The server that answered the driver, and its answer."""

    uri: str
    answer: Resolved


def parts_of(
    wanted: SourceOptions,
    found: ResolvedRange,
    start: int,
    end: int,
    columns: ColumnSelection,
    *,
    connect_seconds: float = 0.0,
) -> list[LogPartition]:
    """Return the partitions of the positions in `[start, end)` of a resolved range, in order.

    Tasks first ask the server that answered the driver. Raises `BadOption` for too many partitions.
    """
    uri, answer = found
    others = tuple(server for server in wanted.servers if server != uri)
    edges = split(start, end, partitions_min=wanted.partitions_min, rows_max=wanted.rows_per_partition_max)
    return [
        LogPartition(
            (uri, *others),
            answer.journal,
            answer.topic or wanted.topic,
            first,
            after,
            wanted.timeout_seconds,
            wanted.directory,
            filter=wanted.filter,
            types=tuple((topic, kind) for kind, topics in answer.types.items() for topic in topics),
            numbered=columns.numbered,
            fail_on_data_loss=wanted.fail_on_data_loss,
            connect_seconds=connect_seconds,
        )
        for first, after in edges
    ]
