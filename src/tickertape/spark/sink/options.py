"""Options of the Spark sink.

Unknown options, and options that do not apply to the query, are rejected with their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import msgspec
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from tickertape.base.errors import BadOption, UsageError
from tickertape.base.names import check_client_name, check_topic
from tickertape.base.text_format import did_you_mean
from tickertape.spark.common.servers import ACCESS
from tickertape.spark.source.options import read_names, read_servers, read_timeout

OF_BOTH: Final = ("servers", "publisher", "topic", "timeout", *ACCESS)
OF_BATCH: Final = ("transactionId",)
OF_STREAM: Final = ("checkpointLocation", "path", "queryName")
"""Options that Spark reads itself and passes on."""

COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "data": (BinaryType, StringType),
    "topic": (StringType,),
    "key": (StringType,),
    "correlation_id": (StringType,),
    "expiration_ms": (LongType, IntegerType),
}
"""Columns of a row. `data` is the body of its message."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a sink."""

    servers: tuple[str, ...]
    publisher: str
    """Client name of the messages, from which their publisher id is derived."""
    topic: str | None
    """None: each row has a topic."""
    transaction: str
    """Transaction name (idempotency key) of a batch write."""
    timeout_seconds: float


def sink_options(given: Mapping[str, str], schema: StructType, *, stream: bool) -> SinkOptions:
    """Parse `given`, the options of `df.write` or `df.writeStream`, for rows of `schema`.

    Raises `BadOption`, `BadTopic`, `BadName`, and `UsageError` for rows that are not messages.
    """
    options = _named(given, stream=stream)
    publisher = options.get("publisher", "")
    if not publisher:
        raise BadOption(
            "Option publisher is missing. Set the client name of the messages, the same name each time the "
            "query starts."
        )
    check_client_name(publisher)
    topic = options.get("topic")
    if topic is not None:
        check_topic(topic)
    _check_columns(schema, topic)
    servers = read_servers(options)
    if len(servers) > 1:
        raise BadOption(
            "Option servers of a sink allows one server only: another server does not know which batches are "
            "in this log, and would store them again. Remove the others."
        )
    transaction = options.get("transactionId")
    if transaction == "":
        raise BadOption("Option transactionId is empty. Omit it if duplicate writes are acceptable.")
    return SinkOptions(
        servers=servers,
        publisher=publisher,
        topic=topic,
        transaction=transaction or uuid4().hex,
        timeout_seconds=read_timeout(options.get("timeout")),
    )


def _named(given: Mapping[str, str], *, stream: bool) -> dict[str, str]:
    if not stream:
        return read_names(given, (*OF_BOTH, *OF_BATCH), {})
    why = (
        "Option transactionId is for batch writes only: batches of a query are transactions already. Omit it."
    )
    return read_names(given, (*OF_BOTH, *OF_STREAM), dict.fromkeys(OF_BATCH, why))


def _check_columns(schema: StructType, topic: str | None) -> None:
    fields = {field.name: field.dataType for field in schema.fields}
    unknown = [name for name in fields if name not in COLUMNS]
    if unknown or "data" not in fields:
        what = "column data is missing."
        if unknown:
            what = f"column {unknown[0]!r} is not part of a message.{did_you_mean(unknown[0], COLUMNS)}"
        raise UsageError(
            f"Cannot write these rows: {what} Use column 'data' (the body) and optionally "
            f"{', '.join(list(COLUMNS)[1:])}. Build a body from several columns with to_json(struct(...)) AS "
            "data."
        )
    for name, kind in fields.items():
        if not isinstance(kind, COLUMNS[name]):
            allowed = " or ".join(kind().simpleString() for kind in COLUMNS[name])
            raise UsageError(
                f"Invalid column {name!r} of type {kind.simpleString()}. Use {allowed}: cast the column."
            )
    if topic is None and "topic" not in fields:
        raise BadOption("No topic is given. Set option topic, or add a column topic.")
    if topic is not None and "topic" in fields:
        raise BadOption("Option topic and column topic exclude each other. Remove one of them.")
