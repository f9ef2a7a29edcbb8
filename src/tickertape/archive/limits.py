"""Limits of archive: sizes, counts and seconds. Names end with the unit."""

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
"""What a reader has read and not given, beside one chunk: what would be more is let go and read again."""
archive_fetched_bytes_max: Final = 64 * MIB
"""What a reader has fetched from an object store and not made rows of, beside a page of each file."""
archive_chunk_bytes_max: Final = 4 * MIB
"""What is read of one file at a time, or one message."""
archive_buffer_bytes: Final = 64 * KIB
"""What is read at a time of each column of a file in a directory."""
archive_files_open_max: Final = 256
"""Files that a reader keeps open; more are opened again and again."""
archive_looks_max: Final = 20
"""Looks that go on from what the one before has read of the table's log; then the table is opened anew."""
row_group_rows_max: Final = 64 * 1024
"""Messages in one row group: what a reader prunes by."""
batch_messages_default: Final = 4_000_000
"""Messages that one commit adds at most, unless told otherwise."""
file_bytes_target: Final = 256 * MIB
"""A file that reaches it is closed; smaller ones are compacted up to it."""
buffer_bytes_max: Final = 192 * MIB
"""What a task holds in memory before it writes row groups that are not full."""
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
"""Files that no commit names are kept at least so long: they may belong to a batch under way, which takes
as long as the store, the cluster or a machine that sleeps makes it."""
