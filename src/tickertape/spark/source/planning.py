"""Owns the parts of a range: what each task is told.

Must never ask a server: who answered, and where the range lies, is known.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.spark.common.schema import ColumnSelection
from tickertape.spark.source.options import SourceOptions
from tickertape.spark.source.partitions import LogPartition, split
from tickertape.wire.commands import Resolved


class ResolvedRange(NamedTuple):
    """Who answered the driver, and what it said."""

    uri: str
    answer: Resolved


def parts_of(
    wanted: SourceOptions,
    found: ResolvedRange,
    start: int,
    end: int,
    columns: ColumnSelection,
    *,
    patience_seconds: float = 0.0,
) -> list[LogPartition]:
    """The parts of the positions `start` to `end` (not included) of the log found, in order.

    Tasks ask the server that answered the driver first. Raises `BadOption` for too many parts.
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
            patience_seconds=patience_seconds,
        )
        for first, after in edges
    ]
