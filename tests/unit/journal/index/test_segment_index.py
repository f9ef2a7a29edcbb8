"""The index of a segment against brute force: it may name a block too many, never one too few."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from tickertape.batch import MessageBatch, Stamp, batch_from_bodies, merge
from tickertape.journal.index.segment_index import SegmentIndex, publisher_spans
from tickertape.journal.limits import index_bytes_max, segment_header_bytes

BATCH_BYTES = 20_000


class Added(NamedTuple):
    """A commit added to the index."""

    offset: int
    position: int
    time_before: int
    batch: MessageBatch


def grown(
    seed: int, commits: int, publishers: int, topics: int, bytes_max: int
) -> tuple[SegmentIndex, list[Added]]:
    rng = Random(seed)
    index = SegmentIndex(bytes_max=bytes_max)
    sequences = dict.fromkeys(range(1, publishers + 1), 0)
    offset, position, time = segment_header_bytes, 0, 1000
    added = []
    for _ in range(commits):
        batches, stamps, before = [], [], time
        for _ in range(rng.choice((1, 2, 12))):
            publisher = rng.randint(1, publishers)
            count = rng.choice((1, 3))
            first = sequences[publisher] + rng.choice((1, 1, 5))
            sequences[publisher] = first + count - 1
            time += rng.choice((0, 0, 7))
            topic = f"topic/{rng.randrange(topics)}"
            batches.append(batch_from_bodies(topic, [b"x"] * count, first_sequence=first))
            stamps.append(Stamp(publisher, first, time))
        batch = merge(batches, stamps)
        end = offset + rng.randrange(500, BATCH_BYTES)
        index.add(offset, end, position, before, batch)
        added.append(Added(offset, position, before, batch))
        offset, position = end, position + batch.count
    return index, added


def block_of(index: SegmentIndex, commit: Added) -> int:
    return max(i for i, offset in enumerate(index.offsets) if offset <= commit.offset)


def blocks_of(index: SegmentIndex, publisher: int, sequence: int) -> list[int]:
    blocks: list[int] = []
    for place in index.places_of_publisher(publisher, sequence):
        first, last = index.block_of_offset(place.offset), index.block_of_offset(place.end - 1)
        assert index.block_bounds(first)[0] == place.offset
        assert index.block_bounds(last)[1] == place.end
        assert index.position_bounds(first)[0] == place.first_position
        assert index.position_bounds(last)[1] == place.next_position
        blocks.extend(range(first, last + 1))
    return blocks


def check(index: SegmentIndex, added: list[Added]) -> None:
    spans = [(block_of(index, commit), commit) for commit in added]
    topics = {topic for commit in added for topic in commit.batch.topics}
    for block, commit in spans:
        assert index.block_of_offset(commit.offset) == block
        for i in range(commit.batch.count):
            assert index.block_of_position(commit.position + i) == block
        for publisher, low, high in publisher_spans(commit.batch):
            assert block in blocks_of(index, publisher, low)
            assert block in blocks_of(index, publisher, high)
        for stamp in commit.batch.timestamps.tolist():
            assert index.block_of_time(stamp) <= block
    for topic in topics:
        having = sorted({block for block, commit in spans if topic in commit.batch.topics})
        for block in range(index.blocks):
            wanted = next((b for b in having if b >= block), None)
            found = index.next_block_with(topic, block)
            if wanted is not None:
                assert found is not None
                assert block <= found <= wanted
    highest = index.highest_sequences()
    if highest is not None:
        wanted_highest: dict[int, int] = {}
        for _, commit in spans:
            wanted_highest.update((publisher, high) for publisher, _, high in publisher_spans(commit.batch))
        assert highest == wanted_highest


@pytest.mark.parametrize("seed", range(4))
def test_segment_index_matches_brute_force_before_and_after_encoding(seed: int) -> None:
    index, added = grown(seed, 60, publishers=9, topics=5, bytes_max=index_bytes_max)
    check(index, added)
    encoded = index.encode()
    assert len(encoded) <= index.encoded_bytes_max
    stored = SegmentIndex.decode(encoded, index.block_bounds(index.blocks - 1)[1])
    check(stored, added)
    assert stored.encode() == encoded
    assert stored.block_bounds(0) == index.block_bounds(0)
    assert stored.block_bounds(stored.blocks - 1) == index.block_bounds(index.blocks - 1)


def test_small_segment_index_is_exact() -> None:
    index, added = grown(3, 60, publishers=9, topics=5, bytes_max=index_bytes_max)
    for block in range(index.blocks):
        here = [commit.batch for commit in added if block_of(index, commit) == block]
        for topic in range(5):
            has = any(f"topic/{topic}" in batch.topics for batch in here)
            assert (index.next_block_with(f"topic/{topic}", block) == block) == has
    assert index.next_block_with("no such topic", 0) is None
    assert index.next_block_with("topic/0", index.blocks) is None
    assert blocks_of(index, 77, 1) == []


@pytest.mark.parametrize(
    ("publishers", "topics", "bytes_max"),
    [(9, 5, 4_500), (300, 3, 30_000), (3, 300, 8_000), (400, 400, 9_000)],
)
def test_coarse_segment_index_never_misses_a_block(publishers: int, topics: int, bytes_max: int) -> None:
    index, added = grown(5, 150, publishers, topics, bytes_max)
    exact, _ = grown(5, 150, publishers, topics, index_bytes_max)
    assert index._publishers.nbytes <= bytes_max // 2
    assert index._topics.nbytes <= bytes_max // 2
    assert len(index.encode()) < len(exact.encode()), "nothing was made coarser"
    check(index, added)
    assert len(index.encode()) <= index.encoded_bytes_max
    check(SegmentIndex.decode(index.encode(), index.block_bounds(index.blocks - 1)[1]), added)


def test_segment_index_with_too_many_publishers_returns_all_blocks() -> None:
    index, added = grown(6, 150, 400, 2, 9_000)
    check(index, added)
    assert index.highest_sequences() is None
    assert blocks_of(index, 1, 1) == list(range(index.blocks))


def test_segment_index_with_too_many_topics_returns_all_blocks() -> None:
    index, added = grown(6, 150, 2, 400, 4_000)
    check(index, added)
    assert index.next_block_with("no such topic", 2) == 2
    check(SegmentIndex.decode(index.encode(), index.block_bounds(index.blocks - 1)[1]), added)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("publishers", "topics"), [(9, 5), (60, 3), (3, 90)])
def test_reduced_segment_index_never_misses_a_block(seed: int, publishers: int, topics: int) -> None:
    index, added = grown(seed, 60, publishers, topics, index_bytes_max)
    index.settle()
    sizes, known = [index.nbytes], [index.knows_publishers]
    while index.reduce():
        check(index, added)
        sizes.append(index.nbytes)
        known.append(index.knows_publishers)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 2_200, "down to one block and nothing about it"
    assert len({size // 256 for size in sizes}) > 4, "step by step"
    assert (known[0], known[-1]) == (True, False)
    assert index.publisher_bounds(1) is None


def test_an_empty_index_cannot_be_reduced() -> None:
    index = SegmentIndex()
    while index.reduce():
        assert index.blocks == 0
    assert index.places_of_publisher(1, 1) == []
    assert index.next_block_with("t", 0) is None


def test_segment_index_growth_is_bounded_before_a_commit_is_added() -> None:
    rng = Random(8)
    index = SegmentIndex()
    for i in range(200):
        batches = [
            batch_from_bodies("t" * rng.randint(1, 900) + "€", [b""], first_sequence=i + 1) for _ in range(3)
        ]
        batch = merge(batches, [Stamp(rng.getrandbits(64), i + 1, 0) for _ in batches])
        bound = index.encoded_bytes_max + SegmentIndex.growth_bytes_max(batch)
        index.add(512 + i * 70_000, 512 + (i + 1) * 70_000, i, 0, batch)
        assert index.encoded_bytes_max <= bound
        assert len(index.encode()) <= index.encoded_bytes_max


def test_long_topic_names_do_not_enlarge_the_segment_index() -> None:
    """The index stores hashes of names."""
    index = SegmentIndex()
    for i in range(200):
        batch = merge([batch_from_bodies(f"{i:01000}", [b""], first_sequence=i + 1)], [Stamp(1, i + 1, 0)])
        index.add(512 + i, 513 + i, i, 0, batch)
    assert len(index.encode()) < 4_000
    assert index.next_block_with(f"{7:01000}", 0) == 0
    assert index.next_block_with(f"{200:01000}", 0) is None


def test_invalid_encoded_segment_index_is_refused() -> None:
    index, _ = grown(1, 20, 3, 3, index_bytes_max)
    end = index.block_bounds(index.blocks - 1)[1]
    good = index.encode()
    for bad in (b"", good[:-1], good + b"\0", bytes(len(good))):
        with pytest.raises(ValueError, match=r"index|MessagePack|Expected|truncated"):
            SegmentIndex.decode(bad, end)
    with pytest.raises(ValueError, match="beyond the data"):
        SegmentIndex.decode(good, 600)
    index.positions.append(1)
    with pytest.raises(ValueError, match="differ in length"):
        SegmentIndex.decode(index.encode(), end)
    index.positions.pop()
    index.offsets[1] = index.offsets[0]
    with pytest.raises(ValueError, match="out of order"):
        SegmentIndex.decode(index.encode(), end)


def test_publisher_spans_are_correct_for_one_to_forty_runs() -> None:
    rng = Random(2)
    sequences = dict.fromkeys(range(5), 0)
    batches, stamps = [], []
    for _ in range(40):
        publisher = rng.randrange(5)
        sequences[publisher] += 2
        batches.append(batch_from_bodies("t", [b"", b""], first_sequence=sequences[publisher]))
        stamps.append(Stamp(publisher, sequences[publisher], 0))
        sequences[publisher] += 1
        batch = merge(batches, stamps)
        wanted: dict[int, tuple[int, int]] = {}
        for p, s in zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True):
            low, high = wanted.get(p, (s, s))
            wanted[p] = (min(low, s), max(high, s))
        assert {p: (low, high) for p, low, high in publisher_spans(batch)} == wanted
