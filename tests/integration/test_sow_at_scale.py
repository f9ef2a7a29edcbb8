"""Many records on a real server: starts after retention, and hand-overs from results to messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tickertape.testing import RunningServer, running_server, wait_until

pytestmark = pytest.mark.slow

SECONDS: Final = 30.0
CONFIG: Final = """
[journal]
segment_size = "1MB"
retain_size = "3MB"
[[sow]]
name = "positions"
key = ["/id"]
checkpoint_interval = "1s"
"""
UPDATE_ROWS: Final = 50


def records_of(server: RunningServer) -> dict[str, tuple[str | None, int, bytes]]:
    """Return bookmark, sequence and body of all records, by key."""
    with tt.Client("reader", server.uri, timeout=SECONDS) as client:
        records = list(client.sow("positions", timeout=120))
    found = {str(record.sow_key): (record.bookmark, record.sequence, record.data) for record in records}
    assert len(found) == len(records)
    return found


@pytest.mark.timeout(300)
def test_records_after_removed_segments_and_a_restart_equal_those_before(tmp_path: Path, full: bool) -> None:
    count = 1_000_000 if full else 100_000
    with running_server(tmp_path / "data", CONFIG) as server:
        with tt.Client("writer", server.uri, timeout=SECONDS) as client:
            for first in range(0, count, 5_000):
                client.publish_batch(
                    "positions", [b'{"id":%d,"n":%d}' % (n, n % 97) for n in range(first, first + 5_000)]
                )
                client.publish_flush(timeout=SECONDS)
            # Updates of few records, until retention has removed the messages of the others.
            for number in range(20):
                bodies = [
                    b'{"id":%d,"n":"%s"}' % (n, b"y" * 200) for n in range(number * 50, number * 50 + 2_000)
                ]
                client.publish_batch("positions", bodies)
                client.publish_flush(timeout=SECONDS)
            deleted = client.sow_delete("positions", filter="/id >= 1000 AND /id < 3000", timeout=SECONDS)
            assert deleted is not None
            assert deleted.records == 2_000
        wait_until(lambda: stats_of(server).journal.first_position > count, 60)
        before = records_of(server)
        assert len(before) == count - 2_000
        assert sum(b"yyy" in body for _, _, body in before.values()) == 950 + 50
        for stop in (server.kill, server.stop):
            stop()
            server.start()
            assert records_of(server) == before


# -- hand-over --------------------------------------------------------------------------------------------


class Updates(threading.Thread):
    """Updates keys in turn until it is stopped. Each update changes whether the record matches `/on = 1`."""

    def __init__(self, uri: str, keys: int) -> None:
        super().__init__(name="updates", daemon=True)
        self.published = 0
        self.error: BaseException | None = None
        self._uri = uri
        self._keys = keys
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with tt.Client("updates", self._uri, timeout=SECONDS) as client:
                self._publish(client, self._keys)
                while not self._over.wait(0.002):
                    self._publish(client, UPDATE_ROWS)
        except BaseException as error:
            self.error = error
            raise

    def _publish(self, client: tt.Client, rows: int) -> None:
        client.publish_batch("positions", map(self.body, range(self.published, self.published + rows)))
        client.publish_flush(timeout=SECONDS)
        self.published += rows

    def body(self, number: int) -> bytes:
        """Return the message with this number, counted from 0."""
        turn, key = divmod(number, self._keys)
        return b'{"id":%d,"on":%d,"number":%d}' % (key, (turn + key) % 2, number)

    def matches(self, number: int) -> bool:
        """Return whether the message with this number matches the filter."""
        return sum(divmod(number, self._keys)) % 2 == 1

    def finish(self) -> None:
        self._over.set()
        self.join(SECONDS)
        assert self.error is None, self.error
        assert not self.is_alive()


@contextmanager
def updating(server: RunningServer, keys: int) -> Iterator[Updates]:
    updates = Updates(server.uri, keys)
    updates.start()
    try:
        wait_until(lambda: updates.error or updates.published >= 2 * keys, 120)
        yield updates
    finally:
        updates.finish()


def number_of(message: tt.Message) -> int:
    decoded: Any = msgspec.json.decode(message.data)
    return int(decoded["number"])


def hand_over(server: RunningServer, updates: Updates, keys: int, stop_after: int) -> Counter[str]:
    """Read a result and the messages after it, with a pause after `stop_after` messages.

    The result has the records of a prefix of all messages, and the messages continue behind this prefix.
    """
    with tt.Client("reader", server.uri, timeout=SECONDS) as client:
        stream = client.sow_and_subscribe("positions", "/on = 1", depth="64KB")
        records: list[int] = []
        heard: list[int] = []
        target = 0
        for count, message in enumerate(stream):
            (records if message.command == "sow" else heard).append(number_of(message))
            if count == stop_after:
                begun = updates.published
                wait_until(
                    lambda at=begun: updates.error or updates.published > at + 20 * UPDATE_ROWS, SECONDS
                )
                target = updates.published
            if target and heard and heard[-1] >= target:
                break
        stream.close()
    assert heard == [n for n in range(heard[0], heard[-1] + 1) if updates.matches(n)], "no gap, no duplicate"
    ends = [
        end
        for end in range(max(records) + 1, heard[0] + 1)
        if expected_records(updates, end, keys) == records
    ]
    assert ends, f"no prefix has these {len(records)} records"
    # No matching message is between the records and the first message.
    assert not any(updates.matches(n) for n in range(ends[-1], heard[0]))
    return Counter(
        {"records": len(records), "messages": len(heard), "stopped in the result": stop_after < len(records)}
    )


def expected_records(updates: Updates, end: int, keys: int) -> list[int]:
    """Return the numbers of the matching records of the messages before `end`, in order."""
    return [number for number in range(max(0, end - keys), end) if updates.matches(number)]


@pytest.mark.timeout(1800)
def test_hand_overs_under_updates_have_no_gap_and_no_duplicate(tmp_path: Path, full: bool) -> None:
    keys, times = (100_000, 200) if full else (10_000, 20)
    counts: Counter[str] = Counter()
    config = CONFIG.replace('retain_size = "3MB"\n', "")
    with running_server(tmp_path / "data", config) as server, updating(server, keys) as updates:
        for number in range(times):
            counts += hand_over(server, updates, keys, number * keys // times)
    assert counts["records"] >= times * keys // 3
    assert 0 < counts["stopped in the result"] < times
