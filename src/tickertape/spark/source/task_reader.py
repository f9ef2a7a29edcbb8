"""Task reader: reads the messages of a partition from the server or from journal files.

The user chooses one of the two sources. Neither is a fallback for the other. A partition of another log, or
one that cannot be read to its end, is an error.
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
    from tickertape.client.blocking.log_client import LogClient

DEPTH_BYTES: Final = 8 * 1024 * 1024
"""Bytes in flight to a task: two record batches, so that the server works while Spark takes one."""
_PAUSE_SECONDS: Final = 0.2
"""Pause between two rounds of asking all servers."""
LOSS_HINT: Final = "Set failOnDataLoss=false to continue with the first available message."

log: Final = logging.getLogger("tickertape.spark")


def pieces(part: LogPartition) -> Iterator[ColumnBlock]:
    """Yield the messages of `part`, in log order.

    From a server: raises `WrongJournal` if the server has another log, `Disconnected` if no server answers or
    the connection is lost, `BadFilter`. From files: raises `WrongJournal`, `NotAJournal`, `JournalVersion`,
    `JournalCorrupt`, and `JournalError` for operating system errors. Both raise `BookmarkExpired` if
    retention has removed messages of the partition. With `failOnDataLoss=false` this is only logged.
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
                    raise BookmarkExpired(f"{error} {LOSS_HINT}", available=error.available) from error
                first = client.locate(part.topic, "0").start
                lost(at, min(first, part.end))
                at = max(at, first)


def located(ask: Callable[[str], Resolved], wanted: SourceOptions, verb: str) -> Resolved:
    """Return the answer to `ask` for the range of the options.

    If data loss is not an error, the remaining range is used instead. Raises `BookmarkExpired`."""
    try:
        return ask(wanted.log_range.whole)
    except BookmarkExpired as error:
        if wanted.fail_on_data_loss:
            raise BookmarkExpired(f"{error} {LOSS_HINT}", available=error.available) from error
        log.warning("%s The query %s with the first available message.", error, verb)
        return ask(wanted.log_range.rest)


def lost(start: int, end: int) -> None:
    """Log that the positions in `[start, end)` were removed."""
    log.warning(
        "positions %d to %d were removed by retention before they were read. The query continues without "
        "them.",
        start,
        end,
    )


def _from_files(part: LogPartition, directory: str) -> Iterator[ColumnBlock]:
    # Imported late: tasks that ask the server do not need it.
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
                    raise BookmarkExpired(f"{error} {LOSS_HINT}", available=error.available) from error
                first = first_position(disk, part.journal)
                lost(at, min(first, part.end))
                at = max(at, first)
    except (JournalError, WrongJournal, OSError) as error:
        # Operating system errors become errors of this package.
        kind = JournalError if isinstance(error, OSError) else type(error)
        raise kind(
            f"Cannot read directory {directory} of option 'journal' on {os.uname().nodename}: "
            f"{str(error).removesuffix('.')}. Give each executor access to the data "
            "directory of the server, or omit the option."
        ) from error
    finally:
        disk.close_all()


def connect(
    servers: tuple[str, ...], timeout_seconds: float, connect_seconds: float = 0.0
) -> tuple[LogClient, str]:
    """Return a client of the first server that answers, and its URI. The client name is unique to avoid
    clashes.

    All servers are tried again until `connect_seconds` are over. Raises `Disconnected` with all reasons if
    none answers, `AuthenticationFailed` if all refuse the token.
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
            raise errors[0]  # servers answer, so waiting does not help
        if time.monotonic() >= until:
            raise Disconnected(f"Cannot read: no server answered. {' '.join(map(str, errors))}")
        time.sleep(_PAUSE_SECONDS)
