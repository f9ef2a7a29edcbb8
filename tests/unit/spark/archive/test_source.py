"""Rows of archive tasks: all columns of any message in a log."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.archive_rows import SCHEMA
from tickertape.archive.location import location_of
from tickertape.batch import BatchBuilder
from tickertape.spark.archive.job import ArchiveJobOptions, _options
from tickertape.spark.archive.source import (
    ArchiveScanOptions,
    ArchiveSource,
    archive_batch,
    archive_batches,
    gap,
    shortened,
)
from tickertape.spark.common.column_block import block_of_batch
from tickertape.spark.common.servers import server_text

PLACE = location_of("/srv/archive")


def test_sequences_above_a_spark_long_keep_all_bits() -> None:
    builder = BatchBuilder()
    for sequence in (2**63 - 1, 2**63, 2**64 - 2):
        builder.add("a", b"x", sequence=sequence)
    batch = archive_batch([block_of_batch(builder.build(publisher=7, timestamp=5), np.array([3, 5, 9]))])
    found = batch.column("sequence").to_pylist()
    assert found == [2**63 - 1, -(2**63), -2]
    assert [sequence % 2**64 for sequence in found] == [2**63 - 1, 2**63, 2**64 - 2]
    assert batch.column("position").to_pylist() == [3, 5, 9]


def test_optional_columns_are_kept_and_missing_values_are_null() -> None:
    builder = BatchBuilder()
    builder.add("a", b"one", expiration_ms=60_000, key="k")
    builder.add("b", b"", correlation_id="c")
    batch = archive_batch(
        [block_of_batch(builder.build(publisher=2**64 - 1, first_sequence=1, timestamp=5), 40)]
    )
    assert set(batch.schema.names) == set(SCHEMA.names)
    assert [batch.schema.field(name).type for name in SCHEMA.names] == SCHEMA.types
    one, two = batch.to_pylist()
    assert (one["publisher"], one["expiration_ms"], one["key"]) == (str(2**64 - 1), 60_000, "k")
    assert one["correlation_id"] is None
    assert (two["position"], two["data"], two["correlation_id"]) == (41, b"", "c")
    assert two["expiration_ms"] is two["key"] is None


def test_small_blocks_are_merged_into_one_batch() -> None:
    pieces = []
    for at in range(200):
        builder = BatchBuilder()
        builder.add("a", b"%d" % at)
        pieces.append(block_of_batch(builder.build(publisher=1, first_sequence=at + 1), at))
    (batch,) = archive_batches(pieces)
    assert batch.column("position").to_pylist() == list(range(200))
    assert list(archive_batches([])) == []


def test_archive_gap_and_shortened_log_errors_name_positions_and_cure() -> None:
    assert "Positions 5 to 9 were removed before they were archived. Create a new archive" in str(
        gap(PLACE, 5, 9)
    )
    assert "ends at position 9, but the log ends at 5. The log has lost archived messages" in str(
        shortened(PLACE, 9, 5)
    )


@pytest.mark.parametrize("files", [{}, {"tokenFile": "/srv/a token", "caFile": "/srv/ca&b.pem"}])
def test_tasks_use_the_credential_files_of_the_driver(files: dict[str, str]) -> None:
    servers = tuple(server_text(f"tls://127.0.0.1:{port}", files) for port in (9007, 9008))
    order = ArchiveScanOptions(PLACE, "ab", 0, 2)
    options = dict(_options(ArchiveJobOptions(servers=servers, place=PLACE), order))
    assert ArchiveSource(options).streamReader(None)._wanted.servers == servers  # type: ignore[arg-type]


def test_scan_options_are_in_an_option_hidden_by_spark() -> None:
    import msgspec

    order = ArchiveScanOptions(location_of("s3://b/p", {"AWS_SECRET_ACCESS_KEY": "x"}), "ab", 7, 2)
    options = {"servers": "tcp://127.0.0.1:1", "topicPattern": ".*"}
    source = ArchiveSource(options | {"archiveSecret": msgspec.json.encode(order).decode()})
    reader = source.streamReader(None)  # type: ignore[arg-type]
    assert reader.initialOffset() == {"journal": "ab", "position": 7}
