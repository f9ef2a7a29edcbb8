"""Owns where a task gets the messages of its part: from the server, or from the files of the log.

Must never give a message of another log or topic, one outside the part, or the end of what was cut short as
the end of the part. Which of the two ways is the user's choice: none is a fallback for the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tickertape.base.errors import Disconnected, JournalError, TickertapeError, WrongJournal
from tickertape.batch import select_topic, slice_batch
from tickertape.journal.disk import SystemDisk
from tickertape.journal.outside import StoredCommit, read_outside
from tickertape.spark.partitions import LogPart
from tickertape.spark.pieces import Piece, piece_of_batch, plain_piece
from tickertape.spark.servers import client_of

if TYPE_CHECKING:
    from tickertape.client.blocking import Client

DEPTH_BYTES: Final = 8 * 1024 * 1024
"""What may be on its way to a task: two record batches, so that the server works while Spark takes one."""


def pieces(part: LogPart) -> Iterator[Piece]:
    """The messages of `part`, in log order.

    From a server: raises `WrongJournal` when the one that answers holds another log, `Disconnected` when none
    does or it is cut short. From files: raises `WrongJournal`, `NotAJournal`, `JournalVersion`,
    `JournalCorrupt`, and `JournalError` for what the system refuses.
    """
    return _from_server(part) if part.directory is None else _from_files(part, part.directory)


def _from_server(part: LogPart) -> Iterator[Piece]:
    client, _ = connect(part.servers, part.timeout_seconds)
    with client:
        stream = client.read_positions(part.topic, part.start, part.end, part.journal, depth=DEPTH_BYTES)
        yield from map(piece_of_batch, stream.batches())


def _from_files(part: LogPart, directory: str) -> Iterator[Piece]:
    disk = SystemDisk(directory)
    try:
        for commit in read_outside(disk, part.journal, part.start, part.end, part.topic):
            piece = _piece_of_commit(part, commit)
            if piece is not None:
                yield piece
    except (JournalError, WrongJournal, OSError) as error:
        # What the system refuses is none of our errors yet.
        kind = JournalError if isinstance(error, OSError) else type(error)
        raise kind(
            f"option journal, {directory} on {os.uname().nodename}: {error}. It is the data directory of the "
            f"server that answers, readable for the executors; leave it out to read from the server"
        ) from error
    finally:
        disk.close_all()


def _piece_of_commit(part: LogPart, commit: StoredCommit) -> Piece | None:
    """What of a commit belongs to `part`; None when nothing does."""
    first, count = commit.header.first_position, commit.header.messages
    if part.start <= first and first + count <= part.end:
        piece = plain_piece(commit.body)
        if piece is not None and piece.messages == count:
            return piece if piece.topics[0] == part.topic else None
    low, high = max(part.start - first, 0), min(part.end - first, count)
    chosen = select_topic(slice_batch(commit.batch(), low, high), part.topic)
    return None if chosen is None else piece_of_batch(chosen)


def connect(servers: tuple[str, ...], timeout_seconds: float) -> tuple[Client, str]:
    """A client of the first server that answers, and which that is. Its name is its own: tasks never clash.

    Raises `Disconnected` with the reason of each when none does.
    """
    name = f"spark-{uuid4().hex}"
    reasons = []
    for uri in servers:
        try:
            return client_of(uri, name, timeout_seconds), uri
        except TickertapeError as error:
            reasons.append(str(error))
    raise Disconnected(f"none of the servers answers: {'; '.join(reasons)}")
