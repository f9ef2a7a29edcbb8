"""Helpers for files of a data directory: open, replace atomically, quarantine, report damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer, Disk
from tickertape.journal.format.segment import QUARANTINE_DIRECTORY


@contextmanager
def open_file(disk: Disk, path: str, *, write: bool = False) -> Iterator[int]:
    """Open an existing file and close it at the end of the block. Raises `OSError`."""
    handle = disk.open(path, write=write)
    try:
        yield handle
    finally:
        disk.close(handle)


def replace_file(disk: Disk, name: str, buffers: list[Buffer]) -> None:
    """Replace a file atomically and durably. On `OSError` the previous file is kept."""
    temporary = f"{name}.new"
    directory, _, last = temporary.rpartition("/")
    handle = disk.open(temporary, create=last not in disk.names(directory or "."))
    try:
        disk.truncate(handle, 0)
        disk.write(handle, 0, buffers)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, name)
    disk.sync_directory(directory or ".")


def set_aside(disk: Disk, path: str, stem: str, suffix: str) -> str:
    """Move a file to quarantine under a unique name and return its new path. Raises `OSError`."""
    disk.make_directory(QUARANTINE_DIRECTORY)
    disk.sync_directory(".")
    taken = set(disk.names(QUARANTINE_DIRECTORY))
    attempt = 0
    while (name := f"{stem}-{attempt}{suffix}") in taken:
        attempt += 1
    aside = f"{QUARANTINE_DIRECTORY}/{name}"
    disk.rename(path, aside)
    disk.sync_directory(QUARANTINE_DIRECTORY)
    return aside


_CURE: Final = "Run `tickertape journal verify` for details."


def damaged_at(path: str, offset: int, what: str, cure: str = _CURE) -> JournalCorrupt:
    """Return the error for damage of a file at an offset. 0: its head, or the whole file."""
    place = f"{path!r} at offset {offset}" if offset else repr(path)
    return JournalCorrupt(f"Cannot read {place}: {what}. {cure}", file=path, offset=offset)
