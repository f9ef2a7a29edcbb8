"""Conflation, case by case: intervals, delivered messages with their times, and held messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from tests.helpers.reserved_batches import header_entries, with_reserved
from tickertape.base.limits import batch_bytes_target
from tickertape.batch import MessageBatch, batch_from_bodies, merge
from tickertape.engine.conflation.conflater import ConflatedMessage, Conflater
from tickertape.engine.limits import conflation_entry_bytes
from tickertape.engine.log_reads.selection import Selection

SECOND = 1_000_000
FIRST = 100
"""Position of the first message of a stream."""

Shown = tuple[str, bytes, float, int]


def stream(seconds: Sequence[float], bodies: Sequence[bytes] | None = None, first: int = 0) -> Selection:
    """Messages of publisher 7 recorded at `seconds`, with sequences and positions one by one."""
    if bodies is None:
        bodies = [b"%d" % (first + i) for i in range(len(seconds))]
    batch = merge(
        [
            batch_from_bodies(
                "t", [body], publisher=7, first_sequence=1 + first + i, timestamp=round(second * SECOND)
            )
            for i, (second, body) in enumerate(zip(seconds, bodies, strict=True))
        ]
    )
    return Selection(batch, None, FIRST + first + len(seconds), round(seconds[-1] * SECOND))


def shown(results: list[ConflatedMessage]) -> list[Shown]:
    """Return bookmark, body, time in seconds and position of delivered messages."""
    return [
        (batch.bookmark(i), batch.body(i), batch.timestamp(i) / SECOND, int(positions[i]))
        for batch, positions, _ in results
        for i in range(batch.count)
    ]


def test_conflater_delivers_the_last_message_with_the_first_bookmark() -> None:
    conflater = Conflater(SECOND)
    found = shown(conflater.add(stream([10.0, 10.2, 10.999, 11.0, 11.5, 12.1])))
    assert found == [("7|1|", b"2", 10.999, 100), ("7|4|", b"4", 11.5, 103)]
    assert shown(conflater.flush()) == [("7|6|", b"5", 12.1, 105)]


def test_conflation_interval_starts_with_the_first_message_of_a_key() -> None:
    conflater = Conflater(SECOND)
    found = conflater.add(stream([10.0, 10.7, 10.9, 11.6, 11.7]), ["a", "b", "a", "b", "b"])
    assert shown(found) == [("7|1|", b"2", 10.9, 100), ("7|2|", b"3", 11.6, 101)]
    assert shown(conflater.flush()) == [("7|5|", b"4", 11.7, 104)]


def test_message_without_a_key_is_not_replaced_and_keeps_the_order() -> None:
    conflater = Conflater(SECOND)
    keys: list[Hashable] = ["a", None, None, "a"]
    assert conflater.add(stream([1.0, 1.1, 1.1, 1.2]), keys) == []
    assert [body for _, body, _, _ in shown(conflater.flush())] == [b"3", b"1", b"2"]


def test_conflater_adds_only_the_given_range_of_a_selection() -> None:
    conflater = Conflater(SECOND)
    one = stream([1.0, 1.1, 1.2, 1.3])
    assert conflater.add(one, list("aabb"), 1, 3) == []
    assert conflater.add(one, list("aabb"), 3, 3) == []
    assert conflater.add(Selection(None, None, 900, 5)) == []
    assert shown(conflater.flush()) == [("7|2|", b"1", 1.1, 101), ("7|3|", b"2", 1.2, 102)]


@pytest.mark.behaviour(18)
def test_held_messages_are_flushed_in_the_order_of_the_first_bookmarks() -> None:
    conflater = Conflater(SECOND)
    assert conflater.add(stream([1.0, 1.1, 1.2]), ["c", "a", "b"]) == []
    assert conflater.add(stream([1.3, 1.4, 1.5], first=3), ["b", "c", "a"]) == []
    assert [(mark, body) for mark, body, _, _ in shown(conflater.flush())] == [
        ("7|1|", b"4"),
        ("7|2|", b"5"),
        ("7|3|", b"3"),
    ]
    assert conflater.flush() == []
    assert (conflater.held_bytes, conflater.held_position, conflater.next_time()) == (0, None, None)


@pytest.mark.behaviour(18)
def test_at_the_live_end_the_clock_ends_the_interval() -> None:
    conflater = Conflater(SECOND)
    conflater.add(stream([20.0, 20.4]))
    assert conflater.next_time() == 21 * SECOND
    assert conflater.advance(21 * SECOND - 1) == []
    assert shown(conflater.advance(21 * SECOND)) == [("7|1|", b"1", 20.4, 100)]
    # the next message starts a new interval, as in a replay
    conflater.add(stream([21.0], first=2))
    assert conflater.next_time() == 22 * SECOND


def test_held_position_is_the_first_position_of_the_oldest_entry() -> None:
    conflater = Conflater(SECOND)
    conflater.add(stream([1.0, 1.5, 1.6, 2.2]), ["a", "b", "b", "c"])
    assert conflater.held_position == 101  # the interval of a is over
    assert shown(conflater.advance(round(2.5 * SECOND))) == [("7|2|", b"2", 1.6, 101)]
    assert conflater.held_position == 103


def test_full_conflater_releases_the_oldest_entries_early_without_loss() -> None:
    conflater = Conflater(SECOND, bytes_max=4 * (conflation_entry_bytes + 200))
    bodies = [b"%3d" % i + bytes(97) for i in range(20)]
    found = shown(conflater.add(stream([1.0] * 20, bodies), [f"k{i}" for i in range(20)]))
    assert [body for _, body, _, _ in found] == bodies[:16]
    assert (len(conflater), conflater.released_early) == (4, 16)
    assert shown(conflater.shrink(conflater.held_bytes - 1))[0][1] == bodies[16]
    assert [body for _, body, _, _ in shown(conflater.flush())] == bodies[17:]


def test_message_larger_than_the_conflation_limit_is_delivered() -> None:
    conflater = Conflater(SECOND, bytes_max=2_000)
    found = shown(conflater.add(stream([1.0, 1.1, 1.2], [b"a", bytes(5_000), b"b"])))
    assert [(mark, len(body)) for mark, body, _, _ in found] == [("7|1|", 5_000)]
    assert shown(conflater.flush()) == [("7|3|", b"b", 1.2, 102)]


def test_conflation_keys_count_towards_held_bytes() -> None:
    conflater = Conflater(SECOND)
    conflater.add(stream([1.0, 1.0]), [("x" * 1_000, 1), "y" * 2_000])
    assert conflater.held_bytes > 2 * conflation_entry_bytes + 3_000


def test_conflated_batches_have_about_the_target_size() -> None:
    conflater = Conflater(SECOND)
    count = 600
    results = conflater.add(stream([1.0] * count, [bytes(1_000)] * count), list(range(count)))
    results += conflater.flush()
    assert all(batch.nbytes <= 1.1 * batch_bytes_target for batch, _, _ in results)
    assert len(results) == 5
    assert sum(batch.count for batch, _, _ in results) == count


def test_conflater_does_not_keep_log_batches_alive() -> None:
    conflater = Conflater(SECOND)
    selection = stream([1.0, 1.0], [b"a" * 100, b"b" * 100])
    assert selection.batch is not None
    memory = bytearray(selection.batch.encode())
    own = Selection(MessageBatch.parse(memory), None, 102, SECOND)
    conflater.add(own, ["a", "b"])
    del own
    memory.extend(b"x")  # raises while a view exists
    assert [body[:1] for _, body, _, _ in shown(conflater.flush())] == [b"a", b"b"]


def test_conflater_separates_topics_when_a_second_topic_appears_later() -> None:
    conflater = Conflater(SECOND)
    both = merge(
        [
            batch_from_bodies("u", [b"u1"], publisher=8, first_sequence=1, timestamp=SECOND),
            batch_from_bodies("t", [b"t2"], publisher=7, first_sequence=9, timestamp=SECOND),
        ]
    )
    for keys in (None, ["k", "k"]):
        conflater.add(stream([1.0]), keys and keys[:1])
        conflater.add(Selection(both, np.array([150, 160]), 161, SECOND), keys)
        assert shown(conflater.flush()) == [("7|1|", b"t2", 1.0, 100), ("8|1|", b"u1", 1.0, 150)]


def with_headers(seconds: Sequence[float], entries: Sequence[bytes]) -> Selection:
    """Messages like `stream`, with encoded headers."""
    plain = stream(seconds)
    assert plain.batch is not None
    return Selection(
        with_reserved(plain.batch, headers=entries), None, plain.end, round(seconds[-1] * SECOND)
    )


def test_conflated_message_has_the_headers_of_the_last_message() -> None:
    conflater = Conflater(SECOND)
    last = b"\x81\xa1n\x01"
    found = [
        *conflater.add(with_headers([10.0, 10.2, 11.5], [b"\x81\xa1n\x00", last, b""])),
        *conflater.flush(),
    ]
    assert [entry for result in found for entry in header_entries(result.batch)] == [last, b""]


def test_headers_count_as_held_bytes() -> None:
    held = []
    for size in (0, 300):
        conflater = Conflater(SECOND)
        conflater.add(with_headers([10.0], [bytes(size)]))
        held.append(conflater.held_bytes)
    assert held[1] - held[0] == 300
