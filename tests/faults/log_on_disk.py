"""Reader of data directories by the documented format, independent of the product.

Must never import the product. It does not know recovery: it reads the messages of whole commits in order, up
to the first incomplete one, and reports violations of the format.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

SEGMENT_BYTES: Final = 512
COMMIT_BYTES: Final = 96
COMMIT_MAGIC: Final = 0x544D4354
DATA, MARK, SEAL = 1, 2, 3
CONTINUES, ENDS = 1, 2

_SEGMENT = struct.Struct("<8sHHI16sQQQQQIIQq")
_COMMIT = struct.Struct("<IBBBBQQQQIIQqIIQ")
_BATCH = struct.Struct("<IBBHIIIIII")
_RUN = struct.Struct("<QQqIIII")


class Stored(NamedTuple):
    """One message of the log."""

    publisher: int
    sequence: int
    topic: str
    body: bytes


class Commit(NamedTuple):
    """A whole commit."""

    kind: int
    flags: int
    number: int
    first_position: int
    messages: int
    end: int
    checksum: int
    body: bytes


def read_log(data: Path) -> list[Stored]:
    """Return every message in whole commits and whole chains.

    Raises `AssertionError` when a part before the end is not as documented.
    """
    identity = bytes.fromhex(json.loads((data / "identity.json").read_text())["journal"])
    files = sorted((data / "journal").glob("*.segment"))
    assert [int(file.stem) for file in files] == list(range(1, len(files) + 1)), (
        "segments are numbered from 1"
    )
    found: list[Stored] = []
    position, commit_number, sealed = 0, 1, True
    for file in files:
        contents = file.read_bytes()
        if not any(contents[:SEGMENT_BYTES]):
            assert file == files[-1], f"{file.name} has no header and is not the last"
            break
        assert sealed, f"{file.name} was begun before the one before it was sealed"
        sealed = False
        chain: list[Stored] = []
        """Messages of an unfinished chain: they are not a part of the log until its end is found."""
        for commit in _commits(contents, identity, int(file.stem), position, commit_number):
            assert not sealed, f"{file.name}: something follows the seal"
            assert commit.first_position == position, f"{file.name}: positions have no gaps"
            assert commit.number == commit_number, f"{file.name}: commits are numbered without gaps"
            commit_number += 1
            position += commit.messages
            sealed = commit.kind == SEAL
            assert commit.flags or not chain, f"{file.name}: another commit is in the middle of a chain"
            assert commit.flags in (0, CONTINUES, ENDS)
            if commit.kind == DATA:
                messages = _messages(commit.body)
                assert len(messages) == commit.messages
                chain += messages
            if commit.flags != CONTINUES:
                found += chain
                chain = []
        assert not (sealed and chain), f"{file.name} was sealed in the middle of a chain"
    return found


def _commits(
    contents: bytes, identity: bytes, number: int, position: int, commit_number: int
) -> Iterator[Commit]:
    magic, version, kind, _, journal, own, epoch, first, first_commit, salt, *_ = _SEGMENT.unpack_from(
        contents
    )
    (chain,) = struct.unpack_from("<I", contents, SEGMENT_BYTES - 4)
    assert chain == crc32c(contents[: SEGMENT_BYTES - 4]), f"segment {number}: checksum of its header"
    assert (magic, version, kind) == (b"TKTSEG\0\0", 0, 1)
    assert (journal, own, first, first_commit) == (identity, number, position, commit_number)
    at = SEGMENT_BYTES
    while (commit := _commit(contents, at, salt, epoch, chain)) is not None:
        yield commit
        at, chain = commit.end, commit.checksum


def _commit(contents: bytes, at: int, salt: int, epoch: int, chain: int) -> Commit | None:
    """Return the whole commit at `at`, or None."""
    if at + COMMIT_BYTES > len(contents):
        return None
    header = contents[at : at + COMMIT_BYTES]
    (
        magic,
        kind,
        flags,
        _,
        _,
        own_salt,
        offset,
        number,
        first,
        messages,
        size,
        _,
        _,
        body_crc,
        own_chain,
        own_epoch,
    ) = _COMMIT.unpack_from(header)
    (checksum,) = struct.unpack_from("<I", header, COMMIT_BYTES - 4)
    stands = (magic, own_salt, offset, own_chain, own_epoch) == (COMMIT_MAGIC, salt, at, chain, epoch)
    if not stands or checksum != crc32c(header[: COMMIT_BYTES - 4]):
        return None
    body = contents[at + COMMIT_BYTES : at + COMMIT_BYTES + size]
    if len(body) != size or crc32c(body) != body_crc:
        return None
    head_bytes, head_crc = struct.unpack_from("<II", header, _COMMIT.size)
    assert kind != DATA or crc32c(body[:head_bytes]) == head_crc, f"commit {number}: checksum of its head"
    return Commit(kind, flags, number, first, messages, at + COMMIT_BYTES + size, checksum, body)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _messages(batch: bytes) -> list[Stored]:
    total, version, codec, columns, count, runs, topics, head, size, _ = _BATCH.unpack_from(batch)
    assert (total, version, codec) == (len(batch), 0, 0)
    run_table = [_RUN.unpack_from(batch, _BATCH.size + _RUN.size * row) for row in range(runs)]
    at = _BATCH.size + _RUN.size * runs
    offsets = struct.unpack_from(f"<{count + 1}i", batch, at)
    assert offsets[-1] == size
    at += _padded(4 * (count + 1))
    name_ends = struct.unpack_from(f"<{topics + 1}i", batch, at)
    begin = at + 4 * (topics + 1)
    names = [batch[begin + a : begin + b].decode() for a, b in pairwise(name_ends)]
    at += _padded(4 * (topics + 1) + name_ends[-1])
    index: tuple[int, ...] = (0,) * count
    if topics > 1:
        index = struct.unpack_from(f"<{count}i", batch, at)
        at += _padded(4 * count)
    given = struct.unpack_from(f"<{count}Q", batch, at) if columns & 1 else None
    found: list[Stored] = []
    for publisher, first, _, messages, _, _, _ in run_table:
        for step in range(messages):
            i = len(found)
            body = batch[head + offsets[i] : head + offsets[i + 1]]
            found.append(Stored(publisher, given[i] if given else first + step, names[index[i]], body))
    assert len(found) == count
    return found
