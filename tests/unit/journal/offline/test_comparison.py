"""Comparison of two logs: differences, messages on the way, removed messages, damage."""

from __future__ import annotations

import pytest

from tests.helpers.compared_logs import SEGMENT_BYTES, AllMessages, ComparedJournal, Content
from tickertape.base.errors import JournalCorrupt
from tickertape.journal.format.segment import segment_path
from tickertape.journal.offline import comparison
from tickertape.journal.offline.comparison import LogComparison, MessageDifference, compare_logs
from tickertape.journal.offline.snapshot import Snapshot, take_snapshot
from tickertape.testing.disk import StrictDisk

A, B = 1, 2
FULL = Content(b"body", "orders", "key", "c-1", 60_000, b"\x81\xa1a\xa1b")


def pair() -> tuple[ComparedJournal, ComparedJournal]:
    return ComparedJournal(A), ComparedJournal(B)


def compared(a: ComparedJournal, b: ComparedJournal, *, unsynced: bool = True) -> LogComparison:
    done: list[float] = []
    result = compare_logs(a.disk, b.disk, AllMessages(), done.append, unsynced=unsynced)
    assert min(done, default=0) >= 0
    return result


def found(a: ComparedJournal, b: ComparedJournal) -> list[tuple[str, str | None, int, int, int]]:
    rows = compared(a, b).differences
    return [(one.kind, one.log, one.publisher, one.first, one.last) for one in rows]


def test_logs_with_other_orders_and_times_are_equal() -> None:
    a, b = pair()
    a.put_all([(7, 1), (7, 2), (8, 1), (7, 3), (8, 70_000)])
    b.put_all([(8, 1), (7, 3), (7, 1), (8, 70_000), (7, 2)])
    result = compared(a, b)
    assert result.equal
    assert (result.a.messages, result.a.publishers) == (result.b.messages, result.b.publishers) == (5, 2)
    assert (result.a.journal, result.b.journal) == (a.log.hex(), b.log.hex())


def test_missing_messages_are_found_in_ranges() -> None:
    a, b = pair()
    a.put_all([(7, one) for one in (1, 2, 3, 4, 9, 200_000)] + [(8, 1)])
    b.put_all([(7, one) for one in (1, 4, 200_000)] + [(9, 5)])
    assert found(a, b) == [
        ("missing", "B", 7, 2, 3),
        ("missing", "B", 7, 9, 9),
        ("missing", "B", 8, 1, 1),
        ("missing", "A", 9, 5, 5),
    ]


@pytest.mark.parametrize(
    "other",
    [
        FULL._replace(body=b"Body"),
        FULL._replace(body=b""),
        FULL._replace(topic="fills"),
        FULL._replace(key="Key"),
        FULL._replace(key=""),
        FULL._replace(correlation_id="c-2"),
        FULL._replace(correlation_id=""),
        FULL._replace(key="c-1", correlation_id="key"),
        FULL._replace(expiration_ms=60_001),
        FULL._replace(expiration_ms=0),
        FULL._replace(headers=b""),
    ],
    ids=str,
)
def test_each_part_of_the_content_counts(other: Content) -> None:
    a, b = pair()
    for sequence in range(1, 4):
        a.put(7, sequence, FULL)
        b.put(7, sequence, other if sequence == 2 else FULL)
    assert found(a, b) == [("different", None, 7, 2, 2)]


def test_contents_that_changed_places_are_different() -> None:
    a, b = pair()
    for log, bodies in ((a, b"12"), (b, b"21")):
        for sequence, number in enumerate(bodies, 1):
            log.put(7, sequence, Content(b"%d" % number))
    assert found(a, b) == [("different", None, 7, 1, 2)]


def test_repeated_message_is_found_in_each_log() -> None:
    a, b = pair()
    a.put_all([(7, 1), (7, 2), (7, 1)])
    b.put_all([(7, 1), (7, 2), (7, 2), (7, 2)])
    assert found(a, b) == [("repeated", "A", 7, 1, 1), ("repeated", "B", 7, 2, 2)]


def test_internal_topics_are_left_out_and_deletes_are_compared() -> None:
    a, b = pair()
    for log in (a, b):
        log.put(7, 1)
        log.put(7, 2, Content(b"delete", "$sow", kind=1))
    a.put(7, 3, Content(b"local", "$sow", kind=1))
    a.put(7, 4, Content(b"settled", "$queue", kind=1))
    a.begin_run(1)
    assert compared(a, b).equal
    b.put(8, 1, Content(b"delete", "$sow", kind=1))
    assert found(a, b) == [("missing", "A", 8, 1, 1)]


# -- on the way ---------------------------------------------------------------------------------------


def test_messages_behind_the_place_of_the_link_are_on_the_way() -> None:
    a, b = pair()
    a.begin_run(77)
    a.put_all([(7, 1), (7, 2), (7, 3), (7, 4)])
    b.put_all([(7, 1), (7, 2)])
    b.note_place(a.log, 77, 3)
    result = compared(a, b)
    assert result.equal
    assert (result.a.on_the_way, result.b.on_the_way) == (2, 0)
    b.note_place(a.log, 77, 4)
    result = compared(a, b)
    assert found(a, b) == [("missing", "B", 7, 3, 3)]
    assert (result.a.on_the_way, result.b.on_the_way) == (1, 0)


def test_place_behind_the_end_of_a_start_means_that_end() -> None:
    a, b = pair()
    a.begin_run(77)
    a.put_all([(7, 1), (7, 2)])
    a.begin_run(78)
    a.put_all([(7, 3)])
    b.put_all([(7, 1), (7, 2)])
    b.note_place(a.log, 77, 900)  # the log lost the end of this start
    result = compared(a, b)
    assert (result.differences, result.a.on_the_way) == ([], 1)


def test_place_of_an_unknown_start_does_not_count() -> None:
    a, b = pair()
    a.begin_run(77)
    a.put_all([(7, 1)])
    b.note_place(a.log, 99, 1)
    assert found(a, b) == [("missing", "B", 7, 1, 1)]


@pytest.mark.parametrize("back", [False, True], ids=["one-way", "two-way"])
def test_messages_sent_between_the_snapshots_are_no_difference(
    monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    a, b = pair()
    a.begin_run(77)
    b.begin_run(88)
    a.put_all([(7, 1)])
    b.put_all([(7, 1)])
    b.note_place(a.log, 77, a.end)
    if back:
        a.note_place(b.log, 88, b.end)
    waiting = [(7, 2)]

    def taken(disk: StrictDisk, *, unsynced: bool) -> Snapshot:
        if disk is b.disk and waiting:
            a.put(*waiting[0])
            b.put(*waiting.pop())
            b.note_place(a.log, 77, a.end)
        return take_snapshot(disk, unsynced=unsynced)

    monkeypatch.setattr(comparison, "take_snapshot", taken)
    result = compared(a, b)
    assert (result.differences, waiting) == ([], [])
    assert result.b.on_the_way == back


def test_copy_of_a_log_has_no_messages_on_the_way() -> None:
    a, copy = ComparedJournal(A), ComparedJournal(A)
    a.begin_run(77)
    a.note_place(a.log, 77, 0)
    a.put_all([(7, 1)])
    assert found(a, copy) == [("missing", "B", 7, 1, 1)]


# -- removed messages ---------------------------------------------------------------------------------


def test_removed_sequences_are_left_out_in_both_logs() -> None:
    a, b = pair()
    for log in (a, b):
        for sequence in range(1, 41):
            log.put(7, sequence, Content(b"x" * 500))
    highest = a.retire(2).highest.of(7)
    assert 0 < highest < 40
    result = compared(a, b)
    assert result.equal
    assert (result.a.removed, result.b.removed) == (0, highest)
    assert result.a.messages == result.b.messages == 40 - highest
    b.put(7, 41)
    assert found(a, b) == [("missing", "A", 7, 41, 41)]


def test_start_of_a_removed_segment_is_still_known() -> None:
    a, b = pair()
    a.begin_run(77)
    for sequence in range(1, 41):
        a.put(7, sequence, Content(b"x" * 500))
    assert a.retire(1).first_position > 1
    b.note_place(a.log, 77, a.end - 1)
    result = compared(a, b)
    assert result.a.on_the_way == 1
    assert [one.last for one in result.differences] == [39]


# -- size and damage ----------------------------------------------------------------------------------


def test_many_buckets_are_searched_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair()
    wrong = [(publisher, bucket << 16 | 5) for publisher in (7, 8) for bucket in range(5)]
    for publisher, sequence in wrong:
        a.put_all([(publisher, sequence), (publisher, sequence + 1)])
        b.put_all([(publisher, sequence)])
    whole = found(a, b)
    assert whole == [("missing", "B", publisher, one + 1, one + 1) for publisher, one in wrong]
    monkeypatch.setattr(comparison, "compared_messages_max", 7)
    assert found(a, b) == whole


def test_search_ends_after_many_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair()
    a.put_all([(7, bucket << 16 | 5) for bucket in range(6)])
    monkeypatch.setattr(comparison, "compared_messages_max", 1)
    monkeypatch.setattr(comparison, "compared_differences_max", 4)
    result = compared(a, b)
    assert (len(result.differences), result.more, result.equal) == (4, True, False)


def test_unsynced_messages_count_only_if_included() -> None:
    a, b = pair()
    a.put_all([(7, 1), (7, 2)])  # no later commit proves the second one
    b.put_all([(7, 1)])
    b.rest()
    assert compared(a, b, unsynced=False).equal
    assert compared(a, b).differences == [
        MessageDifference(kind="missing", log="B", publisher=7, first=2, last=2)
    ]


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20], ids=["sealed", "active"])
def test_damaged_log_is_refused(segment_bytes: int) -> None:
    a, b = (ComparedJournal(log, segment_bytes=segment_bytes) for log in (A, B))
    for log in (a, b):
        for sequence in range(1, 41):
            log.put(7, sequence, Content(b"x" * 500))
    handle = a.disk.open(segment_path(1), write=True)
    a.disk.write(handle, 1_000, [b"damage"])
    with pytest.raises(JournalCorrupt):
        compared(a, b)
