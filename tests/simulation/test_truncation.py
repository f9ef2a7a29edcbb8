"""A small log cut or overwritten at every byte: commits before the damage stay unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from tests.simulation.journal_log import Log, Message, messages_in, reopened, small_log
from tickertape.batch import batch_from_bodies
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    decode_commit,
    encode_commit,
    segment_path,
)
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes

SEED = 7
KINDS = ("cut", "zeros", "noise")
LOGS = 1
LOGS_FULL = 64
"""Logs whose tail, more than a KiB, is damaged at each offset in each way."""
TORN = 140
TORN_FULL = 20_000
SECTOR_BYTES = 512
BODY_AT = commit_header_bytes + batch_from_bodies("topic11", [b"x"]).head_bytes
"""Offset in a commit of the body of its only message."""


class Cut(NamedTuple):
    """The damaged last segment, and the number of its undamaged bytes."""

    contents: bytes
    whole: int


def tails(contents: bytes, offset: int, filler: bytes) -> Iterator[Cut]:
    yield Cut(contents[:offset], offset)
    yield Cut(contents[:offset] + bytes(len(contents) - offset), offset)
    yield Cut(contents[:offset] + filler[: len(contents) - offset], offset)


def survivors(log: Log, whole: int) -> list[Message]:
    """Return the messages of commits that are wholly before the damage."""
    return [message for end, messages in log.commits if end <= whole for message in messages]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_log_tail_damaged_at_any_offset_keeps_the_commits_before(kind: str, full: bool) -> None:
    for seed in range(SEED, SEED + (LOGS_FULL if full else LOGS)):
        _every_offset(seed, kind, every=full or kind == "cut")


def _every_offset(seed: int, kind: str, *, every: bool) -> None:
    """Damage the log at every offset, or at every second one, and reopen it."""
    log = small_log(seed, marks=False)
    path = segment_path(log.last_segment)
    contents = log.files[path]
    filler = Random(seed).randbytes(len(contents))
    at = KINDS.index(kind)
    first, stride = (segment_header_bytes, 1) if every else (segment_header_bytes + at % 2, 2)
    for offset in range(first, log.used + 1, stride):
        cut = list(tails(contents, offset, filler))[at]
        whole = offset if kind == "cut" else _unchanged(contents, cut.contents, offset)
        expected = log.sealed + survivors(log, whole)
        journal, disk, report = reopened(log.with_file(path, cut.contents))
        assert messages_in(journal, disk) == expected, f"{kind} at {offset}, seed {seed}"
        assert report, "an unclean stop is reported"


def _unchanged(before: bytes, after: bytes, offset: int) -> int:
    """Return the first byte that differs: damage may write the old value."""
    while offset < len(before) and before[offset] == after[offset]:
        offset += 1
    return offset


@pytest.mark.slow
def test_log_cut_at_any_offset_and_republished_has_each_message_once(full: bool) -> None:
    log = small_log(SEED, marks=False)
    path = segment_path(log.last_segment)
    everything = [*log.sealed, *survivors(log, log.used)]
    for offset in range(segment_header_bytes, log.used + 1, 5 if full else 29):
        damaged = log.with_file(path, log.files[path][:offset])
        journal, disk, _ = reopened(damaged, publish=everything)
        found = messages_in(journal, disk)
        assert sorted(found) == sorted(everything), f"cut at {offset}"
        for publisher in {message.publisher for message in everything}:
            mine = [message.sequence for message in found if message.publisher == publisher]
            assert mine == sorted(mine)


def _forged_headers(offset: int) -> bytes:
    """Return headers of marks at their true offsets, valid but for the salt, which is secret."""
    headers = []
    first = offset + BODY_AT
    for place in range(first, first + 3 * commit_header_bytes, commit_header_bytes):
        header = CommitHeader(
            kind=CommitKind.MARK,
            flags=0,
            codec=0,
            salt=0x1234,
            offset=place,
            number=99,
            first_position=0,
            messages=0,
            body_bytes=0,
            synced_through=98,
            timestamp=0,
            body_crc=0,
            chain=0,
            epoch=1,
        )
        headers.append(encode_commit(header)[0])
    return b"".join(headers)


@pytest.mark.slow
def test_last_commit_with_missing_sectors_is_kept_whole_or_not_at_all(full: bool) -> None:
    """The last commit, many sectors long, with bodies that imitate commits: each sector is there or not.

    The commits before it stay. It is there as a whole when no sector is missing, and not at all otherwise.
    """
    count = TORN_FULL if full else TORN
    for seed in range(SEED, SEED + 5):
        log = small_log(seed, marks=False, body=_forged_headers, last_messages=12)
        before, _ = log.commits[-2]
        contents = log.files[segment_path(log.last_segment)]
        first, last = before // SECTOR_BYTES, (log.used - 1) // SECTOR_BYTES
        assert last - first >= 7
        rng = Random(seed)
        seen: Counter[bool] = Counter()
        for _ in range(count // 5):
            chance = rng.choice((0.02, 0.1, 0.5, 0.9))
            lost = {sector for sector in range(first, last + 1) if rng.random() < chance}
            seen[_torn(log, contents, lost, before)] += 1
        assert set(seen) == {True, False}, "with and without the last commit"


def _torn(log: Log, contents: bytes, lost: set[int], before: int) -> bool:
    """Open the log without the `lost` sectors of its last write, and return whether it has that commit."""
    damaged = bytearray(contents)
    for sector in lost:
        start = max(sector * SECTOR_BYTES, before)  # the old content stays
        damaged[start : (sector + 1) * SECTOR_BYTES] = bytes((sector + 1) * SECTOR_BYTES - start)
    whole = bytes(damaged) == contents
    journal, disk, _ = reopened(log.with_file(segment_path(log.last_segment), bytes(damaged)))
    expected = log.sealed + survivors(log, log.used if whole else before)
    assert messages_in(journal, disk) == expected, f"lost {sorted(lost)}"
    return whole


@pytest.mark.slow
def test_recovery_with_headers_of_commits_in_payloads_finds_only_real_commits(full: bool) -> None:
    """Bodies hold commit headers at their true offsets, valid but for the salt, which is secret."""

    log = small_log(SEED, marks=False, body=_forged_headers)
    path = segment_path(log.last_segment)
    contents = log.files[path]
    starts = [segment_header_bytes, *(end for end, _ in log.commits[:-1])]
    for start in starts:
        forged = decode_commit(contents, start + BODY_AT)
        assert forged is not None
        assert forged.offset == start + BODY_AT, "the forged header names its own offset"
    for offset in range(segment_header_bytes, log.used, 3 if full else 19):
        kept = log.files[path][: log.used]
        damaged = kept[:offset] + bytes([kept[offset] ^ 0xFF]) + kept[offset + 1 :]
        first_hit = next(end for end, _ in log.commits if end > offset)
        if first_hit != log.commits[-1][0]:
            continue  # a later real commit proves that this one was durable: see the bit flips
        journal, disk, _ = reopened(log.with_file(path, damaged))
        assert messages_in(journal, disk) == log.sealed + survivors(log, offset)
