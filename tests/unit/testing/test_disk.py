"""The strict disk: crashes and faults. `tests/conformance/test_disk.py` has the tests of every disk."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tickertape.testing.disk import OPERATIONS, StrictDisk

CRASHES = 200
OLD, NEW = b"o" * 4096, b"n" * 4096


@pytest.fixture
def disk() -> StrictDisk:
    return StrictDisk(Random(1))


def durable_file(disk: StrictDisk, path: str, data: bytes) -> int:
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])
    disk.sync(handle)
    disk.sync_directory(path.rpartition("/")[0])
    return handle


def futures(disk: StrictDisk, count: int = CRASHES) -> list[dict[str, bytes]]:
    return [disk.crash_clone(Random(seed)).contents() for seed in range(count)]


def outcomes(disk: StrictDisk, path: str) -> set[bytes | None]:
    return {future.get(path) for future in futures(disk)}


# -- sectors ------------------------------------------------------------------------------------------


def test_synced_data_survives_every_crash(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD + NEW)
    assert outcomes(disk, "a") == {OLD + NEW}
    assert disk.counts == Counter(crash=CRASHES)


def test_unsynced_write_is_kept_lost_or_torn_by_sectors(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    seen = outcomes(disk, "a")
    assert {OLD, NEW} <= seen
    assert len(seen) > 20
    for future in seen:
        assert future is not None
        for start in range(0, 4096, 512):
            assert future[start : start + 512] in (OLD[:512], NEW[:512])
    assert disk.counts["sector_kept"] > 0
    assert disk.counts["sector_lost"] > 0
    assert disk.counts["sector_zeroed"] == 0, "a sector once durable is old or new, never blank"


def test_partial_sector_write_survives_with_durable_neighbours(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD[:512])
    disk.write(handle, 100, [NEW[:50]])
    assert outcomes(disk, "a") == {OLD[:512], OLD[:100] + NEW[:50] + OLD[:362]}


def test_sector_without_sync_may_be_zeros_after_crash(disk: StrictDisk) -> None:
    handle = disk.open("a", create=True)
    disk.preallocate(handle, 512)
    disk.sync(handle)
    disk.sync_directory("")
    disk.write(handle, 0, [NEW[:512]])
    assert outcomes(disk, "a") == {NEW[:512], bytes(512)}
    assert disk.counts["sector_zeroed"] > 0


def test_second_write_of_a_sector_never_survives_without_the_first(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD[:512])
    disk.write(handle, 0, [b"1" * 100])
    disk.write(handle, 100, [b"2" * 100])
    first = b"1" * 100 + OLD[:412]
    both = b"1" * 100 + b"2" * 100 + OLD[:312]
    assert outcomes(disk, "a") == {OLD[:512], first, both}


def test_sectors_of_two_writes_survive_independently(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD[:1024])
    disk.write(handle, 0, [NEW[:512]])
    disk.write(handle, 512, [NEW[:512]])
    assert len(outcomes(disk, "a")) == 4


# -- sizes --------------------------------------------------------------------------------------------


def test_unsynced_size_is_old_or_new_after_crash(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", b"")
    disk.preallocate(handle, 1000)
    disk.preallocate(handle, 5000)
    assert outcomes(disk, "a") == {b"", bytes(1000), bytes(5000)}
    assert disk.counts["size_old"] > 0
    assert disk.counts["size_new"] > 0
    disk.sync(handle)
    assert outcomes(disk, "a") == {bytes(5000)}


def test_unsynced_append_may_leave_new_size_without_data(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", b"")
    disk.write(handle, 0, [NEW[:512]])
    assert outcomes(disk, "a") == {b"", bytes(512), NEW[:512]}


def test_appended_data_with_lost_size_reads_as_zeros_after_regrowth(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD[:100])
    disk.write(handle, 100, [NEW])
    for seed in range(CRASHES):
        crashed = disk.crash_clone(Random(seed))
        again = crashed.open("a")
        if crashed.size(again) == 100:
            crashed.truncate(again, 4196)
            assert crashed.read(again, 0, 5000) == OLD[:100] + bytes(4096)


def test_unsynced_truncation_may_be_undone_by_crash(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.truncate(handle, 700)
    assert outcomes(disk, "a") == {OLD, OLD[:700]}
    disk.sync(handle)
    assert outcomes(disk, "a") == {OLD[:700]}
    disk.truncate(handle, 4096)
    disk.sync(handle)
    assert outcomes(disk, "a") == {OLD[:700] + bytes(3396)}


# -- names --------------------------------------------------------------------------------------------


def test_file_with_synced_data_and_unsynced_name_may_be_lost(disk: StrictDisk) -> None:
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [NEW])
    disk.sync(handle)
    assert outcomes(disk, "a") == {None, NEW}
    assert disk.counts["name_lost"] > 0
    assert disk.counts["name_kept"] > 0
    disk.sync_directory("")
    assert outcomes(disk, "a") == {NEW}


def test_unsynced_directory_is_lost_with_all_files(disk: StrictDisk) -> None:
    disk.make_directory("d")
    durable_file(disk, "d/a", NEW)
    assert outcomes(disk, "d/a") == {None, NEW}
    assert {tuple(disk.crash_clone(Random(seed)).names("")) for seed in range(CRASHES)} == {(), ("d",)}
    disk.sync_directory("")
    assert outcomes(disk, "d/a") == {NEW}


def test_unsynced_names_are_lost_independently(disk: StrictDisk) -> None:
    for name in "ab":
        disk.open(name, create=True)
    assert {tuple(future) for future in futures(disk)} == {(), ("a",), ("b",), ("a", "b")}


def test_unsynced_rename_leaves_the_old_or_the_new_name(disk: StrictDisk) -> None:
    durable_file(disk, "new", NEW)
    durable_file(disk, "current", OLD)
    disk.rename("new", "current")
    left = [{"current": OLD, "new": NEW}, {"current": NEW}]
    seen = futures(disk)
    assert all(future in left for future in seen)
    assert all(future in seen for future in left)
    assert disk.counts["rename_lost"] > 0
    assert disk.counts["rename_kept"] > 0
    disk.sync_directory("")
    assert futures(disk, 50) == [{"current": NEW}] * 50


@pytest.mark.parametrize("order", [("", "d"), ("d", "")])
def test_rename_between_directories_is_durable_when_both_are_synced(
    disk: StrictDisk, order: tuple[str, str]
) -> None:
    disk.make_directory("d")
    durable_file(disk, "a", OLD)
    disk.rename("a", "d/b")
    for synced in order:
        assert {tuple(future) for future in futures(disk)} == {("a",), ("d/b",)}
        disk.sync_directory(synced)
    assert {tuple(future) for future in futures(disk)} == {("d/b",)}


def test_rename_of_unsynced_file_leaves_one_name_or_none(disk: StrictDisk) -> None:
    disk.open("temporary", create=True)
    disk.rename("temporary", "final")
    assert {tuple(future) for future in futures(disk)} == {(), ("temporary",), ("final",)}


def test_reused_name_never_loses_the_renamed_file(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD)
    disk.rename("a", "b")
    disk.open("a", create=True)
    left = [{"a": OLD}, {"b": OLD}, {"a": b"", "b": OLD}]
    seen = futures(disk)
    assert all(future in left for future in seen)
    assert all(future in seen for future in left)


def test_synced_rename_makes_earlier_renames_of_the_file_durable(disk: StrictDisk) -> None:
    disk.make_directory("d")
    disk.sync_directory("")
    disk.open("a", create=True)
    disk.rename("a", "d/a")  # waits for both directories
    disk.rename("d/a", "d/b")  # waits for one
    disk.sync_directory("d")
    assert {tuple(future) for future in futures(disk)} == {("d/b",)}


# -- faults -------------------------------------------------------------------------------------------


def test_sync_after_failed_sync_succeeds_and_saves_nothing(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(handle)
    disk.sync(handle)
    assert disk.read(handle, 0, 4096) == NEW, "the page cache still shows it"
    seen = outcomes(disk, "a")
    assert {OLD, NEW} <= seen
    assert len(seen) > 20
    assert disk.counts["sectors_dropped"] == 8
    assert disk.counts["dropped_sector_lost"] > 0


def test_data_dropped_by_failed_sync_is_durable_only_after_rewrite(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(handle)
    disk.write(handle, 0, [NEW[:1024]])
    disk.sync(handle)
    seen = outcomes(disk, "a")
    assert len(seen) > 10
    assert all(future is not None and future[:1024] == NEW[:1024] for future in seen)


def test_failed_sync_may_leave_durable_size_over_lost_data(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", b"")
    disk.write(handle, 0, [NEW[:512]])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(handle)
    disk.sync(handle)
    assert outcomes(disk, "a") == {bytes(512), NEW[:512]}


def test_sectors_dropped_by_failed_sync_do_not_return_after_synced_truncation(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(handle)
    disk.truncate(handle, 0)
    disk.preallocate(handle, 4096)
    disk.sync(handle)
    assert outcomes(disk, "a") == {bytes(4096)}


def test_directory_sync_after_failed_directory_sync_saves_nothing(disk: StrictDisk) -> None:
    disk.open("a", create=True)
    disk.fail("sync_directory", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_directory("")
    disk.sync_directory("")
    assert disk.names("") == ["a"]
    assert {tuple(future) for future in futures(disk)} == {(), ("a",)}
    assert disk.counts["names_dropped"] == 1
    killed = disk.kill_clone()
    killed.sync_directory("")
    assert {tuple(future) for future in futures(killed)} == {(), ("a",)}, (
        "the names stay lost for the next process"
    )


def test_failed_write_leaves_a_part_that_a_crash_may_lose(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.fail("write", 1, errno.ENOSPC, written=1000)
    with pytest.raises(OSError, match="No space left") as caught:
        disk.write(handle, 0, [NEW[:600], NEW[600:]])
    assert caught.value.errno == errno.ENOSPC
    assert disk.read(handle, 0, 4096) == NEW[:1000] + OLD[1000:]
    assert disk.counts["short_write"] == 1
    assert {OLD, NEW[:1000] + OLD[1000:], NEW[:512] + OLD[512:]} <= outcomes(disk, "a")


def test_failed_write_leaves_part_of_random_size_by_default() -> None:
    left = set()
    for seed in range(20):
        disk = StrictDisk(Random(seed))
        handle = disk.open("a", create=True)
        disk.fail("write", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            disk.write(handle, 0, [NEW])
        left.add(disk.size(handle))
    assert len(left) > 15
    assert max(left) <= 4096


def _calls(disk: StrictDisk, handle: int) -> dict[str, Callable[[], object]]:
    return {
        "names": lambda: disk.names(""),
        "make_directory": lambda: disk.make_directory("d"),
        "open": lambda: disk.open("a"),
        "close": lambda: disk.close(handle),
        "size": lambda: disk.size(handle),
        "preallocate": lambda: disk.preallocate(handle, 9000),
        "truncate": lambda: disk.truncate(handle, 1),
        "write": lambda: disk.write(handle, 0, [b""]),
        "sync": lambda: disk.sync(handle),
        "read": lambda: disk.read(handle, 0, 1),
        "rename": lambda: disk.rename("a", "b"),
        "remove": lambda: disk.remove("a"),
        "sync_directory": lambda: disk.sync_directory(""),
        "lock": lambda: disk.lock("lock", "me"),
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_injected_fault_fails_each_operation_once(disk: StrictDisk, operation: str) -> None:
    handle = durable_file(disk, "a", OLD)
    before = disk.contents()
    call = _calls(disk, handle)[operation]
    calls = disk.calls[operation]
    disk.fail(operation, 1, errno.EDQUOT)
    assert disk.faults_left == 1
    with pytest.raises(OSError, match=r".*") as caught:
        call()
    assert caught.value.errno == errno.EDQUOT
    assert disk.contents() == before
    assert disk.faults_left == 0
    call()
    assert disk.calls[operation] == calls + 2
    assert disk.counts[f"fault_{operation}"] == 1


def test_injected_faults_fail_the_given_calls_counted_from_now(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.fail("sync", 2, errno.EIO)
    disk.fail("sync", 4, errno.ENOSPC)
    errors: list[int | None] = []
    for _ in range(5):
        try:
            disk.sync(handle)
            errors.append(None)
        except OSError as error:
            errors.append(error.errno)
    assert errors == [None, errno.EIO, None, errno.ENOSPC, None]


@pytest.mark.parametrize(("operation", "nth"), [("fsync", 1), ("sync", 0)])
def test_fault_with_unknown_operation_or_call_zero_is_rejected(
    disk: StrictDisk, operation: str, nth: int
) -> None:
    with pytest.raises(ValueError, match=r"Unknown operation 'fsync'|Invalid call number 0 of 'sync'"):
        disk.fail(operation, nth, errno.EIO)


# -- space --------------------------------------------------------------------------------------------


def test_full_disk_rejects_preallocation_and_accepts_writes_into_reserved_space() -> None:
    disk = StrictDisk(Random(0), space_bytes=10_000)
    handle = disk.open("a", create=True)
    disk.preallocate(handle, 8_000)
    other = disk.open("b", create=True)
    with pytest.raises(OSError, match="No space left"):
        disk.preallocate(other, 2_001)
    assert disk.size(other) == 0
    disk.write(handle, 0, [NEW, NEW[:3_904]])
    disk.preallocate(other, 2_000)
    assert disk.used_bytes == 10_000
    assert disk.counts["no_space"] == 1


def test_write_on_full_disk_is_short() -> None:
    disk = StrictDisk(Random(0), space_bytes=3_000)
    handle = disk.open("a", create=True)
    with pytest.raises(OSError, match="No space left"):
        disk.write(handle, 0, [NEW])
    assert disk.read(handle, 0, 4096) == NEW[:3_000]
    assert disk.used_bytes == 3_000
    with pytest.raises(OSError, match="No space left"):
        disk.write(handle, 3_500, [b"x"])
    assert disk.size(handle) == 3_000
    disk.space_bytes = 4_096
    disk.write(handle, 0, [NEW])
    assert disk.read(handle, 0, 4096) == NEW


def test_truncation_and_replacement_free_disk_space() -> None:
    disk = StrictDisk(Random(0), space_bytes=10_000)
    durable_file(disk, "a", NEW)
    handle = durable_file(disk, "b", OLD)
    disk.truncate(handle, 1_000)
    assert disk.used_bytes == 5_096
    disk.rename("b", "a")
    assert disk.used_bytes == 1_000
    assert disk.crash_clone(Random(0)).space_bytes == 10_000
    assert disk.kill_clone().used_bytes == 1_000


# -- clones -------------------------------------------------------------------------------------------


def test_kill_clone_keeps_contents_and_unsynced_state(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.open("b", create=True)
    killed = disk.kill_clone()
    assert killed.contents() == disk.contents() == {"a": NEW, "b": b""}
    assert {OLD, NEW} <= outcomes(killed, "a")
    assert outcomes(killed, "b") == {None, b""}
    again = killed.open("a")
    killed.sync(again)
    killed.sync_directory("")
    assert futures(killed, 50) == [{"a": NEW, "b": b""}] * 50
    assert OLD in outcomes(disk, "a"), "the first disk knows nothing of the clone's sync"


def test_kill_clone_keeps_failed_sync_and_half_synced_rename(disk: StrictDisk) -> None:
    disk.make_directory("d")
    disk.sync_directory("")
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(handle)
    disk.rename("a", "d/a")
    disk.sync_directory("")
    killed = disk.kill_clone()
    killed.sync(killed.open("d/a"))
    assert {tuple(future) for future in futures(killed)} == {("a",), ("d/a",)}
    killed.sync_directory("d")
    assert {OLD, NEW} <= outcomes(killed, "d/a")


def test_disk_clone_has_no_open_handles_and_no_locks(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.lock("lock", "me")
    for clone in (disk.crash_clone(Random(1)), disk.kill_clone()):
        with pytest.raises(OSError, match="Bad file descriptor"):
            clone.size(handle)
        clone.lock("lock", "the next process")
        assert clone.calls == Counter(size=1, lock=1)


def test_disk_clones_and_original_change_independently(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    crashed, killed = disk.crash_clone(Random(1)), disk.kill_clone()
    disk.write(handle, 0, [NEW])
    disk.sync(handle)
    for clone in (crashed, killed):
        assert clone.contents() == {"a": OLD}
        clone.write(clone.open("a"), 10, [b"clone"])
        clone.open("b", create=True)
    assert disk.contents() == {"a": NEW}
    assert crashed.contents() == killed.contents() == {"a": OLD[:10] + b"clone" + OLD[15:], "b": b""}


def test_contents_after_a_crash_are_durable(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD)
    disk.write(handle, 0, [NEW])
    disk.open("b", create=True)
    for seed in range(20):
        crashed = disk.crash_clone(Random(seed))
        assert futures(crashed, 5) == [crashed.contents()] * 5


def test_equal_seeds_give_equal_crash_outcomes(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD * 4)
    disk.write(handle, 300, [NEW * 3])
    for name in "bcdef":
        disk.open(name, create=True)
    assert futures(disk) == futures(disk)


def test_event_counts_are_shared_with_clones() -> None:
    counts: Counter[str] = Counter()
    disk = StrictDisk(Random(0), counts=counts)
    disk.open("a", create=True)
    disk.kill_clone().crash_clone(Random(1)).crash_clone(Random(2))
    assert counts["kill"] == 1
    assert counts["crash"] == 2
    assert counts["name_kept"] + counts["name_lost"] == 1
