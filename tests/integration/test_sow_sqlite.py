"""Random programs of upserts, deltas, deletes and queries, on a real server and on SQLite.

SQLite stores the body of each key, in the order of its last change. Values are numbers and texts that both
compare alike: SQLite sorts NULL first, then numbers, then texts by their bytes, as the server does.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from random import Random
from typing import Any, Final

import pytest

import tickertape as tt
from tickertape.testing import RunningServer

pytestmark = pytest.mark.slow

PROGRAMS: Final = 16
PROGRAMS_FULL: Final = 1_000
STEPS: Final = 30
KEYS: Final = 40
SECONDS: Final = 30.0
CONFIG: Final = """
[[sow]]
name = "programs"
pattern = "^program/"
key = ["/id"]
[admin]
listen = "off"
"""
VALUES: Final = (0, 1, -3, 2.5, 7, 10, 1_000_000, "a", "B", "b", "10", "é", "zz", None)
FIELDS: Final = ("v", "w")
HAPPENS: Final = {"publish", "batch", "delta", "delete filter", "delete data", "delete keys", "query"}

Record = dict[str, Any]


class Database:
    """The records of one topic in SQLite."""

    def __init__(self) -> None:
        self._sql = sqlite3.connect(":memory:")
        self._sql.execute("create table records (id integer primary key, body text, changed integer)")
        self._changes = 0

    def upsert(self, record: Record) -> None:
        self._changes += 1
        self._sql.execute(
            "insert into records values (?, ?, ?) "
            "on conflict (id) do update set body = excluded.body, changed = excluded.changed",
            (record["id"], json.dumps(record), self._changes),
        )

    def merge(self, delta: Record) -> None:
        """Merge the fields of a flat delta. A null replaces a value, which `json_patch` would remove."""
        found = self._sql.execute("select body from records where id = ?", (delta["id"],)).fetchone()
        self.upsert(delta if found is None else json.loads(found[0]) | delta)

    def delete(self, condition: str) -> int:
        return self._sql.execute(f"delete from records where {condition}").rowcount

    def select(self, condition: str, order: str, limit: int, skip: int) -> list[Record]:
        rows = self._sql.execute(
            f"select body from records where {condition} order by {order} limit ? offset ?", (limit, skip)
        )
        return [json.loads(body) for (body,) in rows]


class Program:
    """One random program on a topic of its own."""

    def __init__(self, client: tt.Client, topic: str, rng: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._topic = topic
        self._rng = rng
        self._database = Database()

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self.compare("TRUE", "1", None, "changed")

    def _step(self) -> None:
        rng, client, topic = self._rng, self._client, self._topic
        kind = rng.choice(
            ("publish", "batch", "delta", "delta", "delete filter", "delete data", "delete keys")
        )
        self.counts[kind] += 1
        if kind in ("publish", "batch"):
            records = [self._record() for _ in range(1 if kind == "publish" else rng.choice((5, 60)))]
            client.publish_batch(topic, records)
            for record in records:
                self._database.upsert(record)
        elif kind == "delta":
            delta = self._record()
            client.delta_publish(topic, delta)
            self._database.merge(delta)
        else:
            self._delete(kind)
        self._query()

    def _record(self) -> Record:
        rng = self._rng
        fields = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randrange(3))}
        return {"id": rng.randrange(KEYS)} | fields

    def _delete(self, kind: str) -> None:
        rng, client, topic = self._rng, self._client, self._topic
        if kind == "delete filter":
            ours, theirs = self._condition()
            selection: dict[str, Any] = {"filter": ours}
        elif kind == "delete data":
            number = rng.randrange(KEYS)
            selection, theirs = {"data": {"id": number}}, f"id = {number}"
        else:
            client.publish_flush(timeout=SECONDS)
            found = list(client.sow(topic))
            if not found:
                return
            some = rng.sample(found, min(len(found), 3))
            selection = {"keys": [str(one.sow_key) for one in some]}
            theirs = f"id in ({','.join(str(one.json()['id']) for one in some)})"
        result = client.sow_delete(topic, timeout=SECONDS, **selection)
        assert result is not None
        assert result.records == self._database.delete(theirs), (kind, selection)

    def _condition(self) -> tuple[str, str]:
        """Return a condition as a filter and as SQL."""
        rng = self._rng
        name = rng.choice(FIELDS)
        path, column = f"/{name}", f"json_extract(body, '$.{name}')"
        kind = rng.choice(("null", "number", "text", "id"))
        if kind == "null":
            return f"{path} IS NULL", f"{column} is null"
        if kind == "id":
            number = rng.randrange(KEYS)
            return f"/id < {number}", f"id < {number}"
        if kind == "text":
            return f"{path} = 'b'", f"{column} = 'b'"
        number = rng.choice((0, 1, 7))
        return f"{path} = {number}", f"{column} = {number}"

    def _query(self) -> None:
        rng = self._rng
        ours, theirs = self._condition() if rng.random() < 0.7 else ("TRUE", "1")
        if rng.random() < 0.3:
            self.compare(ours, theirs, None, "changed")
            return
        fields = [(name, rng.choice(("", " DESC"))) for name in rng.sample(FIELDS, rng.randrange(1, 3))]
        fields.append(("id", rng.choice(("", " DESC"))))
        self.compare(
            ours,
            theirs,
            ", ".join(f"/{name}{way}" for name, way in fields),
            ", ".join(f"json_extract(body, '$.{name}'){way}" for name, way in fields),
        )

    def compare(self, ours: str, theirs: str, order_by: str | None, order: str) -> None:
        """Compare a query, perhaps of a part of the records."""
        self.counts["query"] += 1
        self._client.publish_flush(timeout=SECONDS)
        whole = self._rng.random() < 0.5
        top, skip = (None, None) if whole else (self._rng.randrange(20), self._rng.randrange(10))
        result = self._client.sow(self._topic, ours, order_by=order_by, top_n=top, skip_n=skip, batch_size=7)
        found = [record.json() for record in result]
        expected = self._database.select(theirs, order, -1 if top is None else top, skip or 0)
        assert found == expected, (ours, order_by, top, skip)


@pytest.mark.timeout(1800)
def test_random_programs_give_the_records_of_sqlite(server: RunningServer, full: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(PROGRAMS_FULL if full else PROGRAMS):
        with tt.Client(f"program-{seed}", server.uri, timeout=SECONDS) as client:
            program = Program(client, f"program/{seed}", Random(seed))
            try:
                program.run()
            except BaseException as error:
                error.add_note(f"seed {seed}, after {program.counts}")
                raise
        counts += program.counts
    assert counts.keys() >= HAPPENS, counts
