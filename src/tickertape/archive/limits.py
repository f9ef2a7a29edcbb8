"""Limits of the archive package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB

# archive
archive_row_group_bytes_max: Final = 16 * MIB
"""Body bytes in a row group of an archive file. A larger message gets its own row group."""
archive_page_bytes: Final = MIB
"""Body bytes in a page, except for its last messages. A reader of a file has one page in memory."""
archive_page_messages_max: Final = 4
"""The last messages in a page."""
archive_scan_bytes_max: Final = 64 * MIB
"""Rows that a reader buffers, in addition to one chunk. Further rows are dropped and read again."""
archive_fetched_bytes_max: Final = 64 * MIB
"""Bytes prefetched from an object store and not decoded yet, in addition to a page per file."""
archive_chunk_bytes_max: Final = 4 * MIB
"""Bytes read from one file at a time, or one message."""
archive_buffer_bytes: Final = 64 * KIB
"""Bytes read at a time per column of a file in a directory."""
archive_files_open_max: Final = 256
"""Files that a reader keeps open. Further files are reopened each time."""
archive_looks_max: Final = 20
"""Incremental refreshes of a table before it is opened again."""
row_group_rows_max: Final = 64 * 1024
"""Messages in one row group, the unit that readers can prune."""
batch_messages_default: Final = 4_000_000
"""Default maximum of messages that one commit adds."""
file_bytes_target: Final = 256 * MIB
"""Size at which a file is closed, and up to which smaller files are compacted."""
buffer_bytes_max: Final = 192 * MIB
"""Rows that a task buffers before it writes incomplete row groups."""
files_open_max: Final = 64
"""Files of days and topics that a task keeps open. Above it the least recently written one is closed."""
commit_attempts_max: Final = 100
"""Attempts to commit while others change the table."""
compact_files_min: Final = 8
"""Minimum number of small files of a day and topic to merge while the archive is being written. It prevents
rewriting rows with every batch."""
keep_seconds_min: Final = 3600.0
"""Minimum retention of replaced files, for readers of an older version."""
unknown_seconds_min: Final = 86_400.0
"""Minimum age of deleted files that no commit names. They may belong to a batch in progress, whose duration
is unbounded."""
