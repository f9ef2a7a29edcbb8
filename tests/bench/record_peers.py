"""Stores beside the SOW benches: SQLite and DuckDB in this process, and Valkey with a client process."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.peers.installed import python
from tests.bench.peers.serving import Load
from tests.bench.peers.valkey import ValkeyServer
from tests.bench.peers.valkey_records import RecordTask
from tests.bench.record_bodies import PRICE_ABOVE, QTY_BELOW, body_of, key_of, numbers_of
from tests.bench.registry import Room, Skipped
from tests.bench.stage import timed
from tests.helpers.redis_server import RedisConnection, encode_command

CALL: Final = 512
"""Records of one transaction."""
TURN_SECONDS_MAX: Final = 600.0
LOAD_SECONDS_MAX: Final = 120.0
JSON_SINCE: Final = (3, 38)
"""First version of SQLite that always has `json_extract`."""


class SqliteRecords:
    """A table of SQLite in the mode WAL. `synchronous=FULL` syncs each transaction."""

    def __init__(self, path: Path, keys: int) -> None:
        if sqlite3.sqlite_version_info < JSON_SINCE:
            raise Skipped(f"SQLite {sqlite3.sqlite_version} may have no json_extract. Install 3.38 or later.")
        self.name = f"SQLite {sqlite3.sqlite_version}"
        self._path, self._keys = path, keys
        self._connection = self._connect()
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE records (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
        self._connection.execute("BEGIN")
        rows = ((key_of(number), body_of(number, keys).decode()) for number in range(keys))
        self._connection.executemany("INSERT INTO records VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)

    def add_index(self) -> None:
        """Create an index of the symbols."""
        self._connection.execute("CREATE INDEX symbols ON records (json_extract(body, '$.symbol'))")
        self._connection.execute("ANALYZE")

    def upsert(self, turn: int, count: int) -> float:
        """Return the seconds of `count` updates, 512 in each transaction."""
        numbers = numbers_of(turn, count, self._keys)
        rows = [(key_of(number), body_of(number, self._keys, turn).decode()) for number in numbers]
        statement = "INSERT INTO records VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"
        start = timed()
        for first in range(0, len(rows), CALL):
            self._connection.execute("BEGIN")
            self._connection.executemany(statement, rows[first : first + CALL])
            self._connection.execute("COMMIT")
        return timed() - start

    def scan(self, matches: int) -> float:
        """Return the seconds of the first query of a new connection, with conditions on two fields."""
        query = "SELECT body FROM records WHERE json_extract(body, '$.price') > ?"
        query += " AND json_extract(body, '$.qty') < ?"
        with contextlib.closing(self._connect()) as connection:
            start = timed()
            found = connection.execute(query, (PRICE_ABOVE, QTY_BELOW)).fetchall()
            taken = timed() - start
        assert len(found) == matches
        return taken

    def by_symbol(self, symbol: str) -> tuple[float, int]:
        """Return the seconds of a query through the index, and the number of records."""
        query = "SELECT body FROM records WHERE json_extract(body, '$.symbol') = ?"
        start = timed()
        found = self._connection.execute(query, (symbol,)).fetchall()
        return timed() - start, len(found)

    def close(self) -> None:
        self._connection.close()


class DuckRecords:
    """A table of DuckDB in memory, with JSON bodies."""

    def __init__(self, keys: int) -> None:
        try:
            import duckdb
        except ImportError:
            raise Skipped("duckdb is not installed. Install 'tickertape[sql]'.") from None
        import pyarrow as pa

        self._connection: Any = duckdb.connect()
        bodies = pa.array([body_of(number, keys).decode() for number in range(keys)], pa.string())
        source = pa.table({"id": [key_of(number) for number in range(keys)], "body": bodies})
        self._connection.register("source", source)
        self._connection.execute("CREATE TABLE records AS SELECT id, body::JSON AS body FROM source")
        self._connection.unregister("source")
        ((threads,),) = self._connection.execute("SELECT current_setting('threads')").fetchall()
        self.name = f"DuckDB {duckdb.__version__} with {threads} threads"

    def scan(self, matches: int) -> float:
        """Return the seconds of a query with conditions on two fields."""
        query = "SELECT body FROM records WHERE json_extract(body, '$.price')::DOUBLE > ?"
        query += " AND json_extract(body, '$.qty')::BIGINT < ?"
        start = timed()
        found = self._connection.execute(query, [PRICE_ABOVE, QTY_BELOW]).fetchall()
        taken = timed() - start
        assert len(found) == matches
        return taken

    def close(self) -> None:
        self._connection.close()


class ValkeyRecords:
    """A server of Valkey with `appendfsync everysec`. Each turn has a client process of its own."""

    def __init__(self, server: ValkeyServer, keys: int) -> None:
        self.name = ValkeyServer.version()
        self._server, self._keys = server, keys

    @property
    def pid(self) -> int:
        return self._server.pid

    def turn(self, action: str, turn: int = 0, count: int = 0) -> float:
        """Return the seconds of an action of `valkey_records.py`, without its preparation."""
        task = RecordTask(
            self._server.address, seconds=TURN_SECONDS_MAX, count=count, keys=self._keys, turn=turn
        )
        load = Load(python(), "tests.bench.peers.valkey_records", action, task)
        try:
            load.ready()
            load.go()
            return load.result()["seconds"]
        finally:
            load.end()

    def start_again(self, *, kill: bool) -> float:
        """Stop or kill the server, and return the seconds until it has loaded its file."""
        self._server.end_process(kill=kill)
        start = timed()
        self._server.start_process()
        connection = RedisConnection(int(self._server.address))
        try:
            while not self._answers(connection):
                assert timed() - start < LOAD_SECONDS_MAX, "Valkey did not load its file"
                time.sleep(0.002)
            taken = timed() - start
            assert connection.call(encode_command(b"DBSIZE")) == b":%d\r\n" % self._keys
        finally:
            connection.close()
        return taken

    @staticmethod
    def _answers(connection: RedisConnection) -> bool:
        """Return whether the server has loaded its file."""
        try:
            connection.call(encode_command(b"PING"))
        except RuntimeError as error:
            if "LOADING" not in str(error):
                raise
            return False
        return True


@contextlib.contextmanager
def valkey_records(room: Room, keys: int) -> Iterator[ValkeyRecords]:
    """Run an empty server of Valkey until the end of the block."""
    missing = ValkeyServer.missing()
    if missing:
        raise Skipped(f"{missing}. The command `script/bench peers` installs it.")
    server = ValkeyServer(room.directory / "valkey", "everysec")
    server.start()
    try:
        yield ValkeyRecords(server, keys)
    finally:
        server.stop()
