"""Limits of the wire and of both sides: sizes, counts and seconds. Names end with the unit."""

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
"""A client gathers at most this much before it sends; a cursor delivers batches of about this size."""
publish_messages_max: Final = 1 << 17
"""Messages in one publish frame."""
publish_topics_max: Final = 4096
"""Different topics in one publish frame."""
topic_bytes_max: Final = 1024
"""Longest topic name, UTF-8."""
label_bytes_max: Final = 4 * KIB
"""Longest correlation id or key."""
batch_bytes_max: Final = message_bytes_max + 256 * KIB
"""Largest encoded batch on the wire: one message of the largest size and its columns."""

# filters
filter_bytes_max: Final = 4 * KIB
"""Longest text of a filter, UTF-8."""

# wire
frame_prefix_bytes: Final = 16
header_bytes_max: Final = 256 * KIB
"""Largest command header (a long list of bookmarks)."""
frame_bytes_max: Final = batch_bytes_max + header_bytes_max + frame_prefix_bytes
frame_bytes_before_logon_max: Final = 16 * KIB
"""Largest frame a stranger may send."""
receive_buffer_bytes: Final = 256 * KIB
"""What one read takes from a connection at most."""
frame_in_place_bytes_max: Final = 32 * KIB
"""A frame above this that is not complete after a read is read on into memory of its own."""
client_name_bytes_max: Final = 256
subscription_id_bytes_max: Final = 256
subscriptions_per_connection_max: Final = 10_000
"""Subscriptions that one connection may hold; the next one is refused."""
option_bytes_max: Final = 4 * KIB
"""Largest option string of a command, in characters: it is read character by character."""
option_parts_max: Final = 500
"""Options and members of their lists in one option string."""
bookmarks_per_list_max: Final = 4_000
"""Members that the lists of one start point may have; reading them takes milliseconds that others wait."""

# flow
credit_bytes_max: Final = 1 * GIB
message_cost_bytes: Final = 32
"""What each message costs against credit beside its body."""

# journal
combined_subscriptions_max: Final = 256
"""Subscriptions that one frame is for."""

# pace and conflation
conflation_seconds_min: Final = 0.001
"""The shortest interval of conflation."""
conflation_seconds_max: Final = 86_400.0
"""The longest interval of conflation, a day."""

# client
bookmark_subscriptions_max: Final = subscriptions_per_connection_max
"""Subscriptions in one bookmark store; the next one is refused."""
last_persisted_max: Final = (1 << 64) - (1 << 48)
"""Highest sequence that a server stores. A client with a publish store needs a last persisted one that leaves
enough below it to give."""

# heartbeats
heartbeat_seconds_min: Final = 0.1
"""The shortest interval of heartbeats that a client may ask for."""
heartbeat_seconds_max: Final = 3_600.0
"""The longest."""
heartbeat_missed_intervals: Final = 2
"""Heartbeat intervals without a received byte after which a server closes a connection."""
unread_bytes_unsure: Final = 32 * KIB
"""Unread bytes with which a socket may be full. Then missing bytes do not prove that the peer is dead."""

# archive
archive_answer_bytes_max: Final = MIB
"""Bytes that a server reads for one request or one message."""

# queue
queue_backlog_max: Final = 1_000_000
"""Unacknowledged messages that one subscription, or one queue, may be allowed."""
lease_seconds_max: Final = 366 * 86_400.0
"""The longest lease, and the longest by which one is extended."""
settlement_runs_max: Final = 16_384
"""Runs of bookmarks that one settlement names."""
settlement_messages_max: Final = 1_000_000
"""Messages that one settlement names by runs: a run counts every sequence in it."""
settlement_bytes_max: Final = 1 * MIB
"""Largest body of a settlement."""

# transaction
transaction_parts_max: Final = 1_024
"""Parts of one transaction that are committed together."""
transaction_name_bytes_max: Final = 255
"""Of each text that names a transaction or a part of one, in UTF-8."""
