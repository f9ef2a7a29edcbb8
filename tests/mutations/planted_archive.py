"""Planted defects of the archive.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_ENGINE = "unit/engine/log_reads/test_archive.py"
_READER = "unit/archive/test_reader.py"
_READS = "unit/server/storage/test_archive_reads.py"

ARCHIVE_MUTATIONS: Final = (
    Mutation(
        "a commit names files without a check that they exist",
        "archive/archive_writer.py",
        "        check_files(self.place, {file.path: file.bytes for file in files})\n",
        "",
        ("unit/archive/test_archive_writer.py", "unit/archive/test_compact.py"),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "vacuum removes the files of a batch that takes longer than an hour",
        "archive/compact.py",
        "max(keep_seconds, unknown_seconds_min), full=True",
        "keep_seconds, full=True",
        ("unit/archive/test_compact.py",),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "segments are removed although a file of the archive is missing",
        "engine/retention.py",
        '        if isinstance(answer, TickertapeError):\n            self._failed(f"Cannot',
        '        if False:\n            self._failed(f"Cannot',
        (_ENGINE,),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "a reader of the archive shares a cursor with readers of the log",
        "engine/delivery/shared_cursor.py",
        "        if not can_share(sub) or self._is_older(sub):\n",
        "        if not can_share(sub):\n",
        (_ENGINE,),
        promise="invariant 13",
        tier="unit",
    ),
    Mutation(
        "a reader of the archive holds back the whole log",
        "engine/delivery/log_delivery.py",
        "        return max(sub.considered_to, view.archive.end)\n",
        "        return sub.considered_to\n",
        (_ENGINE,),
        promise="invariant 3",
        tier="unit",
    ),
    Mutation(
        "a start at the first message of the log reports that nothing precedes it",
        "engine/subscriptions/start_position.py",
        "        last = answer.bookmark\n",
        "        last = None\n",
        (_ENGINE,),
        promise="invariant 13",
        tier="unit",
    ),
    Mutation(
        "a gap between archive and log is accepted",
        "journal/reading/archive_reader.py",
        "        if not self._archive.serves(self.position, first):\n",
        "        if self.position < 0:\n",
        (_ENGINE,),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "the end of the archive counts as the end of the log",
        "engine/delivery/cursor_scheduler.py",
        " or isinstance(cursor.reader, ArchivedLogReader):\n",
        ":\n",
        (_ENGINE,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a reader that ends at the start of the log has no successor",
        "server/storage/archive_reads.py",
        "            if reader.at < reader.end:\n",
        "            if reader.end:\n",
        (_READS,),
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "an error of a prefetch is not reported",
        "server/storage/archive_reads.py",
        "                    self.at = -1\n",
        "                    pass\n",
        (_READS,),
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "rows beyond the next chunk of another file are delivered",
        "archive/parquet_scan.py",
        "        reach = min(stream.reach for stream in self._open)\n",
        "        reach = max(stream.reach for stream in self._open)\n",
        (_READER,),
        promise="invariant 13",
        tier="unit",
    ),
    Mutation(
        "a file with fewer rows than the table lists is accepted",
        "archive/parquet_scan.py",
        "        if expected not in (None, file.metadata.num_rows):\n",
        "        if expected == -1:\n",
        (_READER,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "sequences are compared without their sign",
        "archive/schema.py",
        "    return sequence - (1 << 64) if sequence >= 1 << 63 else sequence\n",
        "    return sequence % (1 << 63)\n",
        (_READER,),
        promise="invariant 12",
        tier="unit",
    ),
)
