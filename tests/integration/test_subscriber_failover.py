"""Subscribers that fail over between two real servers: the order of two logs, and kills while publishing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.linked_servers import (
    SECONDS,
    TOPIC,
    LinkedServer,
    bodies,
    have,
    publish,
    servers,
    two_way,
)
from tickertape.testing.server import wait_until

pytestmark = pytest.mark.slow


class Reader:
    """A client with a bookmark store that reads and discards all messages."""

    def __init__(self, store: tt.BookmarkStore, *servers: LinkedServer) -> None:
        self.store = store
        self.got: Counter[bytes] = Counter()
        self.client = tt.HAClient(
            "risk", servers=[server.address for server in servers], bookmark_store=store, timeout=SECONDS
        )

    def begin(self) -> None:
        """Start the subscription, which outlives its connections."""
        self.client.bookmark_subscribe(TOPIC, tt.MOST_RECENT, sub_id="all", on_message=self._take)

    def _take(self, message: tt.Message) -> None:
        self.got[bytes(message.data)] += 1
        message.discard()

    def has_place(self, count: int) -> bool:
        """Return whether the recovery point has as many places."""
        places = [one for one in self.store.most_recent("all") if one.sequence > 2**64 - 2**48]
        return len(places) >= count


def test_subscriber_that_fails_over_gets_messages_that_are_low_in_the_other_log(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        two_way(first, second)
        first.start()
        second.start()
        publish(first, "p", before := bodies("p", 100))
        have(before, first, second)
        first.kill()
        publish(second, "q", only_there := bodies("q", 1))  # before the later messages of p
        first.configure().start()  # without its link
        publish(first, "p", later := bodies("p", 1, 100))
        reader = Reader(tt.MemoryBookmarkStore(), first, second)
        with reader.client:
            reader.begin()
            wait_until(lambda: len(reader.got) == 101 and reader.has_place(2), SECONDS)
            first.kill()
            two_way(first, second)
            wait_until(lambda: len(reader.got) == 102, SECONDS)
            first.start()
            have([*before, *later, *only_there], first, second)
            wait_until(lambda: len(reader.got) == 102, SECONDS)
        assert reader.got == Counter([*before, *later, *only_there])


@pytest.mark.parametrize("kind", ["memory", "logged"])
def test_subscriber_misses_nothing_and_gets_nothing_twice_while_servers_are_killed(
    tmp_path: Path, kind: str
) -> None:
    store = tt.MemoryBookmarkStore() if kind == "memory" else tt.LoggedBookmarkStore(tmp_path / "store")
    with servers(tmp_path, "ny-1", "ny-2") as (first, second), store:
        two_way(first, second)
        first.start()
        second.start()
        reader = Reader(store, first, second)
        publisher = tt.HAClient(
            "p",
            servers=[first.address, second.address],
            publish_store=tt.MemoryPublishStore(),
            timeout=SECONDS,
        )
        sent: list[bytes] = []
        with reader.client, publisher:
            reader.begin()
            for turn in range(4):
                sent += (part := bodies("p", 300, 300 * turn))
                for body in part[:150]:
                    publisher.publish(TOPIC, body)
                victim = (first, second)[turn % 2]
                victim.kill()
                for body in part[150:]:
                    publisher.publish(TOPIC, body)
                publisher.publish_flush(timeout=SECONDS)
                victim.start()
                have(sent, first, second)
            wait_until(lambda: len(reader.got) == len(sent), SECONDS)
        assert reader.got == Counter(sent)
