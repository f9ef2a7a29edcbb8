"""SQL over records: tables of a statement, refused statements, and results."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tickertape.base.errors import BadOption, BadQuery, UsageError
from tickertape.base.limits import MIB
from tickertape.client.sql.database import Database
from tickertape.client.sql.query import SqlQuery

BOOKMARK = f"{2**64 - 1}|1|"
POSITIONS = [{"id": i, "desk": "ab"[i % 2], "qty": i * 1.5} for i in range(6)]
DESKS = [{"desk": "a", "head": "Ann"}, {"desk": "b", "head": "Bob"}]


def records_of(bodies: Sequence[Any]) -> pa.Table:
    count = len(bodies)
    return pa.table(
        {
            "sow_key": pa.array([f"key-{i}" for i in range(count)], pa.string()),
            "topic": pa.array(["positions"] * count, pa.string()).dictionary_encode(),
            "publisher": pa.array([2**64 - 1] * count, pa.uint64()),
            "sequence": pa.array(range(1, count + 1), pa.uint64()),
            "timestamp": pa.array(range(count), pa.timestamp("us", "UTC")),
            "correlation_id": pa.array([f"c{i}" if i else None for i in range(count)], pa.string()),
            "data": pa.array([json.dumps(body).encode() for body in bodies], pa.binary()),
        }
    )


TOPICS = {
    "positions": records_of(POSITIONS),
    "desks": records_of(DESKS),
    "empty": records_of([]),
    "odd": records_of([{"_sow_key": "key-1", "id": "own"}, {"_sow_key": "x"}]),
    "scalars": records_of([1, "x"]),
    "eu.positions": records_of(POSITIONS),
}


def result_of(sql: str, tables: dict[str, str] | None = None, **options: Any) -> pa.Table:
    with SqlQuery(sql, tables, **options) as query:
        for name, topic in query.topics.items():
            query.add(name, TOPICS[topic].select(query.columns))
        return query.run()


def rows(sql: str, tables: dict[str, str] | None = None, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in result_of(sql, tables, **options).to_pylist()]


@pytest.mark.parametrize(
    ("sql", "topics"),
    [
        ("select desk, sum(qty) from positions group by 1", ["positions"]),
        ("from positions", ["positions"]),
        ("select * from a join b using (id) natural join c", ["a", "b", "c"]),
        ("select * from a, lateral (select x from b where b.id = a.id)", ["a", "b"]),
        ("select (select max(x) from b) from a where x in (table c)", ["b", "a", "c"]),
        ("pivot a on desk in ('x', 'y') using sum(qty)", ["a"]),
        ("summarize a", ["a"]),
        ("with a as (select 1) select * from a", []),
        ("with c as (from a) select * from C, b", ["a", "b"]),
        ("with a as (select * from a) select * from a", ["a"]),
        ("with a as (from b), b as (select 1) select * from a, b", ["b"]),
        ("with recursive t as (select 1 n union select n + 1 from t, a where n < 3) from t", ["a"]),
        ("select * from (with c as (select 1) from c), c", ["c"]),
        ('select * from "positions/eu", "a.b", "x""y"', ["positions/eu", "a.b", 'x"y']),
        ("select * from range(3), unnest([1])", []),
        ("select no_function(x) from a", ["a"]),
        ("select * from sqlite_master", ["sqlite_master"]),
        ("select * from '/etc/passwd'", ["/etc/passwd"]),
    ],
)
def test_tables_of_a_statement_are_found(sql: str, topics: list[str]) -> None:
    with SqlQuery(sql) as query:
        assert sorted(query.topics.values()) == sorted(topics)


def test_tables_map_names_to_topics() -> None:
    with SqlQuery("from p, q", {"p": "positions/eu"}) as query:
        assert query.topics == {"p": "positions/eu", "q": "q"}


@pytest.mark.parametrize(
    "sql",
    [
        "copy positions to '{file}'",
        "copy (select 1) to '{file}'",
        "create table x (a int)",
        "insert into positions values (1)",
        "delete from positions",
        "drop view positions",
        "attach '{file}'",
        "export database '{file}'",
        "install httpfs",
        "load httpfs",
        "set memory_limit = '10GB'",
        "reset enable_external_access",
        "pragma database_list",
        "call pragma_version()",
        "explain analyze create table x (a int)",
        "pivot positions on desk using sum(qty)",
        "update extensions",
        "select 1; select 2",
        "",
        "-- nothing",
    ],
)
def test_statement_that_is_not_one_select_is_refused(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(BadQuery, match=r"^Cannot run SQL: .*Use one SELECT, and name the values of a PIVOT"):
        SqlQuery(sql.format(file=file))
    assert not file.exists()


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "read_json('{file}')",
        "read_parquet('{file}')",
        "sniff_csv('{file}')",
        "glob('{directory}/*')",
        "query('from read_csv(''{file}'')')",
    ],
)
def test_function_that_reads_files_is_refused(source: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a\n1\n")
    with pytest.raises(BadQuery, match=r"^Cannot run SQL: (?s:.*)disabled by configuration"):
        result_of(f"select * from {source.format(file=file, directory=tmp_path)}")


def test_file_name_as_a_table_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a\n1\n")
    with SqlQuery(f"select * from '{file}'") as query, pytest.raises(BadQuery, match="disabled"):
        query.run()  # without add


def test_variables_of_the_caller_are_not_tables() -> None:
    mine = pa.table({"a": [1]})
    with SqlQuery("select * from mine") as query, pytest.raises(BadQuery, match="mine does not exist"):
        query.run()
    assert mine.num_rows == 1


def test_network_is_refused() -> None:
    with pytest.raises(BadQuery, match="disabled by configuration"):
        result_of("select * from read_csv('http://127.0.0.1:1/x.csv')")


def test_statement_above_the_memory_limit_fails_instead_of_writing_a_file() -> None:
    sql = "select count(*) from (select a, random() r from range(3_000_000) t(a) order by r)"
    with pytest.raises(BadQuery, match=r"^Cannot run SQL: .*Use a larger memory_limit, or fewer rows\.$"):
        result_of(sql, memory_limit="48MB")  # with a temporary directory it succeeds


def test_configuration_of_the_database_is_locked() -> None:
    with Database(64 * MIB) as database, pytest.raises(BadQuery, match="has been locked"):
        database.run("set enable_external_access = true", "")


@pytest.mark.parametrize("limit", ["32 parrots", -1, 1.5])
def test_invalid_memory_limit_is_refused(limit: Any) -> None:
    with pytest.raises(BadOption, match=r"Invalid size|size must be"):
        SqlQuery("select 1", memory_limit=limit)


def test_table_with_a_schema_is_refused() -> None:
    with pytest.raises(BadQuery, match=r"the table 'eu\.positions' has a schema, .* quotes .*: \"a\.b\"\.$"):
        SqlQuery("from eu.positions")
    assert rows('select count(*) from "eu.positions"') == [(6,)]


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(BadQuery, match="'Positions' and 'positions' are the same table name in SQL"):
        SqlQuery("from Positions, positions")


def test_syntax_error_has_a_caret() -> None:
    with pytest.raises(BadQuery) as caught:
        SqlQuery("select desk,\n  sum(qty from positions")
    assert str(caught.value) == (
        'Cannot run SQL: syntax error at or near "from". Correct the statement.\n'
        "  sum(qty from positions\n          ^"
    )


def test_unknown_column_has_a_caret_and_names_an_empty_table() -> None:
    with pytest.raises(BadQuery) as caught:
        result_of("select nope from positions, empty")
    text = str(caught.value)
    assert text.startswith('Cannot run SQL: Referenced column "nope" not found in FROM clause!')
    assert "'empty' has no records, so its columns are unknown." in text
    assert text.endswith("\nselect nope from positions, empty\n       ^")


def test_statement_must_be_text() -> None:
    with pytest.raises(UsageError, match="sql"):
        SqlQuery(b"select 1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select desk, sum(qty) from positions group by 1 order by 1", [("a", 9.0), ("b", 13.5)]),
        (
            "select head, max(id) from positions join desks using (desk) group by 1 order by 1",
            [("Ann", 4), ("Bob", 5)],
        ),
        ("select count(*) from positions where qty > (select avg(qty) from positions)", [(3,)]),
        ("select count(*) from empty", [(0,)]),
        (
            "select _sow_key, _bookmark, _topic from positions limit 1",
            [("key-0", BOOKMARK, "positions")],
        ),
        ("select id from odd where _sow_key = 'key-1'", [("own",)]),
        ("select count(*) from scalars", [(2,)]),
        ("select max(epoch_us(_timestamp)) from positions", [(5,)]),
        ("select id from positions where _correlation_id = 'c2' or _correlation_id is null", [(0,), (2,)]),
        ("select current_setting('TimeZone')", [("UTC",)]),
    ],
)
def test_statement_returns_the_result(sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows(sql) == expected


def test_statement_reads_the_topic_of_a_table() -> None:
    sql = "select count(*) from p where qty > (select avg(qty) from p)"
    assert rows(sql, {"p": "positions"}) == [(3,)]


def test_star_has_only_the_fields_of_the_body() -> None:
    assert result_of("from positions").column_names == ["id", "desk", "qty"]
    assert result_of("select *, _sow_key from desks").column_names[:3] == ["desk", "head", "_sow_key"]


def test_explicit_types_are_the_columns_of_an_empty_table() -> None:
    types = {"empty": {"id": pa.int64()}}
    result = result_of("select * from empty", types=types)
    assert result.schema == pa.schema([("id", pa.int64())])


def test_types_of_another_table_are_refused() -> None:
    with pytest.raises(BadOption, match=r"types of 'desk': .* Did you mean 'desks'\?"):
        SqlQuery("from desks", types={"desk": {}})


def test_topics_of_another_table_are_refused() -> None:
    with pytest.raises(BadOption, match=r"topic of 'desk': .* Did you mean 'desks'\?"):
        SqlQuery("from desks", {"desk": "desks/eu"})


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(BadOption, match=r"^Cannot run SQL: .*Run: pip install 'tickertape\[sql\]'$"):
        SqlQuery("select 1")


LONG = "select sum(a.range * b.range) from range(1_000_000) a, range(1_000_000) b"


def test_interrupt_ends_a_running_statement() -> None:
    done = threading.Event()
    with SqlQuery(LONG) as query:
        thread = threading.Thread(target=interrupt_until, args=(query, done))
        thread.start()
        with pytest.raises(BadQuery, match=r"(?i)interrupted"):
            query.run()
        done.set()
        thread.join()


def interrupt_until(query: SqlQuery, done: threading.Event) -> None:
    while not done.wait(0.05):
        query.interrupt()  # has no effect before the start of the statement
