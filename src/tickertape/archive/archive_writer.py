"""Archive writer: opens or creates the Delta table and commits Parquet files to it exactly once.

A commit builds on the table version in which its start position was read, or fails. So no batch is added
twice, and every batch starts where the archive ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tickertape.archive.limits import commit_attempts_max
from tickertape.archive.location import ArchiveLocation, check_files, make_directory, sync
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
"""No tool deletes or changes rows; files may still be rewritten with the same rows."""


class ArchiveWriter:
    """Writer for one version of the table at a location.

    Raises `ArchiveFailed` for what is no archive or cannot be reached, `WrongJournal` when it is of another
    journal.
    """

    def __init__(self, place: ArchiveLocation, journal: str | None = None) -> None:
        self.place = place
        self.table: DeltaTable = _loaded(place)
        self._journal = journal
        self.coverage: Coverage = coverage_of(self.table, journal)

    @classmethod
    def exists(cls, place: ArchiveLocation) -> bool:
        """Return whether there is a Delta table. Raises `ArchiveFailed`."""
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
            # A log without a commit is what is left of somebody who died while creating it, or is at it.
            if others := sorted(set(os.listdir(place.location)) - {"_delta_log"}):
                raise ArchiveFailed(
                    f"{place.location} is not empty and no Delta table (found {', '.join(others[:3])}): "
                    "name a new directory; nothing was written"
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
        """See what others have done meanwhile."""
        try:
            self.table.update_incremental()
        except Exception as error:
            raise _failed(self.place, error) from error
        self.coverage = coverage_of(self.table, self._journal)

    def add(self, begin: int, end: int, files: Sequence[Added]) -> bool:
        """Add the messages at the positions `begin` to `end` (not included); False if they are archived
        already. Raises `ArchiveFailed` when they do not start where the archive ends or a file is missing."""
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
            f"{self.place.location}: others change the table all the time; it is not added to"
        )

    def _check_begin(self, begin: int, end: int) -> None:
        covered = self.coverage.end
        if begin != covered:
            what = f"{self.place.location} ends at position {covered}, to be added is {begin} to {end}"
            if begin > covered:
                raise ArchiveFailed(
                    f"{what}: positions {covered} to {begin} would be missing; archive them first, or begin "
                    "a new archive at another place"
                )
            raise ArchiveFailed(f"{what}: somebody else archives this journal to it; nothing was added")

    def commit(
        self,
        files: Sequence[Added],
        actions: list[Any],
        metadata: dict[str, str],
        transactions: list[Any],
    ) -> bool:
        """Commit on top of the loaded version; return False if there is another version by now.
        Either way the latest version is loaded then. `files` are the new files that `actions` add.

        Raises `ArchiveFailed`, also when one of `files` does not exist or has another size by now.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError

        # A server drops its log because these files have it, and a file may be gone since a task closed it.
        check_files(self.place, {file.path: file.bytes for file in files})
        # Without retries: delta-rs would put it on top of any later version without looking whether that one
        # has taken away the same files.
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
        """Sync the commit to disk: delta-rs syncs nothing, and object stores do not need it."""
        if not self.place.is_directory:
            return
        log = Path(self.place.path("_delta_log"))
        for file in (*log.glob(f"{version:020}.*"), log / "_last_checkpoint"):
            if file.exists():
                sync(str(file))
        sync(str(log))
        sync(self.place.location)


def add_action(file: Added, *, data_change: bool) -> Any:
    """What Delta's log says of a file that is added."""
    from deltalake.transaction import AddAction

    values = {"date": file.day, "topic": file.topic}
    return AddAction(file.path, file.bytes, values, int(time.time() * 1000), data_change, file.statistics)


def _loaded(place: ArchiveLocation) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(place.location, storage_options=place.options or None)
    except TableNotFoundError as error:
        raise ArchiveFailed(
            f"{place.location} has no Delta table: `tickertape pipeline archive` makes one there"
        ) from error
    except Exception as error:
        raise _failed(place, error) from error


def _failed(place: ArchiveLocation, error: Exception) -> ArchiveFailed:
    return ArchiveFailed(f"{place.location}: {said(error)}")
