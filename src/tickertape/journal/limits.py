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
"""Bytes that one commit collects. A larger batch becomes a commit of its own."""
commit_gather_bytes_max: Final = 32 * MIB
"""Bytes that may wait for the next commit before publishers are asked to pause."""
commit_messages_max: Final = 1 << 18
commit_batches_max: Final = 4096
"""Batches that one commit collects."""
batch_memory_bytes: Final = 2 * KIB
"""Memory charged per batch in addition to its encoding, for objects and arrays."""
mark_idle_seconds: Final = 0.02
"""Idle time after which an empty mark commit proves that the last commit is durable."""
index_block_bytes: Final = 4 * KIB
"""Minimum size of an index block, which is a run of whole commits. It is small because a reader of a rare
topic reads at least one block."""
index_zone_bytes: Final = 64 * KIB
"""Size of a zone of a segment file. Blocks that start in the same zone share one publisher index entry."""
index_bytes_max: Final = 8 * MIB
"""Maximum size of one segment's index. Above it, publisher and topic entries become coarser, never wrong."""
indexes_bytes_max: Final = 32 * MIB
"""Maximum memory of the indexes of all sealed segments. Above it, old indexes become coarser."""
tail_cache_bytes: Final = 16 * MIB
"""Size of the log tail that is kept in memory."""
retired_bytes_max: Final = 256 * MIB
"""Maximum size of the stored facts about removed segments. Above it, retention removes no segment."""
retired_step_records: Final = 4096
"""Control records that one step of a removal merges."""
read_bytes_target: Final = 256 * KIB
"""Bytes that one read request asks for."""
sparse_read_bytes: Final = 8 * KIB
"""Bytes that a read request for a rare topic asks for first: a block of small commits, or the head of a large
one."""
link_snapshot_records: Final = 100
"""Link records up to the next one with all places. A start reads at most this many, or one for each place."""

# transaction
staging_files_open_max: Final = 64
"""Staging files open for writing at a time. Files that are being committed are open in addition."""
staged_memory_bytes_max: Final = 256 * MIB
"""Staged bytes of transactions in commit that are held in memory. Further files are memory-mapped."""

# state of the world
sow_files_max: Final = 256
"""Files of one checkpoint: a base and its deltas."""
sow_manifest_bytes_max: Final = 1 * MIB
sow_file_block_bytes_max: Final = 4 * MIB
"""Size of a block of a base or delta file, beside its last body."""
sow_file_key_bytes_max: Final = 4 * KIB
"""Size of a canonical key in a base or delta file."""
sow_fingerprint_bytes_max: Final = 64 * KIB
"""Size of the fingerprint of the definition of a SOW topic."""
sow_reason_bytes_max: Final = 1 * KIB
"""Size of the reason why a state is not complete."""

# comparison of two logs
compared_messages_max: Final = 2_000_000
"""Messages of both logs in memory. A group of buckets with more is a single bucket of each log."""
compared_differences_max: Final = 10_000
"""Differences after which no further buckets are searched."""
