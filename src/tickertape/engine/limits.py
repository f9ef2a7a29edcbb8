"""Limits of the engine package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import GIB, KIB, MIB, batch_bytes_target, settlement_runs_max

# wire
refused_per_command_messages_max: Final = 10_000
"""Messages that one `Rejected` names; more of one frame are named by several."""
topic_names_bytes_max: Final = 192 * KIB
"""What the names and patterns of the recorded topics and the names of the validated ones may take together in
the answer to a logon."""
searches_per_connection_max: Final = 256
"""Start points of one connection that may be looked up at a time; the next one is refused."""
bookmarks_sought_per_connection_max: Final = 4_000
"""Bookmarks of one connection that are looked up at a time, and one list: above it nothing more is read from
it until they are found."""
bookmarks_sought_max: Final = 400_000
"""Bookmarks of all connections that are looked up at a time; the next ones are refused."""

# flow
outbox_bytes_max: Final = 1 * MIB
"""Bytes queued at one connection's socket above which its subscriptions get nothing more until it drains."""
read_ahead_bytes_max: Final = 32 * MIB
"""What all who read the log, together, hold of it: reads under way, and what is not sent yet."""
dispatch_backlog_bytes_max: Final = 8 * MIB
"""Commits waiting to be handed to those at the end of the log, before these read by themselves."""
slow_memory_bytes_default: Final = 64 * MIB
"""Memory of what waits for live subscriptions, all together; from half of it on the connections that wait for
most have theirs written to disk."""
slow_connection_bytes_default: Final = 16 * MIB
"""What one connection waits for (in cost), above which it is written to disk."""
slow_disk_bytes_default: Final = 1 * GIB
"""Files of what waits on disk; above it the connections that wait for most are ended as slow."""
block_bytes_max: Final = 256 * KIB
"""What waits is kept in blocks of at most this cost, or of one message."""
block_pieces_max: Final = 256
"""Publishes of which a block in memory is put together at most."""
block_seconds_max: Final = 1.0
"""A block takes what comes within this time, so that it is of one age."""
block_memory_bytes: Final = 512
"""What a block counts in memory wherever its messages are."""
slow_age_check_seconds_max: Final = 1.0
"""It is looked at least this often who has waited longer than the configuration allows."""
spill_file_bytes_max: Final = 16 * MIB
"""Files of what waits on disk get no longer, or hold one message; a file that nobody needs is deleted."""
spill_write_bytes_max: Final = 4 * MIB
"""Blocks that are being written to disk at a time."""
spill_read_bytes_max: Final = 8 * MIB
"""Blocks that are being read back at a time or wait for their turn to be sent, or one of them."""
unrecorded_piece_bytes_max: Final = 256 * KIB
"""An unrecorded publish is handed on in pieces of at most this cost, or of one message."""
unrecorded_waiting_bytes_max: Final = 8 * MIB
"""Unrecorded publishes that wait to be handed on, above which those who publish more are not read from."""
known_topics_bytes_max: Final = 8 * MIB
"""Memory of topic names that a server remembers as good; above it starts afresh."""

# journal
binding_bytes_max: Final = 1 * KIB
"""More than a commit takes that binds a publisher's id to a name."""
retention_check_seconds: Final = 60.0
"""How often it is looked whether segments are to be removed, when nothing else is a reason to."""
retention_retry_seconds: Final = 1.0
"""When a removal that something brief is in the way of is looked at again."""
retention_segments_max: Final = 16
"""Segments that are removed at a time; the next ones follow at once."""
step_bytes_max: Final = 1 * MIB
"""About what the engine delivers from the log before it looks at its other inputs again."""
owed_max: Final = 50_000
"""Acknowledgements that wait for the disk, above which those who ask for more are not read from."""
notice_seconds: Final = 1.0
"""Persisted notices to one subscription are at least this far apart."""
notice_subscriptions_max: Final = 256
"""Subscriptions that one persisted notice names."""
pattern_set_max: Final = 64
"""Patterns of topics that are searched for together."""
pattern_set_size_max: Final = 2_000
"""Instructions of their programs together: each may be gone through for each byte of a topic."""
pattern_set_young_max: Final = 8
"""New patterns that are searched for one by one, before all are put together again."""
pattern_answers_bytes_max: Final = 8 * MIB
"""Memory of which patterns topics fit, of all patterns and topics; above it starts afresh."""
pattern_answer_bytes: Final = 160
"""What such an answer takes beside the topic: its entry, and a number."""
conflation_all_bytes_max: Final = 64 * MIB
"""What conflation holds for all subscriptions together; who comes with more has his oldest sent early."""
conflation_piece_messages_max: Final = 1024
"""Messages that conflation looks at before others have their turn."""
replaces_waiting_max: Final = 100
"""Replaces of one subscription that wait until what came before them was taken; the next one is refused."""
routes_per_frame_max: Final = 16 * 1024
"""Deliveries of one frame to several subscriptions: a message counts once for each of them."""
reach_read_bytes_max: Final = 16 * MIB
"""What is read of the log to find out how far so many messages reach; beyond it the index has to do."""
positions_per_frame_max: Final = 16 * 1024
"""Messages of one frame of a subscription that is told where they stand."""
shared_cursors_max: Final = 64
"""Places in the log at which several subscriptions with filters read it together."""
shared_cursor_reach_messages: Final = 1 << 16
"""Who is so far ahead of such a place at most may wait for those there, and go on with them."""
shared_cursor_moves_max: Final = 100
"""Subscriptions that go from one such place to another before others have their turn."""
shared_cursor_bytes_max: Final = 16 * MIB
"""What is looked at for all of them at a time; less when they are few."""
step_delivery_bytes: Final = 4 * KIB
"""What one delivery counts in a step beside its bytes."""
step_share_bytes: Final = 512
"""What the share of one subscription in a frame for several counts in a step beside that."""

# pace and conflation
rate_per_second_min: Final = 0.001
"""The slowest rate: a message, or a byte, in 1,000 s. A multiple has the same bounds."""
rate_messages_max: Final = 1e9
"""The fastest rate in messages a second; above it no rate is meant."""
rate_bytes_max: Final = 1e12
"""The fastest rate in payload bytes a second."""
rate_multiple_max: Final = 1e6
"""The largest multiple of the original pace: a day in less than 0.1 s."""
rate_gap_seconds_max: Final = 31_536_000.0
"""The longest `rate_max_gap`, a year."""
rate_catch_up_seconds: Final = 0.05
"""What a paced subscription that was held up may catch up, at most; or one message."""
rate_tick_seconds: Final = 0.002
"""A paced subscription asks to be looked at no sooner than after this time, and gets what is due by then at
once."""
ack_conflation_frames_max: Final = 4_096  # publish frames that one conflated acknowledgement covers, at most
conflation_fields_max: Final = 16
"""Fields that one conflation key is made of."""
conflation_key_bytes_max: Final = 4 * KIB
"""Memory of one key of conflation; a message with a larger one counts as one without."""
conflation_held_bytes_max: Final = 16 * MIB
"""Messages and keys that conflation holds for one subscription; above it the oldest are released early."""
conflation_entry_bytes: Final = 512
"""What one held message counts in it beside its body, its labels and its key."""

# administration
topics_counted_max: Final = 1_000
"""Topics that are counted one by one; what comes to further ones is summed under one name."""

# heartbeats
beats_a_step_max: Final = 128
"""Connections whose heartbeats are looked at in one step of a server."""

# archive
archive_ahead_bytes_max: Final = 32 * MIB
"""What a server's readers have asked of the archive, or were given and have not used: all together."""

# queue
record_ranges_bytes_max: Final = 512 * KIB
"""What ranges of positions one record has at most: what is scattered more takes several."""
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

# transaction
staged_bytes_max_default: Final = 16 * GIB
"""What all that is staged may take on disk, unless configured."""
transaction_bytes_max_default: Final = 4 * GIB
"""What one transaction may take on disk, unless configured: the log has to hold it in one segment."""
staged_age_seconds_default: Final = 3600.0
"""How long something stays staged that nobody adds to or commits, unless configured."""
staged_parts_max: Final = 4_096
"""Parts that are staged at a time, of all transactions."""
commits_waiting_max: Final = 8_192
"""Commits that were asked for and are not answered yet, of all connections."""
commits_waiting_each_max: Final = 1_024
"""The same of one connection."""
staging_unwritten_bytes_max: Final = 64 * MIB
"""What waits to be written to staging files: who brings more is not read from until it is."""
staging_jobs_max: Final = 1_024
"""Blocks, feet and aborts that wait for the disk of staging files, of all connections: a foot is three
syncs, however small its part is, an abort one. Who brings more is not read from."""
transaction_batches_max: Final = 16_384
"""Batches that are staged for one transaction: each becomes a commit of its own in the log, and all of
a part are looked at in one turn of the event loop."""
transaction_empty_number_max: Final = 10**17 - 1
"""The highest number to which a commit without parts may bring a space: nine tenths of the numbers are left.
A space at its end takes no transaction any more."""
transaction_names_each_max: Final = 16_384
"""Names of committed transactions that are known of one publisher; those of a space need one place
a space."""
transaction_names_max: Final = 131_072
"""Such names of all publishers: beyond it the publisher with most of them loses its oldest."""
transaction_publishers_max: Final = 16_384
"""Publishers of which such names are known."""
transaction_spaces_max: Final = 65_536
"""Spaces of which the highest committed number is known."""
