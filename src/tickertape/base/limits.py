"""Limits (sizes, counts, timeouts) of the wire and of both sides. Names end with the unit."""

from __future__ import annotations

from typing import Final

# limits
KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# messages and batches
message_bytes_max: Final = 16 * MIB
"""Largest body of one message."""
batch_bytes_target: Final = 128 * KIB
"""Target size of a batch: clients send once this much is gathered, cursors deliver about this much."""
publish_messages_max: Final = 1 << 17
"""Messages in one publish frame."""
publish_topics_max: Final = 4096
"""Distinct topics in one publish frame."""
topic_bytes_max: Final = 1024
"""Longest topic name, in bytes of UTF-8."""
label_bytes_max: Final = 4 * KIB
"""Longest correlation id or message key."""
headers_bytes_max: Final = 8 * KIB
"""Largest encoded headers of one message."""
batch_bytes_max: Final = message_bytes_max + 256 * KIB
"""Largest encoded batch on the wire: one message of the largest size and its columns."""

# filters
filter_bytes_max: Final = 4 * KIB
"""Longest filter text, in bytes of UTF-8."""

# wire
frame_prefix_bytes: Final = 16
header_bytes_max: Final = 256 * KIB
"""Largest command header (a long list of bookmarks)."""
frame_bytes_max: Final = batch_bytes_max + header_bytes_max + frame_prefix_bytes
frame_bytes_before_logon_max: Final = 16 * KIB
"""Largest frame of a peer that has not logged on."""
frame_bytes_before_link_max: Final = header_bytes_max + frame_prefix_bytes
"""Largest frame of the source of a link before its handshake: no batch, and a list of topics and rules."""
receive_buffer_bytes: Final = 256 * KIB
"""Most bytes of one read from a connection."""
frame_in_place_bytes_max: Final = 32 * KIB
"""Size above which an incomplete frame moves to its own memory after the first read."""
client_name_bytes_max: Final = 256
subscription_id_bytes_max: Final = 256
subscriptions_per_connection_max: Final = 10_000
"""Subscriptions of one connection. The server refuses the next one."""
option_bytes_max: Final = 4 * KIB
"""Longest option string of a command, in characters (the parser works character by character)."""
option_parts_max: Final = 500
"""Options in one option string, members of their lists included."""
bookmarks_per_list_max: Final = 4_000
"""Members in the lists of one start point. Looking them up takes milliseconds and delays other clients."""

# flow
credit_bytes_max: Final = 1 * GIB
message_cost_bytes: Final = 32
"""Flow-control cost of each message in addition to its body."""

# journal
combined_subscriptions_max: Final = 256
"""Subscriptions that share one frame."""

# pace and conflation
conflation_seconds_min: Final = 0.001
"""Shortest conflation interval."""
conflation_seconds_max: Final = 86_400.0
"""Longest conflation interval (one day)."""

# client
bookmark_subscriptions_max: Final = subscriptions_per_connection_max
"""Subscriptions in one bookmark store. The store refuses the next one."""
last_persisted_max: Final = (1 << 64) - (1 << 48)
"""Highest sequence number that a server stores. The rest of the 64-bit range stays free, so that a client
with a publish store always has sequence numbers left."""

# heartbeats
heartbeat_seconds_min: Final = 0.1
"""Shortest heartbeat interval that a client may request."""
heartbeat_seconds_max: Final = 3_600.0
"""Longest heartbeat interval."""
heartbeat_missed_intervals: Final = 2
"""Heartbeat intervals without a received byte after which a server closes a connection."""
unread_bytes_unsure: Final = 32 * KIB
"""Unread bytes at which a socket may be full, so that missing bytes do not prove a dead peer."""

# archive
archive_answer_bytes_max: Final = MIB
"""Bytes that a server reads from the archive for one request or one message."""

# queue
queue_backlog_max: Final = 1_000_000
"""Largest backlog (unacknowledged messages) that a subscription or a queue may configure."""
lease_seconds_max: Final = 366 * 86_400.0
"""Longest lease, and longest extension of a lease."""
settlement_runs_max: Final = 16_384
"""Bookmark runs in one settlement."""
settlement_messages_max: Final = 1_000_000
"""Messages that the runs of one settlement cover. A run counts every sequence number in it."""
settlement_bytes_max: Final = 1 * MIB
"""Largest body of a settlement."""

# transaction
transaction_parts_max: Final = 1_024
"""Parts of one transaction that are committed together."""
transaction_name_bytes_max: Final = 255
"""Longest text that names a transaction or a part of one, in bytes of UTF-8."""

# message
expiration_never_ms: Final = (1 << 63) - 1
"""Lifetime of a message that does not expire, although its queue or SOW topic has an expiration."""

# state of the world
sow_keys_per_command_max: Final = 100_000
"""Keys in one query or delete of records."""
sow_keys_bytes_max: Final = 1 * MIB
"""Total length of the keys in one query or delete of records, in bytes of UTF-8."""
sow_searches_per_frame_max: Final = 16
"""Deletes of one publish frame that search all records: by filter, or by names of generated keys."""
sow_deltas_per_frame_max: Final = 4_096
"""Deltas of one publish frame, which are merged in one step of about 25 ms."""
sow_records_per_frame_max: Final = 10_900
"""Records in one frame of a query result. The header of the frame has 24 bytes for each of them."""

# replication
link_window_bytes_max: Final = 16 * MIB
"""Largest flow-control credit of a link."""
link_rows_max: Final = 4_096
"""Rows in one frame of a link: names, requested rows, or first holes."""
link_name_frames_max: Final = 4_096
"""Frames with names that one end of a link remembers until the destination acknowledges them."""
link_starts_max: Final = 4_096
"""Starts of a server in the handshake of a link: the newest ones."""
link_places_max: Final = 64
"""Starts of a source for which its destination reports the last place: the newest ones."""
notice_holes_max: Final = 8_192
"""Rows of holes in one notice to a subscription."""
notice_rows_bytes_max: Final = 24 * notice_holes_max
"""Bytes of the rows of holes, or of places, in one notice to a subscription."""
link_origins_max: Final = 65_535
"""Origins of one link, and the highest number of one."""
link_origins_per_frame_max: Final = 128
"""New origins in one frame of a link. They fit in its header beside `link_rows_max` names."""
link_path_logs_max: Final = 16
"""Logs on the path of an origin."""
link_rules_max: Final = 1_024
"""Topic rules of a destination, and digests of rules."""
link_incoming_max: Final = 64
"""Links to one server."""
link_topics_max: Final = 16_384
"""Entries in each list of topics in the handshake of a link. The header limit is usually lower."""
link_key_fields_max: Final = 32
"""Key fields of a SOW topic in the handshake of a link."""
link_versions_max: Final = 16
"""Versions of the link protocol that a server supports."""
link_features_max: Final = 64
"""Features of a server in the handshake of a link."""
link_feature_characters_max: Final = 64
"""Longest name of a feature, or of a check of a link."""
link_text_bytes_max: Final = 1_024
"""Longest software name, token or text of a mismatch in a frame of a link, in bytes of UTF-8."""
goodbye_mismatches_max: Final = 128
"""Mismatches in one `bye`."""
