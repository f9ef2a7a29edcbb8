"""Queue worker: shares a queue with other workers. Any of them may be killed at any time.

    tickertape serve examples/worker.toml --data data
    python -m examples.demo.flights --limit 20000 | tickertape publish flights
    python -m examples.worker --name worker-1 --database delays.sqlite
    python -m examples.worker --name worker-2 --database delays.sqlite

Counts the flights of each carrier that left more than an hour late. The server delivers each flight to one
worker. It redelivers the flight to another worker when the first one is lost before its acknowledgement is
persisted. The first worker may have written the flight to the database by then. So each worker writes the
bookmark, which never changes, together with the effect in one transaction. A bookmark that is in the database
marks a flight that was counted, and each flight counts exactly once.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import tickertape as tt

TABLES = [
    "CREATE TABLE IF NOT EXISTS done (bookmark TEXT PRIMARY KEY, worker TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS delays (carrier TEXT PRIMARY KEY, flights INT, minutes INT) WITHOUT ROWID",
]
ADD = """
INSERT INTO delays VALUES (?, 1, ?)
ON CONFLICT (carrier) DO UPDATE SET flights = flights + 1, minutes = minutes + excluded.minutes
"""


class Worker:
    """A consumer that counts flights in the database. It ends after `idle` seconds without a message."""

    def __init__(
        self, client: tt.HAClient, database: sqlite3.Connection, name: str, idle: float | None
    ) -> None:
        self._client = client
        self._database = database
        self._name = name
        self._idle = idle

    def run(self, queue: str, backlog: int) -> None:
        """Process messages. `backlog` is the number of unacknowledged messages that this worker may hold.
        More than one keeps the worker busy, and the server delivers them in batches."""
        for batch in self._batches(queue, backlog):
            new = self._take(batch)  # committed when it returns, and acknowledged after that
            with suppress(tt.Disconnected):  # unacknowledged messages are redelivered
                batch.ack()
            print(f"{new} added, {len(batch) - new} counted before", flush=True)

    def _batches(self, queue: str, backlog: int) -> Iterator[tt.MessageBatch]:
        """Yield batches of the queue. A stream ends with its connection, so this subscribes again."""
        while True:
            try:
                with self._client.subscribe(queue, max_backlog=backlog) as stream:
                    yield from stream.batches(timeout=self._idle)
            except tt.Disconnected:
                self._client.connect_and_logon(timeout=30)  # waits for the reconnect in progress
            except tt.TimedOut:
                return

    def _take(self, batch: tt.MessageBatch) -> int:
        """Write the messages that are not in the database, all or none, and return their number."""
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
    """Process messages until the worker is killed or idle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--name", required=True, help="client name, unique for each worker")
    parser.add_argument("--database", default="delays.sqlite", help="database file of all workers")
    parser.add_argument("--queue", default="delayed")
    parser.add_argument("--backlog", type=int, default=20, help="unacknowledged flights of one worker")
    parser.add_argument("--idle", type=float, help="end after this number of seconds without a message")
    given = parser.parse_args()

    with (
        closing(sqlite3.connect(given.database, timeout=30)) as database,
        tt.HAClient(given.name, servers=given.servers, reconnect_delay=0.1, heartbeat=3) as client,
    ):
        for table in TABLES:
            database.execute(table)
        client.connect_and_logon(timeout=30)
        Worker(client, database, given.name, given.idle).run(given.queue, given.backlog)
    return 0


if __name__ == "__main__":
    sys.exit(main())
