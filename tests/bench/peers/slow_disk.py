"""A disk whose sync takes a chosen time, the same for every program on it.

A file of a FUSE file system in this process holds the blocks in memory, and sleeps in `fsync`. A loop device
over the file is the disk, with ext4 on it. The kernel sends the flushes of the disk as `fsync` of the file,
so they are slow for every program, whichever calls it syncs with. It needs root, and the kernel's FUSE and
loop devices. This disk has the same sync for all contenders, but its reads and writes pass through Python.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 4 << 30
COMMAND_SECONDS_MAX: Final = 60
READ_BYTES: Final = (1 << 20) + 4_096
WRITE_BYTES_MAX: Final = 1 << 20
FOREVER_SECONDS: Final = 3_600

_ROOT: Final = 1
_FILE: Final = 2
_NAME: Final = b"disk"
_HEAD: Final = struct.Struct("<IIQQIIIHH")
_ATTRIBUTES: Final = struct.Struct("<QQQQQQIIIIIIIIII")

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR, DESTROY, BATCH_FORGET = 18, 20, 25, 26, 27, 29, 38, 42
ENOENT, ENOSYS = 2, 38


class SlowDisk:
    """The disk, mounted at `mount` until `close()`. Raises `OSError` or `RuntimeError`."""

    def __init__(self, directory: Path, size: int = SIZE_BYTES) -> None:
        if os.geteuid() != 0:
            raise RuntimeError("a disk with slow syncs needs root")
        self.mount = directory.absolute() / "mount"
        self.flushes = 0
        self._outside = directory.absolute() / "outside"
        self._delay = 0.0
        self._size = size
        self._device = ""
        self._blocks = mmap.mmap(-1, size)
        self._fuse = -1
        for path in (self.mount, self._outside):
            path.mkdir(parents=True, exist_ok=True)
        try:
            self._mount()
        except BaseException:
            self.close()
            raise

    def set_delay(self, seconds: float) -> None:
        """Set the time of each sync."""
        self._delay = seconds

    def _mount(self) -> None:
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,max_read={1 << 20}"
        library = ctypes.CDLL(None, use_errno=True)
        if library.mount(b"slow-disk", os.fsencode(self._outside), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount a FUSE file system")
        for _ in range(2):  # one serves reads while another one sleeps in a sync
            threading.Thread(target=self._serve, daemon=True).start()
        file = self._outside / _NAME.decode()
        self._device = _run("losetup", "--find", "--show", str(file))
        _run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=1", self._device)
        _run("mount", "-o", "noatime", self._device, str(self.mount))

    def close(self) -> None:
        """Unmount everything and remove the directory."""
        self._delay = 0.0
        for command in (
            ("umount", str(self.mount)),
            ("losetup", "--detach", self._device),
            ("umount", "--lazy", str(self._outside)),
        ):
            if command[-1]:
                subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS_MAX, check=False)
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        if not os.path.ismount(self.mount) and not os.path.ismount(self._outside):
            shutil.rmtree(self.mount.parent, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fuse, READ_BYTES)
            except OSError:
                return  # unmounted
            _, operation, unique, node, *_ = _HEAD.unpack_from(request)
            if operation in (FORGET, BATCH_FORGET):
                continue
            error, answer = self._answer(operation, node, request[_HEAD.size :])
            try:
                os.writev(self._fuse, [struct.pack("<IiQ", 16 + len(answer), -error, unique), answer])
            except OSError:
                return
            if operation == DESTROY:
                return

    def _answer(self, operation: int, node: int, data: bytes) -> tuple[int, bytes | memoryview]:
        """Return error number and answer of one request."""
        if operation == WRITE:
            _, place, size = struct.unpack_from("<QQI", data)
            self._blocks[place : place + size] = data[40 : 40 + size]
            return 0, struct.pack("<II", size, 0)
        if operation == READ:
            _, place, size = struct.unpack_from("<QQI", data)
            return 0, memoryview(self._blocks)[place : min(place + size, self._size)]
        if operation == FSYNC:
            self.flushes += 1
            time.sleep(self._delay)
            return 0, b""
        if operation == INIT:
            # version, read ahead, flags (large writes), queues, size of a write, time, pages, unused
            fields = (7, 31, 1 << 20, 1 << 5, 64, 48, WRITE_BYTES_MAX, 1, 0, 0)
            return 0, struct.pack("<IIIIHHIIHHIIIIIIII", *fields, *(0,) * 8)
        if operation == LOOKUP:
            if node != _ROOT or data.rstrip(b"\0") != _NAME:
                return ENOENT, b""
            head = struct.pack("<QQQQII", _FILE, 0, FOREVER_SECONDS, FOREVER_SECONDS, 0, 0)
            return 0, head + self._attributes(_FILE)
        if operation in (GETATTR, SETATTR):
            return 0, struct.pack("<QII", FOREVER_SECONDS, 0, 0) + self._attributes(node)
        if operation in (OPEN, OPENDIR):
            return 0, struct.pack("<QII", 1, 0, 0)
        if operation == STATFS:
            return 0, struct.pack("<QQQQQIIII24s", 0, 0, 0, 0, 0, 4_096, 255, 4_096, 0, b"")
        if operation in (RELEASE, FLUSH, RELEASEDIR, DESTROY):
            return 0, b""
        return ENOSYS, b""

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o40755, 0) if node == _ROOT else (0o100600, self._size)
        return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4_096, 0)


def _run(*command: str) -> str:
    """Return the output of a command. Raises `RuntimeError` with its error."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command[0]} does not run: {error}") from None
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()
