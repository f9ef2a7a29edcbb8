"""The system disk: kernel behaviour. tests/conformance/test_disk.py checks every disk."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tickertape.base.interfaces import Buffer
from tickertape.journal.disk import SystemDisk, path_parts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> Iterator[SystemDisk]:
    made = SystemDisk(root)
    made.make_directory(".")
    yield made
    made.close_all()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse to grow any file beyond `size` bytes: real short writes, real errors."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# -- the tree -----------------------------------------------------------------------------------------


def test_a_missing_root_is_created_only_when_asked(root: Path) -> None:
    disk = SystemDisk(str(root))
    with pytest.raises(FileNotFoundError):
        disk.names(".")
    assert not root.exists()
    disk.make_directory("")
    disk.make_directory("")
    assert disk.names("") == []


def test_a_root_that_is_a_file_or_has_no_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        SystemDisk(tmp_path / "file").make_directory(".")
    with pytest.raises(FileNotFoundError):
        SystemDisk(tmp_path / "missing" / "root").make_directory(".")


def test_created_files_and_directories_are_accessible_to_the_owner_only(disk: SystemDisk, root: Path) -> None:
    before = os.umask(0)
    try:
        disk.make_directory("d")
        disk.open("d/a", create=True)
        disk.lock("lock", "me")
        SystemDisk(root / "below").make_directory(".")
    finally:
        os.umask(before)
    for path, mode in (("d", 0o700), ("d/a", 0o600), ("lock", 0o600), ("below", 0o700)):
        assert stat.S_IMODE((root / path).stat().st_mode) == mode, path


def test_links_out_of_the_root_are_not_followed(disk: SystemDisk, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "a")
    (root / "dangling").symlink_to(outside / "b")
    for path in ("link/a", "file"):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            disk.open(path)
    with pytest.raises(OSError, match="Too many levels"):
        disk.lock("file", "me")
    with pytest.raises(FileExistsError):
        disk.open("dangling", create=True)
    with pytest.raises(FileExistsError):
        disk.make_directory("link")
    assert (outside / "a").read_bytes() == b"secret"
    assert sorted(os.listdir(outside)) == ["a"]


def test_root_directory_may_be_a_symbolic_link(disk: SystemDisk, root: Path, tmp_path: Path) -> None:
    disk.open("a", create=True)
    (tmp_path / "link").symlink_to(root)
    assert SystemDisk(tmp_path / "link").names(".") == ["a"]


def _use(disk: SystemDisk, name: str) -> None:
    """Call every operation that names a file or a directory."""
    disk.make_directory("d")
    handle = disk.open(f"d/{name}", create=True)
    disk.write(handle, 0, [name.encode()])
    disk.close(handle)
    disk.sync_directory("d")
    disk.sync_directory(".")
    disk.make_directory(".")
    disk.open(f"{name}-removed", create=True)
    disk.remove(f"{name}-removed")
    disk.rename(f"d/{name}", name)
    assert name in disk.names(".")


def test_disk_keeps_using_the_root_directory_after_a_rename(root: Path, tmp_path: Path) -> None:
    disk = SystemDisk(root)
    disk.make_directory(".")
    disk.lock("lock", "me")
    _use(disk, "before")
    root.rename(tmp_path / "moved")
    _use(disk, "without root")
    root.mkdir()
    (root / "d").mkdir()
    (root / "before").write_bytes(b"of somebody else")
    _use(disk, "with another root")
    disk.remove("before")
    assert sorted(os.listdir(root)) == ["before", "d"]
    assert os.listdir(root / "d") == []
    expected = ["d", "lock", "with another root", "without root"]
    assert sorted(os.listdir(tmp_path / "moved")) == expected
    with pytest.raises(BlockingIOError, match=r"^me \(pid"):
        SystemDisk(tmp_path / "moved").lock("lock", "you")
    SystemDisk(root).lock("lock", "you")
    disk.close_all()
    assert disk.names(".") == ["before", "d", "lock"], "the next server uses the directory at the path"


def test_names_are_complete_while_another_thread_lists_the_directory(disk: SystemDisk, root: Path) -> None:
    for name in ("a", "b", "c"):
        (root / name).touch()
    with os.scandir(disk.descriptor()) as other:  # as a listing that another thread has not finished
        next(other)
        assert disk.names(".") == ["a", "b", "c"]


def test_disk_used_only_for_listing_leaves_no_descriptor_open(root: Path) -> None:
    root.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    SystemDisk(root).names(".")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("write", [True, False])
def test_fifo_is_refused_without_blocking(disk: SystemDisk, root: Path, write: bool) -> None:
    os.mkfifo(root / "a")
    with pytest.raises(IsADirectoryError, match="not a regular file"):
        disk.open("a", write=write)
    with pytest.raises(IsADirectoryError, match="not a regular file"):
        disk.lock("a", "me")


def test_path_parts_splits_relative_paths() -> None:
    assert path_parts(".") == path_parts("") == ()
    assert path_parts("a") == ("a",)
    assert path_parts("journal/..a/b..") == ("journal", "..a", "b..")


# -- writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_short_writes_are_continued(disk: SystemDisk, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    whole = os.pwritev
    calls = 0

    def short(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        nonlocal calls
        calls += 1
        return whole(fd, [b"".join(buffers)[:most]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    data: list[Buffer] = [b"abc", b"", bytearray(b"defgh"), memoryview(b"ijkl").cast("I"), b"m" * 20]
    handle = disk.open("a", create=True)
    disk.write(handle, 2, data)
    assert disk.read(handle, 0, 100) == b"\0\0abcdefghijkl" + b"m" * 20
    assert calls == -(-32 // most)


def test_write_that_writes_no_bytes_raises_eio(disk: SystemDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    handle = disk.open("a", create=True)
    with pytest.raises(OSError, match="wrote no bytes") as caught:
        disk.write(handle, 0, [b"abc"])
    assert caught.value.errno == errno.EIO


def test_kernel_error_after_a_short_write_is_raised(disk: SystemDisk) -> None:
    handle = disk.open("a", create=True)
    with largest_file(1000), pytest.raises(OSError, match="File too large"):
        disk.write(handle, 0, [b"x" * 600, b"y" * 600])
    assert disk.read(handle, 0, 2000) == b"x" * 600 + b"y" * 400


@pytest.mark.parametrize("supported", [True, False])
def test_failed_preallocation_releases_the_allocated_space(
    disk: SystemDisk, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    if not supported:
        _without_fallocate(monkeypatch)
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"abc"])
    with largest_file(5000), pytest.raises(OSError, match="File too large"):
        disk.preallocate(handle, 10_000)
    assert disk.read(handle, 0, 10_000) == b"abc"


def test_preallocation_without_kernel_support_writes_zeros(
    disk: SystemDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_fallocate(monkeypatch)
    size = (2 << 20) + 12_345
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"abc"])
    disk.preallocate(handle, size)
    disk.preallocate(handle, 10)
    assert disk.read(handle, 0, size + 1) == b"abc" + bytes(size - 3)
    assert (root / "a").stat().st_blocks * 512 >= size


def _without_fallocate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


# -- reading without waiting --------------------------------------------------------------------------


@pytest.fixture
def cached(disk: SystemDisk) -> int:
    """A handle of 10,000 bytes, for calls that simulate the page cache."""
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [bytes(range(250)) * 40])
    return handle


def test_read_nowait_returns_the_same_as_read_or_none(disk: SystemDisk, cached: int) -> None:
    for offset, size in ((0, 10_000), (0, 0), (9_990, 100), (20_000, 5), (100, 4096), (0, 50_000)):
        assert disk.read_nowait(cached, offset, size) in (None, disk.read(cached, offset, size))
    for offset, size in ((-1, 5), (0, -1)):
        with pytest.raises(OSError, match="cannot read"):
            disk.read_nowait(cached, offset, size)
    with pytest.raises(OSError, match="not open"):
        disk.read_nowait(999, 0, 1)


def _cache_holds(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Simulate a page cache that holds only the first `limit` bytes of the file."""
    whole = os.pread

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        (buffer,) = buffers
        size = os.fstat(fd).st_size
        data = whole(fd, max(0, min(len(buffer), limit - offset)), offset)
        if not data and len(buffer) and offset < size:
            raise BlockingIOError(errno.EAGAIN, "would wait")
        buffer[: len(data)] = data
        return len(data)

    monkeypatch.setattr(os, "preadv", preadv)


def test_read_nowait_that_would_block_returns_none(
    disk: SystemDisk, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cache_holds(monkeypatch, 4096)
    assert disk.read_nowait(cached, 0, 4096) == disk.read(cached, 0, 4096)
    assert disk.read_nowait(cached, 5000, 10) is None
    assert disk.read_nowait(cached, 4000, 200) is None, "short before the end of the file"
    assert disk.read_nowait(cached, 100, 10) == disk.read(cached, 100, 10), "later reads may succeed"


def test_read_nowait_at_the_end_of_the_file_returns_the_short_rest(
    disk: SystemDisk, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cache_holds(monkeypatch, 10_000)
    assert disk.read_nowait(cached, 9_000, 5_000) == disk.read(cached, 9_000, 5_000)
    assert disk.read_nowait(cached, 10_000, 5) == b""


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_read_nowait_without_kernel_support_is_tried_once(
    disk: SystemDisk, cached: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls: list[int] = []

    def preadv(fd: int, *_: object) -> int:
        calls.append(fd)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", preadv)
    assert disk.read_nowait(cached, 0, 10) is disk.read_nowait(cached, 0, 10) is None
    assert len(calls) == 1


def test_read_nowait_raises_read_errors(
    disk: SystemDisk, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="Input/output error"):
        disk.read_nowait(cached, 0, 10)


def test_short_reads_are_continued(disk: SystemDisk, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    wanted = disk.read(cached, 0, 10_000)
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: whole(fd, min(size, 999), offset))
    assert disk.read(cached, 0, 10_000) == wanted
    assert disk.read(cached, 0, 20_000) == wanted
    assert disk.read(cached, 5, 2_000) == wanted[5:2_005]


# -- the lock -----------------------------------------------------------------------------------------

_HOLD = """
import sys
from tickertape.journal.disk import SystemDisk
disk = SystemDisk(sys.argv[1])
disk.lock("lock", "the other server")
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_of_another_process_is_reported_and_released_when_killed(disk: SystemDisk, root: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(root)]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=paths) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(BlockingIOError, match=rf"^the other server \(pid {holder.pid}\)$"):
                disk.lock("lock", "me")
        finally:
            holder.kill()
    disk.lock("lock", "me")
    assert re.fullmatch(rf"me \(pid {os.getpid()}\)\n", (root / "lock").read_text())


def test_lock_holder_without_a_written_name_is_reported(disk: SystemDisk, root: Path) -> None:
    disk.lock("lock", "me")
    (root / "lock").write_bytes(b"")
    with pytest.raises(BlockingIOError, match="another process"):
        SystemDisk(root).lock("lock", "you")


def test_removed_lock_file_does_not_release_the_lock(disk: SystemDisk, root: Path) -> None:
    disk.lock("lock", "me")
    (root / "lock").unlink()
    with pytest.raises(BlockingIOError, match=r"another process \(not named"):
        SystemDisk(root).lock("lock", "you")
    assert os.listdir(root) == [], "a refused lock creates no file"
    (root / "lock").write_text("another instance\n")
    with pytest.raises(BlockingIOError, match=r"^another instance$"):
        SystemDisk(root).lock("lock", "you")
    disk.close_all()
    SystemDisk(root).lock("lock", "you")


def test_lock_on_only_the_file_by_an_earlier_version_is_respected(disk: SystemDisk, root: Path) -> None:
    """Earlier versions locked only the file."""
    (root / "lock").write_text("an older one\n")
    with (root / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(BlockingIOError, match=r"^an older one$"):
                disk.lock("lock", "me")
    disk.lock("lock", "me")


def test_lock_falls_back_to_the_file_when_the_directory_cannot_be_locked(
    disk: SystemDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        whole(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    disk.lock("lock", "me")
    with pytest.raises(BlockingIOError, match=r"^me \(pid"):
        SystemDisk(root).lock("lock", "you")


def test_a_refused_lock_leaves_no_descriptor_open(disk: SystemDisk, root: Path) -> None:
    disk.lock("lock", "me")
    other = SystemDisk(root)
    other.names(".")  # opens the root
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(BlockingIOError):
            other.lock("lock", "you")
        with pytest.raises(FileNotFoundError):
            other.open("missing/a")
        with pytest.raises(IsADirectoryError):
            other.open(".")
        other.names(".")
        other.sync_directory(".")
    assert len(os.listdir("/proc/self/fd")) == before
