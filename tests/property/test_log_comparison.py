"""Comparison of two random logs against dicts of their messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.compared_logs import AllMessages, ComparedJournal, Content
from tickertape.journal.offline.comparison import compare_logs

Key = tuple[int, int]
KEYS = st.tuples(st.sampled_from((7, 8)), st.sampled_from((1, 2, 3, 65_535, 65_536, 65_537, 2**40)))
CONTENTS = st.sampled_from((Content(b"a"), Content(b"b"), Content(b"a", key="k"), Content(b"a", topic="t")))
LOGS = st.dictionaries(KEYS, CONTENTS, max_size=12)


def written(number: int, messages: dict[Key, Content]) -> ComparedJournal:
    log = ComparedJournal(number)
    for (publisher, sequence), content in messages.items():
        log.put(publisher, sequence, content)
    return log


@given(LOGS, LOGS, st.data())
def test_comparison_finds_exactly_the_differences(
    first: dict[Key, Content], second: dict[Key, Content], data: st.DataObject
) -> None:
    common = data.draw(LOGS)
    a, b = {**common, **first}, {**second, **common}
    order = data.draw(st.permutations([*b]))
    result = compare_logs(
        written(1, a).disk,
        written(2, {key: b[key] for key in order}).disk,
        AllMessages(),
        float,
        unsynced=True,
    )
    found = [
        (one.kind, one.log, (one.publisher, sequence))
        for one in result.differences
        for sequence in range(one.first, one.last + 1)
    ]
    expected: list[tuple[str, str | None, Key]] = [("missing", "B", key) for key in a.keys() - b.keys()]
    expected += [("missing", "A", key) for key in b.keys() - a.keys()]
    expected += [("different", None, key) for key in a.keys() & b.keys() if a[key] != b[key]]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert (result.equal, result.more) == (not expected, False)
