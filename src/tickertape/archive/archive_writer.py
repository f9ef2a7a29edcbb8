"""Archive writer: opens or creates the Delta table and commits Parquet files to it exactly once.

A commit builds on the table version from which its start position was read, or fails. Therefore no batch is
added twice, and every batch starts where the archive ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tickertape.archive.limits import commit_attempts_max
from tickertape.archive.location import ArchiveLocation, check_files, make_directory, no_table, sync
from tickertape.archive.parquet_writer import Added
from tickertape.archive.schema import (
    PARTITION_COLUMNS,
    Coverage,
    app_id,
    arrow_schema,
    coverage_of,
    table_properties,
)
from tickertape.base.errors import ArchiveFailed
from tickertape.base.text_format import said

if TYPE_CHECKING:
    from deltalake import DeltaTable

_GUARD: Final = {"delta.appendOnly": "true"}
"""Prevents tools from deleting or changing rows. Files may still be rewritten with the same rows."""


class ArchiveWriter:
    """Writer for one version of the table at a location.

    Raises `ArchiveFailed` if it is not an archive or not reachable, `WrongJournal` if it belongs to another
    journal.
    """

    def __init__(self, place: ArchiveLocation, journal: str | None = None) -> None:
        self.place = place
        self.table: DeltaTable = _loaded(place)
        self._journal = journal
        self.coverage: Coverage = coverage_of(self.table, journal)

    @classmethod
    def exists(cls, place: ArchiveLocation) -> bool:
        """Return whether a Delta table exists. Raises `ArchiveFailed`."""
        from deltalake import DeltaTable

        try:
            return DeltaTable.is_deltatable(place.location, place.options)
        except Exception as error:
            raise _failed(place, error) from error

    @classmethod
    def create(cls, place: ArchiveLocation, journal: str, begin: int, topics: str) -> ArchiveWriter:
        """Create an empty archive, or open the one that another process created meanwhile."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if cls.exists(place):
            return cls(place, journal)
        if place.is_directory:
            make_directory(place.location)
            # A Delta log without a commit is left by a process that crashed while creating it, or is creating
            # it now.
            if others := sorted(set(os.listdir(place.location)) - {"_delta_log"}):
                raise ArchiveFailed(
                    f"Cannot create an archive at {place.location!r}: it is neither empty nor a Delta table "
                    f"(found {', '.join(others[:3])}). Use a new directory. Nothing was written."
                )
        try:
            DeltaTable.create(
                place.location,
                arrow_schema(),
                mode="error",
                partition_by=list(PARTITION_COLUMNS),
                configuration={**table_properties(journal, begin, topics), **_GUARD},
                storage_options=place.options or None,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            if not cls.exists(place):
                raise _failed(place, error) from error
        archive = cls(place, journal)
        archive._sync_log(0)
        return archive

    def reload(self) -> None:
        """Load the newest version of the table."""
        try:
            self.table.update_incremental()
        except Exception as error:
            raise _failed(self.place, error) from error
        self.coverage = coverage_of(self.table, self._journal)

    def add(self, begin: int, end: int, files: Sequence[Added]) -> bool:
        """Add the messages at the positions in `[begin, end)`. False if they are archived already.

        Raises `ArchiveFailed` if they do not start where the archive ends, or a file is missing."""
        from deltalake import Transaction

        for _ in range(commit_attempts_max):
            if self.coverage.end >= end:
                return False
            self._check_begin(begin, end)
            if self.commit(
                files,
                [add_action(file, data_change=True) for file in files],
                {"tickertape.positions": f"{begin}-{end}"},
                [Transaction(app_id(self.coverage.journal), end)],
            ):
                return True
        raise ArchiveFailed(
            f"Cannot commit to archive {self.place.location!r}: other writers "
            "keep changing the table. Stop them, or "
            "try again later."
        )

    def _check_begin(self, begin: int, end: int) -> None:
        covered = self.coverage.end
        if begin != covered:
            what = (
                f"Cannot add positions {begin} to {end} to {self.place.location!r}, which ends at {covered}"
            )
            if begin > covered:
                raise ArchiveFailed(
                    f"{what}: positions {covered} to {begin} would be missing. "
                    "Archive them first, or create a new archive at another location."
                )
            raise ArchiveFailed(
                f"{what}: another process archives this journal. Nothing was added. Stop one of them."
            )

    def commit(
        self,
        files: Sequence[Added],
        actions: list[Any],
        metadata: dict[str, str],
        transactions: list[Any],
    ) -> bool:
        """Commit on top of the loaded version. Return False if a newer version exists.

        In both cases the newest version is loaded afterwards. `files` are the new files that `actions` add.
        Raises `ArchiveFailed`, also if one of `files` is missing or has another size.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError

        # A server removes segments because these files have the messages: make sure that no file disappeared.
        check_files(self.place, {file.path: file.bytes for file in files})
        # Without retries: delta-rs would commit on top of any later version, without checking whether that
        # version removed the same files.
        properties = CommitProperties(
            custom_metadata=metadata, max_commit_retries=0, app_transactions=transactions or None
        )
        try:
            self.table.create_write_transaction(
                actions,
                "append",
                arrow_schema(),
                list(PARTITION_COLUMNS),
                commit_properties=properties,
            )
        except CommitFailedError:
            self.reload()
            return False
        except Exception as error:
            raise _failed(self.place, error) from error
        self._sync_log(self.table.version() + 1)
        self.reload()
        return True

    def _sync_log(self, version: int) -> None:
        """Sync the commit to disk: delta-rs does not sync, and object stores do not need it."""
        if not self.place.is_directory:
            return
        log = Path(self.place.path("_delta_log"))
        for file in (*log.glob(f"{version:020}.*"), log / "_last_checkpoint"):
            if file.exists():
                sync(str(file))
        sync(str(log))
        sync(self.place.location)


def add_action(file: Added, *, data_change: bool) -> Any:
    """Return the entry of Delta's log for an added file."""
    from deltalake.transaction import AddAction

    values = {"date": file.day, "topic": file.topic}
    return AddAction(file.path, file.bytes, values, int(time.time() * 1000), data_change, file.statistics)


def _loaded(place: ArchiveLocation) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(place.location, storage_options=place.options or None)
    except TableNotFoundError as error:
        raise no_table(place) from error
    except Exception as error:
        raise _failed(place, error) from error


def _failed(place: ArchiveLocation, error: Exception) -> ArchiveFailed:
    return ArchiveFailed(
        f"Cannot use archive {place.location!r}: {said(error).rstrip('.')}. Check the location and its "
        "access."
    )
