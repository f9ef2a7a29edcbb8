"""Owns every bound of the archive, by name, with its unit last.

Must never be repeated elsewhere as a number.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import MIB

archive_row_group_bytes_max: Final = 16 * MIB
"""Bodies in a row group of its files, or one message."""
archive_scan_bytes_max: Final = 64 * MIB
"""What a reader has read and not given, or a row of each file."""
archive_chunk_bytes_max: Final = 4 * MIB
"""What is read of one file at a time, or one message."""
archive_files_open_max: Final = 256
"""Files that a reader keeps open; more are opened again and again."""
archive_scans_max: Final = 8
"""Readers that a server keeps where they are; others begin anew each time."""
archive_answer_bytes_max: Final = MIB
"""What a server reads for one request, or one message."""
archive_threads_max: Final = 4
"""Requests that a server answers at a time."""
archive_refresh_seconds_default: Final = 30.0
"""How often a server looks how far the archive reaches."""
archived_message_bytes: Final = 1024
"""What a message of the archive counts as where it is asked how far so many bytes reach."""
