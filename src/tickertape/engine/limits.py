"""Limits of the engine package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import GIB, KIB, MIB, batch_bytes_target, settlement_runs_max

# wire
refused_per_command_messages_max: Final = 10_000
"""Messages that one `Rejected` names. Further messages of a frame are named by further commands."""
topic_names_bytes_max: Final = 192 * KIB
"""Total size of topic names in the answer to a logon: names and patterns of persistent topics, and names of
validated topics."""
searches_per_connection_max: Final = 256
"""Concurrent searches for start points of one connection. Further searches are rejected."""
bookmarks_sought_per_connection_max: Final = 4_000
"""Concurrent look-ups of bookmarks of one connection, plus one list. Above it, the connection is not read
until they are found."""
bookmarks_sought_max: Final = 400_000
"""Concurrent look-ups of bookmarks of all connections. Further look-ups are rejected."""

turn_effort_max: Final = 64
"""Effort of the commands of one connection in one step of the event loop (`InterestCompiler.effort`). The
last command may exceed it."""
small_filter_effort: Final = 4
"""Effort of a filter of a known shape. It takes about 0.2 ms."""
small_filter_work_max: Final = 50
"""Nodes of such a filter. It scans no text."""

# flow
outbox_bytes_max: Final = 1 * MIB
"""Bytes in the socket buffer of a connection. Above it, its subscriptions wait until the buffer drains."""
read_ahead_bytes_max: Final = 32 * MIB
"""Memory of all readers of the log together: reads in progress, and unsent messages."""
dispatch_backlog_bytes_max: Final = 8 * MIB
"""Commits that wait for delivery at the end of the log. Above it, the feeds there continue with their own
cursors."""
slow_memory_bytes_default: Final = 64 * MIB
"""Memory of the backlogs of all live subscriptions. From half of it on, the largest backlogs are spilled to
disk."""
slow_connection_bytes_default: Final = 16 * MIB
"""Backlog of one connection (in cost). Above it, the backlog is spilled to disk."""
slow_disk_bytes_default: Final = 1 * GIB
"""Size of all spill files. Above it, the connections with the largest backlogs are closed as slow
consumers."""
block_bytes_max: Final = 256 * KIB
"""Cost of a backlog block. A single larger message has its own block."""
block_pieces_max: Final = 256
"""Publishes that are merged into one block in memory."""
block_seconds_max: Final = 1.0
"""Time within which messages are appended to a block, so that they have about the same age."""
block_memory_bytes: Final = 512
"""Memory overhead of a block, regardless of the location of its messages."""
slow_age_check_seconds_max: Final = 1.0
"""Maximum interval between checks for messages that exceed the configured age."""
spill_file_bytes_max: Final = 16 * MIB
"""Size of a spill file, unless a single message is larger. Unneeded files are deleted."""
spill_write_bytes_max: Final = 4 * MIB
"""Blocks that are being written to disk at a time."""
spill_read_bytes_max: Final = 8 * MIB
"""Blocks that are being read back or wait to be sent. One larger block is permitted."""
unrecorded_piece_bytes_max: Final = 256 * KIB
"""Cost of a piece in which a non-persistent publish is delivered. One larger message is permitted."""
unrecorded_waiting_bytes_max: Final = 8 * MIB
"""Non-persistent publishes that wait for delivery. Above it, connections that publish more are not read."""
known_topics_bytes_max: Final = 8 * MIB
"""Memory of cached valid topic names. Above it, the cache is cleared."""

# journal
binding_bytes_max: Final = 1 * KIB
"""Upper bound of the commit that binds a publisher id to a name."""
retention_check_seconds: Final = 60.0
"""Interval between retention checks without another trigger."""
retention_retry_seconds: Final = 1.0
"""Delay before a retention check is repeated after a brief pin."""
retention_segments_max: Final = 16
"""Segments that are deleted at a time. The next ones follow at once."""
step_bytes_max: Final = 1 * MIB
"""Approximate number of bytes delivered from the log before other inputs are handled."""
step_bytes_in_commit_max: Final = 256 * KIB
"""The same for feeds behind the end while a commit is in flight. Its answer then waits for a short step."""
owed_max: Final = 50_000
"""Acknowledgements that wait for the disk. Above it, connections that publish more are not read."""
notice_seconds: Final = 1.0
"""Minimum interval between persisted notices to one subscription."""
notices_step_max: Final = 256
"""Persisted notices that one step sends."""
notice_subscriptions_max: Final = 256
"""Subscriptions that one persisted notice names."""
notice_publishers_max: Final = 65_536
"""Publishers whose holes changed last that a server remembers for notices."""
pattern_set_max: Final = 64
"""Topic patterns in one pattern set."""
pattern_set_size_max: Final = 2_000
"""Total number of program instructions in one pattern set. A search may execute each of them per byte of a
topic."""
pattern_set_young_max: Final = 8
"""New patterns that are searched one by one, before a new pattern set is compiled."""
pattern_answers_bytes_max: Final = 8 * MIB
"""Memory of cached results of all patterns and topics. Above it, the cache is cleared."""
pattern_answer_bytes: Final = 160
"""Memory overhead of a cached result beside its topic: the entry and a number."""
conflation_all_bytes_max: Final = 64 * MIB
"""Messages held by conflation for all subscriptions. A subscription that exceeds it sends its oldest ones
early."""
conflation_piece_messages_max: Final = 1024
"""Messages that conflation considers before other work runs."""
dropped_subscriptions_max: Final = 100
"""Subscriptions of closed connections that end in one step. About 3 ms with filters."""
replaces_waiting_max: Final = 100
"""Replacements of one subscription that wait until earlier messages are consumed. Further ones are
rejected."""
routes_per_frame_max: Final = 16 * 1024
"""Deliveries in one frame for several subscriptions. A message counts once for each of them."""
reach_read_bytes_max: Final = 16 * MIB
"""Bytes read from the log to find the range that a number of messages covers. Beyond it, the index is
used."""
positions_per_frame_max: Final = 16 * 1024
"""Messages in one frame of a subscription that receives positions."""
shared_cursors_max: Final = 64
"""Cursors that several subscriptions with filters share."""
shared_cursor_reach_messages: Final = 1 << 16
"""Maximum distance by which a subscription may be ahead of a shared cursor that it joins."""
shared_cursor_moves_max: Final = 100
"""Subscriptions that move from one shared cursor to another before other work runs."""
shared_cursor_bytes_max: Final = 16 * MIB
"""Bytes that a shared cursor examines at a time for many subscriptions. Less for few subscriptions."""
suspended_messages_max: Final = 1 << 20
"""Messages for which a subscription that has left the end of the log keeps its index entry there. They are
matched for nothing meanwhile."""
suspended_removals_max: Final = 64
"""Such entries that are removed after one commit, because their subscriptions are too far behind."""
step_delivery_bytes: Final = 4 * KIB
"""Overhead of one delivery, in bytes of the step budget."""
step_share_bytes: Final = 512
"""Additional overhead of each subscription in a shared frame, in bytes of the step budget."""

# pace and conflation
rate_per_second_min: Final = 0.001
"""Minimum rate: a message or a byte in 1,000 s. It applies to multiples too."""
rate_messages_max: Final = 1e9
"""Maximum rate in messages per second."""
rate_bytes_max: Final = 1e12
"""Maximum rate in payload bytes per second."""
rate_multiple_max: Final = 1e6
"""Maximum multiple of the original rate: a day in less than 0.1 s."""
rate_gap_seconds_max: Final = 31_536_000.0
"""Maximum `rate_max_gap`, one year."""
rate_catch_up_seconds: Final = 0.05
"""Maximum delay that a rate-limited subscription makes up, or one message."""
rate_tick_seconds: Final = 0.002
"""Minimum interval between deliveries of a rate-limited subscription. Everything due within it is sent
together."""
ack_conflation_frames_max: Final = 4_096  # publish frames that one conflated acknowledgement covers, at most
conflation_fields_max: Final = 16
"""Fields in one conflation key."""
conflation_key_bytes_max: Final = 4 * KIB
"""Memory of one conflation key. A message with a larger key counts as a message without key."""
conflation_held_bytes_max: Final = 16 * MIB
"""Messages and keys held by conflation for one subscription. Above it, the oldest ones are released early."""
conflation_entry_bytes: Final = 512
"""Memory overhead of a held message beside its body, labels and key."""

# administration
topics_counted_max: Final = 1_000
"""Topics with individual counters. Further topics are counted together."""

# heartbeats
beats_a_step_max: Final = 128
"""Connections whose heartbeats are checked in one step of the server."""

# archive
archive_ahead_bytes_max: Final = 32 * MIB
"""Memory of all readers of the archive together: reads in progress, and unused messages."""

# state of the world
sow_block_bytes: Final = 1 * MIB
"""Size of a block with bodies of records. A larger body has a block of its own."""
sow_growth_rows: Final = 65_536
"""Rows by which large columns of a SOW topic grow: records, keys and lives."""
sow_compaction_slots_max: Final = 16_384
"""Claims of a block that one step of compaction examines."""
sow_changes_bytes_max: Final = 256 * MIB
"""Memory of the changes that scans of one topic need, with replaced bodies. Above it, the oldest scan is
ended. A query needs them until its records are copied, before it sends the first one."""
sow_changes_piece_rows: Final = 16_384
"""Rows of kept changes that are forgotten in one step."""

# replication
holes_per_publisher_max: Final = 1_024
"""Open holes in the sequences of one publisher. Above it, the oldest one is closed."""
report_seconds_min: Final = 1.0
"""Shortest interval between two reports of a log to the other logs of its group."""
holes_max: Final = 1_000_000
"""Open holes of all publishers. Above it, the oldest one is closed."""

hole_bytes: Final = 32
"""Size of an open hole in a control record, at most."""
holes_record_bytes: Final = 256
"""Size of a control record of holes beside them, at most."""
after_records_bytes: Final = 2 * KIB
"""Space of the control records that precede a run of a publisher, and of last records beside their rows."""
resent_search_sequences: Final = 4_096
"""Sequences behind a resent message that one search of the log includes, for the frames that follow."""
place_record_bytes: Final = 64
"""Size of a place of another log among the last records of a commit, beside its body."""
link_step_messages_max: Final = 2_048
"""Messages of a link that are appended in one step. A larger run is divided."""
link_step_runs_max: Final = 64
"""Runs and control records of a link that are appended in one step."""
link_step_names_max: Final = 512
"""Named rows of a link that are examined in one step, and requested at once."""
link_step_holes_max: Final = 64
"""First holes of a link that are opened in one step."""

# queue
record_ranges_bytes_max: Final = 512 * KIB
"""Size of the position ranges in one record. Larger outcomes are split into several records."""
settlements_per_frame_max: Final = 4_096
"""Settlements in one publish frame, which are executed in one step."""
settlement_runs_per_frame_max: Final = 2 * settlement_runs_max
"""Bookmark runs of all settlements of a frame."""
checkpoint_step_queues_max: Final = 32
"""Queues whose state one step copies for a checkpoint."""
queue_step_messages_max: Final = 4_096
"""Messages of a queue that are examined or assigned in one step."""
queue_step_choices_max: Final = 65_536
"""Pairs of a message and an eligible consumer that are compared in one step."""
queue_step_outcomes_max: Final = 65_536
"""Approximate number of messages that expire, or return after their leases, in one step."""
queue_filter_scans_max: Final = 8
"""Concurrent scans of the messages of one queue for consumer filters. Further scans wait."""
queue_frame_messages_max: Final = 1_024
"""Messages in one delivery to a consumer."""
delivery_bytes_max: Final = batch_bytes_target
"""Approximate size of one delivery to a consumer."""
priorities_max: Final = 65_536
"""Distinct priorities in one queue. A further priority counts as the nearest lower one."""
dead_letter_label_bytes_max: Final = 700
"""Size of the original correlation id in a dead letter."""

# transaction
staged_bytes_max_default: Final = 16 * GIB
"""Disk space of all staged parts, unless configured."""
transaction_bytes_max_default: Final = 4 * GIB
"""Disk space of one transaction, unless configured. The log stores a transaction in one segment."""
staged_age_seconds_default: Final = 3600.0
"""Age of a staged transaction without changes or a commit, unless configured."""
staged_parts_max: Final = 4_096
"""Staged parts of all transactions."""
commits_waiting_max: Final = 8_192
"""Unanswered commit commands of all connections."""
commits_waiting_each_max: Final = 1_024
"""Unanswered commit commands of one connection."""
staging_unwritten_bytes_max: Final = 64 * MIB
"""Bytes that wait to be written to staging files. Above it, connections that stage more are not read."""
staging_jobs_max: Final = 1_024
"""Blocks, footers and aborts of all connections that wait for the disk. Above it, connections that stage more
are not read. A footer takes three syncs, regardless of the size of its part, and an abort takes one."""
transaction_batches_max: Final = 16_384
"""Batches staged for one transaction. Each becomes a commit in the log, and the batches of a part are
processed in one turn of the event loop."""
transaction_empty_number_max: Final = 10**17 - 1
"""Highest number that a commit without parts may set in a space, which leaves nine tenths of the numbers. An
exhausted space accepts no more transactions."""
transaction_names_each_max: Final = 16_384
"""Stored names of committed transactions of one publisher. Each space needs only one entry in
total."""
transaction_names_max: Final = 131_072
"""Stored transaction names of all publishers. Beyond it, the publisher with most names loses its oldest
one."""
transaction_publishers_max: Final = 16_384
"""Publishers with stored transaction names."""
transaction_spaces_max: Final = 65_536
"""Spaces with a stored highest committed number."""

# state of the world
query_step_slots_max: Final = 16_384
"""Slots of a state that one step of a query copies. It takes about 0.5 ms."""
query_piece_rows_max: Final = 1_024
"""Records that one step of a query filters."""
query_piece_bytes_max: Final = 256 * KIB
"""Bodies that one step of a query filters. A larger one is filtered alone."""
query_step_keys_max: Final = 4_096
"""Keys that one step of a query looks up, or reads for its result."""
record_key_step_max: Final = 4_096
"""Generated keys that one step of a query or delete computes for the index of record keys. It takes about
4 ms."""
record_key_scalar_max: Final = 64
"""Number of keys below which a lookup in the index of record keys works without arrays."""
query_index_slots_max: Final = 1 << 20
"""Records that a query takes from a hash index. A query of more reads all records."""
query_index_buckets_max: Final = 1_024
"""Values, or tuples of values, that a query looks up in a hash index or compares with a column. A query of
more reads all records."""
few_records_max: Final = 256
"""Records that a query examines, of at most `query_piece_bytes_max` together, to take several steps at
once."""
few_records_steps_max: Final = 16
"""Steps that such a query takes at once."""
sow_column_records_min: Final = 4_096
"""Records of a SOW topic from which on queries make columns of its fields."""
sow_column_repeat_seconds: Final = 60.0
"""A field gets a column at its second query within this time. Columns that were used within it stay, unless
records need the memory."""
sow_column_unused_seconds: Final = 600.0
"""A column that no query has used for this time is dropped."""
sow_columns_bytes_max: Final = 256 * MIB
"""Memory of all columns, 8 bytes for each slot of a topic and each column. `sow_bytes_max` may leave less."""
sow_column_paths_max: Final = 1_024
"""Fields of one SOW topic whose last query is remembered."""
sow_column_segment_slots: Final = 16_384
"""Slots of one segment of a column, which is made and brought up to date on its own."""
query_step_segments_max: Final = 16
"""Segments of columns that one step of a query compares. It takes about 1 ms for two columns."""
query_step_groups_max: Final = 64
"""SOW topics whose results one step announces."""
order_by_fields_max: Final = 16
"""Fields of one sort order."""
query_run_rows_max: Final = 16_384
"""Records that a query sorts in one step. By fields it takes about 2 ms."""
query_chunk_rows_max: Final = 1 << 20
"""Records of a result in one chunk of columns, at most. A step frees one column of it, at most 16 MB."""
query_best_rows_min: Final = 4_096
"""Records that a query with `top_n` keeps until it sorts them, or more for a large `top_n`."""
query_merge_rows_max: Final = 2_048
"""Records that a merge takes from all sorted runs at a time, for up to 128 runs that overlap."""
query_merge_rows_min: Final = 16
"""Records that a merge takes from one of very many sorted runs."""
query_skip_rows_max: Final = 4_096
"""Records that one step of a query skips."""
result_frame_bytes_max: Final = 256 * KIB
"""Approximate size of one frame of a result. A larger record has a frame of its own."""
sow_key_bytes_max: Final = 4 * KIB
"""Longest canonical key of a record."""
sow_key_check_rows_max: Final = 4_096
"""Messages of a frame whose keys one step reads. It takes about 1.2 ms."""
sow_explicit_key_characters_max: Final = 256
"""Longest explicit key, a message key in Base64."""
sow_key_scalar_max: Final = 8
"""Keys below which a key index works without arrays."""
sow_rehash_step_max: Final = 4_096
"""Entries that one call of a key index moves to a larger table."""
sow_key_compaction_step_max: Final = 2_048
"""Long keys that one call of a key index examines for compaction."""
sow_key_block_bytes: Final = 256 * KIB
"""Size of a block of long keys, unless a single key is longer."""
# replication
replication_rules_max: Final = 1_024
"""Rules of one destination."""
replication_patterns_max: Final = 64
"""Rules of one destination with a pattern. A new topic is matched against all of them."""
incoming_links_max: Final = 64
"""Links to one server."""
routed_topics_kept_max: Final = 4_096
"""Topics with a cached rule of one destination, or without one."""
link_rule_sets_kept_max: Final = 256
"""Distinct rules of incoming links since the start. Above it, no topic counts as brought whole."""
link_mismatches_max: Final = 100
"""Mismatches that a validation of one link describes. It counts further ones."""
link_step_bytes: Final = 256 * KIB
"""Cost of the rows of the log that one step of a link examines, or answers. At least one row."""
link_unpacked_frames_max: Final = 64
"""Held frames of a link whose rows are ready to be taken. Further small ones are held as bytes."""
link_packed_bytes_max: Final = 4 * KIB
"""Size of the rows of a held frame of a link up to which it is small."""
link_step_answers_max: Final = 256
"""Requested rows of a link that one step answers."""
link_step_frames_max: Final = 32
"""Frames of a link that one step cuts. Rows that are sent and named in turn need a frame each."""
link_answer_bytes_max: Final = 128 * MIB
"""Held answers of a link, which cost no credit. Above it, the link is not read."""
link_refusal_bytes_max: Final = 16 * KIB
"""Size of all reasons to refuse a link in one text, in bytes of UTF-8. Longer ones are shortened."""
link_heartbeat_seconds: Final = 2.0
"""Heartbeat interval of links that this server opens."""
link_report_bytes: Final = 64 * KIB
"""Free space of the log that a report to other logs needs, approximately."""
link_backlog_marks_max: Final = 1_024
"""Times that are kept of unacknowledged rows of a link. Further ones make the ages coarser."""
level_check_seconds: Final = 1.0
"""Interval of the checks whether a synchronous link is downgraded or upgraded."""

# SOW topics
sow_topics_max: Final = 1_024
"""SOW topics of one server."""
sow_patterns_max: Final = 64
"""SOW topics with a pattern. A new topic is matched against all of them."""
sow_topics_kept_max: Final = 4_096
"""Topics with a cached SOW topic, or without one, beside the names."""
sow_key_fields_max: Final = 16
"""Fields of one key."""
sow_indexes_max: Final = 16
"""Hash indexes of one SOW topic."""
sow_index_fields_max: Final = 16
"""Fields of one hash index."""
sow_expiration_seconds_max: Final = 36_600 * 86_400.0
"""Longest `expiration` of a SOW topic."""
sow_checkpoint_seconds_default: Final = 60.0
"""Interval of checkpoints, unless configured."""
sow_checkpoint_seconds_min: Final = 1.0
"""Shortest interval of checkpoints."""
sow_checkpoint_seconds_max: Final = 86_400.0
"""Longest interval of checkpoints. A longer one would hold back retention for days."""
sow_bytes_min: Final = 64 * MIB
"""Smallest `sow_bytes_max`."""
sow_memory_share: Final = 0.7
"""Part of the memory that all records may use, unless configured."""
sow_record_memory_bytes: Final = 128
"""Memory of a record beside its key, body and label, at most: its columns and its part of the key index."""
sow_label_memory_bytes: Final = 64
"""Memory of the correlation id of a record beside its bytes, at most. After the first message with one, each
record of its SOW topic also needs 4 more bytes."""
# deletes and expiry of records
sow_delete_keys_max: Final = 250_000
"""Keys that one delete names. The rest stays, and the answer says so."""
sow_delete_record_bytes_max: Final = 4 * MIB
"""Size of one delete or expiry record. A delete of long keys has fewer of them."""
sow_delete_sort_rows: Final = 4_096
"""Approximate rows of a large delete that one step sorts. It takes about 2 ms."""
sow_deletes_per_frame_max: Final = 128
"""Deletes of records in one publish frame, which are executed in one step of about 20 ms."""
sow_expiry_step_max: Final = 16_384
"""Records that expire in one step, and the keys of one expiry record."""
fold_step_rows_max: Final = 2_048
"""Messages of the log that all states fold in one step."""
recovery_step_rows_max: Final = 65_536
"""Messages of the log that a start folds in one step, which takes a quarter less time than smaller steps."""
fold_step_parts_max: Final = 256
"""Commits without messages of SOW topics that one step passes over."""
state_lag_bytes_max: Final = 8 * MIB
"""Persisted commits that the states have not folded. Above it, publishers to SOW topics are not read. It is
half of the end of the log in memory, so that the fold rarely reads from disk."""
state_lag_bytes_resume: Final = 4 * MIB
"""Publishers are read again at this lag."""
fold_scalar_rows_max: Final = 32
"""Messages of a piece below which they are folded one by one, without arrays."""
delete_step_keys_max: Final = 16_384
"""Keys of a delete that one step applies."""
# checkpoints of records
sow_deleted_keys_bytes_max: Final = 64 * MIB
"""Memory of the keys of one SOW topic that were deleted since the last file of its checkpoint. Above it, the
next file has all records."""
sow_forget_keys_step_max: Final = 16_384
"""Deleted keys that one step forgets after a checkpoint."""
sow_piece_bytes: Final = 1 * MIB
"""Keys, bodies and columns that one step of a checkpoint copies. The last record may exceed it."""
sow_piece_slots: Final = 16_384
"""Slots that one step of a checkpoint examines."""
sow_record_bytes: Final = 64
"""Bytes of a record in a checkpoint file beside its key, body and label, at most."""
sow_sync_bytes: Final = 8 * MIB
"""Bytes of a checkpoint file that are written between two syncs."""
sow_advance_messages_min: Final = 1 << 20
"""Messages of the log by which the checkpoint of a topic without changes is behind before it follows."""
sow_early_checkpoint_messages_min: Final = 1 << 16
"""Messages of the log that a start folds before it writes a checkpoint at once, so that the next start does
not fold them again."""
sow_delete_round_rows: Final = 2_048
"""Records that one step of a search tests, and the largest last round of a delete by filter."""
sow_delete_rounds_max: Final = 8
"""Rounds of a delete by filter over keys that were accepted meanwhile, before the last one."""
overlay_seconds: Final = 60.0
"""Time after the last delta or delete of a SOW topic for which its accepted rows are kept by key."""
sow_results_bytes_max: Final = 1 * GIB
"""Memory of the results of all queries: their rows and sort keys, and bodies that only they still need. Above
it the oldest query ends."""
queue_query_bytes_max: Final = 512 * MIB
"""Memory of the messages that one query copies from queues, with their rows. Above it the query ends."""
queue_query_block_bytes: Final = 256 * KIB
"""Size of a block with these bodies, because a query may copy a few messages of each of many queues."""
