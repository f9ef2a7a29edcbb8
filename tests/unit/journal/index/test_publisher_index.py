"""The publisher table of a segment against brute force, and how many publishers it keeps."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tickertape.journal.index.publisher_index import PublisherIndex, StoredPublishers
from tickertape.journal.limits import index_bytes_max, index_zone_bytes

Span = tuple[int, int, int]


def filled(table: PublisherIndex, publishers: int, blocks: int, seed: int) -> list[list[Span]]:
    """Return the spans of each block. Block b starts at b times half a zone."""
    rng, sequences, added = Random(seed), dict.fromkeys(range(1, publishers + 1), 0), []
    for block in range(blocks):
        spans = []
        for publisher in rng.sample(range(1, publishers + 1), publishers // 2):
            low = sequences[publisher] + rng.choice((1, 1, 9))
            sequences[publisher] = low + rng.choice((0, 5))
            spans.append((publisher, low, sequences[publisher]))
        table.add(block * index_zone_bytes // 2, spans)
        added.append(spans)
    return added


def check(table: PublisherIndex, added: list[list[Span]]) -> None:
    bounds: dict[int, tuple[int, int]] = {}
    for block, spans in enumerate(added):
        for publisher, low, high in spans:
            bounds[publisher] = bounds.get(publisher, (low, 0))[0], high
            for sequence in (low, high):
                stretches = list(table.stretches(publisher, sequence, sequence, 1 << 30))
                offset = block * index_zone_bytes // 2
                assert any(begin <= offset < end for begin, end in stretches)
                assert stretches == sorted(set(stretches))
    assert table.highest() == {publisher: high for publisher, (_, high) in bounds.items()}
    assert bounds == {publisher: table.bounds(publisher) for publisher in bounds}


@pytest.mark.parametrize("bytes_max", [1_500, 4_000, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_publisher_index_returns_every_zone_that_contains_a_sequence(seed: int, bytes_max: int) -> None:
    table = PublisherIndex(bytes_max)
    added = filled(table, 20, 30, seed)
    assert table.nbytes <= bytes_max
    check(table, added)
    table.settle()
    check(table, added)
    check(PublisherIndex.of(table.stored(), bytes_max), added)
    table.coarsen()
    check(table, added)
    more = filled(PublisherIndex(bytes_max), 20, 30, seed)[-1]
    again = [(publisher, high + 1, high + 2) for publisher, _, high in more]
    table.add(29 * index_zone_bytes // 2, again)
    check(table, [*added[:-1], [*added[-1], *again]])


def test_small_publisher_index_is_exact() -> None:
    table = PublisherIndex(1 << 20)
    added = filled(table, 6, 40, 1)
    for publisher in range(1, 7):
        for sequence in range(60):
            holding = {
                block // 2
                for block, spans in enumerate(added)
                for mine, low, high in spans
                if mine == publisher and low <= sequence <= high
            }
            zones = {
                begin // index_zone_bytes
                for begin, _ in table.stretches(publisher, sequence, sequence, 1 << 30)
            }
            assert holding <= zones
            assert len(zones) <= 1, "zones do not overlap in sequences"
    assert list(table.stretches(99, 1, 1, 1 << 30)) == []
    assert table.bounds(99) is None


def test_publisher_index_of_a_full_segment_keeps_a_thousand_highest_sequences() -> None:
    """Only zones get coarser: nothing has to be read at a start."""
    table = PublisherIndex(index_bytes_max // 2)
    for zone in range(400):
        table.add(
            zone * index_zone_bytes, ((publisher, zone * 10 + 1, zone * 10 + 9) for publisher in range(1000))
        )
        assert table.nbytes <= index_bytes_max // 2
    assert table.highest() == dict.fromkeys(range(1000), 3999)
    assert table.bounds(7) == (1, 3999)
    stretches = list(table.stretches(7, 2005, 2005, 1 << 30))
    assert any(begin <= 200 * index_zone_bytes < end for begin, end in stretches)
    assert sum(end - begin for begin, end in stretches) <= 16 * index_zone_bytes


def test_publisher_index_keeps_eighty_thousand_publishers_and_drops_larger_sets() -> None:
    table = PublisherIndex(index_bytes_max // 2)
    ids = np.random.default_rng(1).integers(1, 1 << 63, 110_000).tolist()
    table.add(0, ((publisher, 1, 2) for publisher in ids[:80_000]))
    assert table.highest() == dict.fromkeys(ids[:80_000], 2)
    table.add(0, ((publisher, 1, 2) for publisher in ids))
    assert not table.known
    assert table.highest() is None
    assert list(table.stretches(5, 1, 1, 900)) == [(0, 900)]
    assert not PublisherIndex.of(table.stored(), index_bytes_max // 2).known


ROW = np.array([0, 1, 2], "<u8").tobytes()


@pytest.mark.parametrize(
    ("stored", "expected_error"),
    [
        (StoredPublishers(0, {}), "no resolution"),
        (StoredPublishers(1, {5: b""}), "incomplete"),
        (StoredPublishers(1, {5: ROW[:-1]}), "incomplete"),
        (StoredPublishers(1, {-5: ROW}), "invalid publisher id"),
        (StoredPublishers(1, {5: ROW * 2}), "out of order"),
    ],
)
def test_invalid_stored_publisher_index_is_refused(stored: StoredPublishers, expected_error: str) -> None:
    with pytest.raises(ValueError, match=expected_error):
        PublisherIndex.of(stored, index_bytes_max // 2)
