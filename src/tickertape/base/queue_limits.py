"""Owns every bound of message queues, by name, with its unit last.

Must never be repeated elsewhere as a number.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB, batch_bytes_target, frame_bytes_max, message_bytes_max

queues_max: Final = 1_000
"""Queues of one server."""
queue_backlog_max: Final = 1_000_000
"""Unacknowledged messages that one subscription, or one queue, may be allowed."""
queue_count_max: Final = 1_000_000
"""The largest `max_deliveries`, `max_cancels`."""
queue_depth_max: Final = 1 << 40
"""The largest `target_queue_depth`."""
lease_seconds_min: Final = 0.01
"""The shortest lease."""
lease_seconds_max: Final = 366 * 86_400.0
"""The longest lease, and the longest by which one is extended."""
queue_expiration_seconds_max: Final = 36_600 * 86_400.0
"""The longest `expiration` of a queue."""
settlement_runs_max: Final = 16_384
"""Runs of bookmarks that one settlement names."""
settlement_messages_max: Final = 1_000_000
"""Messages that one settlement names by runs: a run counts every sequence in it."""
settlement_bytes_max: Final = 1 * MIB
"""Largest body of a settlement."""
record_ranges_bytes_max: Final = 512 * KIB
"""What ranges of positions one record has at most: what is scattered more takes several."""
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
settlements_per_frame_max: Final = 4_096
"""Settlements in one publish frame: they are carried out in one step."""
settlement_runs_per_frame_max: Final = 2 * settlement_runs_max
"""Runs of bookmarks of all of them."""
queue_step_messages_max: Final = 4_096
"""Messages of a queue that are looked at, or shared out, in one step."""
queue_step_choices_max: Final = 65_536
"""Pairs of a message and a consumer whose filter it passes that are weighed in one step."""
queue_step_outcomes_max: Final = 65_536
"""About how many messages expire, or return after their leases, in one step."""
queue_filter_scans_max: Final = 8
"""Scans of one queue's messages for filters of its consumers that run at a time: further ones wait."""
queue_frame_messages_max: Final = 1_024
"""Messages that one frame hands to a consumer."""
delivery_bytes_max: Final = batch_bytes_target
"""About what one frame hands to a consumer."""
priorities_max: Final = 65_536
"""Different priorities that one queue tells apart; a further one counts as the nearest below it."""
dead_letter_label_bytes_max: Final = 700
"""What a dead letter keeps of the correlation id of the message it was."""

assert settlement_runs_max * 24 < settlement_bytes_max < message_bytes_max < frame_bytes_max
assert record_ranges_bytes_max % 16 == 0
assert record_ranges_bytes_max + settlement_bytes_max < message_bytes_max
assert queue_frame_messages_max <= queue_step_messages_max
source_rows_default: Final = 1_000
"""Messages in a micro-batch of a queue that Spark reads, when no option says it. The driver holds twice as
many: those of the batch under way, and the next ones."""
source_bytes_max: Final = 256 * MIB
"""Bodies that this driver takes ahead. Further messages are leased, and their leases are not extended."""
source_part_bytes_max: Final = 16 * MIB
"""Bodies that one Spark task is handed, or one message."""
source_lease_seconds: Final = 60.0
"""The least that a lease is extended by, three times in this time."""
source_lease_seconds_default: Final = 3_600.0
"""How long the leases of a message are extended at most, when no option says it."""
