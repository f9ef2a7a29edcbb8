"""Candidates of keys against the oracle: any order of arrival, stable horizons, columns, and loads."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers import sow_model
from tests.helpers.sow_model import Deleted, Expired, Message, Published, RankTuple, keys_of
from tests.simulation.sow_order_model import Records
from tickertape.engine.sow.state.candidates import (
    Candidates,
    DecisionKind,
    Rank,
    RowColumns,
    StateRow,
    deleted_wins,
    live_candidate,
    published_wins,
)

KEYS = (b"a", b"b")
LOGS = (b"1" * 16, b"2" * 16)

Operation = tuple[str, bytes, int, int, bytes, int, int]

operations = st.lists(
    st.tuples(
        st.sampled_from(("publish", "publish", "publish", "delete", "delete", "expire", "copy")),
        st.sampled_from(KEYS),
        st.integers(1, 3),  # publisher
        st.integers(0, 30),  # lead of its clock
        st.sampled_from(LOGS),
        st.integers(0, 6),  # number of messages that arrive earlier
        st.integers(0, 9),  # choice of an older message
    ),
    max_size=25,
)


def arrivals(of: list[Operation]) -> list[Message]:
    """Return messages in the order of their arrival. An expiry follows its message."""
    made: list[tuple[int, Message]] = []
    for number, (kind, key, publisher, ahead, log, late, choice) in enumerate(of):
        stamp, sequence = 10 * number + ahead, number + 1
        older = [(at, m) for at, m in made if isinstance(m, Published) and m.key == key]
        chosen = older[choice % len(older)] if older else None
        after = number + late
        message: Message
        if kind == "publish" or chosen is None:
            message = Published(key, publisher, sequence, stamp, log, {"n": number})
        elif kind == "delete":
            message = Deleted(publisher, sequence, stamp, log, {key: chosen[1].rank if choice else None})
        elif kind == "copy":
            message = chosen[1]._replace(stamp=stamp - 40, log=log)
        else:
            message = Expired(key, chosen[1].publisher, chosen[1].sequence)
            after = max(after, chosen[0])
        made.append((after, message))
    return [message for _, message in sorted(made, key=lambda pair: pair[0])]


def rank_of(message: Message, key: bytes) -> RankTuple | None:
    if isinstance(message, Expired):
        return None
    return message.rank if isinstance(message, Published) else message.named[key]


def decides(old: Message, later: Message) -> bool:
    """Return whether `old` must be known when `later` arrives, so it cannot be stable before."""
    if isinstance(old, Expired) or isinstance(later, Expired):
        return False
    for key in set(keys_of(old)) & set(keys_of(later)):
        known, new = rank_of(old, key), rank_of(later, key)
        if old.publisher == later.publisher and later.sequence <= old.sequence:
            return True
        if known is not None and new is not None and new <= known:
            return True
    return False


@given(operations)
@example([("publish", b"a", 2, 0, LOGS[0], 2, 0), ("delete", b"a", 1, 0, LOGS[0], 0, 1)])  # it arrives later
def test_records_equal_the_oracle_in_any_order_of_arrival_with_forgetting(
    of: list[Operation],
) -> None:
    rows = arrivals(of)
    needed = [  # the last row that must find each row
        max((m for m in range(f + 1, len(rows)) if decides(rows[f], rows[m])), default=f)
        for f in range(len(rows))
    ]
    records = Records()
    for position, message in enumerate(rows):
        for key in keys_of(message):
            records.enter(key, message, position)
        assert records.state() == sow_model.state(rows[: position + 1])
        stable = next((f for f, last in enumerate(needed) if last > position), len(rows))
        records.candidates.forget(stable)
        assert records.state() == sow_model.state(rows[: position + 1])
    records.candidates.forget(len(rows))
    assert not len(records.candidates)


@given(operations, st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_change_the_records(of: list[Operation], random: Random) -> None:
    rows = [message for message in arrivals(of) if not isinstance(message, Expired)]
    expected = sow_model.state(rows)
    random.shuffle(rows)
    records = Records()
    for position, message in enumerate(rows):
        for key in keys_of(message):
            records.enter(key, message, position)
    assert records.state() == expected


# -- one origin ---------------------------------------------------------------------------------------


def log_of_one_origin(of: list[Operation]) -> list[Message]:
    """Return the log of one instance: strictly rising stamps, and ranks named from its own records."""
    records, log = Records(), list[Message]()
    for number, (kind, key, publisher, _, _, _, _) in enumerate(of):
        current = records.current.get(key)
        message: Message
        if kind == "expire" and current is not None:
            message = Expired(key, current.publisher, current.sequence)
        elif kind == "delete":
            named = records.candidates.highest(key, current)
            message = Deleted(publisher, number + 1, number, LOGS[0], {key: named})
        else:
            message = Published(key, publisher, number + 1, number, LOGS[0], {"n": number})
        log.append(message)
        records.enter(key, message, number)
        records.candidates.forget(number + 1)
    return log


@given(operations, st.integers(0, 25), st.integers(0, 25), st.lists(st.integers(0, 25), min_size=2))
def test_load_of_records_copied_during_the_fold_is_exact_from_the_end_of_the_scan(
    of: list[Operation], low: int, high: int, copied: list[int]
) -> None:
    log = log_of_one_origin(of)
    first, last = sorted((min(low, len(log)), min(high, len(log))))
    records = Records()
    for key, at in zip(KEYS, copied, strict=False):
        at = min(max(at, first), last)
        found = sow_model.state_at(log, at).get(key)
        if found is not None:
            row = StateRow(log.index(found), found.publisher, found.sequence, found.stamp, found.log)
            records.current[key] = live_candidate(row, found)
            records.stream[key] = found
    for position in range(first, len(log) + 1):
        if position >= last:
            assert records.state() == sow_model.state_at(log, position)
        if position < len(log):
            for key in keys_of(log[position]):
                records.enter(key, log[position], position)
            records.candidates.forget(position + 1)
            assert not len(records.candidates)


@st.composite
def bookmarks(draw: st.DrawFn) -> StateRow:
    """Rows of one origin. A run has one publisher, so its number is a part of the stamp."""
    publisher = draw(st.integers(1, 3))
    return StateRow(0, publisher, draw(st.integers(1, 4)), 10 * draw(st.integers(0, 3)) + publisher, LOGS[0])


def columns(rows: list[StateRow]) -> RowColumns:
    return RowColumns(
        np.array([row.stamp for row in rows], np.int64),
        np.array([row.publisher for row in rows], np.uint64),
        np.array([row.sequence for row in rows], np.uint64),
    )


@given(st.lists(st.tuples(bookmarks(), bookmarks())))
def test_published_rows_by_columns_decide_like_single_rows(pairs: list[tuple[StateRow, StateRow]]) -> None:
    pairs = [(record if row[1:3] == record[1:3] else row, record) for row, record in pairs]  # no copies
    expected = [
        Candidates[bytes]().publish(b"k", row, b"", live_candidate(record, b"")).kind is DecisionKind.RECORD
        for row, record in pairs
    ]
    rows, records = columns([row for row, _ in pairs]), columns([record for _, record in pairs])
    assert published_wins(rows, records).tolist() == expected


@given(st.lists(st.tuples(bookmarks(), st.none() | bookmarks(), bookmarks())))
def test_deletes_by_columns_decide_like_single_rows(
    deletes: list[tuple[StateRow, StateRow | None, StateRow]],
) -> None:
    expected = []
    deletes = [
        (row._replace(sequence=5) if row[1:3] == record[1:3] else row, name, record)
        for row, name, record in deletes
    ]
    for row, name, record in deletes:
        rank = Rank(name.stamp, name.log, name.publisher, name.sequence) if name is not None else None
        decision = Candidates[bytes]().delete(b"k", row, rank, live_candidate(record, b""))
        expected.append(decision.kind is DecisionKind.REMOVED)
    none = StateRow(0, 0, 0, 0, LOGS[0])
    won = deleted_wins(
        columns([row for row, _, _ in deletes]),
        columns([name or none for _, name, _ in deletes]),
        columns([record for _, _, record in deletes]),
    )
    assert won.tolist() == expected
