"""A worker that shares a queue with others: start as many as you like, kill any of them, and lose nothing.

    tickertape serve examples/worker.toml --data data
    python -m examples.demo.flights --limit 20000 | tickertape publish flights
    python -m examples.worker --name worker-1 --database delays.sqlite
    python -m examples.worker --name worker-2 --database delays.sqlite

Adds up by carrier the flights that left more than an hour late. The server gives each flight to one worker,
and to another one when the first is gone without having said that it is done. That can be after the flight
was written to the database and before the server heard of it: then it comes once more. So its bookmark, which
is its own for good, is written together with its effect, in one transaction. A bookmark that is there already
means that there is nothing left to do, and each flight counts exactly once.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import tickertape as tt

TABLES = """
CREATE TABLE IF NOT EXISTS done (bookmark TEXT PRIMARY KEY, worker TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS delays (carrier TEXT PRIMARY KEY, flights INTEGER, minutes INTEGER) WITHOUT ROWID;
"""
ADD = """
INSERT INTO delays VALUES (?, 1, ?)
ON CONFLICT (carrier) DO UPDATE SET flights = flights + 1, minutes = minutes + excluded.minutes
"""


class Worker:
    """Writes to the database what the queue gives. `idle`: end when nothing came for so many seconds."""

    def __init__(
        self, client: tt.HAClient, database: sqlite3.Connection, name: str, idle: float | None
    ) -> None:
        self._client = client
        self._database = database
        self._name = name
        self._idle = idle

    def run(self, queue: str, backlog: int) -> None:
        """Work. The backlog is how many messages the server gives before it heard that earlier ones are done:
        more than one, so that there is always something to do, and they come many at a time."""
        for batch in self._batches(queue, backlog):
            new = self._take(batch)  # committed when it returns; before that nothing is acknowledged
            with suppress(tt.Disconnected):  # if the server does not hear of it, they come again
                batch.ack()
            print(f"{new} added, {len(batch) - new} were there", flush=True)

    def _batches(self, queue: str, backlog: int) -> Iterator[tt.MessageBatch]:
        """What the queue gives. A stream ends when its connection does, so it is asked for again."""
        while True:
            try:
                with self._client.subscribe(queue, max_backlog=backlog) as stream:
                    yield from stream.batches(timeout=self._idle)
            except tt.Disconnected:
                self._client.connect_and_logon(timeout=30)  # waits for the reconnection under way
            except tt.TimedOut:
                return

    def _take(self, batch: tt.MessageBatch) -> int:
        """Write the messages that are not in the database yet, all or none; how many there were."""
        new = 0
        with self._database as transaction:  # commits, or rolls back when something is raised
            for message in batch:
                first = transaction.execute(
                    "INSERT OR IGNORE INTO done VALUES (?, ?)", (message.bookmark, self._name)
                )
                if first.rowcount:
                    flight = message.json()
                    transaction.execute(ADD, (flight["carrier"], flight["dep_delay"]))
                    new += 1
        return new


def main() -> int:
    """Work until it is killed, or has been idle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--name", required=True, help="of this worker: no two at a time have the same")
    parser.add_argument("--database", default="delays.sqlite", help="file that all workers write to")
    parser.add_argument("--queue", default="delayed")
    parser.add_argument("--backlog", type=int, default=20, help="flights that one worker may have under way")
    parser.add_argument("--idle", type=float, help="end when nothing came for so many seconds")
    given = parser.parse_args()

    with (
        closing(sqlite3.connect(given.database, timeout=30)) as database,
        tt.HAClient(given.name, servers=given.servers, reconnect_delay=0.1, heartbeat=3) as client,
    ):
        database.executescript(TABLES)
        client.connect_and_logon(timeout=30)
        Worker(client, database, given.name, given.idle).run(given.queue, given.backlog)
    return 0


if __name__ == "__main__":
    sys.exit(main())
