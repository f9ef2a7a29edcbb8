"""Segment scan: valid commits, and the verdict on bytes after the last valid commit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from crc32c import crc32c

from tickertape.journal.commit.active_segment import ActiveSegment, LogEnd, make_seal
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    SegmentHeader,
    decode_commit,
    encode_commit,
)
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.recovery.segment_scan import Ending, ScannedCommit, SegmentScan, Verdict, read_seal

SALT = 0xA1B2C3D4E5F60718
HEADER = SegmentHeader(bytes(16), 1, 2, 0, 1, SALT, 0, 0, 0)
CHAIN = 99


def commits(bodies: Sequence[bytes], *, synced: bool = True, salt: int = SALT) -> list[bytes]:
    """Return encoded commits. With `synced`, each one declares the previous commit durable."""
    found, offset, chain = [], segment_header_bytes, CHAIN
    for number, body in enumerate(bodies, 1):
        header, chain = encode_commit(
            CommitHeader(
                kind=CommitKind.DATA if body else CommitKind.MARK,
                flags=0,
                codec=0,
                salt=salt,
                offset=offset,
                number=number,
                first_position=number,
                messages=1 if body else 0,
                body_bytes=len(body),
                synced_through=number - 1 if synced else 0,
                timestamp=number,
                body_crc=crc32c(body),
                chain=chain,
                epoch=HEADER.epoch,
            )
        )
        found.append(header + body)
        offset += len(header) + len(body)
    return found


BODIES = [bytes([n]) * 80 for n in range(1, 6)]


def scanned(data: bytes) -> tuple[list[int], Ending]:
    scan = SegmentScan(lambda offset, size: data[offset : offset + size], len(data), HEADER, CHAIN)
    numbers = [commit.header.number for commit in scan.commits()]
    assert scan.ending is not None
    return numbers, scan.ending


def file_of(parts: Sequence[bytes], *, rest: bytes = bytes(4096)) -> bytes:
    return bytes(segment_header_bytes) + b"".join(parts) + rest


def test_scan_of_valid_commits_and_zeros_is_clean() -> None:
    data = file_of(commits(BODIES))
    numbers, ending = scanned(data)
    assert numbers == [1, 2, 3, 4, 5]
    assert ending.verdict is Verdict.CLEAN
    assert ending.end == ending.tail_end == len(data) - 4096


@pytest.mark.parametrize("rest", [b"", bytes(3), bytes(commit_header_bytes - 1)])
def test_scan_of_a_file_that_ends_after_a_commit_is_clean(rest: bytes) -> None:
    numbers, ending = scanned(file_of(commits(BODIES), rest=rest))
    assert numbers == [1, 2, 3, 4, 5]
    assert ending.verdict is Verdict.CLEAN


def test_scan_of_a_segment_without_commits_is_clean() -> None:
    numbers, ending = scanned(file_of([]))
    assert numbers == []
    assert (ending.verdict, ending.end, ending.chain, ending.last) == (
        Verdict.CLEAN,
        segment_header_bytes,
        CHAIN,
        None,
    )


@pytest.mark.parametrize(
    "size", [1, 49, commit_header_bytes, commit_header_bytes + 40, commit_header_bytes + 79]
)
def test_partially_written_last_commit_is_torn(size: int) -> None:
    parts = commits(BODIES)
    parts[-1] = parts[-1][:size]
    numbers, ending = scanned(file_of(parts))
    assert numbers == [1, 2, 3, 4]
    assert ending.verdict is Verdict.TORN
    assert ending.tail_end == ending.end + size


def test_damage_before_a_commit_that_declares_durability_is_corrupt() -> None:
    parts = commits(BODIES)
    for at in (0, 40, commit_header_bytes + 5):
        damaged = bytearray(parts[2])
        damaged[at] ^= 1
        numbers, ending = scanned(file_of([*parts[:2], bytes(damaged), *parts[3:]]))
        assert numbers == [1, 2]
        assert ending.verdict is Verdict.CORRUPT
        assert "commit 3 is damaged, commit 4" in ending.detail


def test_damage_before_unsynced_commits_is_a_torn_tail() -> None:
    """Policies `interval` and `never`: any of several unsynced commits may be lost."""
    parts = commits(BODIES, synced=False)
    parts[2] = bytes(len(parts[2]))
    numbers, ending = scanned(file_of(parts))
    assert numbers == [1, 2]
    assert ending.verdict is Verdict.TORN
    assert ending.tail_end == ending.end + sum(map(len, parts[2:]))


def test_commits_of_another_salt_do_not_prove_durability() -> None:
    parts, others = commits(BODIES), commits(BODIES, salt=SALT + 1)
    numbers, ending = scanned(file_of([*parts[:2], *others[2:]]))
    assert numbers == [1, 2]
    assert ending.verdict is Verdict.TORN


@pytest.mark.parametrize("distance", [1 << 18, (1 << 18) - 50, (1 << 20) + 7])
def test_later_durability_proof_is_found_at_any_distance_and_across_reads(distance: int) -> None:
    rng = Random(distance)
    bodies = [BODIES[0], rng.randbytes(distance // 8 * 8), BODIES[2], BODIES[3]]
    parts = commits(bodies)
    damaged = bytearray(parts[1])
    damaged[200] ^= 1
    _, ending = scanned(file_of([parts[0], bytes(damaged), *parts[2:]]))
    assert ending.verdict is Verdict.CORRUPT


def test_commit_with_a_body_longer_than_the_file_is_torn() -> None:
    parts = commits(BODIES)
    numbers, ending = scanned(file_of(parts, rest=b"")[:-1])
    assert numbers == [1, 2, 3, 4]
    assert ending.verdict is Verdict.TORN


def sealed() -> tuple[bytes, CommitHeader]:
    parts = commits(BODIES)
    active = ActiveSegment(HEADER, 0, 1 << 20)
    _, ending = scanned(file_of(parts))
    active.advance(ending.end, ending.chain)
    buffers, seal = make_seal(active, 6, 6, 5, LogEnd(bytes(16), 2, 1, 0, 0, 6, 6, 5))
    return file_of(parts, rest=b"".join(buffers)), seal


def seal_in(data: bytes) -> ScannedCommit | None:
    return read_seal(lambda offset, size: data[offset : offset + size], len(data), HEADER)


def test_scan_of_a_sealed_segment_ends_at_the_seal() -> None:
    data, seal = sealed()
    numbers, ending = scanned(data)
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert (ending.verdict, ending.end, ending.last) == (Verdict.SEALED, len(data), seal)
    commit = seal_in(data)
    assert commit is not None
    assert commit.header == seal
    _, ending = scanned(data + bytes(500))
    assert (ending.verdict, ending.end) == (Verdict.SEALED, len(data))


def test_damaged_or_truncated_seal_is_not_found() -> None:
    data, seal = sealed()
    for offset in range(seal.offset, len(data)):
        bad = bytearray(data)
        bad[offset] ^= 4
        assert seal_in(bytes(bad)) is None
    for size in (0, 10, 40, 512, len(data) - 8):
        assert seal_in(data[:size]) is None


@pytest.mark.parametrize(
    "wrong",
    [{"chain": 5}, {"number": 9}, {"offset": 8}, {"epoch": 1}, {"salt": 1}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_valid_commit_with_a_wrong_link_ends_the_scan(wrong: dict[str, int]) -> None:
    parts = commits(BODIES)
    header = decode_commit(parts[2])
    assert header is not None
    parts[2] = encode_commit(header._replace(**wrong))[0] + BODIES[2]  # type: ignore[arg-type]
    numbers, ending = scanned(file_of(parts[:3]))
    assert numbers == [1, 2]
    assert ending.verdict is Verdict.TORN
