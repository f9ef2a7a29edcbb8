"""Linux AIO: data syncs that the kernel completes on an eventfd, without a thread.

Only `io_submit` with `IOCB_CMD_FDSYNC` is used. It hands the sync to the kernel and returns.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from itertools import count
from typing import Final, NamedTuple

_SYNCS_MAX: Final = 8
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_IOCB_CMD_FDSYNC: Final = 3
_IOCB_FLAG_RESFD: Final = 1
_EVENT: Final = struct.Struct("<QQqq")


class _Calls(NamedTuple):
    """Numbers of the system calls."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS: Final = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class KernelSyncs:
    """Syncs of open files by the kernel. `files`: file descriptors by handle.

    Raises `OSError` where the kernel or a sandbox refuses, for example ENOSYS, EPERM or EAGAIN. Used by one
    thread. At most `_SYNCS_MAX` syncs are in flight."""

    def __init__(self, files: Mapping[int, int]) -> None:
        self._files = files
        calls = _CALLS.get(platform.machine())
        if calls is None or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "no Linux AIO on this system")
        self._calls = calls
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._tokens = count(1)
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._events = ctypes.create_string_buffer(_EVENT.size * _SYNCS_MAX)
        self.in_flight = 0
        """Syncs that are not completed yet."""
        context = ctypes.c_ulong(0)
        self._call(calls.setup, ctypes.c_long(_SYNCS_MAX), ctypes.byref(context))
        self._context: ctypes.c_ulong | None = context
        try:
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._destroy()
            raise

    def begin(self, handle: int) -> int:
        """Start a sync of an open file and return its token. Raises `OSError` if nothing was started."""
        assert self._context is not None, "closed"
        if self.in_flight == _SYNCS_MAX:
            raise OSError(errno.EAGAIN, f"{_SYNCS_MAX} syncs are in flight")
        descriptor = self._files.get(handle)
        if descriptor is None:
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        token = next(self._tokens)
        _IOCB.pack_into(
            self._iocb, 0, token, 0, 0, _IOCB_CMD_FDSYNC, 0, descriptor, 0, 0, 0, 0, _IOCB_FLAG_RESFD,
            self.descriptor,
        )  # fmt: skip
        self._call(self._calls.submit, self._context, ctypes.c_long(1), self._iocbs)
        self.in_flight += 1
        return token

    def completed(self) -> list[tuple[int, OSError | None]]:
        """Remove and return the completed syncs. Called when `descriptor` is readable. Never waits."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return []
        return self._take(ctypes.c_long(0), None)

    def close(self) -> list[tuple[int, OSError | None]]:
        """Wait for the syncs in flight, return them, and release the kernel's resources."""
        if self._context is None:
            return []
        done: list[tuple[int, OSError | None]] = []
        while self.in_flight:
            done += self._take(ctypes.c_long(1), None)
        self._destroy()
        os.close(self.descriptor)
        return done

    def _take(self, least: ctypes.c_long, timeout: None) -> list[tuple[int, OSError | None]]:
        size = ctypes.c_long(_SYNCS_MAX)
        while True:
            try:
                number = self._call(self._calls.getevents, self._context, least, size, self._events, timeout)
                break
            except InterruptedError:
                continue
        self.in_flight -= number
        done: list[tuple[int, OSError | None]] = []
        for i in range(number):
            token, _, result, _ = _EVENT.unpack_from(self._events, i * _EVENT.size)
            done.append((token, OSError(-result, os.strerror(-result)) if result < 0 else None))
        return done

    def _destroy(self) -> None:
        context, self._context = self._context, None
        self._call(self._calls.destroy, context)

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
