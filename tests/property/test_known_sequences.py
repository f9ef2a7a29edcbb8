"""Known sequences against sets of integers: any program of holes, fills and resends has exact answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.sequence_sets import SequenceSets
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.journal.format.replication_records import encode_record, holes

U8 = np.uint64
END = 60


class Step(NamedTuple):
    """A hole up to `last`, or a batch with each `stride`-th sequence from `first` to `last`."""

    action: str
    publisher: int
    first: int
    last: int
    stride: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(("proven", "unproven", "client", "client", "link", "link", "restore")),
        st.integers(1, 3),
        st.integers(1, END),
        st.integers(1, END),
        st.integers(1, 4),
    ),
    max_size=25,
)


def publish(known: KnownSequences, oracle: SequenceSets, step: Step, *, from_link: bool) -> None:
    publisher = step.publisher
    sequences = list(range(step.first, max(step.first, step.last) + 1, step.stride))
    wanted = [s for s in sequences if oracle.admits(publisher, s, from_link=from_link)]
    array = np.array(sequences, U8)
    split = known.split(publisher, array, from_link=from_link)
    late = array[split.late]
    above = array[split.above :]
    assert late.tolist() + above.tolist() == wanted
    assert split.duplicates == len(sequences) - len(wanted)
    assert all(s <= oracle.highest.get(publisher, 0) for s in late.tolist())
    if len(late):
        known.fill(publisher, late)
        oracle.store(publisher, late.tolist())
    if len(above):
        known._highest[publisher] = int(above[-1])
        oracle.store(publisher, above.tolist())


@given(STEPS, st.sampled_from((2, 5, 100)), st.sampled_from((3, 7, 1_000)))
def test_filter_equals_sets_of_integers(steps: list[Step], each_max: int, total_max: int) -> None:
    highest: dict[int, int] = {}
    known = KnownSequences(highest, per_publisher_max=each_max, total_max=total_max)
    oracle = SequenceSets(each_max, total_max)
    for position, step in enumerate(steps, 100):
        if step.action in ("client", "link"):
            publish(known, oracle, step, from_link=step.action == "link")
        elif step.action == "restore":
            records = oracle.all_ranges()
            highest = dict(highest)
            known = KnownSequences(highest, per_publisher_max=each_max, total_max=total_max)
            bodies = {}
            for publisher in sorted(records, reverse=True):
                record = holes(publisher, oracle.highest[publisher], records[publisher])
                bodies[record.latest_of] = encode_record(record)
            assert known.recover(bodies, []) == bool(records)
            known.take_changed()
            oracle.changed.clear()
            oracle.closed.clear()
        else:
            proven = step.action == "proven"
            known.open(step.publisher, step.last, position, proven=proven)
            oracle.open(step.publisher, step.last, position, proven=proven)
        assert highest == oracle.highest
        ranges = oracle.all_ranges()
        assert {publisher: known.holes(publisher) for publisher in (1, 2, 3) if publisher in known} == ranges
        assert known.count == sum(map(len, ranges.values()))
        assert [known.holes_of(publisher) for publisher in (1, 2, 3)] == [
            len(ranges.get(publisher, ())) for publisher in (1, 2, 3)
        ]
        for publisher in (1, 2, 3):
            received = END // 3 * (position % 2)
            admitted = known.admitted(publisher, np.arange(1, END + 2, dtype=U8), received).tolist()
            assert admitted == [
                s > received and oracle.admits(publisher, s, from_link=False) for s in range(1, END + 2)
            ]
            assert known.highest(publisher) == oracle.highest.get(publisher, 0)
        assert [tuple(hole) for hole in known.take_closed()] == oracle.closed
        assert set(known.take_changed()) == oracle.changed
        oracle.closed.clear()
        oracle.changed.clear()
