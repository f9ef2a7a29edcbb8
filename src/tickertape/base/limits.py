"""Owns every bound of the product: one name each, its unit last, relations asserted at import.

Must never hold anything that is not a plain number.
"""

from __future__ import annotations

from typing import Final

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

# fields of bodies
path_characters_max: Final = 1024
"""Longest text of one path to a field."""
path_steps_max: Final = 32
"""Names and subscripts of one path: how deep into a body anybody looks."""
path_subscript_max: Final = message_bytes_max
"""Largest subscript in a path: no array has more elements than its body has bytes."""
paths_per_reader_max: Final = 256
"""Different fields that one filter, or one set of keys, reads of a message."""
path_forms_max: Final = 2
"""Ways to write subscripts between the same names (`/a/b`, `/a[0]/b`) in one set of paths: each of them may
walk through the same arrays again."""
select_entries_max: Final = 256
"""Entries of one select list."""

fix_searched_tags_max: Final = 8
"""Up to so many tags are sought one by one in a FIX message; for more it is taken apart as a whole."""
readers_remembered_max: Final = 512
"""Sets of paths of one message type whose compiled readers are kept for the next who asks for the same."""

# filters
filter_bytes_max: Final = 4 * KIB
"""Longest text of a filter, UTF-8."""
filter_depth_max: Final = 40
"""How deep the parts of a filter may be nested."""
filter_operations_max: Final = 300
"""Parts of one filter: operators, functions, fields; members of lists are counted apart."""
filter_members_max: Final = 1_000
"""Members of all lists of one filter (IN, BEGINS WITH, ENDS WITH) together."""
filter_text_scans_max: Final = 6
"""Operators and functions of one filter that read a text from its begin to its end (LIKE, INSTR, UPPER)."""
number_characters_max: Final = 64
"""A longer text is no number, whatever it looks like."""
text_result_characters_max: Final = 64 * KIB
"""Longest text that a function of a filter may make; above it the result is NULL."""
pattern_program_bytes_max: Final = 512 * KIB
"""Memory that the program of one regular expression may take; classes such as `\\pL` take much of it."""
pattern_depth_max: Final = 50
"""Groups in groups of one regular expression, parentheses in classes counted too."""
pattern_positions_max: Final = 2_000
"""Characters and classes of one regular expression, its repetitions written out."""
pattern_states_max: Final = 600
"""States that the regular expressions of one filter may need together; above it they are refused."""
pattern_steps_max: Final = 40_000
"""Work that is spent on finding this out, for all expressions of a filter together, before it is refused:
about 10 ms."""
array_work_max: Final = 8_000
"""What the arrays of one message may cost one filter beyond sets and extremes, in elements sorted or turned
into texts; a message above it counts as unreadable for this filter."""
array_search_work: Final = 4
"""What a regular expression costs of it for each element."""
array_text_work: Final = 6
"""What turning a number into a text costs of it."""

index_piece_messages_max: Final = 1_024
"""Messages that an index of filters looks at in one go."""
index_values_max: Final = 1 << 18
"""Values of fields that a search in an index holds at a time: messages times different fields."""
index_paths_max: Final = 2_048
"""Different fields that an index reads; a filter with which there would be more is asked by itself."""
index_terms_max: Final = 8
"""Terms joined by AND up to which an index takes a filter apart; one with more is asked as a whole."""
index_cells_max: Final = 1 << 22
"""Answers that an index remembers for the conditions on one field, one byte each; for more than
`index_cells_max / index_piece_messages_max` conditions, `index_piece_messages_max` for each of them."""
index_memory_bytes_max: Final = 64 * MIB
"""What the indexes of a process remember of texts and answers, all together; above it they start afresh."""
index_value_characters_max: Final = 256
"""Longest text for which answers are remembered from one look to the next."""

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
inbound_bytes_max: Final = 256 * MIB
"""Memory of unfinished frames above `frame_in_place_bytes_max`, all connections of a server together; further
ones wait with what one read brought of them."""
inbound_stall_seconds_max: Final = 10.0
"""While frames wait for that memory, one that has it and does not come on for so long ends its connection."""
inbound_progress_bytes_min: Final = receive_buffer_bytes
"""What of such a frame must come in this time, if not its end."""
logon_seconds_max: Final = 10.0
"""A connection that has not logged on by then is closed."""
credentials_bytes_max: Final = 12 * KIB
"""User and password of a logon, together: with the rest of it they fit a frame before the logon."""
client_name_bytes_max: Final = 256
refused_per_command_messages_max: Final = 10_000
"""Messages that one `Rejected` names; more of one frame are named by several."""
topic_names_bytes_max: Final = 192 * KIB
"""What the names and patterns of the recorded topics and the names of the validated ones may take together in
the answer to a logon."""
recorded_patterns_max: Final = 64
"""Patterns that say what is recorded: a topic that was not seen before may be searched for each of them."""
recorded_topics_kept_max: Final = 4096
"""Topics of which it is remembered whether such a pattern fits them."""
subscription_id_bytes_max: Final = 256
subscriptions_per_connection_max: Final = 10_000
"""Subscriptions that one connection may hold; the next one is refused."""
searches_per_connection_max: Final = 256
"""Start points of one connection that may be looked up at a time; the next one is refused."""
resubscriptions_under_way_max: Final = 128
"""Subscriptions that a client places again at a time after a lost connection."""
resubscription_retry_seconds: Final = 0.2
"""When a client tries again to place what the server refused for now."""
resubscription_retries_max: Final = 150
"""How often it does so on one connection."""
option_bytes_max: Final = 4 * KIB
"""Largest option string of a command, in characters: it is read character by character."""
option_parts_max: Final = 500
"""Options and members of their lists in one option string."""
bookmarks_per_list_max: Final = 4_000
"""Members that the lists of one start point may have; reading them takes milliseconds that others wait."""
bookmarks_sought_per_connection_max: Final = 4_000
"""Bookmarks of one connection that are looked up at a time, and one list: above it nothing more is read from
it until they are found."""
bookmarks_sought_max: Final = 400_000
"""Bookmarks of all connections that are looked up at a time; the next ones are refused."""
connections_max: Final = 10_000
"""Connections that one server holds; the next one is told so and closed."""

# flow
credit_bytes_default: Final = 2 * MIB
"""What a client grants a subscription at first: the depth of a stream, in cost (see docs/formats/wire.md)."""
credit_bytes_max: Final = 1 * GIB
message_cost_bytes: Final = 32
"""What each message costs against credit beside its body."""
outbox_bytes_max: Final = 1 * MIB
"""Bytes queued at one connection's socket above which its subscriptions get nothing more until it drains."""
read_ahead_bytes_max: Final = 32 * MIB
"""What all who read the log, together, hold of it: reads under way, and what is not sent yet."""
dispatch_backlog_bytes_max: Final = 8 * MIB
"""Commits waiting to be handed to those at the end of the log, before these read by themselves."""
slow_memory_bytes_default: Final = 64 * MIB
"""Memory of what waits for live subscriptions, all together; from half of it on the connections that wait for
most have theirs written to disk."""
slow_memory_bytes_min: Final = 40 * MIB
slow_connection_bytes_default: Final = 16 * MIB
"""What one connection waits for (in cost), above which it is written to disk."""
slow_disk_bytes_default: Final = 1 * GIB
"""Files of what waits on disk; above it the connections that wait for most are ended as slow."""
slow_disk_bytes_min: Final = 64 * MIB
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
segment_bytes_first: Final = 4 * MIB
segment_bytes_default: Final = 256 * MIB
segment_bytes_min: Final = 1 * MIB
segment_header_bytes: Final = 512
commit_header_bytes: Final = 96
commit_bytes_max: Final = 4 * MIB
"""A commit collects up to this much (one larger message travels alone)."""
commit_gather_bytes_max: Final = 32 * MIB
"""What may wait for the commit after the one in flight."""
commit_messages_max: Final = 1 << 18
commit_batches_max: Final = 4096
"""Publish frames that one commit collects."""
batch_memory_bytes: Final = 2 * KIB
"""What a batch in memory counts beside its encoding: the objects and arrays that belong to it."""
binding_bytes_max: Final = 1 * KIB
"""More than a commit takes that binds a publisher's id to a name."""
mark_idle_seconds: Final = 0.02
"""Idle time after which an empty mark commit closes the question for the last one."""
index_block_bytes: Final = 4 * KIB
"""Commits are grouped into blocks of at least this size for the index: the least that is read for a message
of a rare topic, so small."""
index_zone_bytes: Final = 64 * KIB
"""Blocks that begin in a stretch of the file of this size are one entry in the index of publishers."""
index_bytes_max: Final = 8 * MIB
"""Bound of one segment's index; above it publisher and topic entries become coarser, never wrong."""
indexes_bytes_max: Final = 32 * MIB
"""What the indexes of all sealed segments take in memory together; above it those of old ones get coarser."""
tail_cache_bytes: Final = 16 * MIB
"""The last part of the log that stays in memory."""
retention_check_seconds: Final = 60.0
"""How often it is looked whether segments are to be removed, when nothing else is a reason to."""
retention_retry_seconds: Final = 1.0
"""When a removal that something brief is in the way of is looked at again."""
retention_segments_max: Final = 16
"""Segments that are removed at a time; the next ones follow at once."""
retained_segments_min: Final = 3
"""`retain_size` is at least so many times `segment_size`: the one that is written, the next, one to read."""
retired_bytes_max: Final = 256 * MIB
"""What is kept of removed segments, encoded: highest sequences and control records. Above it none goes."""
step_bytes_max: Final = 1 * MIB
"""About what the engine delivers from the log before it looks at its other inputs again."""
owed_max: Final = 50_000
"""Acknowledgements that wait for the disk, above which those who ask for more are not read from."""
notice_seconds: Final = 1.0
"""Persisted notices to one subscription are at least this far apart."""
notice_subscriptions_max: Final = 256
"""Subscriptions that one persisted notice names."""
filter_piece_bytes_max: Final = 256 * KIB
"""Bodies that filters look at before others have their turn: a message more when it is longer."""
filter_piece_steps_max: Final = 1 << 15
"""Steps of filters before others have their turn."""
pattern_set_max: Final = 64
"""Patterns of topics that are searched for together."""
pattern_set_size_max: Final = 2_000
"""Instructions of their programs together: each may be gone through for each byte of a topic."""
pattern_set_memory_bytes: Final = 1 * MIB
"""What a search for them may remember of its way, and their program."""
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
combined_subscriptions_max: Final = 256
"""Subscriptions that one frame is for."""
cohorts_max: Final = 64
"""Places in the log at which several subscriptions with filters read it together."""
cohort_reach_messages: Final = 1 << 16
"""Who is so far ahead of such a place at most may wait for those there, and go on with them."""
cohort_moves_max: Final = 100
"""Subscriptions that go from one such place to another before others have their turn."""
cohort_piece_bytes_max: Final = 16 * MIB
"""What is looked at for all of them at a time; less when they are few."""
step_delivery_bytes: Final = 4 * KIB
"""What one delivery counts in a step beside its bytes."""
step_share_bytes: Final = 512
"""What the share of one subscription in a frame for several counts in a step beside that."""
read_bytes_target: Final = 256 * KIB
"""What one read effect asks of the disk at a time."""

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
conflation_seconds_min: Final = 0.001
"""The shortest interval of conflation."""
conflation_seconds_max: Final = 86_400.0
"""The longest interval of conflation, a day."""
ack_conflation_frames_max: Final = 4_096  # publish frames that one conflated acknowledgement covers, at most
conflation_fields_max: Final = 16
"""Fields that one conflation key is made of."""
conflation_key_bytes_max: Final = 4 * KIB
"""Memory of one key of conflation; a message with a larger one counts as one without."""
conflation_held_bytes_max: Final = 16 * MIB
"""Messages and keys that conflation holds for one subscription; above it the oldest are released early."""
conflation_entry_bytes: Final = 512
"""What one held message counts in it beside its body, its labels and its key."""

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
bookmark_subscriptions_max: Final = subscriptions_per_connection_max
"""Subscriptions in one bookmark store; the next one is refused."""
bookmark_log_bytes_first: Final = 256 * KIB
"""What the file of a logged bookmark store takes at first; it grows by doubling, up to steps of the next."""
bookmark_log_step_bytes_max: Final = 4 * MIB
bookmark_prune_bytes_default: Final = 16 * MIB
"""Size above which a logged bookmark store prunes itself instead of growing."""
bookmark_ring_cells_max: Final = 1 << 20
"""Cells of one ring bookmark store."""
foreign_sequences_max: Final = 1 << 32
"""As many sequences another process of the same client name may have given above the last persisted one."""
last_persisted_max: Final = (1 << 64) - (1 << 48)
"""Highest sequence that a server stores. A client with a publish store needs a last persisted one that leaves
enough below it to give."""
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


# administration
topics_counted_max: Final = 1_000
"""Topics that are counted one by one; what comes to further ones is summed under one name."""
admin_connections_max: Final = 64
"""Connections to the admin address; the next one is told so and closed."""
admin_request_bytes_max: Final = 16 * KIB
"""Largest head of an admin request: its line and its headers."""
admin_request_seconds_max: Final = 10.0
"""An admin connection whose next request is not complete, or whose answer is not taken, by then is closed."""
admin_answer_seconds_max: Final = 5.0
"""How long the admin address waits for the event loop before it says that the server is stuck."""
snapshot_interval_seconds: Final = 0.05
"""Statistics are gathered at most this often; who asks meanwhile shares the next ones."""
sessions_listed_max: Final = 200
"""Sessions that one answer of `/stats` lists."""
subscriptions_listed_max: Final = 500
"""Subscriptions that one answer of `/stats` lists, of all sessions together."""
subscriptions_counted_max: Final = 2_000
"""Subscriptions that are looked at to count those of each topic; with more there is no such count."""

watch_seconds_min: Final = 0.1
"""The shortest time after which a command may show a server's statistics again."""

# events and the end
events_per_second_max: Final = 20
"""Log lines of one event and second; the others of that second are counted."""
event_text_characters_max: Final = 300
"""A field of a log line is cut above this."""
event_queue_lines_max: Final = 10_000
"""Log lines that wait for standard error; above it lines are dropped and counted."""
sync_slow_seconds: Final = 1.0
"""A write with sync that takes longer is told in the log."""
drain_seconds_default: Final = 10.0
"""How long subscribers are given at a stop to receive what is persisted."""
drain_idle_seconds: Final = 1.0
"""A stop waits for subscribers no longer when nothing was delivered for this time."""

# heartbeats
heartbeat_seconds_min: Final = 0.1
"""The shortest interval of heartbeats that a client may ask for."""
heartbeat_seconds_max: Final = 3_600.0
"""The longest."""
heartbeat_missed_intervals: Final = 2
"""A server ends a connection on which nothing came for so many intervals."""
beats_a_step_max: Final = 128
"""Connections whose heartbeats are looked at in one step of a server."""
unread_bytes_unsure: Final = 32 * KIB
"""With so many unread bytes a socket may have no room: that no more come then says nothing about the peer."""

# configuration
configuration_bytes_max: Final = 1 * MIB
"""Largest configuration file."""
configuration_total_bytes_max: Final = 4 * MIB
"""All files of one configuration together."""
configuration_depth_max: Final = 32
"""How deep tables, arrays and dotted keys of a configuration may be nested."""
configuration_problems_max: Final = 100
"""Problems of one configuration that are told; more of them are only mentioned."""
include_depth_max: Final = 8
"""How deep configuration files may include each other."""
included_files_max: Final = 64
"""Files that one configuration may include, all depths together."""

assert batch_bytes_target < commit_bytes_max < batch_bytes_max
assert recovery_bookmarks_max < bookmarks_per_list_max
assert resubscriptions_under_way_max < searches_per_connection_max
assert bookmark_log_bytes_first < bookmark_log_step_bytes_max < bookmark_prune_bytes_default
assert 4 * recovery_bookmarks_max <= bookmark_publishers_max <= bookmark_ring_cells_max
assert header_bytes_max + batch_bytes_max + frame_prefix_bytes <= frame_bytes_max
assert frame_bytes_before_logon_max < frame_bytes_max
assert credentials_bytes_max + client_name_bytes_max + 2 * KIB < frame_bytes_before_logon_max
assert 9 * refused_per_command_messages_max < header_bytes_max // 2
assert topic_names_bytes_max <= header_bytes_max * 3 // 4
assert frame_bytes_before_logon_max < frame_in_place_bytes_max < receive_buffer_bytes
assert 2 * frame_bytes_max <= inbound_bytes_max
assert segment_bytes_min <= segment_bytes_first <= segment_bytes_default
assert publish_messages_max <= commit_messages_max
assert notice_subscriptions_max * (subscription_id_bytes_max + 8) < header_bytes_max
assert 2 * outbox_bytes_max <= shared_batches_bytes_max
assert combined_subscriptions_max * (subscription_id_bytes_max + 8) < header_bytes_max // 2
assert 4 * (routes_per_frame_max + combined_subscriptions_max) < header_bytes_max // 2
assert 8 * positions_per_frame_max <= header_bytes_max // 2
assert message_bytes_max < batch_bytes_max < 2**31
assert 4 * batch_bytes_target <= republish_bytes_max < publish_store_bytes_default
assert batch_bytes_target < publish_segment_bytes < publish_store_file_bytes_default
assert credit_bytes_default >= 2 * batch_bytes_target
assert read_bytes_target >= batch_bytes_target
assert batch_bytes_target <= step_bytes_max
assert commit_bytes_max < dispatch_backlog_bytes_max <= tail_cache_bytes
assert batch_bytes_max < read_ahead_bytes_max
assert 4 * unrecorded_piece_bytes_max <= outbox_bytes_max < batch_bytes_max
assert unrecorded_piece_bytes_max <= block_bytes_max
assert slow_connection_bytes_default < slow_memory_bytes_default
assert 2 * batch_bytes_max + spill_write_bytes_max < slow_memory_bytes_min <= slow_memory_bytes_default
assert batch_bytes_max + 2 * spill_file_bytes_max <= slow_disk_bytes_min <= slow_disk_bytes_default
assert block_bytes_max <= spill_write_bytes_max <= spill_read_bytes_max < slow_memory_bytes_min
assert 4 * topic_bytes_max < known_topics_bytes_max
assert index_block_bytes <= index_zone_bytes <= read_bytes_target
assert index_bytes_max < indexes_bytes_max
assert rate_per_second_min < rate_multiple_max < rate_messages_max < rate_bytes_max
assert 2 * rate_tick_seconds <= rate_catch_up_seconds
assert pattern_set_max <= 64  # an answer about a topic has so many bits
assert 2 * pattern_set_young_max <= pattern_set_max
assert 1_000 * (pattern_answer_bytes + 4 * topic_bytes_max) < pattern_answers_bytes_max
assert paths_per_reader_max <= index_paths_max <= index_values_max // 64
assert 8 * index_cells_max <= index_memory_bytes_max
assert conflation_seconds_min < conflation_seconds_max
assert reconnect_seconds_min < connection_settled_seconds < client_timeout_seconds
assert last_persisted_max + 1_000 * foreign_sequences_max < stored_sequence_max < 1 << 64
assert client_timeout_seconds < name_settled_seconds < reconnect_delay_seconds_max
assert heartbeat_seconds_min < heartbeat_seconds_max
assert unread_bytes_unsure < receive_buffer_bytes
assert 64 * (conflation_entry_bytes + conflation_key_bytes_max) < conflation_held_bytes_max
