"""Owns a partition: the part of a topic's log that one task reads, and how a range is cut into such parts.

Must never meet a server: positions come in, positions go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from tickertape.base.errors import BadOption

PARTITIONS_MAX: Final = 100_000
"""More than a driver plans with ease; asking for more is a slip in an option."""


@dataclass(frozen=True)
class LogPart(InputPartition):
    """The positions `start` (first) to `end` (first not read) of `topic` in the log `journal`."""

    servers: tuple[str, ...]
    journal: str
    topic: str
    start: int
    end: int
    timeout_seconds: float
    directory: str | None = None
    """The data directory of the log as the tasks see it: they read its files, and ask no server."""


def split(start: int, end: int, *, partitions_min: int, rows_max: int) -> list[tuple[int, int]]:
    """Cut the positions `start` to `end` (not included) into parts of equal size, give or take one, in order.

    At least `partitions_min` parts unless there are fewer positions, none above `rows_max`; one empty part of
    an empty range. Raises `BadOption` above `PARTITIONS_MAX` parts.
    """
    size = max(0, end - start)
    if size == 0:
        return [(start, start)]
    count = max(min(partitions_min, size), -(-size // rows_max))
    if count > PARTITIONS_MAX:
        raise BadOption(
            f"{size} positions would make {count} partitions, more than {PARTITIONS_MAX}: "
            f"raise maxRowsPerPartition or lower minPartitions"
        )
    edges = [start + size * i // count for i in range(count + 1)]
    return list(pairwise(edges))
