"""Planted defects of one line each, with the tests that must detect them.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation
from tests.mutations.planted_archive import ARCHIVE_MUTATIONS
from tests.mutations.planted_bounds import BOUND_MUTATIONS
from tests.mutations.planted_claims import CLAIM_MUTATIONS
from tests.mutations.planted_columns import COLUMN_MUTATIONS
from tests.mutations.planted_comparison import COMPARISON_MUTATIONS
from tests.mutations.planted_deletes import DELETE_MUTATIONS
from tests.mutations.planted_delivery import DELIVERY_MUTATIONS
from tests.mutations.planted_destinations import DESTINATION_MUTATIONS
from tests.mutations.planted_disks import DISK_MUTATIONS
from tests.mutations.planted_facts import FACT_MUTATIONS
from tests.mutations.planted_filters import FILTER_MUTATIONS
from tests.mutations.planted_groups import GROUP_MUTATIONS
from tests.mutations.planted_holes import HOLE_MUTATIONS
from tests.mutations.planted_labels import LABEL_MUTATIONS
from tests.mutations.planted_levels import LEVEL_MUTATIONS
from tests.mutations.planted_link_ends import LINK_END_MUTATIONS
from tests.mutations.planted_link_server import LINK_SERVER_MUTATIONS
from tests.mutations.planted_link_source import LINK_SOURCE_MUTATIONS
from tests.mutations.planted_links import LINK_MUTATIONS
from tests.mutations.planted_pairs import PAIR_MUTATIONS
from tests.mutations.planted_places import PLACE_MUTATIONS
from tests.mutations.planted_queries import QUERY_MUTATIONS
from tests.mutations.planted_queues import QUEUE_MUTATIONS
from tests.mutations.planted_ranked_fold import RANKED_FOLD_MUTATIONS
from tests.mutations.planted_records import RECORD_MUTATIONS
from tests.mutations.planted_resent import RESENT_MUTATIONS
from tests.mutations.planted_routes import ROUTE_MUTATIONS
from tests.mutations.planted_sow_admin import SOW_ADMIN_MUTATIONS
from tests.mutations.planted_sow_checkpoints import SOW_CHECKPOINT_MUTATIONS
from tests.mutations.planted_sow_client import SOW_CLIENT_MUTATIONS
from tests.mutations.planted_sow_config import SOW_CONFIG_MUTATIONS
from tests.mutations.planted_sow_feed import SOW_FEED_MUTATIONS
from tests.mutations.planted_sow_fold import SOW_FOLD_MUTATIONS
from tests.mutations.planted_sow_intake import SOW_INTAKE_MUTATIONS
from tests.mutations.planted_sow_keys import SOW_KEY_MUTATIONS
from tests.mutations.planted_sow_query import SOW_QUERY_MUTATIONS
from tests.mutations.planted_sow_rule import SOW_RULE_MUTATIONS
from tests.mutations.planted_sow_wire import SOW_WIRE_MUTATIONS
from tests.mutations.planted_state_files import STATE_FILE_MUTATIONS
from tests.mutations.planted_stores import STORE_MUTATIONS
from tests.mutations.planted_sync import SYNC_MUTATIONS
from tests.mutations.planted_tables import TABLE_MUTATIONS
from tests.mutations.planted_transactions import TRANSACTION_MUTATIONS
from tests.mutations.planted_worlds import WORLD_MUTATIONS

_ENGINE_CRASHES = "simulation/test_engine_crashes.py"
_JOURNAL_CRASHES = "simulation/test_journal_crashes.py"
_FAILURES = "simulation/test_disk_failures.py"
_FLIPS = "simulation/test_bit_flips.py"
_HANDOVER = "simulation/test_handover.py"
_RETENTION = "simulation/test_retention.py"
_TRUNCATION = "simulation/test_truncation.py"

MUTATIONS: Final = (
    Mutation(
        "a commit is not synced",
        "journal/commit/jobs.py",
        "            if job.sync:\n",
        "            if not job:\n",
        (_ENGINE_CRASHES,),
        promise="R1",
        tier="simulation",
    ),
    Mutation(
        "a publish is acknowledged when accepted, not when persisted",
        "engine/sessions/ack_tracker.py",
        "        end = self._journal.commits.persisted_end\n",
        "        end = self._journal.commits.accepted_end\n",
        (_ENGINE_CRASHES,),
        promise="R1",
        tier="simulation",
    ),
    Mutation(
        "a failed write or sync counts as completed",
        "journal/commit/group_commit.py",
        "        elif error is not None:\n            self._latch(job, error)",
        "        elif error is job:\n            self._latch(job, error)",
        (_FAILURES,),
        promise="R4",
        tier="simulation",
    ),
    Mutation(
        "the directory of reserved segments is not synced",
        "journal/commit/jobs.py",
        "            self._disk.sync_directory(JOURNAL_DIRECTORY)\n            if last_segment",
        "            if last_segment",
        (_ENGINE_CRASHES,),
        promise="R1",
        tier="simulation",
    ),
    Mutation(
        "the chain of commits is not checked",
        "journal/recovery/segment_scan.py",
        "header.number != number or header.chain != self._chain or",
        "header.number != number or",
        ("unit/journal/recovery/test_segment_scan.py", _TRUNCATION),
        promise="R2",
        tier="unit",
    ),
    Mutation(
        "the salt of a commit is not checked",
        "journal/recovery/segment_scan.py",
        "            header.salt == self._header.salt\n            and",
        "            True\n            and",
        ("unit/journal/recovery/test_segment_scan.py", _TRUNCATION),
        promise="R2",
        tier="unit",
    ),
    Mutation(
        "the checksum of a body is not verified at a start",
        "journal/recovery/segment_scan.py",
        "or crc32c(body) != header.body_crc:",
        "or crc32c(body) == -1:",
        (_TRUNCATION,),
        promise="R2",
        tier="simulation",
    ),
    Mutation(
        "the checksum of a body is not verified by readers",
        "journal/reading/log_view.py",
        "            if crc32c(body) == header.body_crc:",
        "            if crc32c(body) >= 0:",
        (_FLIPS,),
        promise="R3",
        tier="simulation",
    ),
    Mutation(
        "recovery ignores the synced-through mark of later commits",
        "journal/recovery/segment_scan.py",
        "and header.synced_through >= number:",
        "and header.synced_through < 0:",
        (_FLIPS,),
        promise="R3",
        tier="simulation",
    ),
    Mutation(
        "runs of one microsecond have equal timestamps",
        "journal/journal.py",
        "max(self._log_time + 1, now.wall)",
        "max(self._log_time, now.wall)",
        ("unit/engine/runtime/test_log_time.py",),
        promise="invariant 25",
        tier="unit",
    ),
    Mutation(
        "control records of another log are applied",
        "engine/runtime/publisher_ids.py",
        "        if head.log:  # before",
        "        if head.log == body:  # before",
        ("unit/engine/runtime/test_publisher_ids.py",),
        promise="invariant 11",
        tier="unit",
    ),
    Mutation(
        "a removal loses the checkpoints of retired state",
        "journal/retention.py",
        "            manifests=before.manifests if before is not None else {},",
        "            manifests={},",
        ("unit/journal/format/test_retired_fields.py",),
        promise="invariant 3",
        tier="unit",
    ),
    Mutation(
        "the index misses late runs",
        "journal/index/segment_index.py",
        "        if batch.run_count > 1 or not spans:\n",
        "        if not batch:\n",
        ("unit/journal/index/test_late_runs.py",),
        promise="behaviour 1",
        tier="unit",
    ),
    Mutation(
        "a late run lowers the highest sequence of a publisher",
        "journal/journal.py",
        "        if last_sequence > self.highest.get(stamp.publisher, 0):  # not in a late run\n",
        "        if self.highest:\n",
        ("unit/journal/index/test_late_runs.py",),
        promise="invariant 11",
        tier="unit",
    ),
    Mutation(
        "recovery forgets the highest sequences of all segments but the last",
        "journal/recovery/survey.py",
        "        if highest is not None:\n            self.count(highest)\n",
        "",
        (_ENGINE_CRASHES,),
        promise="R1",
        tier="simulation",
    ),
    Mutation(
        "recovery does not rewrite commits that may be only in the page cache",
        "journal/recovery/recovery.py",
        "    _write_back(disk, file.number, unproven, ending.end)\n",
        "",
        ("unit/journal/recovery/test_recovery.py", _JOURNAL_CRASHES),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "no mark is written after an idle time",
        "journal/commit/group_commit.py",
        "            self._write(CommitKind.MARK, None)",
        "            self._mark_at = None",
        ("unit/journal/commit/test_group_commit.py",),
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "the duplicate filter is off",
        "engine/runtime/log_writer.py",
        "        highest = self._journal.highest.get(publisher, 0)\n        if last",
        "        highest = 0\n        if last",
        (_ENGINE_CRASHES,),
        promise="R9",
        tier="simulation",
    ),
    Mutation(
        "all messages of a partly duplicate frame are dropped",
        "engine/runtime/log_writer.py",
        "        if last <= highest:",
        "        if batch.run(0).first_sequence <= highest:",
        ("integration/test_promises.py::test_promise_3_resent_message_is_stored_once",),
        promise="R9",
        tier="integration",
    ),
    Mutation(
        "the end of a range by bookmark is always inclusive",
        "engine/subscriptions/start_position.py",
        "extent._replace(stop=max(positions) + (1 if point.end_inclusive else 0))",
        "extent._replace(stop=max(positions) + 1)",
        (
            "unit/engine",
            "integration/test_promises.py::test_promise_5_subscription_starts_at_any_start_point",
        ),
        promise="behaviour 6",
        tier="unit",
    ),
    Mutation(
        "a range that starts exclusively at a future time includes that time",
        "engine/subscriptions/start_position.py",
        "not_before=point.micros if inclusive else point.micros + 1)",
        "not_before=point.micros)",
        ("unit/engine",),
        promise="behaviour 1",
        tier="unit",
    ),
    Mutation(
        "a bookmark starts at its message, not after it",
        "engine/subscriptions/start_position.py",
        "return ReplayRange(min(positions) + (0 if inclusive else 1))",
        "return ReplayRange(min(positions))",
        (_HANDOVER,),
        promise="R10",
        tier="simulation",
    ),
    Mutation(
        "a subscription that leaves the live fan-out skips one message",
        "engine/delivery/fanout.py",
        "        sub.position = max(sub.position, position)\n",
        "        sub.position = max(sub.position, position + 1)\n",
        (_HANDOVER,),
        promise="R10",
        tier="simulation",
    ),
    Mutation(
        "a subscription that joins the live fan-out gets the commit at its position twice",
        "engine/delivery/fanout.py",
        "        if part.first_position < sub.position < part.end_position:",
        "        if False:",
        (_HANDOVER,),
        promise="R10",
        tier="simulation",
    ),
    Mutation(
        "credit is not counted",
        "engine/subscriptions/subscription.py",
        "        self.allowance.spend(batch.cost)",
        "        self.allowance.credit -= 0",
        (_HANDOVER,),
        promise="invariant 22",
        tier="simulation",
    ),
    Mutation(
        "the topic index skips the block it should read",
        "journal/reading/log_reader.py",
        "            self._offset = segment.index.offsets[wanted]\n            self.position = max(",
        "            self._offset = segment.end\n            self.position = max(",
        ("unit/journal/reading/test_log_view.py", _HANDOVER),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "the checksum of a commit's head is not checked",
        "journal/reading/log_reader.py",
        "        if crc32c(encoded) != header.head_crc:",
        "        if crc32c(encoded) == -1:",
        ("unit/journal/reading/test_sparse_reads.py",),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a client's store drops one message too many",
        "client/publish_store/memory.py",
        'np.uint64(sequence), side="right"))',
        'np.uint64(sequence), side="right")) + 1',
        ("unit/client/publish_store", "property/test_client_reconnects.py"),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a damaged body hides the commits after it",
        "journal/reading/log_view.py",
        "            if excuse is not None and excuse(header, body):",
        "            if excuse is not None and not header:",
        ("unit/journal/reading/test_log_view.py",),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a log with a lost end starts without a report",
        "journal/recovery/recovery.py",
        "    if shutdown is None:\n        return\n",
        "    if shutdown is None or shutdown:\n        return\n",
        ("unit/server/test_startup.py",),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "segments are removed before the retired state is written",
        "journal/commit/jobs.py",
        "        write_retired(self._disk, job.retired)\n",
        "        pass\n",
        (_RETENTION,),
        promise="invariant 3",
        tier="simulation",
    ),
    Mutation(
        "the retired state of removed segments is not synced",
        "journal/format/files.py",
        "        disk.write(handle, 0, buffers)\n        disk.sync(handle)\n",
        "        disk.write(handle, 0, buffers)\n",
        (_RETENTION,),
        promise="invariant 4",
        tier="simulation",
    ),
    Mutation(
        "control records count as the last message",
        "journal/retention.py",
        "    last = view.end_position - 1 if view.last_message is None else view.last_message\n",
        "    last = view.end_position - 1\n",
        ("unit/engine/test_retention_last_message.py",),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "a log without messages is taken for one with an unreadable first message",
        "journal/retention.py",
        "        first_unknown,\n    )\n",
        "        first is None,\n    )\n",
        ("unit/engine/test_retention_last_message.py",),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "a segment is removed during a read of it",
        "journal/retention.py",
        "segment.end_position > oldest:",
        "segment.end_position > oldest + 10:",
        ("unit/engine/test_retention.py",),
        promise="invariant 3",
        tier="unit",
    ),
    Mutation(
        "a subscription that starts during reads of old segments finds them removed",
        "engine/retention.py",
        "pin.position < retired.first_position:",
        "pin.position < 0:",
        ("unit/engine/test_retention.py",),
        promise="invariant 3",
        tier="unit",
    ),
    Mutation(
        "a bookmark of a removed message counts as unknown",
        "journal/format/retired_state.py",
        "0 < bookmark.sequence <= retired.highest.of(bookmark.publisher)",
        "0 < bookmark.sequence < retired.highest.of(bookmark.publisher)",
        ("unit/engine/test_retention.py",),
        promise="invariant 14",
        tier="unit",
    ),
    Mutation(
        "publisher names are removed with their segments",
        "journal/retention.py",
        "            records += _records(part, following.first_position)",
        "            records += _records(part, 0)",
        (_RETENTION,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "a search fails when retention removes a segment meanwhile",
        "journal/reading/log_reader.py",
        "                if view.has(segment):\n                    raise\n                position = None",
        "                raise",
        ("unit/engine/test_retention_and_searches.py",),
        promise="invariant 14",
        tier="unit",
    ),
    *DELETE_MUTATIONS,
    *DELIVERY_MUTATIONS,
    *DISK_MUTATIONS,
    *FACT_MUTATIONS,
    *FILTER_MUTATIONS,
    *GROUP_MUTATIONS,
    *DESTINATION_MUTATIONS,
    *HOLE_MUTATIONS,
    *BOUND_MUTATIONS,
    *CLAIM_MUTATIONS,
    *COMPARISON_MUTATIONS,
    *COLUMN_MUTATIONS,
    *SOW_WIRE_MUTATIONS,
    *LINK_MUTATIONS,
    *LINK_SOURCE_MUTATIONS,
    *PAIR_MUTATIONS,
    *PLACE_MUTATIONS,
    *LINK_END_MUTATIONS,
    *LINK_SERVER_MUTATIONS,
    *RESENT_MUTATIONS,
    *SYNC_MUTATIONS,
    *LEVEL_MUTATIONS,
    *STORE_MUTATIONS,
    *TRANSACTION_MUTATIONS,
    *QUERY_MUTATIONS,
    *QUEUE_MUTATIONS,
    *STATE_FILE_MUTATIONS,
    *SOW_CHECKPOINT_MUTATIONS,
    *SOW_FEED_MUTATIONS,
    *SOW_FOLD_MUTATIONS,
    *SOW_INTAKE_MUTATIONS,
    *SOW_KEY_MUTATIONS,
    *SOW_ADMIN_MUTATIONS,
    *SOW_CLIENT_MUTATIONS,
    *SOW_CONFIG_MUTATIONS,
    *RECORD_MUTATIONS,
    *RANKED_FOLD_MUTATIONS,
    *ROUTE_MUTATIONS,
    *LABEL_MUTATIONS,
    *ARCHIVE_MUTATIONS,
    *SOW_QUERY_MUTATIONS,
    *SOW_RULE_MUTATIONS,
    *TABLE_MUTATIONS,
    *WORLD_MUTATIONS,
)
