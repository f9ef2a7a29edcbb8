"""Limits of the journal package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB

# journal
segment_bytes_first: Final = 4 * MIB
segment_bytes_default: Final = 256 * MIB
segment_bytes_min: Final = 1 * MIB
segment_header_bytes: Final = 512
commit_header_bytes: Final = 96
commit_bytes_max: Final = 4 * MIB
"""A commit collects up to this much (one larger message travels alone)."""
commit_gather_bytes_max: Final = 32 * MIB
"""Bytes that may wait for the commit after the one in flight."""
commit_messages_max: Final = 1 << 18
commit_batches_max: Final = 4096
"""Publish frames that one commit collects."""
batch_memory_bytes: Final = 2 * KIB
"""Bytes that a batch in memory counts beside its encoding, for its objects and arrays."""
mark_idle_seconds: Final = 0.02
"""Idle time after which an empty mark commit closes the question for the last one."""
index_block_bytes: Final = 4 * KIB
"""Commits are grouped into blocks of at least this size for the index: the least that is read for a message
of a rare topic, so small."""
index_zone_bytes: Final = 64 * KIB
"""Blocks that begin in a stretch of the file of this size are one entry in the index of publishers."""
index_bytes_max: Final = 8 * MIB
"""Bound of one segment's index; above it publisher and topic entries become coarser, never wrong."""
indexes_bytes_max: Final = 32 * MIB
"""Memory of the indexes of all sealed segments; above it those of old ones get coarser."""
tail_cache_bytes: Final = 16 * MIB
"""The last part of the log that stays in memory."""
retired_bytes_max: Final = 256 * MIB
"""Encoded facts of removed segments: highest sequences and control records. Above it none is removed."""
read_bytes_target: Final = 256 * KIB
"""Bytes that one read effect requests of the disk."""

# transaction
staging_files_open_max: Final = 64
"""Files of parts that are written and open at a time; those of a commit are open too while it is made."""
staged_memory_bytes_max: Final = 256 * MIB
"""Bytes read into memory of transactions that are being committed; the rest of them is mapped."""
