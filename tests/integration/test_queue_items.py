"""Documented properties of queues, one test each, on one real server with many queues.

See test_exact_queues.py for the numbered behaviours.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import tickertape as tt
from tests.helpers.queues import SECONDS, left, nothing, numbers, of, publish, queue, state, take, wait_state
from tickertape.testing import RunningServer

pytestmark = pytest.mark.slow

CONFIG = "".join(
    [
        *(queue(f"copy {n}", underlying="copied") for n in range(2)),
        queue("big", underlying="copied", filter="/n >= 6"),
        queue("red", underlying="^(shared|red_DIRECT)$", default_publish_target="red_DIRECT"),
        queue("blue", underlying="^(shared|blue_DIRECT)$", default_publish_target="blue_DIRECT"),
        queue("ten", underlying="ten", max_per_subscription_backlog=10),
        queue("five", underlying="five", max_per_subscription_backlog=5),
        queue("fast", fairness_model="fast"),
        queue("round", fairness_model="round-robin"),
        queue("priority", priority="/p"),
        queue("deep", target_queue_depth=3),
        queue("limited", max_backlog=4),
        queue("leased", lease_period="60s"),
        queue("short", lease_period="800ms"),
        queue("by-client"),
        queue("filters"),
        queue("again"),
        queue("browsed"),
        queue("text"),
        queue("keyed", dead_letter="keyed-dead"),
    ]
)


# -- messages of a queue ------------------------------------------------------------------------------


def test_queues_over_one_topic_each_contain_all_messages(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "copied", 8)
    for message in take(a.subscribe("copy 0", max_backlog=3), 8 - 5):
        message.ack()
    wait_state(server, "copy 0", acknowledged=3)
    wait_state(server, "copy 1", ready=8)  # acknowledgements in one queue do not affect another
    assert left(server, "big") == [6, 7], "only matching messages enter the queue"
    found = state(server, "big")
    assert (found.entered, found.filtered) == (2, 6)


def test_queues_over_patterns_share_topics_and_have_own_ones(server: RunningServer) -> None:
    publish(server, "shared", {"n": 0})
    publish(server, "red", {"n": 1})
    publish(server, "blue", {"n": 2})
    publish(server, "red_DIRECT", {"n": 3})
    assert left(server, "red") == [0, 1, 3]
    assert left(server, "blue") == [0, 2]


def test_queue_delivers_empty_and_binary_bodies(server: RunningServer, a: tt.Client) -> None:
    bodies = [b"", b"null", "d\u00e9j\u00e0 vu".encode(), b"\x00" * 300_000]
    publish(server, "text", *bodies)
    stream = a.subscribe("text")
    for body in bodies:
        message = stream.get(SECONDS)
        assert message.data == body
        message.ack()


def test_queue_message_keeps_key_correlation_id_and_expiration(server: RunningServer, a: tt.Client) -> None:
    publish(server, "keyed", {"n": 0}, sow_key="k-1", correlation_id="c-1", expiration=60)
    message = a.subscribe("keyed").get(SECONDS)
    assert (message.sow_key, message.correlation_id, message.expiration) == ("k-1", "c-1", 60_000)
    message.expire()
    letter = a.bookmark_subscribe("keyed-dead", tt.EPOCH).get(SECONDS)
    assert (letter.json(), letter.sow_key) == ({"n": 0}, "k-1")
    assert '"correlation_id":"c-1"' in (letter.correlation_id or "")


# -- distribution to consumers ------------------------------------------------------------------------


def test_fast_fairness_fills_the_first_subscription(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    first, second = a.subscribe("fast", max_backlog=3), b.subscribe("fast", max_backlog=9)
    numbers(server, "fast", 5)
    assert (of(take(first, 3)), of(take(second, 2))) == ([0, 1, 2], [3, 4])


def test_round_robin_fairness_continues_with_the_next_subscription(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    streams = a.subscribe("round", max_backlog=9), b.subscribe("round", max_backlog=9)
    for n in range(6):
        numbers(server, "round", 1, n)
        assert of(take(streams[n % 2], 1)) == [n]
    assert nothing(*streams)


def test_highest_priority_is_delivered_first_in_order_of_age(server: RunningServer, a: tt.Client) -> None:
    priorities = [1, 5, 3, 5, None, 9]
    publish(server, "priority", *({"n": n, "p": p} for n, p in enumerate(priorities)))
    stream = a.subscribe("priority")
    got = []
    for _ in priorities:
        message = stream.get(SECONDS)
        got.append(message.json()["n"])
        message.ack()
    assert got == [5, 1, 3, 2, 0, 4], "messages without a priority are last"


def test_messages_beyond_the_target_depth_wait_in_the_log(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "deep", 8)
    found = wait_state(server, "deep", entered=8)
    assert (found.ready, found.inactive) == (3, 5)
    marks = [message.bookmark or "" for message in a.replay("deep")]
    a.ack("deep", marks[7])
    assert wait_state(server, "deep", acknowledged=1).deferred == 1, (
        "acknowledged before the message was active"
    )
    stream = a.subscribe("deep", max_backlog=10)
    held = take(stream, 3)
    assert nothing(stream)
    for message in held:
        message.ack()
    assert of(take(stream, 3)) == [3, 4, 5]
    wait_state(server, "deep", inactive=1)


def test_max_backlog_of_a_queue_limits_all_consumers(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    numbers(server, "limited", 9)
    first = a.subscribe("limited", max_backlog=3)
    wait_state(server, "limited", leased=3, ready=6)
    second = b.subscribe("limited", max_backlog=3)
    wait_state(server, "limited", leased=4, ready=5, backlog=4)
    held = take(first, 3)
    assert len(take(second, 1)) == 1
    assert nothing(first, second)
    held[0].ack()
    wait_state(server, "limited", acknowledged=1, leased=4)


def test_consumer_with_a_filter_gets_only_matches_and_delays_no_other(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    numbers(server, "filters", 6)
    odd = a.subscribe("filters", filter="/n = 1 OR /n = 3 OR /n = 5", max_backlog=10)
    assert of(take(odd, 3)) == [1, 3, 5]
    wait_state(server, "filters", ready=3)
    rest = b.subscribe("filters", max_backlog=10)
    assert of(take(rest, 3)) == [0, 2, 4]
    numbers(server, "filters", 2, 10)
    assert of(take(rest, 2)) == [10, 11], "messages that do not match the other filter"


def test_browse_leases_nothing(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "browsed", 4)
    (held,) = take(a.subscribe("browsed"), 1)
    seen = list(a.subscribe("browsed", browse=True))
    assert of(seen) == [1, 2, 3], "available messages"
    assert all(message.lease_expires is None for message in seen)
    found = state(server, "browsed")
    assert (found.ready, found.leased, found.consumers) == (3, 1, 1)
    held.ack()


# -- leases -------------------------------------------------------------------------------------------


def test_lease_has_an_expiry_and_can_be_acknowledged(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "leased", 1)
    before = datetime.now(UTC)
    message = a.subscribe("leased").get(SECONDS)
    assert message.lease_expires is not None
    granted = message.lease_expires - timedelta(seconds=60)
    assert before <= granted <= datetime.now(UTC)
    message.ack()


def test_extended_lease_does_not_expire(server: RunningServer, a: tt.Client, b: tt.Client) -> None:
    numbers(server, "short", 2)
    stream = a.subscribe("short", max_backlog=2)
    kept, lost = take(stream, 2)
    kept.extend("60s")
    other = b.subscribe("short")
    a.subscribe("short", filter="/n = 99", sub_id=stream.sub_id, replace=True)  # no new message matches
    assert of(take(other, 1)) == [1], "the lease has expired"
    found = wait_state(server, "short", returned={"lease_expired": 1})
    assert found.leased == 2
    lost.ack()  # another consumer has the lease now
    a.publish_flush(timeout=SECONDS)
    assert state(server, "short").acknowledged == 0
    a.ack("short", kept, "lease_extension=100ms")  # shorter than before
    wait_state(server, "short", returned={"lease_expired": 3})


def test_unsubscribe_and_disconnect_return_the_leases(server: RunningServer, b: tt.Client) -> None:
    numbers(server, "by-client", 4)
    with tt.Client("gone", server.uri, timeout=SECONDS) as leaving:
        first = leaving.subscribe("by-client", max_backlog=2)
        take(first, 2)
        second = b.subscribe("by-client", max_backlog=4)
        take(second, 2)
        first.close()
        assert of(take(second, 2)) == [0, 1], "at once"
        assert state(server, "by-client").returned == {"holder_gone": 2}
        b.subscribe("by-client", filter="/n = 99", sub_id=second.sub_id, replace=True)
    b.close()
    found = wait_state(server, "by-client", leased=0)
    assert (found.ready, found.returned) == (4, {"holder_gone": 6})


def test_replaced_subscription_keeps_the_leases(server: RunningServer, a: tt.Client) -> None:
    """The replaced subscription has ten leases, and its new queue allows five, so it gets none first."""
    numbers(server, "ten", 12)
    numbers(server, "five", 12)
    held = take(a.subscribe("ten", sub_id="s", max_backlog=20), 10)
    stream = a.subscribe("five", sub_id="s", max_backlog=20, replace=True)
    for message in held[:5]:
        message.ack()
    a.publish_flush(timeout=SECONDS)
    assert wait_state(server, "ten", acknowledged=5).leased == 5
    assert nothing(stream)
    held[5].ack()
    assert [(m.topic, m.json()["n"]) for m in take(stream, 1)] == [("five", 0)]
    assert nothing(stream)
    assert wait_state(server, "ten", acknowledged=6).leased == 4
    stream.close()
    found = wait_state(server, "ten", leased=0)
    assert (found.returned, found.ready) == ({"holder_gone": 4}, 6)


def test_returned_message_is_delivered_before_younger_ones(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "again", 5)
    stream = a.subscribe("again", max_backlog=2)
    first, second = take(stream, 2)
    first.cancel()
    (back,) = take(stream, 1)
    assert back.json() == {"n": 0}
    assert back.bookmark == first.bookmark
    a.ack("again", [second, back])
    assert of(take(stream, 2)) == [2, 3]
