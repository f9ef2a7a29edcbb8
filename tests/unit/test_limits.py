"""Relations between limits of all packages."""

from __future__ import annotations

from tickertape.archive.limits import archive_row_group_bytes_max, buffer_bytes_max, file_bytes_target
from tickertape.base.client_limits import DEFAULT, LEAST, MOST
from tickertape.base.limits import (
    KIB,
    batch_bytes_max,
    batch_bytes_target,
    bookmark_subscriptions_max,
    bookmarks_per_list_max,
    client_name_bytes_max,
    combined_subscriptions_max,
    conflation_seconds_max,
    conflation_seconds_min,
    frame_bytes_before_logon_max,
    frame_bytes_max,
    frame_in_place_bytes_max,
    frame_prefix_bytes,
    header_bytes_max,
    heartbeat_seconds_max,
    heartbeat_seconds_min,
    last_persisted_max,
    message_bytes_max,
    publish_messages_max,
    receive_buffer_bytes,
    settlement_bytes_max,
    settlement_runs_max,
    sow_keys_bytes_max,
    sow_keys_per_command_max,
    sow_records_per_frame_max,
    subscription_id_bytes_max,
    topic_bytes_max,
    unread_bytes_unsure,
)
from tickertape.client.limits import (
    adapter_notices,
    bookmark_log_bytes_first,
    bookmark_log_step_bytes_max,
    bookmark_prune_bytes_default,
    bookmark_publishers_max,
    bookmark_ring_cells_max,
    client_timeout_seconds,
    connection_settled_seconds,
    credentials_bytes_max,
    credit_bytes_default,
    foreign_sequences_max,
    name_settled_seconds,
    publish_segment_bytes,
    publish_store_bytes_default,
    publish_store_file_bytes_default,
    reconnect_delay_seconds_max,
    reconnect_seconds_min,
    recovery_bookmarks_max,
    republish_bytes_max,
    resubscriptions_under_way_max,
    shared_batches_bytes_max,
    stage_frame_bytes,
    stored_sequence_max,
)
from tickertape.engine.limits import (
    block_bytes_max,
    commits_waiting_each_max,
    commits_waiting_max,
    conflation_entry_bytes,
    conflation_held_bytes_max,
    conflation_key_bytes_max,
    dispatch_backlog_bytes_max,
    known_topics_bytes_max,
    notice_subscriptions_max,
    outbox_bytes_max,
    pattern_answer_bytes,
    pattern_answers_bytes_max,
    pattern_set_max,
    pattern_set_young_max,
    positions_per_frame_max,
    queue_frame_messages_max,
    queue_step_messages_max,
    rate_bytes_max,
    rate_catch_up_seconds,
    rate_messages_max,
    rate_multiple_max,
    rate_per_second_min,
    rate_tick_seconds,
    read_ahead_bytes_max,
    record_ranges_bytes_max,
    refused_per_command_messages_max,
    routes_per_frame_max,
    searches_per_connection_max,
    slow_connection_bytes_default,
    slow_disk_bytes_default,
    slow_memory_bytes_default,
    sow_delete_keys_max,
    sow_delete_record_bytes_max,
    sow_expiry_step_max,
    sow_explicit_key_characters_max,
    sow_key_bytes_max,
    spill_file_bytes_max,
    spill_read_bytes_max,
    spill_write_bytes_max,
    step_bytes_max,
    topic_names_bytes_max,
    transaction_names_each_max,
    transaction_names_max,
    transaction_publishers_max,
    unrecorded_piece_bytes_max,
)
from tickertape.filter.limits import (
    index_cells_max,
    index_memory_bytes_max,
    index_paths_max,
    index_values_max,
)
from tickertape.journal.limits import (
    commit_bytes_max,
    commit_messages_max,
    index_block_bytes,
    index_bytes_max,
    index_zone_bytes,
    indexes_bytes_max,
    read_bytes_target,
    segment_bytes_default,
    segment_bytes_first,
    segment_bytes_min,
    tail_cache_bytes,
)
from tickertape.payload.limits import merge_nested_bytes_max, paths_per_reader_max
from tickertape.server.limits import inbound_bytes_max, slow_disk_bytes_min, slow_memory_bytes_min
from tickertape.wire.sow_command import record_mark_bytes


def test_limits_that_can_be_configured_fit_frames_and_stores() -> None:
    assert all(low <= default <= high for low, default, high in zip(LEAST, DEFAULT, MOST, strict=True))
    assert MOST.message_bytes_max < batch_bytes_max < frame_bytes_max
    assert MOST.filter_bytes_max < header_bytes_max
    assert MOST.subscriptions_per_connection_max <= bookmark_subscriptions_max


def test_limits_of_all_packages_fit_together() -> None:
    assert batch_bytes_target < commit_bytes_max < batch_bytes_max
    assert recovery_bookmarks_max < bookmarks_per_list_max
    assert resubscriptions_under_way_max < searches_per_connection_max
    assert bookmark_log_bytes_first < bookmark_log_step_bytes_max < bookmark_prune_bytes_default
    assert adapter_notices > 1  # an adapter that publishes causes one notice
    assert 4 * recovery_bookmarks_max <= bookmark_publishers_max <= bookmark_ring_cells_max
    assert header_bytes_max + batch_bytes_max + frame_prefix_bytes <= frame_bytes_max
    assert frame_bytes_before_logon_max < frame_bytes_max
    assert credentials_bytes_max + client_name_bytes_max + 2 * KIB < frame_bytes_before_logon_max
    assert 9 * refused_per_command_messages_max < header_bytes_max // 2
    assert topic_names_bytes_max <= header_bytes_max * 3 // 4
    assert sow_records_per_frame_max * record_mark_bytes + 2 * subscription_id_bytes_max <= header_bytes_max
    assert sow_keys_bytes_max + 5 * sow_keys_per_command_max + 2 * topic_bytes_max < message_bytes_max
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


def test_limits_of_steps_and_memory_fit_together() -> None:
    assert 2 * batch_bytes_max + spill_write_bytes_max < slow_memory_bytes_min <= slow_memory_bytes_default
    assert batch_bytes_max + 2 * spill_file_bytes_max <= slow_disk_bytes_min <= slow_disk_bytes_default
    assert block_bytes_max <= spill_write_bytes_max <= spill_read_bytes_max < slow_memory_bytes_min
    assert 4 * topic_bytes_max < known_topics_bytes_max
    assert index_block_bytes <= index_zone_bytes <= read_bytes_target
    assert index_bytes_max < indexes_bytes_max
    assert rate_per_second_min < rate_multiple_max < rate_messages_max < rate_bytes_max
    assert 2 * rate_tick_seconds <= rate_catch_up_seconds
    assert pattern_set_max <= 64  # the answer for a topic has 64 bits
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
    assert 4 * archive_row_group_bytes_max < buffer_bytes_max
    assert archive_row_group_bytes_max < file_bytes_target
    assert settlement_runs_max * 24 < settlement_bytes_max < message_bytes_max < frame_bytes_max
    assert record_ranges_bytes_max % 16 == 0
    assert record_ranges_bytes_max + settlement_bytes_max < message_bytes_max
    assert queue_frame_messages_max <= queue_step_messages_max
    assert stage_frame_bytes < frame_bytes_max
    assert commits_waiting_each_max < commits_waiting_max
    assert sow_expiry_step_max < sow_delete_keys_max
    assert 24 * sow_expiry_step_max < sow_delete_record_bytes_max < message_bytes_max
    assert 2 * message_bytes_max <= merge_nested_bytes_max
    assert transaction_names_each_max <= transaction_names_max
    assert 8 * transaction_publishers_max <= transaction_names_max  # others cannot evict the last 8 names
    assert topic_bytes_max + sow_explicit_key_characters_max + 16 <= sow_key_bytes_max
