"""Limits of the server package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB, frame_bytes_before_logon_max, receive_buffer_bytes

# wire
inbound_bytes_max: Final = 256 * MIB
"""Memory of unfinished frames above `frame_in_place_bytes_max`, over all connections of a server; further
frames wait with the bytes of one read."""
inbound_stall_seconds_max: Final = 10.0
"""While frames wait for that memory, one that has it and does not come on for so long ends its connection."""
inbound_progress_bytes_min: Final = receive_buffer_bytes
"""Progress that such a frame must make in this time, unless it ends."""
logon_seconds_max: Final = 10.0
"""A connection that has not logged on by then is closed."""
connections_max: Final = 10_000
"""Connections of one server; further ones are refused and closed."""

# flow
slow_memory_bytes_min: Final = 40 * MIB
slow_disk_bytes_min: Final = 64 * MIB

# journal
retained_segments_min: Final = 3
"""Least ratio of `retain_size` to `segment_size`: one segment is written, one is next, one is read."""

# administration
admin_connections_max: Final = 64
"""Connections to the admin address; further ones are refused and closed."""
admin_request_bytes_max: Final = 16 * KIB
"""Largest head of an admin request: its line and its headers."""
admin_request_seconds_max: Final = 10.0
"""An admin connection whose next request is not complete, or whose answer is not taken, by then is closed."""
admin_answer_seconds_max: Final = 5.0
"""How long the admin address waits for the event loop before it says that the server is stuck."""
snapshot_interval_seconds: Final = 0.05
"""Shortest interval between two snapshots; askers in between share the next one."""
sessions_listed_max: Final = 200
"""Sessions that one answer of `/stats` lists."""
subscriptions_listed_max: Final = 500
"""Subscriptions that one answer of `/stats` lists, of all sessions together."""
subscriptions_counted_max: Final = 2_000
"""Subscriptions that are visited to count those of each topic; with more there is no such count."""

# events and the end
events_per_second_max: Final = 20
"""Log lines of one event and second; the others of that second are counted."""
event_text_characters_max: Final = 300
"""A field of a log line is cut above this."""
event_queue_lines_max: Final = 10_000
"""Log lines that wait for standard error; above it lines are dropped and counted."""
sync_slow_seconds: Final = 1.0
"""Longer synced writes are logged."""
drain_seconds_default: Final = 10.0
"""Time that a stop allows for delivering persisted messages."""
drain_idle_seconds: Final = 1.0
"""A stop waits for subscribers no longer when nothing was delivered for this time."""

# configuration
configuration_bytes_max: Final = 1 * MIB
"""Largest configuration file."""
configuration_total_bytes_max: Final = 4 * MIB
"""All files of one configuration together."""
configuration_depth_max: Final = 32
"""Nesting depth of tables, arrays and dotted keys of a configuration."""
configuration_problems_max: Final = 100
"""Problems of one configuration that are listed; further ones are only counted."""
include_depth_max: Final = 8
"""Nesting depth of includes of configuration files."""
included_files_max: Final = 64
"""Files that one configuration may include, all depths together."""

# archive
archive_scans_max: Final = 8
"""Readers that a server keeps where they are; others begin anew each time."""
archive_threads_max: Final = 4
"""Requests that a server answers at a time."""
archive_threads_per_connection_max: Final = 2
"""Of these, how many may be of one connection."""
archive_refresh_seconds_default: Final = 30.0
"""How often a server looks how far the archive reaches."""

# queue
queues_max: Final = 1_000
"""Queues of one server."""
queue_count_max: Final = 1_000_000
"""The largest `max_deliveries`, `max_cancels`."""
queue_depth_max: Final = 1 << 40
"""The largest `target_queue_depth`."""
lease_seconds_min: Final = 0.01
"""The shortest lease."""
queue_expiration_seconds_max: Final = 36_600 * 86_400.0
"""The longest `expiration` of a queue."""

# security
handshake_bytes_max: Final = frame_bytes_before_logon_max
"""Bytes accepted of an incomplete TLS handshake: as many as of a logon."""
tokens_max: Final = 10_000
"""Tokens of one server."""
token_look_seconds: Final = 60.0
"""How often it is looked whether a session's token has expired."""

# transaction
staged_age_seconds_min: Final = 1.0
"""The least that can be configured."""
transaction_bytes_min: Final = 1 * MIB
"""The least that can be configured, for one transaction and for all."""
