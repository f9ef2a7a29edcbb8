"""Guarantees of SOW topics in a simulation, checked against the records that the log gives.

Must never share code with the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import tickertape as tt
from tests.helpers.sow_model import Published, query
from tests.world.sow_log import (
    DELETED,
    EXPIRING,
    PARTS,
    PATTERN,
    SOW,
    Fields,
    History,
    Identity,
    Row,
    State,
    fields_of,
    identity_of,
    merged,
    removal_of,
    removed_by,
    sow_of,
)
from tests.world.sow_publisher import Change, SowPublisher
from tests.world.sow_reader import SELECTED, WHOLE, Answer, Query, Result, SowReader
from tickertape.base.names import publisher_id

NO_COUNTS: Final = tt.DeleteResult(None, None, None)
ORDERS: Final = {"none": (), "values": (("v", False),), "texts descending": (("t", True), ("v", False))}
FILTERS: Final[dict[str, Callable[[Mapping[str, Any]], bool]]] = {
    "/even = true": lambda fields: fields.get("even") is True,
    "/n > 9": lambda fields: fields["n"] > 9,
    "/id < 3": lambda fields: fields["id"] < 3,
}


def changes(publishers: Sequence[SowPublisher], histories: Sequence[History], *, one: bool) -> None:
    """Check that each change is in a log once, in the order of its publisher, with its effect.

    `one`: only one server was ever used, so its log has each acknowledged change.
    """
    there: set[int] = set()
    for history in histories:
        _check_log(publishers, history, there, one=one)
    removals = {
        (row.name[1], row.position, removal_of(row).counts[2])
        for history in histories
        for row in history.rows
        if row.topic == SOW and removal_of(row).kind == DELETED
    }
    for publisher in publishers:
        for change in publisher.changes:
            result = change.result
            if change.sequence is not None and result is not None and result.position is not None:
                answer = (change.sequence, result.position, result.records)
                assert answer in removals, f"{publisher.name}: the answer is true in no log: {change}"
            if change.acknowledged is not None:
                assert id(change) in there, f"{publisher.name}: lost, though acknowledged: {change}"
            if not change.perhaps:
                assert id(change) in there, f"{publisher.name}: lost, though accepted: {change}"


def _check_log(publishers: Sequence[SowPublisher], history: History, there: set[int], *, one: bool) -> None:
    made = {
        (publisher.name, change.fields["n"]): change
        for publisher in publishers
        for change in publisher.changes
        if change.fields is not None and "n" in change.fields
    }
    names = {publisher_id(publisher.name): publisher.name for publisher in publishers}
    names |= {
        row.name[0]: fields_of(row)["by"] for row in history.rows if not row.topic.startswith("$")
    }  # servers number the messages of a publisher without a store, under another id
    found: dict[str, list[tuple[Row, Change | None, frozenset[Identity], State]]] = {}
    once: set[int] = set()
    for row, state in history.states():
        if row.topic == SOW:
            removal = removal_of(row)
            removed = frozenset(removed_by(state, row))
            if removal.kind != DELETED:
                _check_expiry(state, removed)
            elif row.name[0] not in names:
                there |= {id(c) for p in publishers if not p.stored for c in p.changes if c.deletes}
            else:
                found.setdefault(names[row.name[0]], []).append((row, None, removed, dict(state)))
            continue
        if row.topic.startswith("$"):
            continue
        fields = fields_of(row)
        change = made.get((fields["by"], fields["n"]))
        assert change is not None, f"position {row.position}: a message that was never published"
        assert id(change) not in once, f"position {row.position}: {change} is in the log twice"
        once.add(id(change))
        _check_upsert(row, fields, change, state)
        found.setdefault(fields["by"], []).append((row, change, frozenset(), {}))
    there |= once
    for publisher in publishers:
        _check_order(publisher, found.get(publisher.name, []), there, history.removed_below, one=one)


def _check_expiry(state: State, removed: Iterable[Identity]) -> None:
    for one in removed:
        assert one[0] == EXPIRING, f"{one} expired"
        assert state[one].life != 0, f"{one} expired without a lifetime"


def _check_upsert(row: Row, fields: Fields, change: Change, state: State) -> None:
    assert change.fields is not None
    assert (row.topic, row.key) == (change.topic, change.key), f"{row} of {change}"
    expected = change.fields
    if change.how == "delta":
        old = state.get(identity_of(row))
        expected = change.fields if old is None else merged(fields_of(old), change.fields)
    assert fields == expected, f"position {row.position}: {change.how} gives {fields}, not {expected}"


def _check_order(
    publisher: SowPublisher,
    rows: Sequence[tuple[Row, Change | None, frozenset[Identity], State]],
    there: set[int],
    removed_below: int,
    *,
    one: bool,
) -> None:
    """Match the rows of a publisher with its changes in their order, and the deletes with their effect.

    The answer to a delete that was sent again has no counts, if retention had removed the delete. With
    several servers, a delete that was answered by one can also be in the log of another.
    """
    place = {id(change): number for number, change in enumerate(publisher.changes)}
    last = -1
    for number, (row, change, removed, state) in enumerate(rows):
        if change is not None:
            assert place[id(change)] > last, f"{publisher.name}: {change} is not in its order"
            last = place[id(change)]
            continue
        later = next((place[id(c)] for _, c, _, _ in rows[number + 1 :] if c is not None), None)
        fits = [
            at
            for at, change in enumerate(publisher.changes[:later])
            if at > last
            and change.deletes
            and _fits(change, row, removed, state)
            and (
                _answered(change, row)
                or (row.position < removed_below and change.result == NO_COUNTS)
                or (not one and _answered_elsewhere(change, row))
            )
        ]
        label = f"{publisher.name}: position {row.position} removes {sorted(map(str, removed))}"
        assert fits, f"{label}, between changes {last} and {later}: {publisher.changes[last + 1 : later]}"
        sure = [at for at in fits if publisher.changes[at].sequence == row.name[1]]
        last = (sure or fits)[0]
        there.update(id(publisher.changes[at]) for at in sure or fits)


def _fits(change: Change, row: Row, removed: frozenset[Identity], state: State) -> bool:
    """Return whether a row is this delete, executed at the place of the row."""
    removal = removal_of(row)
    if removal.topic != sow_of(change.topic):
        return False
    if change.sequence is not None and change.sequence != row.name[1]:
        return False
    if removal.counts[2] != len(removed):
        return False
    return removed == _selected(change, state)


def _answered(change: Change, row: Row) -> bool:
    """Return whether the answer to a delete has the count of its row in the log."""
    return change.result is None or change.result.records == removal_of(row).counts[2]


def _answered_elsewhere(change: Change, row: Row) -> bool:
    """Return whether the answer to a delete names another position, as the answer from another log does."""
    return change.result is not None and change.result.position not in (None, row.position)


def _selected(change: Change, state: State) -> frozenset[Identity]:
    """Return the records that a delete selects."""
    if change.filter is None:
        return change.ids & state.keys()
    passes = FILTERS[change.filter]
    return frozenset(
        one for one, row in state.items() if _within(one[0], change.topic) and passes(fields_of(row))
    )


def _within(topic: str, asked: str) -> bool:
    """Return whether a topic belongs to the topic of a query or delete.

    The name of a SOW topic with a pattern selects all its topics.
    """
    return topic in ((PATTERN, *PARTS) if asked in (WHOLE, PATTERN) else (asked,))


# -- queries --------------------------------------------------------------------------------------------


def queries(
    readers: Sequence[SowReader],
    history: History,
    publishers: Sequence[SowPublisher],
    counts: Counter[str],
    *,
    one: bool,
) -> None:
    """Check that each result has the records of the log at its position, and the messages after them."""
    found = _results(readers)
    places = [history.after(result.as_of) for _, result in found]
    ends = [None if place is None else history.next_message(place) for place in places]
    states = history.states_at(
        at for place, end in zip(places, ends, strict=True) for at in _range(place, end)
    )
    known = _acknowledged(publishers, history) if one else []
    for (asked, result), place, end in zip(found, places, ends, strict=True):
        label = f"{asked.options} {asked.topic} as of {result.as_of}"
        assert place is not None, f"{label}: the log does not have this message"
        assert not result.unpersisted, f"{label}: the position was not persisted"
        first = max((position + 1 for moment, position in known if moment < result.asked), default=0)
        # A bookmark names no place among the deletes and expiries after its message.
        allowed = [at for at in _range(place, end) if at >= first]
        assert allowed, f"{label}: position {first - 1} was acknowledged before"
        wrong = [_records_differ(asked, result, states[at], label) for at in allowed]
        assert None in wrong, f"of positions {allowed}: {wrong[0]}"
        _check_messages(asked, result, history, place, label)
        counts["results judged"] += result.whole
        counts["messages after results judged"] += len(result.messages)


def _range(place: int | None, end: int | None) -> range:
    return range(0) if place is None or end is None else range(place, end + 1)


def _results(readers: Iterable[SowReader]) -> list[tuple[Query, Result]]:
    return [
        (asked, result)
        for reader in readers
        for asked in reader.queries
        for result in asked.results
        if result.as_of
    ]


def _acknowledged(publishers: Sequence[SowPublisher], history: History) -> list[tuple[int, int]]:
    """Return number of the acknowledgement and position of each change with a known position."""
    names = {publisher_id(publisher.name): publisher for publisher in publishers}
    moments = {
        (publisher.name, change.sequence): change.acknowledged
        for publisher in publishers
        for change in publisher.changes
        if change.acknowledged is not None and change.sequence is not None
    }
    return [
        (moment, row.position)
        for row in history.rows
        if row.name[0] in names
        if (moment := moments.get((names[row.name[0]].name, row.name[1]))) is not None
    ]


def _records_differ(asked: Query, result: Result, state: State, label: str) -> str | None:
    """Return the first difference of a result to the records of a state, or None."""
    found = {
        str(one).encode(): Published(str(one).encode(), *row.name, row.position, b"", fields_of(row))
        for one, row in state.items()
        if _covers(asked, row) and (asked.ids is None or one in asked.ids)
    }
    passes = _passes(asked)
    expected = query(found, passes, ORDERS[asked.options["order"]], asked.top, asked.skip)
    names = [f"{one.publisher}|{one.sequence}|" for one in expected]
    seen = [one.bookmark for one in result.records]
    if seen != (names if result.whole else names[: len(seen)]):
        return f"{label}: records {seen} of {names}"
    matches = sum(passes(one.body) for one in found.values())
    if result.whole and result.matches not in (None, matches):
        return f"{label}: {result.matches} matches, not {matches}"
    for answer, record in zip(result.records, expected, strict=False):
        _check_fields(asked, answer, record.body, label)
    return None


def _check_fields(asked: Query, answer: Answer, body: Mapping[str, Any], label: str) -> None:
    whole = asked.options["select"] == "all"
    wanted = body if whole else {name: body[name] for name in SELECTED}
    assert answer.fields == wanted, f"{label}: {answer.fields}, not {wanted}"


def _check_messages(asked: Query, result: Result, history: History, place: int, label: str) -> None:
    expected = following(asked, history, place)
    seen = [one.bookmark for one in result.messages]
    names = [row.bookmark for row in expected]
    assert seen == names[: len(seen)], f"{label}: messages {seen} start {names[: len(seen) + 1]}"
    for answer, row in zip(result.messages, expected, strict=False):
        assert answer.topic == row.topic, label
        _check_fields(asked, answer, fields_of(row), label)
    if asked.follows and asked.results[-1] is result:
        assert result.whole, f"{label}: the last result is not complete"
        assert len(seen) == len(names), f"{label}: {len(seen)} of {len(names)} messages"


def following(asked: Query, history: History, place: int) -> list[Row]:
    """Return the messages from a position on that a query covers."""
    passes = _passes(asked)
    return [row for row in history.rows[place:] if _covers(asked, row) and passes(fields_of(row))]


def has_all(asked: Query, history: History) -> bool:
    """Return whether a following query has all messages."""
    if not asked.results or not asked.results[-1].whole:
        return False
    last = asked.results[-1]
    place = history.after(last.as_of)
    return place is not None and len(last.messages) >= len(following(asked, history, place))


def _covers(asked: Query, row: Row) -> bool:
    return _within(row.topic, asked.topic)


def _passes(asked: Query) -> Any:
    return (lambda _: True) if asked.options["filter"] == "none" else FILTERS["/even = true"]


def records(stored: Mapping[str, Sequence[bytes]], history: History, label: str) -> None:
    """Check the bodies of the records of each SOW topic of a server that has folded the whole log."""
    state = history.states_at(())[history.end]
    for topic, bodies in stored.items():
        expected = sorted(row.body for one, row in state.items() if sow_of(one[0]) == topic)
        assert sorted(bodies) == expected, f"{label}: {topic} has {len(bodies)} records, not {len(expected)}"
