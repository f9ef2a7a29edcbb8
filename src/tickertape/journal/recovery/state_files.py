"""State files: reads the checkpoints of SOW topics at a start, and moves unusable ones away.

Reading changes nothing. A file is read to its end, so that no part of a damaged file is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Disk
from tickertape.journal.format.files import open_file, set_aside
from tickertape.journal.format.retired_state import write_retired
from tickertape.journal.format.segment import SOW_DIRECTORY
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    UNFINISHED_NAME,
    StateFileEntry,
    StateManifest,
    decode_manifest,
    manifest_checksum,
    read_file,
    state_directory,
    state_path,
)
from tickertape.journal.limits import sow_file_block_bytes_max, sow_manifest_bytes_max
from tickertape.journal.reading.log_view import LogView

StateBlocks = list[RecordBlock | DeadKeys]


class FoundState(NamedTuple):
    """The directory of one SOW topic in `sow/`."""

    directory: str
    """Name inside `sow/`."""
    names: tuple[str, ...]
    """Names of all files in it."""
    manifest: StateManifest | None = None
    checksum: int = 0
    """Checksum of the manifest."""
    damage: str = ""
    """Why the manifest cannot be read, or empty."""


class ReadableFiles(NamedTuple):
    """The intact files of a manifest, up to the first damaged one."""

    files: list[StateBlocks]
    damage: str = ""
    """Why the next file cannot be read, or empty."""


def find_states(disk: Disk, journal_id: bytes) -> dict[str, FoundState]:
    """Return all directories in `sow/` by their names. Raises `JournalVersion` or `OSError`."""
    if SOW_DIRECTORY not in disk.names("."):
        return {}
    states = [find_state(disk, journal_id, directory) for directory in disk.names(SOW_DIRECTORY)]
    return {state.directory: state for state in states if state is not None}


def find_state(disk: Disk, journal_id: bytes, directory: str) -> FoundState | None:
    """Return one directory in `sow/`, or None without it. Raises `JournalVersion` or `OSError`."""
    try:
        names = tuple(disk.names(f"{SOW_DIRECTORY}/{directory}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _found(disk, directory, names, journal_id)


def read_states(disk: Disk, manifest: StateManifest) -> ReadableFiles:
    """Read the files of a manifest. Raises `JournalVersion` for a file of a newer format."""
    files: list[StateBlocks] = []
    for entry in manifest.files:
        try:
            files.append(_read(disk, manifest, entry))
        except (JournalCorrupt, OSError) as error:
            return ReadableFiles(files, str(error))
    return ReadableFiles(files)


def prepare_directories(disk: Disk, found: Iterable[FoundState], topics: Iterable[str]) -> None:
    """Create the directories of `topics` durably, and remove unfinished files. Raises `OSError`.

    A directory without a manifest keeps an offline removal from segments that its topic still needs."""
    for state in found:
        if UNFINISHED_NAME in state.names:
            disk.remove(f"{SOW_DIRECTORY}/{state.directory}/{UNFINISHED_NAME}")
    directories = sorted(map(state_directory, topics))
    if directories:
        disk.make_directory(SOW_DIRECTORY)
        for directory in directories:
            disk.make_directory(f"{SOW_DIRECTORY}/{directory}")
        disk.sync_directory(SOW_DIRECTORY)
        disk.sync_directory(".")


def make_durable(disk: Disk, found: Iterable[FoundState]) -> None:
    """Sync all manifests, their files and their names. Raises `OSError`.

    An earlier process may have been killed before its syncs, and a removal of segments relies on them."""
    kept = [state for state in found if state.manifest is not None]
    for state in kept:
        assert state.manifest is not None
        named = {MANIFEST_NAME, *(entry.name for entry in state.manifest.files)}
        for name in sorted(named.intersection(state.names)):
            with open_file(disk, f"{SOW_DIRECTORY}/{state.directory}/{name}", write=True) as handle:
                disk.sync(handle)
        disk.sync_directory(f"{SOW_DIRECTORY}/{state.directory}")
    if kept:
        disk.sync_directory(SOW_DIRECTORY)
        disk.sync_directory(".")


def set_aside_state(disk: Disk, directory: str) -> str:
    """Move the directory of a SOW topic to quarantine, and return its new path. Raises `OSError`."""
    aside = set_aside(disk, f"{SOW_DIRECTORY}/{directory}", f"{SOW_DIRECTORY}-{directory}", "")
    disk.sync_directory(SOW_DIRECTORY)
    return aside


def forget_named(disk: Disk, view: LogView, topics: Sequence[str]) -> None:
    """Remove the checkpoints of `topics` from `retired.bin`. Raises `OSError`."""
    if view.retired is None or not topics:
        return
    kept = {name: named for name, named in view.retired.manifests.items() if name not in topics}
    retired = view.retired._replace(manifests=kept)
    write_retired(disk, retired)
    view.retired = retired


def _found(disk: Disk, directory: str, names: tuple[str, ...], journal_id: bytes) -> FoundState:
    if MANIFEST_NAME not in names:
        return FoundState(directory, names)
    path = f"{SOW_DIRECTORY}/{directory}/{MANIFEST_NAME}"
    try:
        with open_file(disk, path) as handle:
            data = disk.read(handle, 0, sow_manifest_bytes_max + 1)
        manifest = decode_manifest(data, directory, journal_id)
    except (JournalCorrupt, OSError) as error:
        return FoundState(directory, names, damage=str(error))
    return FoundState(directory, names, manifest, manifest_checksum(data))


def _read(disk: Disk, manifest: StateManifest, entry: StateFileEntry) -> StateBlocks:
    path = state_path(manifest.topic, entry.name)
    with open_file(disk, path) as handle:
        size = disk.size(handle)
        # An unreadable byte of a mapped file would kill the process, but a read reports it.
        for offset in range(0, size, sow_file_block_bytes_max):
            disk.read(handle, offset, sow_file_block_bytes_max)
        data = disk.map(handle) if size else memoryview(b"")
    return list(read_file(data, manifest, entry))
