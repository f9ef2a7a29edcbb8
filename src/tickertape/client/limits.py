"""Limits of the client package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB, settlement_runs_max

# wire
credentials_bytes_max: Final = 12 * KIB
"""User and password of a logon, together: with the rest of it they fit a frame before the logon."""
resubscriptions_under_way_max: Final = 128
"""Subscriptions that a client places again at a time after a lost connection."""
resubscription_retry_seconds: Final = 0.2
"""When a client tries again to place what the server refused for now."""
resubscription_retries_max: Final = 150
"""How often it does so on one connection."""

# flow
credit_bytes_default: Final = 2 * MIB
"""What a client grants a subscription at first: the depth of a stream, in cost (see docs/formats/wire.md)."""

# client
publish_store_bytes_default: Final = 64 * MIB
publish_store_file_bytes_default: Final = 1024 * MIB
"""What a publish store on disk holds when it was not told otherwise."""
publish_segment_bytes: Final = 8 * MIB
"""Files of a publish store have this size, or hold one batch that is larger."""
republish_bytes_max: Final = 1 * MIB
"""Of what a publish store holds at a logon so much is sent before answers come, and one batch more."""
publish_store_sequences_ahead: Final = 1 << 20
"""Sequences that a hybrid store notes as used before they are: so many may be skipped after a crash."""
bookmark_window_messages_max: Final = 1 << 22
"""Messages of a subscription that a bookmark store remembers one by one: all since the first that is not
discarded, at 1 to 17 bytes each. Above it nothing more is delivered."""
bookmark_block_messages: Final = 1024
"""Small batches are kept together in blocks of up to so many messages."""
bookmark_publishers_max: Final = 100_000
"""Publishers of a subscription that a bookmark store remembers, beside those in that window."""
recovery_bookmarks_max: Final = 256
"""Bookmarks of one recovery point: those of the publishers that came last."""
bookmark_log_bytes_first: Final = 256 * KIB
"""What the file of a logged bookmark store takes at first; it grows by doubling, up to steps of the next."""
bookmark_log_step_bytes_max: Final = 4 * MIB
bookmark_prune_bytes_default: Final = 16 * MIB
"""Size above which a logged bookmark store prunes itself instead of growing."""
bookmark_ring_cells_max: Final = 1 << 20
"""Cells of one ring bookmark store."""
foreign_sequences_max: Final = 1 << 32
"""As many sequences another process of the same client name may have given above the last persisted one."""
stored_sequence_max: Final = (1 << 64) - (1 << 32)
"""Highest sequence that a publish store may name: no publisher comes so far, and above it none are left."""
topics_remembered_max: Final = 100_000
"""Topics whose properties a client remembers; above it starts afresh."""
client_outbox_bytes_max: Final = 1 * MIB
"""What a client has waiting for its socket above which a publish waits."""
credit_linger_seconds: Final = 0.02
"""Time after a delivery at which credit that the application consumed is given back though it is little."""
catch_up_bytes_max: Final = 256 * MIB
"""What `wait_caught_up` holds in memory for an application that does not consume meanwhile."""
shared_batches_bytes_max: Final = 16 * MIB
"""Batches that came for several subscriptions of a connection and are kept as a whole for what is left of
them; each counts twice, and the last one is always kept."""
client_timeout_seconds: Final = 10.0
"""How long a client's blocking call waits when it was not told otherwise."""
cancelled_handler_seconds_max: Final = 0.1
"""How long closing an asyncio client waits, beyond its timeout, for handlers that it cancelled."""
connect_attempt_seconds_default: Final = 10.0
"""How long an HA client with no timeout of its own lets one attempt, and resubscribing, take."""
reconnect_delay_seconds_max: Final = 86_400.0
"""Longest wait, and longest time limit, of a delay strategy."""
connection_settled_seconds: Final = 1.0
"""A connection that was ready for less was no use: the next one waits at least `reconnect_seconds_min`."""
reconnect_seconds_min: Final = 0.05
"""Least wait after such a connection, and before a server is tried again that failed since the last good one,
whatever the delay strategy says: one that hangs up at once, or is not there, would keep both sides busy."""
servers_hurried_max: Final = 256
"""Servers that are tried without that wait, one after the other."""
name_settled_seconds: Final = 600.0
"""A client that came back after its name was taken over and then has held it for so long may do so again."""

# queue
ack_timeout_seconds_default: Final = 1.0
"""How long a client keeps acknowledgements that it gathers, when `ack_batch_size` is above 1."""
settlement_wait_seconds: Final = 0.02
"""How long a settlement waits at a client for the answer to what was sent before it."""
acknowledger_idle_seconds: Final = 1.0
"""How long the thread that sends what is gathered waits for more before it ends."""
ack_batch_messages_max: Final = settlement_runs_max
"""The largest `ack_batch_size`: one settlement holds it, whatever the bookmarks are."""
settlement_mark_bytes: Final = 48
"""What a publish store needs for each bookmark of a settlement, generously: a small one gets small ones."""

# transaction
commit_retry_seconds: Final = 0.02
"""A client whose commit met a lost connection looks so often for another one."""
block_abort_seconds_max: Final = 1.0
"""How long a block that raised waits until the server has dropped what was staged."""
client_transaction_bytes_max: Final = 64 * MIB
"""What a transaction of a client gathers in memory before its commit, unless it is told another bound."""
stage_frame_bytes: Final = 1 * MIB
"""About what a client puts into one frame that it stages."""
