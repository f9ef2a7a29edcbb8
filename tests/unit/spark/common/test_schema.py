"""Arrow columns of message batches: values, selected columns, and few large record batches."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.helpers.processes import source_environment
from tickertape.base.errors import BadBatch, UsageError
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, as_late, batch_from_bodies, merge
from tickertape.spark.common import schema as schema_module
from tickertape.spark.common.column_block import block_of_batch
from tickertape.spark.common.schema import (
    DEFAULT_SCHEMA,
    FURTHER_SCHEMA,
    columns_of,
    record_batch,
    record_batches,
)

FIRST = 1_760_000_000_000_000_000
PUBLISHER = 2**64 - 3


def struct(ddl: str) -> StructType:
    """Return the schema of a DDL text. The parser of Spark needs a session."""
    schema = StructType()
    for column in filter(None, ddl.split(", ")):
        name, kind, *rest = column.split(" ")
        schema.add(name, kind, nullable=not rest)
    return schema


ALL = columns_of(struct(DEFAULT_SCHEMA))


def expected(batches: list[MessageBatch]) -> list[dict[str, Any]]:
    return [
        {
            "topic": message.topic,
            "bookmark": f"{message.publisher}|{message.sequence}|",
            "publisher": message.publisher,
            "sequence": message.sequence,
            "timestamp": datetime.fromtimestamp(batch.timestamp(message.index) / 1e6, UTC),
            "data": message.data,
        }
        for batch in batches
        for message in batch
    ]


def one_run(first: int = FIRST, count: int = 3, publisher: int = PUBLISHER) -> MessageBatch:
    bodies = [b"x" * (i % 5) for i in range(count)]
    return batch_from_bodies(
        "flights", bodies, publisher=publisher, first_sequence=first, timestamp=1_000_000
    )


def many_runs() -> MessageBatch:
    runs = [batch_from_bodies("flights", [b"%d" % i] * (i + 1)) for i in range(4)]
    stamps = [Stamp(publisher, 5, 2_000_000 + i) for i, publisher in enumerate((9, 10, 9, 2**63))]
    return merge(runs, stamps)


def with_gaps() -> MessageBatch:
    builder = BatchBuilder()
    for sequence in (9, 10, 100, 101, 10_000):
        builder.add("flights", b"body", sequence=sequence)
    return builder.build(publisher=3, timestamp=5)


def several_topics() -> MessageBatch:
    builder = BatchBuilder()
    for i in range(6):
        builder.add(f"topic-{i % 3}", b"%d" % i)
    return builder.build(publisher=3, first_sequence=1, timestamp=5)


@pytest.mark.parametrize(
    "batches",
    [
        [one_run()],
        [one_run(count=1)],
        [many_runs()],
        [with_gaps()],
        [several_topics()],
        [one_run(), one_run(FIRST + 3), one_run(9, 20)],
        [one_run(), many_runs(), with_gaps(), several_topics()],
    ],
    ids=["one run", "one message", "many runs", "gaps", "topics", "several of one publisher", "several"],
)
def test_every_column_has_the_values_of_the_messages(batches: list[MessageBatch]) -> None:
    made = record_batch([block_of_batch(batch) for batch in batches], ALL)
    made.validate(full=True)
    assert made.to_pylist() == expected(batches)


def labelled() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("flights", b"1", expiration_ms=5, correlation_id="é")
    builder.add("flights", b"2")
    builder.add("flights", b"3", correlation_id="b", key="k")
    return builder.build(publisher=3, first_sequence=1, timestamp=-1)


def test_optional_columns_are_made_when_in_the_schema() -> None:
    wanted = columns_of(struct(FURTHER_SCHEMA))
    places = np.array([5, 9, 2**40])
    made = record_batch([block_of_batch(one_run(count=2), 3), block_of_batch(labelled(), places)], wanted)
    made.validate(full=True)
    assert made.to_pydict() == {
        "position": [3, 4, 5, 9, 2**40],
        "date": [date(1970, 1, 1)] * 2 + [date(1969, 12, 31)] * 3,
        "key": [None, None, None, None, "k"],
        "correlation_id": [None, None, "é", None, "b"],
        "expiration_ms": [None, None, 5, None, None],
        "stored_late": [False] * 5,
    }
    assert to_arrow_schema(struct(FURTHER_SCHEMA), timezone="UTC") == wanted.schema
    plain = record_batch([block_of_batch(one_run(), 0)], wanted)
    assert [plain.column(name).null_count for name in ("key", "correlation_id", "expiration_ms")] == [3] * 3


def test_late_runs_have_late_messages() -> None:
    merged = merge([one_run(count=2), as_late(one_run(count=3)), one_run(count=1)])
    made = record_batch(
        [block_of_batch(merged), block_of_batch(one_run())], columns_of(struct("stored_late boolean"))
    )
    made.validate(full=True)
    assert made.to_pydict() == {"stored_late": [False] * 2 + [True] * 3 + [False] * 4}


def test_unknown_positions_are_refused() -> None:
    with pytest.raises(BadBatch, match="Cannot read positions"):
        record_batch([block_of_batch(one_run())], columns_of(struct("position long")))


@pytest.mark.parametrize("publisher", [0, 7, PUBLISHER])
@pytest.mark.parametrize(
    "firsts",
    [
        [0],
        [1],
        [8],
        [9_998],
        [99_999_998],
        [FIRST],
        [FIRST + 9_998, FIRST + 10**8 - 2],
        [123, 999],
        [10_000, 20_000],
        [10**18, 9 * 10**18],
        [2**64 - 4],
        [1, 2**63],
    ],
)
def test_bookmark_column_has_the_exact_bookmark_text(firsts: list[int], publisher: int) -> None:
    batches = [one_run(first, publisher=publisher) for first in firsts]
    made = record_batch([block_of_batch(b) for b in batches], columns_of(struct("bookmark string")))
    made.validate(full=True)
    wanted = [f"{publisher}|{first + i}|" for first in firsts for i in range(3)]
    assert made.column(0).to_pylist() == wanted


def test_arrow_schema_equals_the_schema_expected_by_spark() -> None:
    assert ALL.schema.equals(to_arrow_schema(struct(DEFAULT_SCHEMA), timezone="UTC"))
    narrow = struct("data binary NOT NULL, sequence long")
    assert columns_of(narrow).schema.equals(to_arrow_schema(narrow, timezone="UTC"))


def test_only_the_wanted_columns_are_made_in_the_wanted_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name, (kind, arrow, make) in list(schema_module._COLUMNS.items()):

        def recorded(rows: Any, name: str = name, make: Any = make) -> Any:
            made.append(name)
            return make(rows)

        monkeypatch.setitem(schema_module._COLUMNS, name, (kind, arrow, recorded))
    table = record_batch([block_of_batch(one_run())], columns_of(struct("data binary, publisher string")))
    assert table.schema.names == ["data", "publisher"]
    assert made == ["data", "publisher"]


def test_bodies_of_a_single_batch_are_not_copied() -> None:
    batch = MessageBatch.parse(one_run().encode())
    data = record_batch([block_of_batch(batch)], ALL).column("data")
    assert data.buffers()[2].address == pa.py_buffer(batch.bodies).address
    assert data.buffers()[1].address == pa.py_buffer(batch.offsets).address


def test_small_batches_are_merged_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "ROWS_TARGET", 10)
    batches = [one_run(FIRST + 3 * i) for i in range(9)]
    tables = list(record_batches(map(block_of_batch, batches), ALL))
    assert [table.num_rows for table in tables] == [12, 12, 3]
    assert [row for table in tables for row in table.to_pylist()] == expected(batches)


def test_large_bodies_are_not_merged_beyond_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "TEXT_BYTES_TARGET", 100)
    batches = [batch_from_bodies("flights", [b"x" * 60]) for _ in range(5)]
    assert [table.num_rows for table in record_batches(map(block_of_batch, batches), ALL)] == [2, 2, 1]
    assert list(record_batches([], ALL)) == []
    labelled = []
    for _ in range(5):
        builder = BatchBuilder()
        builder.add("flights", b"", key="k" * 40, correlation_id="c" * 20)
        labelled.append(builder.build())
    assert [table.num_rows for table in record_batches(map(block_of_batch, labelled), ALL)] == [2, 2, 1]


def test_sequence_above_a_spark_long_is_refused() -> None:
    batch = one_run(2**63 - 1)
    with pytest.raises(UsageError, match="as a Spark long: it is too large"):
        record_batch([block_of_batch(batch)], ALL)
    bookmarks = (
        record_batch([block_of_batch(batch)], columns_of(struct("bookmark string"))).column(0).to_pylist()
    )
    assert bookmarks == [f"{PUBLISHER}|{2**63 - 1 + i}|" for i in range(3)]


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("carrier binary", r"Unsupported type binary .* field of JSON bodies\. Use string, .*from_json"),
        ("carrier string NOT", "a field of JSON bodies may be missing. Declare it"),
        ("a..b string", "Use field names separated by single dots"),
        ("a string, a.b string", "'a' would be a value and an object"),
        ("key string NOT", "it is NOT NULL, but null"),
        ("data string", "Invalid column 'data' of type string. Use binary"),
        ("timestamp timestamp_ntz", "Invalid column 'timestamp' of type timestamp_ntz. Use timestamp"),
        ("data binary, data binary", "each once"),
        ("", "one or more"),
    ],
)
def test_unsupported_schema_is_refused(ddl: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        columns_of(struct(ddl))


def test_record_batch_imports_no_slow_modules() -> None:
    """Spark starts four Python processes for the first query, and each one would wait for pandas."""
    code = (
        "import sys; from pyspark.sql.types import StructType;"
        "from tickertape.batch import batch_from_bodies; from tickertape.spark.common.schema import *;"
        "from tickertape.spark.common.column_block import block_of_batch;"
        "kinds = {'data': 'binary', 'sequence': 'long', 'timestamp': 'timestamp'};"
        "names = ['topic', 'bookmark', 'publisher', 'sequence', 'timestamp', 'data'];"
        "schema = StructType(); [schema.add(name, kinds.get(name, 'string')) for name in names];"
        "batches = [batch_from_bodies('a', [b'x']), batch_from_bodies('b', [b'y'])];"
        "record_batch(list(map(block_of_batch, batches)), columns_of(schema));"
        "print([name for name in ('pandas', 'uvloop', 'asyncio', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=source_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
