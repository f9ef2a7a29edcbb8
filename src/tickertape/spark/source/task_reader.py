"""Read the messages of a partition in a task, from the server or from journal files.

The user chooses one of the two; neither is a fallback for the other. A partition of another log, or one that
cannot be read to its end, is an error.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tickertape.base.errors import (
    AuthenticationFailed,
    BookmarkExpired,
    Disconnected,
    JournalError,
    TickertapeError,
    WrongJournal,
)
from tickertape.base.names import is_pattern
from tickertape.spark.common.column_block import ColumnBlock, block_of_batch
from tickertape.spark.common.servers import client_of
from tickertape.spark.source.options import SourceOptions
from tickertape.spark.source.partitions import LogPartition
from tickertape.wire.commands import Resolved

if TYPE_CHECKING:
    from tickertape.client.blocking.client import Client

DEPTH_BYTES: Final = 8 * 1024 * 1024
"""What may be on its way to a task: two record batches, so that the server works while Spark takes one."""
_PAUSE_SECONDS: Final = 0.2
"""Between two rounds of asking all servers."""
LOSS_HINT: Final = "failOnDataLoss=false goes on with the first message there is"

log: Final = logging.getLogger("tickertape.spark")


def pieces(part: LogPartition) -> Iterator[ColumnBlock]:
    """Yield the messages of `part`, in log order.

    From a server: raises `WrongJournal` when the one that answers holds another log, `Disconnected` when none
    does or it is cut short, `BadFilter`. From files: raises `WrongJournal`, `NotAJournal`, `JournalVersion`,
    `JournalCorrupt`, and `JournalError` for what the system refuses. Both raise `BookmarkExpired` when
    retention has removed something of the part, unless that is no error of this query: then it is logged.
    """
    return _from_server(part) if part.directory is None else _from_files(part, part.directory)


def _from_server(part: LogPartition) -> Iterator[ColumnBlock]:
    client, _ = connect(part.servers, part.timeout_seconds, part.connect_seconds)
    with client:
        at = part.start
        while at < part.end:
            try:
                stream = client.read_positions(
                    part.topic,
                    at,
                    part.end,
                    part.journal,
                    filter=part.filter,
                    numbered=part.numbered or not part.fail_on_data_loss,
                    depth=DEPTH_BYTES,
                )
                for batch in stream.batches():
                    yield block_of_batch(batch, batch.positions)
                    if batch.positions is not None:
                        at = int(batch.positions[-1]) + 1
                return
            except BookmarkExpired as error:
                if part.fail_on_data_loss:
                    raise BookmarkExpired(f"{error}; {LOSS_HINT}", available=error.available) from error
                _, first, _ = client.resolve(part.topic, "0")
                lost(at, min(first, part.end))
                at = max(at, first)


def located(ask: Callable[[str], Resolved], wanted: SourceOptions, verb: str) -> Resolved:
    """Return the answer to `ask` for the range of the options; for what the log still has of it where a loss
    is no error. Raises `BookmarkExpired`."""
    try:
        return ask(wanted.log_range.whole)
    except BookmarkExpired as error:
        if wanted.fail_on_data_loss:
            raise BookmarkExpired(f"{error}; {LOSS_HINT}", available=error.available) from error
        log.warning("%s; the query %s with the first message there is", error, verb)
        return ask(wanted.log_range.rest)


def lost(start: int, end: int) -> None:
    """Log that the positions `start` up to `end` were removed."""
    log.warning(
        "positions %d to %d were removed by retention before they were read; the query goes on without them",
        start,
        end,
    )


def _from_files(part: LogPartition, directory: str) -> Iterator[ColumnBlock]:
    # None of this is imported where the server is asked.
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.range_reader import first_position, read_range
    from tickertape.spark.source.file_scan import FileScan

    disk = SystemDisk(directory)
    scan = FileScan(part.topic, part.start, part.end, part.filter, dict(part.types))
    indexed = None if is_pattern(part.topic) else part.topic
    at = part.start
    try:
        while at < part.end:
            try:
                for commit in read_range(disk, part.journal, at, part.end, indexed):
                    at = commit.header.first_position + commit.header.messages
                    piece = scan.block(commit)
                    if piece is not None:
                        yield piece
                return
            except BookmarkExpired as error:
                if part.fail_on_data_loss:
                    raise BookmarkExpired(f"{error}; {LOSS_HINT}", available=error.available) from error
                first = first_position(disk, part.journal)
                lost(at, min(first, part.end))
                at = max(at, first)
    except (JournalError, WrongJournal, OSError) as error:
        # What the system refuses is none of our errors yet.
        kind = JournalError if isinstance(error, OSError) else type(error)
        raise kind(
            f"option journal, {directory} on {os.uname().nodename}: {error}. It is the data directory of the "
            f"server that answers, readable for the executors; leave it out to read from the server"
        ) from error
    finally:
        disk.close_all()


def connect(
    servers: tuple[str, ...], timeout_seconds: float, connect_seconds: float = 0.0
) -> tuple[Client, str]:
    """Return a client of the first server that answers, and its URI. Its name is its own: tasks never clash.

    All are asked once more until `connect_seconds` are over. Raises `Disconnected` with the reason of each
    when none answers, `AuthenticationFailed` when all refuse the token.
    """
    name = f"spark-{uuid4().hex}"
    until = time.monotonic() + connect_seconds
    while True:
        errors: list[TickertapeError] = []
        for uri in servers:
            try:
                return client_of(uri, name, timeout_seconds), uri
            except TickertapeError as error:
                errors.append(error)
        if all(isinstance(error, AuthenticationFailed) for error in errors):
            raise errors[0]  # they answer, and waiting changes nothing
        if time.monotonic() >= until:
            raise Disconnected(f"none of the servers answers: {'; '.join(map(str, errors))}")
        time.sleep(_PAUSE_SECONDS)
