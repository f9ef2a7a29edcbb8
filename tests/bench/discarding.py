"""A bookmark subscription that discards each of its messages, with every bookmark store."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import tickertape as tt
from tests.bench.bookmark_stores import Store, logged, memory, ring
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import fill, stage, timed

MESSAGES = 600_000
WINDOW = 10_000


def _discarding(room: Room, store: Store, discard: Callable[[tt.MessageStream, int], None]) -> Reading:
    """Return messages a second from the subscribe to the last discard, with the log in the page cache."""
    count = max(WINDOW, room.count(MESSAGES) // WINDOW * WINDOW)
    with stage(room.directory) as server:
        fill(server, count)
        with tt.Client("bench-reader", server.uri, bookmark_store=store) as client:
            start = timed()
            discard(client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="bench"), count)
            taken = timed() - start
        assert store.undiscarded_count("bench") == 0
        assert len(store.most_recent("bench")) == 1
    store.close()
    return Reading(count / taken, "200 bytes, one publisher")


def _in_order(stream: tt.MessageStream, count: int) -> None:
    for number, message in enumerate(stream, 1):
        message.discard()
        if number == count:
            return


def _at_random(stream: tt.MessageStream, count: int) -> None:
    order = list(range(WINDOW))
    Random(1).shuffle(order)
    window: list[tt.Message] = []
    for message in stream:
        window.append(message)
        if len(window) == WINDOW:
            for at in order:
                window[at].discard()
            window.clear()
            count -= WINDOW
            if not count:
                return


@bench("bookmarks", "memory store, each discarded in order", unit="msg/s", floor=400_000, aim=1_000_000)
def memory_in_order(room: Room) -> Reading:
    return _discarding(room, memory(room), _in_order)


@bench("bookmarks", "logged store, each discarded in order", unit="msg/s", floor=200_000, aim=600_000)
def logged_in_order(room: Room) -> Reading:
    return _discarding(room, logged(room), _in_order)


@bench("bookmarks", "ring store, each discarded in order", unit="msg/s", floor=300_000, aim=800_000)
def ring_in_order(room: Room) -> Reading:
    return _discarding(room, ring(room), _in_order)


@bench("bookmarks", "memory store, random order in 10,000", unit="msg/s", floor=200_000, aim=500_000)
def memory_at_random(room: Room) -> Reading:
    return _discarding(room, memory(room), _at_random)


@bench("bookmarks", "logged store, random order in 10,000", unit="msg/s", floor=200_000, aim=500_000)
def logged_at_random(room: Room) -> Reading:
    return _discarding(room, logged(room), _at_random)


@bench("bookmarks", "ring store, random order in 10,000", unit="msg/s", floor=200_000, aim=500_000)
def ring_at_random(room: Room) -> Reading:
    return _discarding(room, ring(room), _at_random)
