"""The contract of the `Disk` port, for every implementation.

The tests run on the system disk and the strict disk. Name a factory to test another disk:

    TICKERTAPE_DISK=package.module:factory pytest tests/conformance/test_disk.py

`factory(directory: Path)` returns a disk with an empty root. The disk may keep data below `directory`.
It also needs `close_all()`, which closes handles and locks as the end of a process does.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from tests.helpers.tiers import parts
from tickertape.base.interfaces import Buffer, Disk
from tickertape.journal.disk import SystemDisk
from tickertape.testing.disk import StrictDisk


class ClosableDisk(Disk, Protocol):
    def close_all(self) -> None: ...


Factory = Callable[[Path], ClosableDisk]


def system_disk(directory: Path) -> ClosableDisk:
    disk = SystemDisk(directory / "root")
    disk.make_directory(".")
    return disk


def strict_disk(directory: Path) -> ClosableDisk:
    return StrictDisk(Random(0))


def _factories() -> dict[str, Factory]:
    found: dict[str, Factory] = {"system": system_disk, "strict": strict_disk}
    named = os.environ.get("TICKERTAPE_DISK")
    if named:
        module, _, name = named.partition(":")
        found[named] = getattr(importlib.import_module(module), name)
    return found


FACTORIES = _factories()


@pytest.fixture(params=list(FACTORIES))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClosableDisk]:
    made = FACTORIES[request.param](tmp_path)
    yield made
    made.close_all()


def create(disk: Disk, path: str, data: bytes = b"") -> int:
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])
    return handle


def contents(disk: Disk, path: str) -> bytes:
    handle = disk.open(path, write=False)
    try:
        return disk.read(handle, 0, disk.size(handle) + 1)
    finally:
        disk.close(handle)


# -- files --------------------------------------------------------------------------------------------


def test_new_file_is_empty_and_listed(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    assert disk.size(handle) == 0
    assert disk.read(handle, 0, 10) == b""
    assert disk.names(".") == disk.names("") == ["a"]


def test_create_is_exclusive_and_open_never_creates(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    disk.open("a", create=True)
    with pytest.raises(FileExistsError):
        disk.open("a", create=True)


def test_two_handles_of_a_file_share_contents(disk: Disk) -> None:
    first = create(disk, "a", b"abc")
    second = disk.open("a")
    assert first != second
    disk.write(second, 1, [b"X"])
    assert disk.read(first, 0, 3) == b"aXc"


def test_all_buffers_are_written_in_order(disk: Disk) -> None:
    buffers: list[Buffer] = [b"ab", b"", bytearray(b"cd"), memoryview(b"_ef_")[1:3]]
    handle = create(disk, "a")
    disk.write(handle, 3, buffers)
    assert disk.read(handle, 0, 100) == b"\0\0\0abcdef"
    assert disk.size(handle) == 9


def test_wide_memoryviews_count_in_bytes(disk: Disk) -> None:
    wide = memoryview(bytes(range(24))).cast("Q")
    handle = create(disk, "a")
    disk.write(handle, 0, [wide, b"end"])
    assert disk.read(handle, 0, 100) == bytes(range(24)) + b"end"


def test_write_with_more_buffers_than_a_system_call_accepts_is_complete(disk: Disk) -> None:
    buffers: list[Buffer] = [b"%05d" % i for i in range(3000)]
    buffers[100] = b""
    handle = create(disk, "a")
    disk.write(handle, 7, buffers)
    assert disk.read(handle, 7, 20_000) == b"".join(buffers)


@pytest.mark.parametrize("buffers", [[], [b""], [b""] * 2000])
def test_write_without_bytes_does_not_grow_the_file(disk: Disk, buffers: list[Buffer]) -> None:
    handle = create(disk, "a")
    disk.write(handle, 50, buffers)
    assert disk.size(handle) == 0


def test_large_writes_across_pages_and_sectors(disk: Disk) -> None:
    data = Random(3).randbytes(300_000)
    handle = create(disk, "a")
    disk.write(handle, 4095, [data[:100_001], data[100_001:]])
    assert disk.read(handle, 4095, 300_000) == data
    assert disk.read(handle, 4095 + 511, 8193) == data[511 : 511 + 8193]


def test_read_is_short_only_at_the_end_of_the_file(disk: Disk) -> None:
    handle = create(disk, "a", b"0123456789")
    assert disk.read(handle, 7, 3) == b"789"
    assert disk.read(handle, 7, 4) == b"789"
    assert disk.read(handle, 10, 5) == disk.read(handle, 1 << 30, 5) == disk.read(handle, 0, 0) == b""


def test_mapped_file_stays_readable_after_close_and_removal(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"some bytes", bytes(10_000), b"end"])
    view = disk.map(handle)
    disk.close(handle)
    disk.remove("a")
    assert view.readonly
    assert (bytes(view[:10]), bytes(view[-3:]), len(view)) == (b"some bytes", b"end", 10_013)


def test_negative_offsets_and_sizes_raise(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    calls: list[Callable[[], object]] = [
        lambda: disk.read(handle, -1, 2),
        lambda: disk.read(handle, 0, -1),
        lambda: disk.write(handle, -1, [b"x"]),
        lambda: disk.truncate(handle, -1),
        lambda: disk.preallocate(handle, 0),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r".*") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    assert disk.read(handle, 0, 10) == b"abc"


def test_preallocate_adds_zeros_and_never_shortens(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    disk.preallocate(handle, 10_000)
    assert disk.read(handle, 0, 20_000) == b"abc" + bytes(9_997)
    disk.preallocate(handle, 5)
    assert disk.size(handle) == 10_000


def test_truncate_removes_data_and_regrowth_reads_as_zeros(disk: Disk) -> None:
    handle = create(disk, "a", b"x" * 9000)
    disk.truncate(handle, 100)
    assert disk.read(handle, 0, 9000) == b"x" * 100
    disk.truncate(handle, 9000)
    assert disk.read(handle, 0, 10_000) == b"x" * 100 + bytes(8900)


def test_read_only_handle_rejects_changes(disk: Disk) -> None:
    create(disk, "a", b"abc")
    handle = disk.open("a", write=False)
    calls: list[Callable[[], object]] = [
        lambda: disk.write(handle, 0, [b"x"]),
        lambda: disk.truncate(handle, 1),
        lambda: disk.preallocate(handle, 10),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r".*") as caught:
            call()
        assert caught.value.errno in (errno.EBADF, errno.EINVAL)
    assert disk.read(handle, 0, 10) == b"abc"
    disk.sync(handle)


def test_closed_handle_raises_and_is_never_reused(disk: Disk) -> None:
    old = create(disk, "a", b"abc")
    disk.close(old)
    assert disk.open("a") != old
    calls: list[Callable[[], object]] = [
        lambda: disk.read(old, 0, 1),
        lambda: disk.write(old, 0, [b"x"]),
        lambda: disk.size(old),
        lambda: disk.sync(old),
        lambda: disk.truncate(old, 0),
        lambda: disk.preallocate(old, 9),
        lambda: disk.close(old),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r".*") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    assert contents(disk, "a") == b"abc"


def test_close_and_sync_keep_written_contents(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    disk.sync(handle)
    disk.close(handle)
    disk.sync_directory(".")
    assert contents(disk, "a") == b"abc"


def test_close_all_closes_every_handle(disk: ClosableDisk) -> None:
    handle = create(disk, "a", b"abc")
    disk.close_all()
    with pytest.raises(OSError, match=r".*") as caught:
        disk.size(handle)
    assert caught.value.errno == errno.EBADF
    assert contents(disk, "a") == b"abc"


# -- names --------------------------------------------------------------------------------------------


def test_names_are_sorted_and_limited_to_one_directory(disk: Disk) -> None:
    disk.make_directory("d")
    for name in ("c", "a", "d/x", "b"):
        create(disk, name)
    assert disk.names(".") == ["a", "b", "c", "d"]
    assert disk.names("d") == ["x"]


def test_make_directory_is_idempotent_and_raises_over_a_file(disk: Disk) -> None:
    disk.make_directory("d")
    disk.make_directory("d")
    disk.make_directory(".")
    disk.make_directory("d/e")
    assert disk.names("d") == ["e"]
    create(disk, "file")
    with pytest.raises(FileExistsError):
        disk.make_directory("file")
    with pytest.raises(FileNotFoundError):
        disk.make_directory("missing/e")


def test_names_of_file_or_missing_directory_raises(disk: Disk) -> None:
    create(disk, "file")
    with pytest.raises(NotADirectoryError):
        disk.names("file")
    with pytest.raises(NotADirectoryError):
        disk.open("file/a", create=True)
    for call in (disk.names, disk.sync_directory):
        with pytest.raises(FileNotFoundError):
            call("missing")


def test_open_of_directory_raises(disk: Disk) -> None:
    disk.make_directory("d")
    for write in (True, False):
        with pytest.raises(IsADirectoryError):
            disk.open("d", write=write)
    with pytest.raises(IsADirectoryError):
        disk.open(".")
    with pytest.raises(FileExistsError):
        disk.open("d", create=True)


def test_removed_file_stays_usable_through_open_handle(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    disk.make_directory("d")
    create(disk, "d/b", b"b")
    disk.remove("a")
    disk.remove("d/b")
    assert (disk.names("."), disk.names("d")) == (["d"], [])
    disk.write(handle, 3, [b"d"])
    assert disk.read(handle, 0, 10) == b"abcd"
    with pytest.raises(FileNotFoundError):
        disk.remove("a")
    with pytest.raises(OSError, match=r"Is a directory|not permitted"):
        disk.remove("d")
    create(disk, "a", b"new")
    assert contents(disk, "a") == b"new"


def test_renamed_file_stays_usable_through_open_handle(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    disk.make_directory("d")
    disk.rename("a", "d/b")
    assert disk.names(".") == ["d"]
    assert disk.names("d") == ["b"]
    disk.write(handle, 3, [b"d"])
    assert contents(disk, "d/b") == b"abcd"


def test_rename_replaces_a_file(disk: Disk) -> None:
    create(disk, "a", b"new")
    old = create(disk, "b", b"old")
    disk.rename("a", "b")
    assert disk.names(".") == ["b"]
    assert contents(disk, "b") == b"new"
    assert disk.read(old, 0, 10) == b"old"


def test_rename_to_the_same_name_changes_nothing(disk: Disk) -> None:
    create(disk, "a", b"abc")
    disk.rename("a", "a")
    assert contents(disk, "a") == b"abc"


def test_rename_moves_directory_with_all_files(disk: Disk) -> None:
    disk.make_directory("d")
    create(disk, "d/a", b"abc")
    disk.make_directory("empty")
    disk.rename("d", "empty")
    assert contents(disk, "empty/a") == b"abc"
    with pytest.raises(OSError, match=r".*") as caught:
        disk.rename("empty", "empty/below")
    assert caught.value.errno == errno.EINVAL


def test_rename_raises_the_errors_of_the_system(disk: Disk) -> None:
    create(disk, "a")
    disk.make_directory("d")
    disk.make_directory("full")
    create(disk, "full/x")
    for old, new, error in (
        ("missing", "b", errno.ENOENT),
        ("a", "missing/b", errno.ENOENT),
        ("a", "d", errno.EISDIR),
        ("d", "a", errno.ENOTDIR),
        ("d", "full", errno.ENOTEMPTY),
        (".", "b", errno.EISDIR),
        ("a", ".", errno.EISDIR),
    ):
        with pytest.raises(OSError, match=r".*") as caught:
            disk.rename(old, new)
        assert caught.value.errno == error, (old, new)
    assert disk.names(".") == ["a", "d", "full"]


@pytest.mark.parametrize("path", ["/a", "../a", "d/../a", "d/./a", "d//a", "a/", "..", "d/..", "./a", "a\0b"])
def test_path_outside_the_root_raises(disk: Disk, path: str) -> None:
    disk.make_directory("d")
    create(disk, "b")
    calls: list[Callable[[], object]] = [
        lambda: disk.open(path),
        lambda: disk.open(path, create=True),
        lambda: disk.names(path),
        lambda: disk.make_directory(path),
        lambda: disk.sync_directory(path),
        lambda: disk.rename(path, "c"),
        lambda: disk.rename("b", path),
        lambda: disk.lock(path, "me"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="stay below the root") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    assert disk.names(".") == ["b", "d"]


# -- the lock -----------------------------------------------------------------------------------------


def test_lock_has_one_holder_and_error_names_the_holder(disk: ClosableDisk) -> None:
    disk.lock("lock", "first server")
    with pytest.raises(BlockingIOError, match=r"^first server \(pid \d+\)$") as caught:
        disk.lock("lock", "second server")
    assert caught.value.errno == errno.EWOULDBLOCK
    assert disk.names(".") == ["lock"]
    assert contents(disk, "lock").startswith(b"first server (pid ")


def test_lock_is_released_at_the_end_of_the_process(disk: ClosableDisk) -> None:
    disk.lock("lock", "a server with a long name")
    disk.close_all()
    disk.lock("lock", "next")
    assert contents(disk, "lock").startswith(b"next (pid ")
    assert contents(disk, "lock").endswith(b")\n")
    with pytest.raises(BlockingIOError, match=r"^next \(pid"):
        disk.lock("lock", "third")


def test_lock_of_directory_raises(disk: Disk) -> None:
    disk.make_directory("d")
    for path in ("d", "."):
        with pytest.raises(IsADirectoryError):
            disk.lock(path, "me")


# -- all disks agree ----------------------------------------------------------------------------------

_PATHS = ("a", "b", "d", "d/a", "d/b", "e/a", "d/e", "d/e/a", ".")


def _step(disk: Disk, rng: Random, handles: dict[int, int]) -> object:
    """Make a call drawn from `rng`. Handles are numbered in the order of opening, as on every disk."""
    path, other = rng.choice(_PATHS), rng.choice(_PATHS)
    number, offset = (
        rng.randrange(1, len(handles) + 2),
        rng.choice((0, 1, 511, 512, 4095, rng.randrange(20_000))),
    )
    data = rng.randbytes(rng.choice((0, 3, 512, 5_000)))
    size = rng.randrange(1, 20_000)
    handle = handles.get(number, -1)
    calls: list[Callable[[], object]] = [
        lambda: disk.names(path),
        lambda: disk.make_directory(path),
        lambda: disk.rename(path, other),
        lambda: disk.sync_directory(path),
        lambda: handles.update({len(handles) + 1: disk.open(path, create=True)}),
        lambda: handles.update({len(handles) + 1: disk.open(path, write=bool(size % 3))}),
        lambda: disk.close(handle) if size % 20 == 0 else disk.size(handle),
        lambda: disk.preallocate(handle, size),
        lambda: disk.truncate(handle, size),
        lambda: disk.sync(handle),
    ]
    weighted = (
        calls
        + [lambda: disk.write(handle, offset, [data, b"tail"]), lambda: disk.read(handle, offset, size)] * 4
    )
    call = rng.choice(weighted)
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "strict"])
@pytest.mark.parametrize("seed", parts(8, 3))
def test_every_disk_returns_the_results_of_the_strict_disk(tmp_path: Path, name: str, seed: int) -> None:
    disks = [FACTORIES[name](tmp_path), strict_disk(tmp_path)]
    rngs = [Random(seed), Random(seed)]
    handles: list[dict[int, int]] = [{}, {}]
    seen: set[str] = set()
    for step in range(400):
        answers = [_step(d, r, h) for d, r, h in zip(disks, rngs, handles, strict=True)]
        assert answers[0] == answers[1], f"seed {seed}, step {step}"
        seen.add(answers[0] if isinstance(answers[0], str) else type(answers[0]).__name__)
    disks[0].close_all()
    assert {"bytes", "list", "NoneType", "ENOENT", "EEXIST", "EISDIR"} <= seen


# -- writes without a wait ----------------------------------------------------------------------------


def test_write_nowait_writes_all_bytes_or_asks_for_a_write(disk: Disk) -> None:
    handle = create(disk, "a", bytes(100))
    for number in range(20):
        data = b"%02d" % number
        complete = False
        with contextlib.suppress(OSError):  # the file system has no such writes
            complete = disk.write_nowait(handle, number, [data[:1], data[1:]])
        if not complete:
            disk.write(handle, number, [data])
        assert disk.read(handle, number, 2) == data


def test_write_nowait_of_closed_handle_or_negative_offset_writes_nothing(disk: Disk) -> None:
    handle = create(disk, "a", b"abc")
    for offset, used in ((-1, handle), (0, 999)):
        for _ in range(20):
            with contextlib.suppress(OSError):
                assert not disk.write_nowait(used, offset, [b"x"])
    assert contents(disk, "a") == b"abc"
