"""Selections of one topic from log parts against a selection message by message."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tickertape.batch import BatchBuilder, MessageBatch, merge
from tickertape.engine.log_reads.selection import Selection, selections
from tickertape.engine.matching.interest import Interest
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.log_view import LogPart

Row = tuple[int, str, bytes, int]


def _batch(rng: Random, topics: list[str], first: int, count: int, stamp: int) -> MessageBatch:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(rng.choice(topics), rng.randbytes(rng.choice((0, 3, 200))), kind=int(rng.random() < 0.1))
    return builder.build(7, first, stamp)


def _parts(rng: Random, topics: list[str]) -> tuple[list[LogPart], list[Row]]:
    parts: list[LogPart] = []
    rows: list[Row] = []
    position = 1000
    for number in range(rng.randrange(1, 12)):
        runs = [
            _batch(rng, topics, 10_000 * number + 100 * i + 1, rng.choice((1, 1, 2, 30)), number)
            for i in range(3)
        ]
        batch = merge(runs)
        kinds = batch.kinds
        rows.extend(
            (position + i, batch.topic(i), batch.body(i), batch.timestamp(i))
            for i in range(batch.count)
            if kinds is None or not kinds[i]
        )
        parts.append(LogPart(position, batch))
        position += batch.count
    return parts, rows


@pytest.mark.parametrize("seed", parts(60, 20))
def test_selections_contain_every_message_of_the_topic_with_positions(seed: int) -> None:
    rng = Random(seed)
    parts, rows = _parts(rng, ["a", "b", "c"][: rng.randrange(1, 4)])
    wanted = [row for row in rows if row[1] == "a"]
    found: list[Row] = []
    ends = []
    for one in selections(parts, Interest("a")):
        ends.append(one.end)
        for i in range(one.count):
            assert one.batch is not None
            found.append((one.position(i), "a", one.batch.body(i), one.batch.timestamp(i)))
        assert one.position(one.count) == one.end
        _check_lookups(one)
    assert found == wanted
    assert ends == sorted(ends)
    assert ends[-1] == parts[-1].end_position


def _check_lookups(one: Selection) -> None:
    positions = [one.position(i) for i in range(one.count)]
    for position in {one.end - 500, *positions, *(p + 1 for p in positions), one.end}:
        assert one.index_at(position) == sum(p < position for p in positions)
    for stamp in range(13):
        stamps = [] if one.batch is None else one.batch.timestamps.tolist()
        assert one.index_stamped(stamp) == sum(s < stamp for s in stamps)


def test_selections_merge_small_commits_and_keep_large_ones() -> None:
    small = [LogPart(i, _batch(Random(i), ["a"], i + 1, 1, 0)) for i in range(2000)]
    put = selections(small, Interest("a"))
    assert len(put) < 10
    assert all(one.batch is None or one.batch.nbytes < 2 * read_bytes_target for one in put)
    builder = BatchBuilder()
    builder.add("a", bytes(read_bytes_target))
    large = builder.build(1, 1, 0)
    assert [one.batch for one in selections([LogPart(0, large), LogPart(1, large)], Interest("a"))] == [
        large,
        large,
    ]
