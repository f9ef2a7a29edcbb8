"""Real servers with their oldest messages in an archive only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.archives import ArchiveWriter, commits_of
from tests.helpers.positions import resolve
from tickertape.client.blocking.log_client import LogClient
from tickertape.testing import RunningServer, running_server, wait_until

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "3MB"
sync = "never"
[archive]
location = "{archive}"
refresh = "100ms"
require = {require}
"""
PADDING = "x" * 8000
TOPICS = ("a", "b")
MESSAGES = 700

Seen = tuple[str, int, str]
"""Topic, number in the body, bookmark."""


class World(NamedTuple):
    """A server and everything that was published to it."""

    server: RunningServer
    data: Path
    archive: Path
    everything: list[Seen]
    seam: int
    """Approximate number of messages that only the archive has."""

    def of(self, *topics: str) -> list[Seen]:
        return [seen for seen in self.everything if seen[0] in topics]

    def client(self, name: str = "reader") -> LogClient:
        return LogClient(name, self.server.uri)


def publish(server: RunningServer, numbers: Iterable[int], name: str = "pub") -> None:
    """To both topics in turn, in commits that are smaller than a segment."""
    with tt.Client(name, server.uri) as client:
        client.set_publish_store(tt.MemoryPublishStore())
        for number in numbers:
            body = f'{{"n":{number},"padding":"{PADDING}"}}'
            client.publish(TOPICS[number % 2], body, correlation_id=f"c{number}" if number % 3 else None)
            if number % 20 == 19:
                client.publish_flush(timeout=20)
        client.publish_flush(timeout=20)


def seen(messages: Iterable[tt.Message]) -> list[Seen]:
    found = []
    for message in messages:
        number = message.json()["n"]
        assert message.correlation_id == (f"c{number}" if number % 3 else None)
        found.append((message.topic, number, str(message.bookmark)))
    return found


def archive_to(writer: ArchiveWriter, data: Path, start: int, end: int) -> None:
    writer.add(commits_of(data, writer.journal, start, end, TOPICS), end, rows_per_group=50)


@contextmanager
def archived_world(home: Path, messages: int = MESSAGES) -> Iterator[World]:
    """Run a server that has archived and removed its first segments, and archived some that it still has."""
    data, archive = home / "data", home / "archive"
    with running_server(data, CONFIG.format(archive=archive, require="true")) as server:
        publish(server, range(messages))
        with LogClient("all", server.uri) as client:
            everything = seen(client.replay("^[ab]$"))
            journal, start, end = resolve(client, "^[ab]$", tt.EPOCH)
        assert [number for _, number, _ in everything] == list(range(messages))
        # Unarchived messages stay, regardless of `retain_size`.
        wait_until(lambda: stats_of(server).journal.retention.held_by == "archive", 20)
        assert stats_of(server).journal.first_position == 0
        assert stats_of(server).journal.file_bytes > 3 << 20
        writer = ArchiveWriter(archive, journal)
        half = (start + end) // 2
        archive_to(writer, data, 0, half - 100)
        archive_to(writer, data, half - 100, half)
        wait_until(lambda: stats_of(server).journal.first_position > 100, 20)
        first = stats_of(server).journal.first_position
        assert first <= half
        yield World(server, data, archive, everything, first)
