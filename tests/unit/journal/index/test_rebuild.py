"""An index rebuilt from many commits at once equals the index built commit by commit."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.unit.journal.index.test_late_runs import marked
from tests.unit.journal.written import Written
from tickertape.base.errors import BadBatch
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies, merge
from tickertape.journal.format.commit_headers import CommitHeaders, ExpectedCommit, read_commit_headers
from tickertape.journal.format.segment import (
    FLAG_CONTINUES,
    FLAG_ENDS,
    CommitHeader,
    CommitKind,
    decode_segment_header,
    encode_commit,
    segment_path,
)
from tickertape.journal.index.rebuild import IndexRebuild
from tickertape.journal.recovery.segment_scan import Ending, ScannedCommit, SegmentScan, Verdict

SALT = 77


def random_batch(rng: Random, sequences: dict[int, int], kinds: bool) -> MessageBatch:
    batches, stamps, late = [], [], []
    for _ in range(rng.choice((1, 1, 3, 30))):
        publisher = rng.randint(1, 5)
        known = sequences.get(publisher, 0)
        late.append(known > 9 and rng.random() < 0.2)
        first = known - rng.choice((5, 8)) if late[-1] else known + rng.choice((1, 1, 9))
        count = rng.choice((1, 2, 5))
        if rng.random() < 0.2:
            builder = BatchBuilder()
            sequence = first
            for _ in range(count):
                builder.add(f"t{rng.randrange(9)}", b"x", sequence=sequence, kind=int(kinds), key="k")
                sequence += rng.choice((1, 4))
            batch = builder.build()
            count = sequence - first
        else:
            name = f"t{rng.randrange(9)}" if rng.random() < 0.9 else f"längster {rng.randrange(9)}"
            batch = batch_from_bodies(name, [rng.randbytes(300)] * count, first_sequence=first)
        sequences[publisher] = max(known, int(batch.sequences[-1]))
        batches.append(batch)
        stamps.append(Stamp(publisher, first, 5))
    return marked(merge(batches, stamps), late)


def segment(seed: int, commits: int = 150, *, chained: bool = False) -> tuple[bytes, list[ScannedCommit]]:
    """Return consecutive commits from offset 512. The last one is a seal without a footer.

    With `chained`, data commits have chain flags.
    """
    rng = Random(seed)
    flags = 0
    sequences: dict[int, int] = {}
    data, made, chain, position = b"", [], 9, 0
    for number in range(1, commits + 1):
        kind = CommitKind.DATA if rng.random() < 0.8 else CommitKind.MARK
        kind = CommitKind.SEAL if number == commits else kind
        batch = random_batch(rng, sequences, rng.random() < 0.5) if kind is CommitKind.DATA else None
        if kind is CommitKind.DATA and chained:
            flags = FLAG_ENDS if flags == FLAG_CONTINUES and rng.random() < 0.4 else FLAG_CONTINUES
        else:
            flags = 0
        body = batch.encode() if batch is not None else b""
        header = CommitHeader(
            kind=kind,
            flags=flags,
            codec=0,
            salt=SALT,
            offset=512 + len(data),
            number=number,
            first_position=position,
            messages=batch.count if batch is not None else 0,
            body_bytes=len(body),
            synced_through=max(0, number - rng.choice((1, 3, 70))),
            timestamp=number * 10,
            body_crc=batch.crc() if batch is not None else 0,
            chain=chain,
            epoch=1,
            ahead=number % 3,
        )
        encoded, chain = encode_commit(header)
        position += header.messages
        data += encoded + body
        made.append(ScannedCommit(header._replace(crc=chain), memoryview(body)))
    return data, made


EXPECTED = ExpectedCommit(salt=SALT, epoch=1, offset=512, number=1, chain=9)


def canonical(rebuild: IndexRebuild) -> object:
    index = rebuild.index
    rows = index._publishers.stored().rows
    assert rows is not None
    stored = index._topics.stored()
    return (
        *(index.offsets.tolist(), index.positions.tolist(), index.times.tolist()),
        *(dict(sorted(rows.items())), stored.hashes, stored.counts, stored.groups),
        index._publishers.stored_late(),
        *(rebuild.highest, rebuild.unproven(-1), index.block_bounds(index.blocks - 1)),
    )


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("seed", parts(8, 3))
def test_index_rebuilt_in_bulk_equals_the_index_rebuilt_commit_by_commit(seed: int, chained: bool) -> None:
    data, made = segment(seed, chained=chained)
    one_by_one, at_once = IndexRebuild(1), IndexRebuild(1)
    for commit in made:
        one_by_one.take(*commit)
    rng, expected, window = Random(seed), EXPECTED, 0
    while window < len(data):
        heads = read_commit_headers(data[window : window + rng.choice((40_000, 90_000))], expected)
        assert heads is not None
        at_once.take_many(heads)
        last = heads.last()
        window = last.end - 512
        expected = expected._replace(offset=last.end, number=last.number + 1, chain=last.crc)
    assert canonical(at_once) == canonical(one_by_one)
    assert at_once.index._publishers.stored_late() is not None
    assert expected.number == len(made) + 1
    assert last == made[-1].header
    assert last == made[-1].header


@pytest.mark.parametrize("seed", range(6))
def test_bulk_scan_ends_at_the_commit_with_a_flipped_bit(seed: int) -> None:
    data, made = segment(seed, 40)
    rng = Random(seed)
    for _ in range(40):
        broken = bytearray(data)
        at = rng.randrange(len(data))
        broken[at] ^= 1 << rng.randrange(8)
        whole = [commit for commit in made if commit.header.end - 512 <= at]
        heads = read_commit_headers(bytes(broken), EXPECTED)
        assert (0 if heads is None else len(heads.starts)) == len(whole)


@pytest.mark.parametrize(
    "other",
    [
        EXPECTED._replace(salt=78),
        EXPECTED._replace(epoch=2),
        EXPECTED._replace(offset=520),
        EXPECTED._replace(number=2),
        EXPECTED._replace(chain=8),
    ],
)
def test_bulk_scan_rejects_commits_that_do_not_match_the_expected_chain(other: ExpectedCommit) -> None:
    data, _ = segment(1, 5)
    assert read_commit_headers(data, EXPECTED) is not None
    assert read_commit_headers(data, other) is None
    assert read_commit_headers(data[:90], EXPECTED) is None
    assert read_commit_headers(bytes(4096), EXPECTED) is None


def test_index_rebuild_rejects_an_invalid_batch() -> None:
    data, _ = segment(3, 30)
    heads = read_commit_headers(data, EXPECTED)
    assert heads is not None
    begin = heads.starts[0] + 96
    for at in (0, 4, 8, 12, 16, 20, 24, 28):
        broken = bytearray(data)
        broken[begin + at] ^= 0x5A
        with pytest.raises(BadBatch):
            IndexRebuild(1).take_many(CommitHeaders(bytes(broken), heads.starts, heads.rows))


def test_bulk_scan_reaches_the_same_segment_end_as_the_commit_scan() -> None:
    log = Written(segment_bytes=1 << 20)
    for i in range(60):
        log.publish(count=1 + i % 3, size=700, publisher=1 + i % 4)
    disk = log.disk.kill_clone()
    handle = disk.open(segment_path(1), write=False)
    size = disk.size(handle)
    header, chain = decode_segment_header(disk.read(handle, 0, 512))
    scan = SegmentScan(lambda o, n: disk.read(handle, o, n), size, header, chain)
    for _ in scan.commits():
        pass
    fast = SegmentScan(lambda o, n: disk.read(handle, o, n), size, header, chain)
    assert sum(1 for _ in fast.stretches()) == 1
    assert fast.ending == scan.ending
    assert fast.ending is not None
    assert fast.ending.verdict is Verdict.CLEAN


def walk(written: Written) -> tuple[list[CommitHeaders | ScannedCommit], Ending, list[int]]:
    """Scan the first segment of a killed server and return stretches, ending and read sizes.

    Reads after the last commit are not included.
    """
    disk = written.disk.kill_clone()
    handle = disk.open(segment_path(1), write=False)
    header, chain = decode_segment_header(disk.read(handle, 0, 512))
    reads: list[int] = []

    def read(offset: int, size: int) -> bytes:
        data = disk.read(handle, offset, size)
        reads.append(len(data))
        return data

    scan = SegmentScan(read, disk.size(handle), header, chain)
    found, last = [], 0
    for stretch in scan.stretches():
        found.append(stretch)
        last = len(reads)
    assert scan.ending is not None
    return found, scan.ending, reads[:last]


@pytest.mark.parametrize("pattern", ["plain", "chained", "mixed"])
def test_bulk_scan_reads_chained_commits_once(pattern: str) -> None:
    written = Written(segment_bytes=1 << 20)
    for _ in range(150):
        if pattern != "chained":
            written.publish(count=1, size=200)
        if pattern != "plain":
            written.transact(1, 1, size=200)
    found, ending, reads = walk(written)
    assert ending.verdict is Verdict.CLEAN
    assert (len(found), len(reads)) == (1, 1), "all of them at once"


def test_bulk_scan_returns_the_start_of_an_incomplete_chain() -> None:
    written = Written(segment_bytes=1 << 20)
    written.publish()
    written.transact(2, 3)
    written.transact(4, 5, 6, 1, jobs=2)
    ((heads,), _, _) = walk(written)
    assert isinstance(heads, CommitHeaders)
    chain = heads.chain(None)
    assert chain is not None
    assert (chain.first_position, chain.messages) == (8, 4)
    rest = CommitHeaders(heads.window, heads.starts[-1:], heads.rows[-1:])
    assert rest.chain(chain) == chain, "the chain starts in earlier commits"
    whole = CommitHeaders(heads.window, heads.starts[:3], heads.rows[:3])
    assert whole.chain(chain) is None
