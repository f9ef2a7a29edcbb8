"""Filters and DuckDB select the same rows of the New York flights and weather data.

DuckDB reads the files of the package. The messages are those of the demo. Both contain NULLs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import duckdb
import pytest

from examples.demo.flights import FLIGHTS_FILE, WEATHER_FILE, data_file, encoder, read_rows
from tickertape.filter import compile_filter
from tickertape.payload import message_type

PREDICATES = 80
PREDICATES_FULL = 120
"""The number of predicates per table with `--full`."""
SAMPLE = {"weather": 13, "flights": 160}
"""The sampling step of rows per table. `--full` uses all rows."""
TEXTS = {
    "weather": ["origin", "time_hour"],
    "flights": ["carrier", "tailnum", "origin", "dest", "time_hour"],
}


class Table(NamedTuple):
    name: str
    numbers: list[str]
    texts: list[str]
    bodies: list[bytes]
    indexes: list[int]
    """The row number of each body in the file."""
    values: dict[str, list[str]]
    """Sample cells of each column."""


@cache
def table(name: str, step: int) -> Table:
    rows = read_rows(WEATHER_FILE if name == "weather" else FLIGHTS_FILE)
    header = next(rows)
    encode = encoder(header)
    taken = [(number, row) for number, row in enumerate(rows) if number % step == 0]
    some = [row for _, row in taken[:: max(1, len(taken) // 200)]]
    values = {
        column: sorted({row[at] for row in some if row[at] != "NA"}) for at, column in enumerate(header)
    }
    return Table(
        name,
        [column for column in header if column not in TEXTS[name]],
        TEXTS[name],
        [encode(row) for _, row in taken],
        [number for number, _ in taken],
        values,
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    directory = tmp_path_factory.mktemp("duckdb")
    with zipfile.ZipFile(data_file(FLIGHTS_FILE)) as archive:
        flights = Path(archive.extract(archive.namelist()[0], directory))
    connection = duckdb.connect()
    for name, file in (("weather", data_file(WEATHER_FILE)), ("flights", flights)):
        header = next(iter(read_rows(WEATHER_FILE if name == "weather" else FLIGHTS_FILE)))
        types = {column: "VARCHAR" if column in TEXTS[name] else "DOUBLE" for column in header}
        rows = connection.read_csv(str(file), header=True, dtype=types, na_values="NA", parallel=False)
        connection.register("source", rows)
        connection.execute(f"CREATE TABLE {name} AS SELECT row_number() OVER () - 1 AS n, * FROM source")
    yield connection
    connection.close()


class Predicates:
    """Pairs of equivalent expressions: in the filter language and in SQL."""

    def __init__(self, found: Table, rng: Random) -> None:
        self._table = found
        self._rng = rng

    def _number(self, column: str) -> tuple[str, str]:
        value = self._rng.choice(self._table.values[column])
        return value, f"{value}::DOUBLE"

    def numeric(self, depth: int = 2) -> tuple[str, str, str]:
        """Return the filter expression, the SQL expression, and a column with similar values."""
        rng = self._rng
        column = rng.choice(self._table.numbers)
        plain = (f"/{column}", column)
        kind = (
            rng.choice(["plain", "plain", "sum", "modulo", "abs", "coalesce", "if", "length"])
            if depth
            else "plain"
        )
        if kind == "sum":
            sign, (a, b, _) = rng.choice("+-*"), self.numeric(depth - 1)
            return f"({plain[0]} {sign} {a})", f"({plain[1]} {sign} {b})", column
        if kind == "modulo":
            by = rng.randrange(2, 9)
            return f"({plain[0]} % {by})", f"({plain[1]} % {by}::DOUBLE)", column
        if kind == "abs":
            return f"ABS({plain[0]})", f"ABS({plain[1]})", column
        if kind == "coalesce":
            a, b, _ = self.numeric(depth - 1)
            return f"COALESCE({plain[0]}, {a})", f"COALESCE({plain[1]}, {b})", column
        if kind == "if":
            condition, sql = self.predicate(0)
            a, b, _ = self.numeric(0)
            return (
                f"IF({condition}, {plain[0]}, {a})",
                f"(CASE WHEN {sql} THEN {plain[1]} ELSE {b} END)",
                column,
            )
        if kind == "length":
            text = rng.choice(self._table.texts)
            return f"LENGTH(/{text})", f"LENGTH({text})::DOUBLE", column
        return *plain, column

    def text(self) -> tuple[str, str, str]:
        column = self._rng.choice(self._table.texts)
        match self._rng.choice(["plain", "plain", "upper", "substr", "concat"]):
            case "upper":
                return f"LOWER(/{column})", f"LOWER({column})", column
            case "substr":
                return f"SUBSTR(/{column}, 1, 2)", f"SUBSTR({column}, 1, 2)", column
            case "concat":
                return f"CONCAT(/{column}, '-x')", f"({column} || '-x')", column
        return f"/{column}", column, column

    def _text_predicate(self) -> tuple[str, str]:
        rng = self._rng
        ours, sql, column = self.text()
        cells = rng.choices(self._table.values[column], k=3)
        one = cells[0]
        negation = rng.choice(["", "NOT "])
        members = ", ".join(f"'{cell}'" for cell in cells)
        part = one[: rng.randrange(1, len(one) + 1)] if column != "time_hour" else one[:10]
        match rng.choice(["sign", "in", "like", "begins", "ends", "instr", "between"]):
            case "sign":
                sign = rng.choice(["=", "<>", "<", "<=", ">", ">="])
                return f"{ours} {sign} '{one}'", f"{sql} {sign} '{one}'"
            case "in":
                return f"{ours} {negation}IN ({members})", f"{sql} {negation}IN ({members})"
            case "like":
                return f"{ours} {negation}LIKE '^{part}'", f"{negation}regexp_matches({sql}, '^{part}')"
            case "begins":
                return f"{ours} {negation}BEGINS WITH ('{part}')", f"{negation}starts_with({sql}, '{part}')"
            case "ends":
                return f"{ours} {negation}ENDS WITH ('{one[-1]}')", f"{negation}suffix({sql}, '{one[-1]}')"
            case "instr":
                return f"INSTR({ours}, '{one[0]}') = 1", f"INSTR({sql}, '{one[0]}') = 1"
        low, high = sorted(cells[:2])
        return (
            f"{ours} {negation}BETWEEN '{low}' AND '{high}'",
            f"{sql} {negation}BETWEEN '{low}' AND '{high}'",
        )

    def _number_predicate(self, depth: int) -> tuple[str, str]:
        rng = self._rng
        ours, sql, column = self.numeric(depth)
        negation = rng.choice(["", "NOT "])
        numbers = [self._number(column) for _ in range(3)]
        match rng.choice(["sign", "sign", "sign", "in", "between", "null", "fields"]):
            case "in":
                members = [", ".join(side) for side in zip(*numbers, strict=True)]
                return f"{ours} {negation}IN ({members[0]})", f"{sql} {negation}IN ({members[1]})"
            case "between":
                (a, b), (c, d) = sorted(numbers[:2], key=lambda pair: float(pair[0]))
                return f"{ours} {negation}BETWEEN {a} AND {c}", f"{sql} {negation}BETWEEN {b} AND {d}"
            case "null":
                return f"{ours} IS {negation}NULL", f"{sql} IS {negation}NULL"
            case "fields":
                sign, (a, b, _) = rng.choice(["<", ">=", "<>"]), self.numeric(0)
                return f"{ours} {sign} {a}", f"{sql} {sign} {b}"
        sign = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        return f"{ours} {sign} {numbers[0][0]}", f"{sql} {sign} {numbers[0][1]}"

    def predicate(self, depth: int = 2) -> tuple[str, str]:
        rng = self._rng
        kind = (
            rng.choice(["number", "number", "text", "joined", "not"])
            if depth
            else rng.choice(["number", "text"])
        )
        if kind == "number":
            return self._number_predicate(depth)
        if kind == "text":
            return self._text_predicate()
        a, b = self.predicate(depth - 1)
        if kind == "not":
            return f"NOT ({a})", f"NOT ({b})"
        word, (c, d) = rng.choice(["AND", "OR"]), self.predicate(depth - 1)
        return f"({a}) {word} ({c})", f"({b}) {word} ({d})"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weather", "flights"])
def test_filters_select_the_same_rows_as_duckdb(
    name: str, database: duckdb.DuckDBPyConnection, full: bool
) -> None:
    step = 1 if full else SAMPLE[name]
    found = table(name, step)
    predicates = Predicates(found, Random(f"{name} 1"))
    select: Callable[[str], list[int]] = lambda sql: [  # noqa: E731
        row[0] for row in database.execute(f"SELECT n FROM picked WHERE {sql} ORDER BY n").fetchall()
    ]
    database.execute(f"CREATE OR REPLACE TABLE picked AS SELECT * FROM {name} WHERE n % {step} = 0")
    count = PREDICATES_FULL if full else PREDICATES
    seen: set[str] = set()
    some = 0
    while len(seen) < count:
        ours, sql = predicates.predicate()
        if ours in seen:
            continue
        seen.add(ours)
        rows = [found.indexes[i] for i in compile_filter(ours, message_type("json")).select(found.bodies)]
        assert rows == select(sql), (ours, sql)
        some += 0 < len(rows) < len(found.bodies)
    assert some > count // 2, "most predicates select some rows and not all"
