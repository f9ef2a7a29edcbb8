"""Incomplete transaction: whether the commits of a transaction without an end are still staged.

A start cuts such commits off. They count as staged only if a whole, prepared part holds each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from tickertape.base.errors import BadBatch
from tickertape.base.interfaces import Buffer, Disk
from tickertape.base.names import derived_publisher_id
from tickertape.batch import MessageBatch, Stamp, merge
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.segment import CommitHeader
from tickertape.journal.format.staging_file import StagedFileDamaged, prepared_parts
from tickertape.journal.recovery.segment_scan import ScannedCommit

_NO_STAMP: Final = Stamp(1, 1, 0)


class IncompleteTransaction(NamedTuple):
    """The commits of a chain that has no end."""

    first: CommitHeader
    end: int
    """Offset after the last valid one."""
    tail_end: int
    """Offset after the last byte behind them that is not zero; `end` when there is none."""


def is_staged(disk: Disk, journal_id: bytes, chain: Iterable[ScannedCommit]) -> bool:
    """Whether prepared parts hold the messages of all these commits. Raises `OSError` when the directory
    cannot be read."""
    missing: set[bytes] = set()
    publishers: set[int] = set()
    for commit in chain:
        missing.add(_digest(commit.body))
        publishers.update(MessageBatch.parse(commit.body).runs["publisher"].tolist())
    instance = read_identity(disk).instance
    for label, blocks in prepared_parts(disk, journal_id):
        if instance is not None and derived_publisher_id(label.publisher, instance) not in publishers:
            continue
        with contextlib.suppress(StagedFileDamaged, BadBatch, OSError):  # not a part that can be committed
            missing -= {_digest(block) for block in blocks}
        if not missing:
            return True
    return False


def _digest(encoded: Buffer) -> bytes:
    """The same for a staged batch and for the commit of it: a commit differs by its stamp alone."""
    batch = merge((MessageBatch.parse(encoded),), (_NO_STAMP,))
    digest = blake2b(digest_size=16)
    for buffer in batch.buffers():
        digest.update(buffer)
    return digest.digest()
