"""Limits of the client package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB, settlement_runs_max

# wire
credentials_bytes_max: Final = 12 * KIB
"""Total size of user and password, so that a logon fits into a frame before the logon."""
resubscriptions_under_way_max: Final = 128
"""Subscriptions that a client resubscribes concurrently after a lost connection."""
resubscription_retry_seconds: Final = 0.2
"""Delay before the client retries subscriptions that the server refused temporarily."""
resubscription_retries_max: Final = 150
"""Maximum number of these retries on one connection."""

# flow
credit_bytes_default: Final = 2 * MIB
"""Initial credit of a subscription: the depth of a stream, in cost (see docs/formats/wire.md)."""

# client
publish_store_bytes_default: Final = 64 * MIB
publish_store_file_bytes_default: Final = 1024 * MIB
"""Default capacity of a publish store on disk."""
publish_segment_bytes: Final = 8 * MIB
"""Size of a publish store file. A larger batch has a file of its own."""
republish_bytes_max: Final = 1 * MIB
"""Stored bytes that a client resends after a logon before it waits for answers, plus one batch."""
publish_store_sequences_ahead: Final = 1 << 20
"""Sequences that a hybrid store reserves on disk in advance. A crash may skip up to this many."""
bookmark_window_messages_max: Final = 1 << 22
"""Messages of a subscription that a bookmark store tracks one by one: all since the first undiscarded one, at
1 to 17 bytes each. Above this limit nothing more is delivered."""
bookmark_block_messages: Final = 1024
"""Maximum number of messages in a block that combines small batches."""
bookmark_publishers_max: Final = 100_000
"""Publishers of a subscription that a bookmark store tracks outside of that window."""
recovery_bookmarks_max: Final = 256
"""Bookmarks of one recovery point: those of the most recent publishers."""
recovery_places_max: Final = 64
"""Places of one recovery point: those that moved last."""
recent_numbers_max: Final = 1 << 20
"""Numbers with which a subscription records deliveries since the last notice of a server that replicates.
Above this limit, sequences with gaps count as delivered without gaps."""
place_notice_seconds: Final = 1.0
"""Interval in which a client records its place in the log of a server that replicates."""
adapter_notices: Final = 60
"""Notices of persisted messages for each update of a recovery point adapter that publishes. Each update
causes a notice, so one update for each notice would never end."""
bookmark_log_bytes_first: Final = 256 * KIB
"""Initial file size of a logged bookmark store. It doubles, by at most `bookmark_log_step_bytes_max`."""
bookmark_log_step_bytes_max: Final = 4 * MIB
bookmark_prune_bytes_default: Final = 16 * MIB
"""Size above which a logged bookmark store prunes its file instead of growing it."""
bookmark_ring_cells_max: Final = 1 << 20
"""Cells of one ring bookmark store."""
foreign_sequences_max: Final = 1 << 32
"""Sequences that another process of the same client name may have assigned above the last persisted one."""
stored_sequence_max: Final = (1 << 64) - (1 << 32)
"""Highest valid sequence in a publish store. Publishers never reach it, and few sequences are left above."""
topics_remembered_max: Final = 100_000
"""Topics whose properties a client caches. Above this limit it clears the cache."""
client_outbox_bytes_max: Final = 1 * MIB
"""Unsent bytes above which a publish waits for the socket."""
credit_linger_seconds: Final = 0.02
"""Delay after a delivery before the client returns a small amount of consumed credit."""
catch_up_bytes_max: Final = 256 * MIB
"""Bytes that `wait_caught_up` buffers in memory while the application does not consume."""
shared_batches_bytes_max: Final = 16 * MIB
"""Limit of the recent batches for several subscriptions that a client keeps whole. Each batch counts twice,
and the last batch is always kept."""
client_timeout_seconds: Final = 10.0
"""Default timeout of a blocking call."""
cancelled_handler_seconds_max: Final = 0.1
"""Time beyond its timeout that the close of an asyncio client waits for cancelled handlers."""
connect_attempt_seconds_default: Final = 10.0
"""Time limit of one connection attempt, and of resubscribing, for an HA client without a timeout."""
reconnect_delay_seconds_max: Final = 86_400.0
"""Longest wait, and longest time limit, of a delay strategy."""
connection_settled_seconds: Final = 1.0
"""After a connection that was ready for a shorter time, the client waits at least `reconnect_seconds_min`."""
reconnect_seconds_min: Final = 0.05
"""Minimum wait after a short connection, and before the client retries a server that failed since the last
good connection. It overrides the delay strategy: a server that is down or disconnects at once would keep both
sides busy."""
servers_hurried_max: Final = 256
"""Servers that a client tries in succession without that wait."""
name_settled_seconds: Final = 600.0
"""A client that reclaimed its name after a takeover and held it for this time may reclaim it again."""

# table
table_records_default: Final = 1_000_000
"""Default of the largest number of records in a `Table`."""

# queue
ack_timeout_seconds_default: Final = 1.0
"""Maximum time that a client delays acknowledgements if `ack_batch_size` is above 1."""
settlement_wait_seconds: Final = 0.02
"""Maximum time that a settlement waits at the client for the answer to earlier frames."""
acknowledger_idle_seconds: Final = 1.0
"""Idle time after which the thread that sends acknowledgements ends."""
ack_batch_messages_max: Final = settlement_runs_max
"""Largest `ack_batch_size`: one settlement holds that many bookmarks in any case."""
settlement_mark_bytes: Final = 48
"""Upper bound of the size of one bookmark of a settlement. A small publish store gets smaller settlements."""

# transaction
commit_retry_seconds: Final = 0.02
"""Interval at which a commit checks for a new connection after a lost one."""
block_abort_seconds_max: Final = 1.0
"""Maximum time that a transaction block waits for its abort after an exception."""
client_transaction_bytes_max: Final = 64 * MIB
"""Default limit of the memory that a transaction uses at the client before its commit."""
stage_frame_bytes: Final = 1 * MIB
"""Approximate size of one frame of a staged transaction."""

# sql
sql_memory_bytes_default: Final = 1024 * MIB
"""Memory that DuckDB uses for one statement, without the records that it reads."""
sql_interrupt_seconds: Final = 0.05
"""Interval at which a call notices signals, and interrupts its statement until the statement ends."""
sql_columns_max: Final = 1024
"""Fields of a table whose types are inferred."""
sql_struct_fields_max: Final = 256
"""Fields of an object column. Objects with more fields are probably maps, and become JSON text."""
sql_depth_max: Final = 32
"""Levels of nested objects and arrays with inferred types."""
