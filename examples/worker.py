"""A worker that shares a queue with other workers, and loses no messages when any of them is killed.

    tickertape serve examples/worker.toml --data data
    python -m examples.demo.flights --limit 20000 | tickertape publish flights
    python -m examples.worker --name worker-1 --database delays.sqlite
    python -m examples.worker --name worker-2 --database delays.sqlite

The worker counts, by carrier, the flights that left more than an hour late. The server delivers each flight
to one worker, and redelivers it to another worker if the first one ends without an acknowledgement. A worker
can end between its database commit and the acknowledgement. So it stores the unique bookmark of the flight
and its effect in one transaction. It skips a redelivered flight whose bookmark is stored already, so each
flight counts exactly once.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import tickertape as tt

TABLES = (
    "CREATE TABLE IF NOT EXISTS done (bookmark TEXT PRIMARY KEY, worker TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS delays (carrier TEXT PRIMARY KEY, flights INTEGER, minutes INTEGER)",
)
ADD = """
INSERT INTO delays VALUES (?, 1, ?)
ON CONFLICT (carrier) DO UPDATE SET flights = flights + 1, minutes = minutes + excluded.minutes
"""


class Worker:
    """Worker that writes queue messages to the database. `idle`: seconds without a message until it stops."""

    def __init__(
        self, client: tt.HAClient, database: sqlite3.Connection, name: str, idle: float | None
    ) -> None:
        self._client = client
        self._database = database
        self._name = name
        self._idle = idle

    def run(self, queue: str, backlog: int) -> None:
        """Process messages. `backlog`: maximum number of unacknowledged messages.

        A backlog above 1 keeps the worker busy, and delivers messages in batches."""
        for batch in self._batches(queue, backlog):
            new = self._take(batch)  # commit before the acknowledgement
            with suppress(tt.Disconnected):  # without the acknowledgement the server redelivers the batch
                batch.ack()
            print(f"{new} added, {len(batch) - new} duplicates", flush=True)

    def _batches(self, queue: str, backlog: int) -> Iterator[tt.MessageBatch]:
        """Yield batches of the queue. A stream ends with its connection, so subscribe again."""
        while True:
            try:
                with self._client.subscribe(queue, max_backlog=backlog) as stream:
                    yield from stream.batches(timeout=self._idle)
            except tt.Disconnected:
                self._client.connect_and_logon(timeout=30)  # waits for the automatic reconnect
            except tt.TimedOut:
                return

    def _take(self, batch: tt.MessageBatch) -> int:
        """Write new messages to the database in one transaction, and return their number."""
        new = 0
        with self._database as transaction:  # commits, or rolls back after an exception
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
    """Run the worker until it is killed or idle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--name", required=True, help="client name, unique for each running worker")
    parser.add_argument("--database", default="delays.sqlite", help="SQLite file shared by all workers")
    parser.add_argument("--queue", default="delayed")
    parser.add_argument("--backlog", type=int, default=20, help="maximum number of unacknowledged flights")
    parser.add_argument("--idle", type=float, help="stop after IDLE seconds without a message")
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
