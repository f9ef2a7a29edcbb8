"""Batch builder: numbering, labels, limits, and rejected messages that leave it unchanged."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadMessage, BadTopic, MessageTooLarge, UsageError
from tickertape.base.limits import headers_bytes_max, label_bytes_max, message_bytes_max, topic_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies


def test_build_numbers_messages_from_first_sequence() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1")
    builder.add("t", b"22")
    batch = MessageBatch.parse(builder.build(publisher=5, first_sequence=100, timestamp=-3).encode())
    assert batch.run(0)[:4] == (5, 100, -3, 2)
    assert batch.sequences.tolist() == [100, 101]
    assert batch.columns == 0
    assert batch.topics == ("t",)


def test_build_keeps_messages_and_clear_removes_all() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", sequence=4, key="k")
    builder.add("u", b"2", sequence=9)
    assert builder.build().encode() == builder.build().encode()
    builder.clear()
    assert (builder.count, len(builder), builder.body_bytes) == (0, 0, 0)
    builder.add("v", b"3")
    assert (
        builder.build(first_sequence=1).encode() == batch_from_bodies("v", [b"3"], first_sequence=1).encode()
    )


def test_rising_sequences_without_gaps_need_no_column() -> None:
    builder = BatchBuilder()
    for i in range(3):
        builder.add("t", b"", sequence=i)
    assert not builder.build().has_sequences
    builder.add("t", b"", sequence=2**64 - 1)
    assert builder.build().sequences.tolist() == [0, 1, 2, 2**64 - 1]


def test_build_rejects_a_first_sequence_other_than_the_added_one() -> None:
    builder = BatchBuilder()
    builder.add("t", b"", sequence=7)
    assert builder.build(first_sequence=7).run(0).first_sequence == 7
    with pytest.raises(UsageError, match=r"Invalid first sequence 8\. Use 0 or 7"):
        builder.build(first_sequence=8)


@pytest.mark.parametrize(("first", "second"), [(5, 5), (5, 4), (5, None), (None, 5), (5, 2**64), (5, -1)])
def test_sequences_that_do_not_rise_are_refused(first: int | None, second: int | None) -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", sequence=first)
    before = builder.build().encode()
    with pytest.raises(BadMessage):
        builder.add("u", b"2", sequence=second, key="k")
    assert builder.build().encode() == before


@pytest.mark.parametrize("first", [2**64 - 2, 5])
def test_sequences_that_pass_64_bits_are_refused_by_build(first: int) -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", sequence=first)
    builder.add("t", b"2", sequence=2**64 - 1)
    builder.build()
    builder.add("t", b"3", sequence=2**64)
    with pytest.raises(UsageError, match="64-bit"):
        builder.build()


def test_refused_messages_leave_the_builder_unchanged() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1")
    before, size = builder.build().encode(), builder.size_bytes
    with pytest.raises(MessageTooLarge, match="Use at most 16777216 bytes"):
        builder.add("u", bytes(message_bytes_max + 1))
    with pytest.raises(BadTopic, match="1025 bytes"):
        builder.add("t" * (topic_bytes_max + 1), b"", key="k")
    with pytest.raises(BadTopic, match="it is not valid Unicode"):
        builder.add("\ud800", b"")
    with pytest.raises(BadMessage, match="Invalid key of 4097 bytes"):
        builder.add("u", b"", key="k" * (label_bytes_max + 1))
    with pytest.raises(BadMessage, match="correlation id"):
        builder.add("u", b"", correlation_id="\ud800")
    with pytest.raises(BadMessage, match=r"Invalid headers of 8193 bytes\. Use at most 8192 bytes"):
        builder.add("u", b"", headers=bytes(headers_bytes_max + 1))
    for expiration_ms in (-1, 2**63):
        with pytest.raises(BadMessage, match=f"Invalid expiration '{expiration_ms} ms'. Use 0 to "):
            builder.add("u", b"", expiration_ms=expiration_ms)
    for kind in (2, -1):
        with pytest.raises(BadMessage, match=f"Invalid kind '{kind}'. Use 0 to 1."):
            builder.add("u", b"", kind=kind)
    assert builder.build().encode() == before
    assert builder.size_bytes == size


@pytest.mark.parametrize(
    "numbers",
    [{"publisher": -1}, {"publisher": 2**64}, {"first_sequence": 2**64 - 1}, {"timestamp": 2**63}],
)
def test_batch_numbers_outside_64_bits_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="64-bit"):
        batch_from_bodies("t", [b"1", b"2"], **numbers)


def test_batch_without_messages_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one message"):
        BatchBuilder().build()
    with pytest.raises(UsageError, match="at least one message"):
        batch_from_bodies("t", [])


def test_batch_from_bodies_checks_topic_and_sizes() -> None:
    with pytest.raises(BadTopic):
        batch_from_bodies("t" * (topic_bytes_max + 1), [b""])
    with pytest.raises(MessageTooLarge):
        batch_from_bodies("t", [b"", bytes(message_bytes_max + 1)])
    half = bytes(message_bytes_max // 2 + 1)
    assert len(batch_from_bodies("t", [half, half])) == 2


def test_topics_are_numbered_in_order_of_appearance() -> None:
    builder = BatchBuilder()
    topics = ["b", "b", "a", "c", "a", "b", "b"]
    for topic in topics:
        builder.add(topic, topic.encode())
    batch = MessageBatch.parse(builder.build().encode())
    assert batch.topics == ("b", "a", "c")
    assert [batch.topic(i) for i in range(7)] == topics
