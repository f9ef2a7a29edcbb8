"""Subscribers of non-persistent topics get all messages of their time once in order, or are ended as slow.

The counters of memory and disk are exact.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.live_subscriptions import PEERS, TOPICS, LiveSimulation
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits

_publishes = st.tuples(
    st.just("publish"),
    st.lists(
        st.tuples(st.sampled_from(TOPICS), st.sampled_from([0, 90, 400, 3_000])), min_size=1, max_size=12
    ),
)
_others = st.tuples(
    st.sampled_from(
        ["subscribe", "leave", "block", "unblock", "credit", "work", "disk", "disk", "fault", "age"]
    ),
    st.integers(0, PEERS - 1),
    st.sampled_from(TOPICS),
)
_histories = st.lists(st.one_of(_publishes, _others), max_size=60)
_limits = st.builds(
    SlowConsumerLimits,
    memory_bytes=st.sampled_from([0, 9_000, 30_000, 64 << 20]),
    connection_bytes=st.sampled_from([500, 4_000, 16 << 20]),
    disk_bytes=st.sampled_from([0, 5_000, 1 << 30]),
    age_seconds=st.sampled_from([None, 3.0]),
)


@given(history=_histories, step_bytes_max=st.sampled_from([1, 3_000, 1 << 20]), limits=_limits)
def test_transient_subscriber_gets_all_messages_once_in_order_or_is_ended_as_slow(
    history: list[tuple[str, list[tuple[str, int]]] | tuple[str, int, str]],
    step_bytes_max: int,
    limits: SlowConsumerLimits,
) -> None:
    life = LiveSimulation(step_bytes_max, limits)
    for number in range(PEERS):
        life.act("subscribe", number, "a")
        if number % 2:
            life.act("block", number, "a")
    for entry in history:
        if len(entry) == 2:
            life.publish(entry[1])
        else:
            life.act(*entry)
        life.check_accounts()
        life.check_order()
    life.check_end()
    if any(peer.goodbye for peer in life.peers):
        assert limits.memory_bytes < 64 << 20 or limits.connection_bytes < 16 << 20 or limits.age_seconds
