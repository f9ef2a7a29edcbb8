"""Claims of publish stores: persisted sequences and session numbers over restarts."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.helpers.publish_batches import stored
from tickertape.client.limits import publish_segment_bytes
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore, MemoryPublishStore
from tickertape.client.publish_store.format import SESSION_AT, parse_header, read_session
from tickertape.client.publish_store.hybrid_parts import BacklogFiles

NAME = "pricing-1"
CLOCK = 1_760_000_000_000_000


def reopened(path: Path, **options: str) -> FilePublishStore:
    store = FilePublishStore(path, **options)  # type: ignore[arg-type]
    store.attach(NAME)
    return store


def killed(store: FilePublishStore) -> None:
    """End the process of a store: it writes nothing more."""
    store._refuse_in_child()


@pytest.mark.parametrize("sync", ["never", "always"])
def test_file_store_after_a_kill_claims_discarded_messages_only(tmp_path: Path, sync: str) -> None:
    store = reopened(tmp_path / "s", sync=sync)
    for first in range(1, 60, 3):
        store.put(stored(first, b"a", b"b", b"c"))
    store.discard(31)
    store.replace(34, 36, None)  # rejected, not persisted
    killed(store)
    again = reopened(tmp_path / "s", sync=sync)
    assert again.persisted_sequence == (31 if sync == "never" else 0), "not synced with each discard"
    assert again.persisted_sequence < again.held()[0].first
    again.close()


def test_file_store_with_sync_keeps_the_claim_of_a_close(tmp_path: Path) -> None:
    store = reopened(tmp_path / "s", sync="always")
    store.put(stored(1, b"a", b"b", b"c"))
    store.discard(2)
    store.close()
    again = reopened(tmp_path / "s", sync="always")
    assert again.persisted_sequence == 2
    again.close()


def test_claim_writes_no_record_for_each_acknowledgement_of_a_hybrid_store(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "s")
    store.attach(NAME)
    store.put(stored(1, b"a", b"b", b"c"))
    current = store._file._current
    assert current is not None
    end = current.at
    for sequence in (1, 2, 3):
        store.discard(sequence)
        assert store.persisted_sequence == sequence
    assert current.at == end
    store.close()
    again = HybridPublishStore(tmp_path / "s")
    assert again.persisted_sequence == 3
    assert again.last_sequence > 3
    again.close()


def test_killed_hybrid_store_claims_no_reserved_sequences(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "s")
    store.attach(NAME)
    store.put(stored(1, b"a", b"b", b"c"))
    store.discard(2)
    killed(store._file)
    again = HybridPublishStore(tmp_path / "s")
    assert again.persisted_sequence == 0
    again.attach(NAME)
    first = again.last_sequence + 1
    again.put(stored(first, b"d", b"e"))
    again.discard(first)
    assert again.persisted_sequence == first
    again.close()


def test_foreign_sequence_in_a_discard_is_not_claimed() -> None:
    """Another process published under the client name: this store has no such message."""
    store = MemoryPublishStore()
    store.put(stored(1, b"a", b"b"))
    store.discard(900)
    assert store.persisted_sequence == 2


def test_session_rises_after_a_kill_with_a_clock_that_was_set_back(tmp_path: Path) -> None:
    store = reopened(tmp_path / "s")
    assert store.next_session(CLOCK) == CLOCK
    assert store.next_session(CLOCK - 5) == CLOCK + 1
    killed(store)
    again = reopened(tmp_path / "s")
    assert again.next_session(CLOCK - 9) == CLOCK + 2
    assert again.next_session(CLOCK + 70) == CLOCK + 70
    again.close()


def test_session_is_kept_by_new_segments_after_old_ones_are_removed(tmp_path: Path) -> None:
    store = reopened(tmp_path / "s")
    store.next_session(CLOCK)
    for first in (1, 2, 3):
        store.put(stored(first, bytes(publish_segment_bytes // 2 + 1)))
    store.discard(2)
    assert len([*(tmp_path / "s").glob("*.segment")]) == 1, "the segment of the logon is gone"
    killed(store)
    again = reopened(tmp_path / "s")
    assert again.next_session(1) == CLOCK + 1
    again.close()


def test_session_is_a_word_and_a_complement_in_the_header(tmp_path: Path) -> None:
    with BacklogFiles(tmp_path / "s") as store:
        store.attach(NAME)
        store.next_session(CLOCK)
    data = (tmp_path / "s" / "0000000001.segment").read_bytes()
    assert parse_header(data, "s").name == NAME
    assert struct.unpack_from("<QQ", data, SESSION_AT) == (CLOCK, 2**64 - 1 - CLOCK)
    assert read_session(data) == CLOCK


@pytest.mark.parametrize("at", [SESSION_AT, SESSION_AT + 8])
def test_half_of_a_session_number_counts_as_none(tmp_path: Path, at: int) -> None:
    store = reopened(tmp_path / "s")
    store.next_session(CLOCK)
    store.close()
    file = tmp_path / "s" / "0000000001.segment"
    data = bytearray(file.read_bytes())
    data[at : at + 8] = bytes(8)
    file.write_bytes(data)
    again = reopened(tmp_path / "s")
    assert again.next_session(7) == 7
    again.close()
