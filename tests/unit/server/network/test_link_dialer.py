"""Attempts of an outgoing link: addresses in turn, waits, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.server.limits import (
    link_refused_seconds,
    link_retry_seconds_max,
    link_retry_seconds_min,
    link_settled_seconds,
)
from tickertape.server.network.link_dialer import LinkDialer

A, B = "tcp://a:1", "tcp://b:1"


def due(dialer: LinkDialer) -> float | None:
    return dialer.due


def started(*addresses: str) -> LinkDialer:
    dialer = LinkDialer(addresses)
    assert due(dialer) is None
    dialer.start(0.0)
    assert due(dialer) == 0.0
    return dialer


def test_addresses_of_a_round_are_tried_at_once_in_turn() -> None:
    dialer = started(A, B)
    assert dialer.attempt() == A
    assert due(dialer) is None
    dialer.ended(5.0, 1.0)
    assert due(dialer) == 5.0
    assert dialer.attempt() == B
    dialer.ended(6.0, 1.0)
    assert due(dialer) == 6.0 + link_retry_seconds_min
    assert dialer.attempt() == A


def test_waits_double_up_to_the_limit() -> None:
    dialer = started(A)
    waits = []
    for _ in range(12):
        dialer.attempt()
        dialer.ended(100.0, 1.0)
        assert dialer.due is not None
        waits.append(dialer.due - 100.0)
    doubled = [min(link_retry_seconds_min * 2**number, link_retry_seconds_max) for number in range(12)]
    assert waits == pytest.approx(doubled)
    assert waits[-1] == pytest.approx(link_retry_seconds_max)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_wait_with_jitter_is_half_to_all_of_the_delay(jitter: float) -> None:
    dialer = started(A)
    dialer.attempt()
    dialer.ended(1.0, jitter)
    assert dialer.due == pytest.approx(1.0 + link_retry_seconds_min * (1 + jitter) / 2)


def test_settled_link_keeps_the_address_and_waits_briefly() -> None:
    dialer = started(A, B)
    for _ in range(9):
        dialer.attempt()
        dialer.ended(0.0, 1.0)
    assert dialer.attempt() == B
    dialer.opened(10.0)
    dialer.ended(10.0 + link_settled_seconds, 1.0)
    assert dialer.due == pytest.approx(10.0 + link_settled_seconds + link_retry_seconds_min)
    assert dialer.attempt() == B


def test_link_lost_at_once_moves_on_and_waits() -> None:
    dialer = started(A, B)
    waits = []
    for number in range(4):
        assert dialer.attempt() == (A, B)[number % 2]
        dialer.opened(7.0)
        dialer.ended(7.1, 1.0)
        assert dialer.due is not None
        waits.append(dialer.due - 7.1)
    assert waits == pytest.approx([link_retry_seconds_min * 2**number for number in range(4)])


def test_refused_link_waits_for_the_operator() -> None:
    dialer = started(A, B)
    dialer.attempt()
    dialer.ended(3.0, 0.0, refused=True)
    assert dialer.due == 3.0 + link_refused_seconds
    assert dialer.attempt() == B, "another address may be the right server"


def test_waiting_attempt_of_a_destination_that_is_up_is_due_at_once() -> None:
    dialer = started(A)
    dialer.hurry(5.0)
    assert due(dialer) == 0.0, "it was due already"
    dialer.attempt()
    dialer.hurry(6.0)
    assert due(dialer) is None, "an attempt, or a connection, is not repeated"
    dialer.ended(7.0, 0.5, refused=True)
    dialer.hurry(8.0)
    assert due(dialer) == 8.0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 100), st.floats(0, 1)), max_size=60),
)
def test_attempts_never_end(addresses: int, ends: list[tuple[bool, bool, float, float]]) -> None:
    dialer = started(*(f"tcp://{number}:1" for number in range(addresses)))
    now = 0.0
    for opened, refused, life, jitter in ends:
        assert dialer.due is not None
        assert dialer.due - now <= max(link_refused_seconds, link_retry_seconds_max) + 1e-6
        now = max(now, dialer.due)
        dialer.attempt()
        if opened:
            dialer.opened(now)
        now += life
        dialer.ended(now, jitter, refused=refused)
        assert dialer.due is not None
        assert dialer.due >= now
