"""The topic table of a segment against brute force."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.journal.index.topic_index import StoredTopics, TopicTable
from tickertape.journal.limits import index_bytes_max

blocks_of_topics = st.lists(st.sets(st.integers(0, 9).map("t{}".format), min_size=1), min_size=1, max_size=60)


def brute(blocks: list[set[str]], topic: str, block: int) -> int | None:
    return next((at for at in range(block, len(blocks)) if topic in blocks[at]), None)


def brute_previous(blocks: list[set[str]], topic: str, block: int) -> int | None:
    return next((at for at in range(block, -1, -1) if topic in blocks[at]), None)


@given(blocks_of_topics, st.sampled_from([60, 100, 200, 2_000]))
def test_topic_index_never_skips_a_block_with_the_topic(blocks: list[set[str]], bytes_max: int) -> None:
    table = TopicTable(bytes_max)
    for block, topics in enumerate(blocks):
        table.add(block, sorted(topics))
        assert table.nbytes <= bytes_max
    again = TopicTable.of(table.stored(), bytes_max)
    for topic in ("t0", "t5", "t9", "never"):
        for block in range(len(blocks)):
            wanted = brute(blocks, topic, block)
            found = table.next_with(topic, block)
            assert again.next_with(topic, block) == found
            if wanted is not None:
                assert found is not None
                assert block <= found <= wanted
            if bytes_max == 2_000:
                assert found == wanted, "a small index is exact"
            earlier = brute_previous(blocks, topic, block)
            found = table.previous_with(topic, block)
            assert again.previous_with(topic, block) == found
            if earlier is not None:
                assert found is not None
                assert earlier <= found <= block
            if bytes_max == 2_000:
                assert found == earlier, "a small index is exact"
            for limit in (0, 1, 7, len(blocks) - block):
                run = table.run_with(topic, block, limit)
                assert run == again.run_with(topic, block, limit) == _run(table, topic, block, limit)


def _run(table: TopicTable, topic: str, block: int, limit: int) -> int:
    """Compute `run_with` one block at a time."""
    return next((n for n in range(limit) if table.next_with(topic, block + n) != block + n), limit)


def test_topic_index_finds_entries_that_are_not_sorted_yet() -> None:
    table, rng = TopicTable(index_bytes_max), Random(1)
    blocks = [{f"t{rng.randrange(3000)}" for _ in range(20)} for _ in range(400)]
    for block, topics in enumerate(blocks):
        table.add(block, topics)
        topic = rng.choice(sorted(topics))
        assert table.next_with(topic, block) == block
        assert table.next_with(topic, 0) == brute(blocks[: block + 1], topic, 0)
        other = f"t{rng.randrange(3000)}"
        assert table.previous_with(other, block) == brute_previous(blocks, other, block)


def test_topic_index_of_a_hundred_thousand_topics_is_bounded_and_still_skips() -> None:
    bound = 1_500_000
    table = TopicTable(bound)
    for block in range(2_000):
        table.add(block, [f"symbol/{(block * 100 + i) % 100_000}" for i in range(100)])
        if block % 100 == 0:
            assert table.nbytes <= bound
    found = table.next_with("symbol/77777", 778)
    assert found is not None
    assert 778 < found <= 1_777
    assert table.next_with("symbol/never", 0) is None


def test_topic_index_with_more_blocks_than_group_numbers_finds_topics() -> None:
    table = TopicTable(index_bytes_max)
    for block in range(0, 140_000, 7):
        table.add(block, ["a"] if block % 7000 else ["a", "b"])
    assert table.next_with("a", 139_980) is not None
    found = table.next_with("b", 126_001)
    assert found is not None
    assert 126_001 <= found <= 133_000


@pytest.mark.parametrize(
    ("stored", "expected_error"),
    [
        (StoredTopics(1, b"\1\0\0\0", b"\1\0\0\0", b""), "incomplete"),
        (StoredTopics(1, b"\1\0\0\0", b"", b""), "incomplete"),
        (StoredTopics(1, b"\1\0\0", b"", b""), "cut off"),
        (StoredTopics(1, b"\2\0\0\0\1\0\0\0", b"\1\0\0\0\1\0\0\0", bytes(4)), "out of order"),
        (StoredTopics(1, b"\2\0\0\0", b"\2\0\0\0", b"\2\0\1\0"), "out of order"),
        (StoredTopics(1, b"\2\0\0\0", b"\0\0\0\0", b""), "out of order"),
    ],
)
def test_invalid_stored_topic_index_is_refused(stored: StoredTopics, expected_error: str) -> None:
    with pytest.raises(ValueError, match=expected_error):
        TopicTable.of(stored, index_bytes_max)
