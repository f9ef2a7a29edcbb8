"""Conflation against a model that processes one message at a time.

The result does not depend on the batches of the stream. Only replaced messages are missing. A subscriber that
resumes at a received bookmark misses no message.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from sys import getsizeof
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tickertape.batch import BatchBuilder, MessageBatch, merge
from tickertape.engine.conflation.conflater import ConflatedMessage, Conflater
from tickertape.engine.limits import conflation_entry_bytes
from tickertape.engine.log_reads.selection import Selection

Out = tuple[Any, ...]
_INTERVAL = 1_000


@dataclass(frozen=True)
class InputMessage:
    """One message of the stream."""

    position: int
    publisher: int
    sequence: int
    stamp: int
    topic: str
    key: Any
    body: bytes
    expiration_ms: int
    correlation_id: str
    label: str

    @property
    def size(self) -> int:
        return len(self.body) + len(self.correlation_id) + len(self.label)


@dataclass
class Group:
    """One conflated group of the model."""

    first: InputMessage
    last: InputMessage

    def out(self) -> Out:
        f, n = self.first, self.last
        labels = (n.expiration_ms or None, n.correlation_id or None, n.label or None)
        return (f.position, f.stamp, f.publisher, f.sequence, f.topic, n.body, n.stamp, *labels)


class Model:
    """Open groups in a list, oldest first."""

    def __init__(self, *, by_key: bool, bytes_max: int = 1 << 40) -> None:
        self.by_key = by_key
        self.bytes_max = bytes_max
        self.open: list[Group] = []
        self.over: list[Group] = []

    def hear(self, message: InputMessage) -> None:
        self.clock(message.stamp)
        for group in self.open:
            if group.first.topic == message.topic and (
                not self.by_key or (message.key is not None and group.first.key == message.key)
            ):
                group.last = message
                break
        else:
            self.open.append(Group(message, message))
        while sum(map(self.weight, self.open)) > self.bytes_max:
            self.over.append(self.open.pop(0))

    def weight(self, group: Group) -> int:
        key = group.first.key
        if not self.by_key:
            key = "the whole topic"
        elif key is None:
            key = object()
        parts = sum(map(getsizeof, key)) if isinstance(key, tuple) else 0
        return conflation_entry_bytes + getsizeof(key) + parts + group.last.size

    def clock(self, time: int) -> None:
        while self.open and self.open[0].first.stamp + _INTERVAL <= time:
            self.over.append(self.open.pop(0))

    def flush(self) -> None:
        self.over += self.open
        self.open = []


def selection_of(stream: list[InputMessage], gaps: bool) -> Selection:
    one_by_one = []
    for told in stream:
        builder = BatchBuilder()
        builder.add(
            told.topic,
            told.body,
            expiration_ms=told.expiration_ms,
            correlation_id=told.correlation_id,
            key=told.label,
            sequence=told.sequence,
        )
        one_by_one.append(builder.build(told.publisher, 0, told.stamp))
    positions = np.array([told.position for told in stream]) if gaps else None
    return Selection(merge(one_by_one), positions, stream[-1].position + 1, stream[-1].stamp)


def outs(results: list[ConflatedMessage]) -> list[Out]:
    found: list[Out] = []
    for batch, positions, stamps in results:
        batch.verify()
        assert MessageBatch.parse(batch.encode()).encode() == batch.encode()
        for i in range(batch.count):
            bookmark = (batch.publisher(i), batch.sequence(i), batch.topic(i))
            last = (batch.body(i), batch.timestamp(i), batch.expiration(i))
            labels = (batch.correlation_id(i), batch.key(i))
            found.append((int(positions[i]), int(stamps[i]), *bookmark, *last, *labels))
    return found


@st.composite
def streams(draw: st.DrawFn) -> list[InputMessage]:
    gaps = draw(st.booleans())
    keys = draw(st.sampled_from([("a",), ("a", "b", None), (("a", 1), ("a", 2), "c", 7, None)]))
    topics = draw(st.sampled_from([("t",), ("t", "u")]))
    steps = draw(st.sampled_from([(0,), (0, 0, 1, 300), (10, 999, 1_000, 1_001), (0, 5_000)]))
    position, stamp = 3, draw(st.sampled_from([0, 10**15]))
    sequences = {1: 5, 2: 2**64 - 500}
    stream: list[InputMessage] = []
    for chance in draw(st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=40)):
        rest = chance

        def one_of(*values: Any) -> Any:
            nonlocal rest
            rest, index = divmod(rest, len(values))
            return values[index]

        key, stamp, topic = one_of(*keys), stamp + one_of(*steps), one_of(*topics)
        publisher = one_of(1, 2)
        sequences[publisher] += one_of(1, 2, 3) if gaps else 1
        position += one_of(1, 3) if gaps else 1
        body = b"%d" % len(stream) + bytes(one_of(0, 0, 50))
        own = (topic, key, body, one_of(0, 0, 9), one_of("", "", "id"), one_of("", "label"))
        stream.append(InputMessage(position, publisher, sequences[publisher], stamp, *own))
    return stream


_cuts = st.lists(st.integers(1, 30), min_size=1, max_size=5)


def conflated(
    stream: list[InputMessage], cuts: list[int], model: Model, late: list[int] | None = None
) -> tuple[list[Out], Conflater]:
    """Conflate `stream` in parts of `cuts`, with occasional clock updates, and do the same in the model."""
    conflater = Conflater(_INTERVAL, model.bytes_max)
    gaps = any(b.position - a.position > 1 for a, b in pairwise(stream))
    found: list[Out] = []
    at = turn = 0
    while at < len(stream):
        part = stream[at : at + cuts[turn % len(cuts)]]
        keys = [told.key for told in part] if model.by_key else None
        found += outs(conflater.add(selection_of(part, gaps), keys))
        for told in part:
            model.hear(told)
        at, turn = at + len(part), turn + 1
        if late is not None and at < len(stream):
            time = part[-1].stamp + (stream[at].stamp - part[-1].stamp) * late[turn % len(late)] // 4
            found += outs(conflater.advance(time))
            model.clock(time)
        assert found == [group.out() for group in model.over]
        assert conflater.held_bytes == sum(map(model.weight, model.open))
        assert conflater.held_position == (model.open[0].first.position if model.open else None)
        assert conflater.next_time() == (model.open[0].first.stamp + _INTERVAL if model.open else None)
    return found, conflater


@given(streams(), _cuts, st.booleans(), st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_conflater_with_any_batches_gives_the_result_of_the_model(
    stream: list[InputMessage], cuts: list[int], by_key: bool, late: list[int]
) -> None:
    model, other = Model(by_key=by_key), Model(by_key=by_key)
    found, conflater = conflated(stream, cuts, model, late)
    found += outs(conflater.flush())
    model.flush()
    assert found == [group.out() for group in model.over]
    assert (conflater.held_bytes, len(conflater), conflater.next_time()) == (0, 0, None)
    at_once, conflater = conflated(stream, [len(stream)], other)
    assert at_once + outs(conflater.flush()) == found


@given(streams(), _cuts, st.booleans(), st.sampled_from([600, 1_300, 2_500, 6_000]))
def test_conflater_above_the_memory_limit_sends_the_oldest_groups_early(
    stream: list[InputMessage], cuts: list[int], by_key: bool, bytes_max: int
) -> None:
    model = Model(by_key=by_key, bytes_max=bytes_max)
    found, conflater = conflated(stream, cuts, model)
    assert conflater.held_bytes <= bytes_max
    model.flush()
    assert found + outs(conflater.flush()) == [group.out() for group in model.over]


def is_known(message: InputMessage, delivered: list[Out], by_key: dict[bytes, Any]) -> bool:
    """Return whether `message` was delivered, or one of its key that replaced it within the interval."""
    return any(
        out[5] == message.body
        or (
            message.key is not None
            and by_key[out[5]] == message.key
            and out[4] == message.topic
            and 0 <= out[6] - message.stamp < _INTERVAL
            and int(out[5].rstrip(b"\0")) > int(message.body.rstrip(b"\0"))
        )
        for out in delivered
    )


@given(streams(), _cuts, st.sampled_from([700, 1 << 40]), st.data())
def test_conflated_subscriber_resuming_at_a_received_bookmark_misses_no_key(
    stream: list[InputMessage], cuts: list[int], bytes_max: int, data: st.DataObject
) -> None:
    model = Model(by_key=True, bytes_max=bytes_max)
    found, conflater = conflated(stream, cuts, model)
    found += outs(conflater.flush())
    keys = {told.body: told.key for told in stream}
    assert all(is_known(told, found, keys) for told in stream)
    stop = data.draw(st.integers(1, len(found)))
    had, bookmark = found[:stop], found[stop - 1][2:4]
    at = next(i for i, told in enumerate(stream) if (told.publisher, told.sequence) == bookmark)
    rest = stream[at + 1 :]
    again: list[Out] = []
    if rest:
        again, later = conflated(rest, cuts, Model(by_key=True, bytes_max=bytes_max))
        again += outs(later.flush())
    assert all(is_known(told, had + again, keys) for told in stream)
    assert [out[0] for out in found] == sorted({out[0] for out in found})
