"""Message expiry against a dictionary of messages, with storing and restoring in between."""

from __future__ import annotations

from copy import deepcopy
from heapq import heappop
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from tickertape.engine.queues.state.expiry import Expiry, ExpirySnapshot
from tickertape.engine.queues.state.position_set_format import encode_set
from tickertape.engine.runtime.queue_definition import EXPIRATION_MODELS, ExpirationModel

MS = 1_000
S = 1_000_000


def enter(
    expiry: Expiry, positions: list[int], timestamps: list[int], lives: list[int] | None = None
) -> None:
    expirations = None if lives is None else np.array(lives, np.int64)
    expiry.enter(np.array(positions, np.int64), np.array(timestamps, np.int64), expirations)


def end_of(seconds: float | None, model: ExpirationModel, timestamp: int, life: int) -> int | None:
    queue = None if seconds is None else timestamp + round(seconds * S)
    own = timestamp + life * MS if life and model != "queue" else None
    if own is None or queue is None:
        return queue if own is None else own
    return own if model == "message" else min(own, queue)


@pytest.mark.parametrize(
    ("model", "ends"),
    [("minimum", [500, 2000, 2000]), ("message", [500, 5000, 2000]), ("queue", [2000, 2000, 2000])],
)
def test_expiration_model_decides_between_queue_and_message_time(
    model: ExpirationModel, ends: list[int]
) -> None:
    expiry = Expiry(2.0, model)
    enter(expiry, [10, 11, 12], [0, 0, 0], [500, 5000, 0])
    for position, end in sorted(zip([10, 11, 12], ends, strict=True), key=lambda pair: pair[1]):
        asked = deepcopy(expiry)
        assert position not in asked.overdue(BitMap64([10, 11, 12]), end * MS - 1)
        assert position in asked.overdue(BitMap64([10, 11, 12]), end * MS)
        assert asked.next_due() == min(ends) * MS, "expired messages were not returned yet"
    assert expiry.next_due() == min(ends) * MS
    for at in (500, 2000, 5000):
        assert not expiry.due(at * MS - 1)
        assert list(expiry.due(at * MS)) == [10 + i for i, end in enumerate(ends) if end == at]
    assert expiry.next_due() is None


def test_expiry_is_active_only_when_messages_can_expire() -> None:
    assert Expiry(1.0, "queue").active
    assert Expiry(None, "minimum").active
    assert Expiry(None, "message").active
    assert not Expiry(None, "queue").active


def test_messages_reported_as_due_remain_overdue() -> None:
    for model in EXPIRATION_MODELS:
        expiry = Expiry(1.0, model)
        enter(expiry, [5, 6], [0, 0], [100, 0])
        given_out = expiry.due(3 * S)
        assert list(given_out) == [5, 6]
        enter(expiry, [7, 8], [3 * S, 3 * S])
        assert list(expiry.overdue(BitMap64([5, 6, 7, 8]), 3 * S)) == [5, 6]
        expiry.forget_below(6)
        assert list(expiry.overdue(BitMap64([6, 7, 8]), 3 * S)) == [6]


def test_message_with_a_maximal_expiration_never_expires() -> None:
    expiry = Expiry(None, "message")
    enter(expiry, [1], [10**15], [2**63 - 1])
    assert not expiry.due(10**17)


def test_expiry_state_of_removed_messages_is_dropped() -> None:
    """The oldest message stays in the queue. `keep` or `forget_below` drops the settled ones."""
    for by_keep in (True, False):
        expiry = Expiry(3600.0, "message")
        enter(expiry, [0], [0], [10**9])
        for i in range(1, 2000):
            enter(expiry, [2 * i, 2 * i + 1], [i, i], [0, 50_000 + i])
            if by_keep and i % 100 == 0:
                expiry.keep(BitMap64([0]))
            elif not by_keep:
                expiry.forget_below(2 * i)
        assert len(expiry._steps) <= 101
        assert expiry._held <= 300
        assert len(expiry._times) == len(expiry._lives) <= 300
        assert expiry.next_due() is not None


def test_expiry_state_of_due_messages_is_dropped() -> None:
    expiry = Expiry(1.0, "minimum")
    for i in range(3000):
        enter(expiry, [2 * i, 2 * i + 1], [i * S, i * S], [0, 500])
        expiry.due(i * S)
    assert len(expiry._steps) <= 2
    assert len(expiry._lives) <= 2
    assert len(expiry._pending) <= 2
    assert len(expiry._gone) <= 2


def test_forget_below_drops_due_messages_before_the_queue() -> None:
    expiry = Expiry(None, "minimum")
    enter(expiry, [1, 2, 3], [0, 0, 0], [5, 5, 5])
    assert len(expiry.due(5 * MS)) == 3
    expiry.forget_below(3)
    assert list(expiry._gone) == [3]


GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.tuples(
        st.just(1.0),
        st.just("message"),
        st.integers(-1, 9),
        st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 9), st.integers(0, 9)), max_size=2),
        st.dictionaries(st.integers(0, 9), st.binary(max_size=20) | st.just(encode_set(BitMap64([3])))),
        st.binary(max_size=9) | st.just(encode_set(BitMap64([3]))) | st.just(encode_set(BitMap64())),
    ).map(msgspec.msgpack.encode),
)


@given(GARBAGE)
def test_random_stored_expiry_is_refused_or_usable(data: bytes) -> None:
    end = 10_000
    try:
        expiry = Expiry.of(1.0, "message", data, end=end)
    except ValueError:
        return
    assert Expiry.of(1.0, "message", expiry.stored(), end=end).stored() == expiry.stored()
    expiry.due(5)
    expiry.forget_below(5)
    expiry.overdue(BitMap64(range(20)), 10)
    assert expiry.due(10**10) is not None
    assert expiry.next_due() is None


def test_stored_expiry_of_another_configuration_is_refused() -> None:
    expiry = Expiry(1.0, "message")
    enter(expiry, [1, 2], [0, 0], [5, 0])
    data = expiry.stored()
    assert Expiry.of(1.0, "message", data).stored() == data
    with pytest.raises(ValueError, match="stored expirations have"):
        Expiry.of(2.0, "message", data)
    with pytest.raises(ValueError, match="stored expirations have"):
        Expiry.of(1.0, "minimum", data)
    rng = Random(5)
    for _ in range(2000):
        broken = bytearray(data)
        broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            Expiry.of(1.0, "message", bytes(broken)).due(rng.randrange(10**7))
        except ValueError:
            continue


def test_messages_expired_before_a_checkpoint_are_due_after_the_restore() -> None:
    expiry = Expiry(None, "message")
    enter(expiry, [1, 2], [0, 1], [20, 20])
    assert set(expiry.overdue(BitMap64([1, 2]), 21 * MS)) == {1, 2}
    assert expiry.next_due() == 20 * MS
    back = Expiry.of(None, "message", expiry.stored())
    assert back.next_due() == 20 * MS
    assert set(back.due(21 * MS)) == {1, 2}


class ExpiryMachine(RuleBasedStateMachine):
    """Compare expiry with a dictionary of messages and their expiration times."""

    @initialize(
        seconds=st.none() | st.sampled_from([0.05, 0.1, 1.0]), model=st.sampled_from(EXPIRATION_MODELS)
    )
    def begin(self, seconds: float | None, model: ExpirationModel) -> None:
        self.seconds: float | None = seconds
        self.model: ExpirationModel = model
        self.expiry = Expiry(seconds, model)
        self.ends: dict[int, int | None] = {}
        self.reported: set[int] = set()
        self.snapshots: list[tuple[ExpirySnapshot, bytes]] = []
        self.wall, self.position = 10**9, 0

    @rule(
        messages=st.lists(
            st.tuples(
                st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 7000]), st.sampled_from([0, 0, 20, 50, 300])
            ),
            min_size=1,
            max_size=40,
        ),
        no_lives=st.booleans(),
    )
    def enter(self, messages: list[tuple[int, int, int]], no_lives: bool) -> None:
        positions, timestamps, lives = [], [], []
        for gap, later, life in messages:
            self.position += 1 + gap * (gap > 1)
            self.wall += later
            life *= not no_lives
            positions.append(self.position)
            timestamps.append(self.wall)
            lives.append(life)
            self.ends[self.position] = end_of(self.seconds, self.model, self.wall, life)
        enter(self.expiry, positions, timestamps, None if no_lives else lives)

    @rule(later=st.integers(0, 200_000))
    def due(self, later: int) -> None:
        self.wall += later
        found = set(self.expiry.due(self.wall))
        over = {p for p, end in self.ends.items() if end is not None and end <= self.wall}
        # Removed messages may be among them, also repeatedly, because their state is dropped.
        assert found & set(self.ends) == over - self.reported
        self.reported |= found

    @rule(later=st.integers(0, 200_000), some=st.sets(st.integers(0, 300)))
    def overdue(self, later: int, some: set[int]) -> None:
        self.wall += later
        asked = set(self.ends) & some if some else set(self.ends)
        over = {p for p in asked if (end := self.ends[p]) is not None and end <= self.wall}
        before = BitMap64(asked)
        assert set(self.expiry.overdue(before, self.wall)) == over
        assert set(before) == asked

    @rule(part=st.floats(0, 1))
    def forget(self, part: float) -> None:
        below = int(part * self.position)
        self.ends = {p: end for p, end in self.ends.items() if p >= below}
        self.expiry.forget_below(below)

    @rule(every=st.integers(2, 5))
    def keep(self, every: int) -> None:
        self.ends = {p: end for p, end in self.ends.items() if p % every}
        self.expiry.keep(BitMap64(self.ends))

    @rule()
    def restore(self) -> None:
        self.expiry = Expiry.of(self.seconds, self.model, self.expiry.stored())

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.expiry.snapshot(), self.expiry.stored()))

    @invariant()
    def snapshots_are_unchanged(self) -> None:
        for snapshot, data in getattr(self, "snapshots", ()):
            assert snapshot.encode() == data

    @invariant()
    def asked_in_time(self) -> None:
        if hasattr(self, "ends"):
            waiting = [end for p, end in self.ends.items() if end is not None and p not in self.reported]
            next_due = self.expiry.next_due()
            assert not waiting or (next_due is not None and next_due <= min(waiting))


TestExpiryMachine = ExpiryMachine.TestCase
TestExpiryMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_overdue_processes_each_expired_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ended lease calls `overdue`, which must not process all expired times each time."""
    expiry = Expiry(None, "message")
    count = 1_000
    enter(expiry, list(range(count)), [0] * count, list(range(1, count + 1)))
    popped: list[int] = []

    def counted(heap: list[int]) -> int:
        popped.append(heappop(heap))
        return popped[-1]

    monkeypatch.setattr("tickertape.engine.queues.state.expiry.heappop", counted)
    for position in range(count):
        assert list(expiry.overdue(BitMap64([position]), count * MS)) == [position]
    assert len(popped) == count
    assert not expiry._lives, "no expired time remains"
    assert list(expiry.due(count * MS)) == list(range(count))
    assert not expiry.due(count * MS)


def test_expiry_snapshot_is_unchanged_after_messages_leave_and_enter() -> None:
    expiry = Expiry(5.0, "message")
    enter(expiry, [1, 2, 3, 4], [0] * 4, [7, 7, 8, 0])
    snapshot, data = expiry.snapshot(), expiry.stored()
    lives = {at: list(positions) for at, positions in snapshot.lives.items()}
    enter(expiry, [5], [0], [8])
    expiry.keep(BitMap64([2, 3, 5]))
    assert list(expiry.due(8 * MS)) == [2, 3, 5]
    assert {at: list(positions) for at, positions in snapshot.lives.items()} == lives
    assert snapshot.encode() == data
