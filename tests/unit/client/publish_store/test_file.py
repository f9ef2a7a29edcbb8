"""Publish stores on disk: opening, locks, segments, and errors of the file system."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.publish_batches import held_batches, stored
from tests.unit.client.peer import Peer, bodies
from tickertape.batch.derive import slice_batch
from tickertape.client.limits import publish_segment_bytes
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore, MemoryPublishStore, Stored
from tickertape.client.publish_store import segments as mapped
from tickertape.client.publish_store.format import HEADER_BYTES, MAGIC
from tickertape.client.publish_store.hybrid_parts import BacklogFiles
from tickertape.testing import check_publish_store
from tickertape.wire.commands import Persisted, Rejected

FIRST_SEGMENT = "0000000001.segment"


def attached(path: Path, name: str = "pricing-1") -> BacklogFiles:
    store = BacklogFiles(path)
    store.attach(name)
    return store


def segments(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith("segment"))


def test_publish_stores_of_the_package_pass_check_publish_store(tmp_path: Path) -> None:
    check_publish_store(MemoryPublishStore)
    check_publish_store(partial(FilePublishStore, tmp_path / "file"), survives=True)
    check_publish_store(partial(FilePublishStore, tmp_path / "sync", sync="always"), survives=True)
    check_publish_store(partial(HybridPublishStore, tmp_path / "hybrid"), survives=True)
    check_publish_store(partial(HybridPublishStore, tmp_path / "tiny", 1), survives=True)


class Forgets(MemoryPublishStore):
    def put(self, stored: Stored) -> None:
        super().put(stored)
        if len(self.held()) > 1:
            self.replace(stored.first, stored.last, None)


def test_check_publish_store_rejects_store_that_loses_messages() -> None:
    with pytest.raises(AssertionError):
        check_publish_store(Forgets)


@pytest.mark.behaviour(29)
def test_next_process_resends_published_messages_in_order(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    peer = Peer(store).connect()
    core = peer.core
    sequences = [core.publishing.publish("orders", b"%d" % i) for i in range(3)]
    sequences.append(core.publishing.publish("trades", b"labelled", 5_000, "corr", "key"))
    store.close()  # as at the end of the process, without further writes
    again = FilePublishStore(tmp_path / "s")
    assert again.unpersisted_count() == 4
    peer = Peer(again).connect()
    ((_, batch),) = peer.published()
    assert batch.bodies_list() == [b"0", b"1", b"2", b"labelled"]
    assert batch.sequences.tolist() == sequences
    assert [batch.topic(i) for i in (2, 3)] == ["orders", "trades"]
    assert (batch.expiration(3), batch.correlation_id(3), batch.key(3)) == (5_000, "corr", "key")
    assert peer.core.publishing.publish("orders", b"next") == (sequences[-1] or 0) + 1
    again.close()


def test_acknowledged_and_rejected_messages_are_not_kept(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    peer = Peer(store).connect()
    first = peer.core.publishing.publish("orders", b"0")
    for i in (1, 2):
        peer.core.publishing.publish("orders", b"%d" % i)
    assert first is not None
    peer.say(Persisted(frame=1, sequence=first))
    peer.core.publishing.publish("orders", b"3")
    peer.say(Rejected(frame=2, code="bad_message", text="no"))
    assert bodies(peer.published()) == [[b"0"], [b"1", b"2"], [b"3"]]
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [s.batch.bodies_list() for s in again.held()] == [[b"3"]]
    again.close()


@pytest.mark.behaviour(31)
def test_second_owner_raises_store_locked_and_names_the_holder(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    with pytest.raises(tt.StoreLocked, match=rf"pricing-1 \(pid {os.getpid()}\)"):
        FilePublishStore(tmp_path / "s")
    with pytest.raises(tt.StoreLocked):
        HybridPublishStore(tmp_path / "s")
    store.close()
    FilePublishStore(tmp_path / "s").close()


def test_publish_store_belongs_to_one_client_name(tmp_path: Path) -> None:
    attached(tmp_path / "s").close()
    store = FilePublishStore(tmp_path / "s")
    with pytest.raises(tt.StoreOwnerMismatch, match="client 'pricing-2': it belongs to client 'pricing-1'"):
        Peer(store, name="pricing-2")
    store.close()


def test_store_lock_is_free_while_a_forked_child_runs_longer(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    read, write = os.pipe()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)  # so that the end of the parent is the end of the child
        try:
            store.append(1, "orders", b"in the child")
        except tt.Forked:
            os.write(writer, b"refused")
        os.close(writer)
        os.read(read, 1)
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 7) == b"refused"
    store.close()
    FilePublishStore(tmp_path / "s").close()
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    os.close(read)
    os.close(reader)


def test_settled_segments_are_removed_and_last_sequence_is_kept(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    body = b"x" * (1 << 20)
    for i in range(1, 41):
        store.put(stored(i, body))
    assert len(segments(tmp_path / "s")) > 4
    store.discard(25)
    assert store.held()[0].batch.bodies_list() == [body]
    assert FIRST_SEGMENT not in segments(tmp_path / "s")
    store.discard(40)
    assert len(segments(tmp_path / "s")) == 1
    assert sum(f.stat().st_blocks * 512 for f in (tmp_path / "s").iterdir()) <= 16 << 20
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert (again.last_sequence, again.unpersisted_count(), again.size_bytes) == (40, 0, 0)
    again.close()


def test_acknowledgement_with_sync_always_is_recorded_without_extra_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with FilePublishStore(tmp_path / "s", sync="always") as store:
        store.attach("a")
        monkeypatch.setattr(mapped.SegmentDirectory, "flush", lambda *where: synced.append(where[2]))
        store.put(stored(1, b"x"))
        store.discard(1)
        assert len(synced) == 1, "an acknowledgement needs no sync"
    with FilePublishStore(tmp_path / "s") as again:
        assert again.unpersisted_count() == 0


def test_acknowledgement_lost_on_full_disk_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    store = attached(path)
    store.put(stored(1, b"one"))
    store.put(stored(2, b"x" * (publish_segment_bytes - 1_100)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with suppress(tt.StoreFailed):
            while True:
                store.note_used(2)
        store.discard(1)
        shutil.copytree(path, tmp_path / "killed")
    with FilePublishStore(tmp_path / "killed") as again:
        assert again.unpersisted_count() == 2, "an unrecorded acknowledgement leads to a resend"
    store.close()
    with FilePublishStore(path) as again:
        assert again.unpersisted_count() == 1


def test_rest_of_replaced_batch_is_kept_after_segment_removal(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = attached(path)
    body = b"x" * (publish_segment_bytes // 3)
    batch = stored(1, body, body)
    store.put(batch)
    store.replace(1, 2, slice_batch(batch.batch, 1, 2))
    assert FIRST_SEGMENT not in segments(path)
    store.close()
    with FilePublishStore(path) as again:
        assert [(s.first, s.batch.bodies_list()) for s in again.held()] == [(2, [body])]


def test_batch_larger_than_a_segment_has_a_separate_segment(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    body = b"x" * (publish_segment_bytes + 1)
    store.put(stored(1, body))
    store.append(2, "orders", body)
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [s.batch.bodies_list() for s in again.held()] == [[body], [body]]
    again.close()


def test_messages_appended_over_two_segments_are_one_batch(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    big, small = b"x" * (publish_segment_bytes - 2000), b"y" * 900
    store.put(stored(1, big))
    batch = stored(2, small, small, small, small)
    for i in range(2, 6):
        store.append(i, "orders", small)
    store.seal(batch)
    del batch
    store.discard(1)
    assert held_batches(store) == [[small] * 4]
    store.discard(3)
    assert held_batches(store) == [[small] * 2]
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [(s.first, s.last, s.batch.bodies_list()) for s in again.held()] == [(4, 5, [small] * 2)]
    again.close()


def test_unsealed_messages_keep_the_segment(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    store.append(1, "orders", b"gathered")
    store.append(2, "orders", b"x" * (publish_segment_bytes - 1000))
    store.discard(5)
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert again.unpersisted_count() == 2
    again.close()


def test_repeated_sequence_uses_the_second_message(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    store.append(1, "orders", b"one")
    store.append(2, "orders", b"was not accepted after all")
    store.append(2, "orders", b"two")
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [b for s in again.held() for b in s.batch.bodies_list()] == [b"one", b"two"]
    again.close()


def test_directory_with_other_files_raises_and_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(tt.NotAStore, match=r"letter\.txt"):
        FilePublishStore(tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_foreign_file_or_newer_format_raises(tmp_path: Path) -> None:
    attached(tmp_path / "s").close()
    file = tmp_path / "s" / FIRST_SEGMENT
    data = bytearray(file.read_bytes())
    data[8] = 9
    file.write_bytes(data)
    with pytest.raises(tt.StoreVersion, match=f"{file}': it has format 9"):
        FilePublishStore(tmp_path / "s")
    file.write_bytes(b"#!/bin/sh\n" * 100)
    with pytest.raises(tt.NotAStore, match=str(file)):
        FilePublishStore(tmp_path / "s")


def test_path_below_a_file_raises_store_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tt.StoreFailed, match="file/s': Not a directory"):
        FilePublishStore(tmp_path / "file" / "s")
    with pytest.raises(tt.StoreFailed, match="Not a directory"):
        FilePublishStore(tmp_path / "file")


def test_permission_error_raises_store_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(tt.StoreFailed, match="Permission denied"):
            FilePublishStore(tmp_path / "s")
    FilePublishStore(tmp_path / "s").close()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_full_disk_at_segment_creation_raises_store_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePublishStore(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(tt.StoreFailed, match=r"No space left on device\. Free space"):
            store.attach("pricing-1")
        assert segments(tmp_path / "s") == []
    peer = Peer(store).connect()
    first = peer.core.publishing.publish("orders", b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(tt.StoreFailed):
            peer.core.publishing.publish("orders", b"x" * publish_segment_bytes)
    assert first is not None
    assert peer.core.publishing.publish("orders", b"second") == first + 1
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [b for s in again.held() for b in s.batch.bodies_list()] == [b"first", b"second"]
    again.close()


def test_full_store_raises_and_keeps_accepted_messages(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s", "2KB", when_full="raise")
    peer = Peer(store).connect()
    accepted = []
    with suppress(tt.StoreFull):
        for i in range(100):
            peer.core.publishing.publish("orders", b"%d" % i * 100)
            accepted.append(b"%d" % i * 100)
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert 3 < len(accepted) < 30
    assert [b for s in again.held() for b in s.batch.bodies_list()] == accepted
    again.close()


def test_closed_publish_store_raises_closed(tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    store.close()
    store.close()
    assert list(store.held()) == []
    for call in (partial(store.append, 1, "t", b""), partial(store.put, stored(1, b""))):
        with pytest.raises(tt.Closed):
            call()


@pytest.mark.parametrize("options", [{"bytes_max": 0}, {"when_full": "drop"}, {"sync": "often"}])
def test_invalid_publish_store_options_raise(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(tt.BadOption):
        FilePublishStore(tmp_path / "s", **options)  # type: ignore[arg-type]


def test_hybrid_store_spills_the_oldest_and_never_repeats_a_sequence(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "s", memory_bytes_max=1000)
    store.attach("a")
    for i in range(1, 21):
        store.put(stored(i, b"x" * 100))
    assert [s.first for s in store.held()] == list(range(1, 21))
    store.discard(3)
    # Killed: messages in memory are lost, those on disk are kept, and no sequence repeats.
    store._file.close()
    again = HybridPublishStore(tmp_path / "s")
    found = [s.first for s in again.held()]
    assert found[0] == 4
    assert 10 <= found[-1] < 20
    assert again.last_sequence > 20
    again.close()


def test_hybrid_store_on_full_disk_counts_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HybridPublishStore(tmp_path / "s", memory_bytes_max=1000)
    store.attach("a")
    store.put(stored(1, b"x"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        store.put(stored(2, b"y" * publish_segment_bytes))
        assert store.size_bytes == store.bytes_max
        assert [s.first for s in store.held()] == [1, 2]
    store.put(stored(3, b"z"))
    assert store.size_bytes < store.bytes_max
    assert [s.first for s in store.held()] == [1, 2, 3]
    store.close()
    assert MAGIC in (tmp_path / "s" / segments(tmp_path / "s")[0]).read_bytes()[:8]


def test_hybrid_store_in_forked_child_raises_and_writes_nothing(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "s")
    store.attach("orders-1")
    store.put(stored(1, b"of the parent"))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            with store:
                store.put(stored(2, b"in the child"))
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            os.write(writer, type(error).__name__.encode())
        try:
            store.close()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"Forked"
    os.close(reader)
    store.close()
    with FilePublishStore(tmp_path / "s") as found:
        assert found.unpersisted_count() == 1


@pytest.mark.parametrize("way", ["put", "appended"])
def test_segment_changed_while_open_raises_store_errors(way: str, tmp_path: Path) -> None:
    store = attached(tmp_path / "s")
    if way == "put":
        store.put(stored(1, b"one", b"two"))
    else:
        for sequence, body in ((1, b"one"), (2, b"two")):
            store.append(sequence, "orders", body, 5_000, "an id", "a key")
        store.seal(stored(1, b"one", b"two"))
    (segment,) = segments(tmp_path / "s")
    file = os.open(tmp_path / "s" / segment, os.O_RDWR)
    refused: list[str] = []  # a length beyond the end leads to a missing segment
    for at in range(HEADER_BYTES, HEADER_BYTES + 200, 3):
        before = os.pread(file, 8, at)
        os.pwrite(file, b"\xff" * 8, at)
        try:
            list(store.held())
        except (tt.StoreCorrupt, tt.StoreFailed) as error:
            refused.append(str(error))
        os.pwrite(file, before, at)
    os.close(file)
    assert len(refused) > 10
    assert all("was changed while" in text or "No such file" in text for text in refused)
    assert [found.batch.bodies_list() for found in store.held()] == [[b"one", b"two"]]
    store.close()


def test_unreadable_sector_raises_store_failed_without_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a mapping the error would be a signal, so the store reads data before it maps it."""
    store = FilePublishStore(tmp_path / "s")
    peer = Peer(store).connect()
    peer.core.publishing.publish("orders", b"x" * 100)
    store.close()
    (segment,) = segments(tmp_path / "s")
    size = (tmp_path / "s" / segment).stat().st_size
    whole = os.pread
    for bad in (0, size // 2, size - 512):

        def pread(fd: int, count: int, offset: int, bad: int = bad) -> bytes:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(segment) and offset <= bad < offset + count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return whole(fd, count, offset)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", pread)
            with pytest.raises(tt.StoreFailed, match=r"Cannot read the publish store .*: Input/output error"):
                FilePublishStore(tmp_path / "s")
    again = FilePublishStore(tmp_path / "s")
    assert again.unpersisted_count() == 1
    again.close()


def test_closed_hybrid_store_rejects_messages(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "s")
    store.attach("pricing-1")
    store.put(stored(1, b"a"))
    store.close()
    with pytest.raises(tt.Closed):
        store.put(stored(2, b"b"))
    assert store.unpersisted_count() == 1
    store.close()
