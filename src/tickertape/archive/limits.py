"""Limits of the archive package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB

# archive
archive_row_group_bytes_max: Final = 16 * MIB
"""Bodies in a row group of its files, or one message."""
archive_page_bytes: Final = MIB
"""Bodies in a page of its files, but for the last messages in it: who reads a file has a page in memory."""
archive_page_messages_max: Final = 4
"""The last messages in a page."""
archive_scan_bytes_max: Final = 64 * MIB
"""Rows that a reader buffers, beside one chunk; rows beyond that are dropped and read again."""
archive_fetched_bytes_max: Final = 64 * MIB
"""Bytes prefetched from an object store and not yet decoded, beside a page of each file."""
archive_chunk_bytes_max: Final = 4 * MIB
"""Bytes read from one file at a time, or one message."""
archive_buffer_bytes: Final = 64 * KIB
"""Bytes read at a time of each column of a file in a directory."""
archive_files_open_max: Final = 256
"""Files that a reader keeps open; more are opened again and again."""
archive_looks_max: Final = 20
"""Refreshes that continue the table's log; after that the table is opened again."""
row_group_rows_max: Final = 64 * 1024
"""Messages in one row group, the unit that readers exclude."""
batch_messages_default: Final = 4_000_000
"""Default of the most messages that one commit adds."""
file_bytes_target: Final = 256 * MIB
"""A file that reaches it is closed; smaller ones are compacted up to it."""
buffer_bytes_max: Final = 192 * MIB
"""Rows that a task buffers before it writes row groups that are not full."""
files_open_max: Final = 64
"""Files of days and topics that a task keeps open; above it the one written to longest ago is closed."""
commit_attempts_max: Final = 100
"""How often a commit is tried while others change the table."""
compact_files_min: Final = 8
"""Small files of a day and topic that are merged while the archive is being written: fewer are left until
there are more, so that a row is not rewritten with every batch."""
keep_seconds_min: Final = 3600.0
"""The least of that, for readers of an older version."""
unknown_seconds_min: Final = 86_400.0
"""Minimum age of deleted files that no commit names: they may belong to a batch under way, which takes as
long as the store, the cluster or a sleeping machine makes it."""
