"""Limits of the server package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB, frame_bytes_before_logon_max, receive_buffer_bytes

# wire
inbound_bytes_max: Final = 256 * MIB
"""Memory of incomplete frames above `frame_in_place_bytes_max`, over all connections. Further frames wait,
with the bytes of one read."""
inbound_stall_seconds_max: Final = 10.0
"""While other frames wait for that memory, the server closes a connection whose frame stalls for this
time."""
inbound_progress_bytes_min: Final = receive_buffer_bytes
"""Progress that a frame must make within `inbound_stall_seconds_max`, unless it completes."""
link_handshakes_bytes_max: Final = 16 * MIB
"""Memory of incomplete handshakes above `frame_in_place_bytes_max`, over all accepted connections. The server
closes connections with further ones."""
logon_seconds_max: Final = 10.0
"""Time limit of a logon. The server closes the connection afterwards."""
connections_max: Final = 10_000
"""Connections of one server. Further connections are rejected and closed."""

# flow
slow_memory_bytes_min: Final = 40 * MIB
slow_disk_bytes_min: Final = 64 * MIB

# journal
retained_segments_min: Final = 3
"""Smallest ratio of `retain_size` to `segment_size`: one segment to write, one preallocated, one to read."""

# administration
admin_connections_max: Final = 64
"""Connections to the admin address. Further connections are rejected and closed."""
admin_request_bytes_max: Final = 16 * KIB
"""Largest head (request line and headers) of an admin request."""
admin_request_seconds_max: Final = 10.0
"""Time limit of an admin connection for its next request, and for reading an answer."""
admin_answer_seconds_max: Final = 5.0
"""Time that the admin address waits for the event loop before it reports a stuck server."""
holes_listed_max: Final = 10_000
"""Open holes in the answer of `/holes`."""
snapshot_step_publishers_max: Final = 256
"""Publishers with holes that one step of a snapshot examines."""
link_command_check_seconds: Final = 0.01
"""Interval of the checks whether a command to a replication link is in force."""
snapshot_interval_seconds: Final = 0.05
"""Shortest interval between two snapshots. Requests in between share the next snapshot."""
snapshot_step_connections_max: Final = 2_000
"""Connections that one step of the event loop reads for a snapshot."""
snapshot_step_queues_max: Final = 100
"""Queues that one step of the event loop reads for a snapshot."""
snapshot_step_sow_topics_max: Final = 64
"""SOW topics that one step of the event loop reads for a snapshot."""
sessions_listed_max: Final = 200
"""Sessions that one answer of `/stats` lists."""
subscriptions_listed_max: Final = 500
"""Subscriptions that one answer of `/stats` lists, over all sessions."""
subscriptions_counted_max: Final = 2_000
"""Largest number of subscriptions for which the server counts the subscriptions of each topic."""

# events and shutdown
events_per_second_max: Final = 20
"""Log lines of one event per second. Further lines of that second are only counted."""
event_text_characters_max: Final = 300
"""Longest field of a log line, except `text`. Longer fields lose their middle."""
event_error_characters_max: Final = 700
"""Longest field `text` of a log line: an error with cause and cure."""
event_queue_lines_max: Final = 10_000
"""Log lines waiting for standard error. Further lines are dropped and counted."""
loop_commit_bytes_max: Final = 128 * KIB
"""Largest commit that the event loop writes. A thread writes larger commits."""
sync_slow_seconds: Final = 1.0
"""Slower synced writes are logged."""
drain_seconds_default: Final = 10.0
"""Time limit of a stop for the delivery of persisted messages and for checkpoints of SOW topics."""
drain_idle_seconds: Final = 1.0
"""A stop no longer waits for subscribers after this time without a delivery."""

# configuration
configuration_bytes_max: Final = 1 * MIB
"""Largest configuration file."""
configuration_total_bytes_max: Final = 4 * MIB
"""Total size of the files of one configuration."""
configuration_depth_max: Final = 32
"""Nesting depth of tables, arrays and dotted keys of a configuration."""
configuration_problems_max: Final = 100
"""Problems of one configuration that are listed. Further problems are only counted."""
include_depth_max: Final = 8
"""Nesting depth of includes of configuration files."""
included_files_max: Final = 64
"""Files that one configuration may include, at all depths."""

# archive
archive_scans_max: Final = 8
"""Archive scans that a server keeps open between requests. Other scans start anew with each request."""
archive_threads_max: Final = 4
"""Archive requests that a server answers concurrently."""
archive_threads_per_connection_max: Final = 2
"""Archive requests of one connection that a server answers concurrently."""
archive_refresh_seconds_default: Final = 30.0
"""Interval at which a server checks the end of the archive."""

# queue
queues_max: Final = 1_000
"""Queues of one server."""
queue_count_max: Final = 1_000_000
"""Largest `max_deliveries` and `max_cancels`."""
queue_depth_max: Final = 1 << 40
"""Largest `target_queue_depth`."""
lease_seconds_min: Final = 0.01
"""Shortest lease."""
queue_expiration_seconds_max: Final = 36_600 * 86_400.0
"""Longest `expiration` of a queue."""

# replication
destinations_max: Final = 64
"""Destinations of one server."""
destination_addresses_max: Final = 16
"""Addresses of one destination."""
behind_wait_seconds_default: Final = 1.0
"""Time that a logon waits for messages of its publisher that other servers have."""
history_wait_seconds_default: Final = 60.0
"""Time that publishers wait for the peers of a server whose log has lost its end."""
downgrade_grace_seconds_default: Final = 60.0
"""Time after a start before which no destination is downgraded."""
link_wait_seconds_max: Final = 86_400.0
"""Longest configurable time of the above."""
ack_interval_seconds_max: Final = 60.0
"""Longest `ack_interval`."""
peak_rate_max: Final = 1_000_000_000
"""Largest `peak_rate`, in messages a second."""
link_connect_seconds_max: Final = 10.0
"""Time limit of an attempt to connect a link, with its TLS handshake."""
link_retry_seconds_min: Final = 0.1
"""Wait after the first failed round of attempts to connect a link. Each further round doubles it."""
link_retry_seconds_max: Final = 10.0
"""Longest such wait."""
link_settled_seconds: Final = 5.0
"""Life of an open link after which the waits begin anew."""
link_refused_seconds: Final = 60.0
"""Wait after a refusal that only an operator can end."""

# state of the world
sow_checkpoint_bytes_per_second: Final = 64_000_000
"""Bytes of checkpoints that are written in a second."""
commit_owed_seconds_max: Final = 0.005
"""Age of an unanswered commit above which the next piece of a checkpoint waits."""
checkpoint_yield_seconds_max: Final = 1.0
"""Longest wait of a piece for commits. A disk that is always slow still gets checkpoints."""

# security
handshake_bytes_max: Final = frame_bytes_before_logon_max
"""Largest TLS handshake, with the same limit as a logon frame."""
tokens_max: Final = 10_000
"""Tokens of one server."""
token_look_seconds: Final = 60.0
"""Interval of the checks for expired session tokens."""

# transaction
staged_age_seconds_min: Final = 1.0
"""Smallest configurable `expire_after`."""
transaction_bytes_min: Final = 1 * MIB
"""Smallest configurable size limit, for one transaction and for all."""
