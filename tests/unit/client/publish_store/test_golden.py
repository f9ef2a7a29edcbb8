"""The segment format of publish stores: stable bytes, and files of earlier versions are readable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.helpers.publish_batches import stored
from tickertape.client.publish_store import FilePublishStore
from tickertape.client.publish_store import segments as mapped
from tickertape.client.publish_store.format import parse_header
from tickertape.client.publish_store.hybrid_parts import BacklogFiles

GOLDEN = Path(__file__).parents[3] / "golden" / "publish-segment.bin"
"""A segment without the trailing zeros."""
BEFORE = GOLDEN.with_name("publish-segment-before.bin")
"""A segment of a version that did not record the first logon."""
NAME = "pricing-1"
SEGMENT = "0000000001.segment"


def write(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Write a record of every kind and return the segment."""
    monkeypatch.setattr(mapped.SegmentDirectory, "chance", lambda _: 0x0123456789ABCDEF)
    with BacklogFiles(path) as store:
        store.attach(NAME)
        store.put(stored(1_000, b"one", b"two"))
        store.append(1_002, "orders", b"three")
        store.append(1_003, "trades", b"four", 5_000, "corr", "key")
        store.put(stored(1_004, b"five", b"six", b"seven"))
        store.replace(1_004, 1_006, stored(1_005, b"six", b"seven").batch)
        store.note_used(2_000)
        store.note_logon()
        store.discard(1_000)
        store.append(2_001, "orders", b"last")
    return (path / SEGMENT).read_bytes()


def test_written_segment_equals_the_golden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(tmp_path / "s", monkeypatch).rstrip(b"\0")
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        GOLDEN.write_bytes(written)
    assert written == GOLDEN.read_bytes()


@pytest.mark.parametrize("golden", [GOLDEN, BEFORE])
def test_golden_file_is_read(golden: Path, tmp_path: Path) -> None:
    data = golden.read_bytes()
    size = int.from_bytes(data[60:64], "little")
    whole = data.ljust(size, b"\0")
    assert parse_header(whole, "golden").name == NAME
    path = tmp_path / "s"
    path.mkdir()
    (path / SEGMENT).write_bytes(whole)
    with FilePublishStore(path) as store:
        found = [
            (int(n), s.batch.topic(i), s.batch.body(i), s.batch.correlation_id(i))
            for s in store.held()
            for i, n in enumerate(s.batch.sequences)
        ]
        assert store.last_sequence == 2_001
        assert not store.never_logged_on
        assert store.held()[1].batch.expiration(1) == 5_000
    assert found == [
        (1_001, "orders", b"two", None),
        (1_002, "orders", b"three", None),
        (1_003, "trades", b"four", "corr"),
        (1_005, "orders", b"six", None),
        (1_006, "orders", b"seven", None),
        (2_001, "orders", b"last", None),
    ]
    shutil.rmtree(path)
