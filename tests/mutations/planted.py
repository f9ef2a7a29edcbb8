"""Owns the mutations: defects of one line each, such as a bad day brings, and the tests that have to notice.

Must never hold one that changes nothing a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation
from tests.mutations.planted_archive import ARCHIVE_MUTATIONS
from tests.mutations.planted_queues import QUEUE_MUTATIONS
from tests.mutations.planted_stores import STORE_MUTATIONS
from tests.mutations.planted_transactions import TRANSACTION_MUTATIONS

_ENGINE_CRASHES = "simulation/test_engine_crashes.py"
_JOURNAL_CRASHES = "simulation/test_journal_crashes.py"
_FAILURES = "simulation/test_disk_failures.py"
_FLIPS = "simulation/test_bit_flips.py"
_HANDOVER = "simulation/test_handover.py"
_RETENTION = "simulation/test_retention.py"
_SILENCE = "simulation/test_silence.py"
_TRUNCATION = "simulation/test_truncation.py"

MUTATIONS: Final = (
    Mutation(
        "a commit is not synced",
        "journal/jobs.py",
        "            if job.sync:\n",
        "            if not job:\n",
        (_ENGINE_CRASHES,),
    ),
    Mutation(
        "acknowledged when it is accepted, not when it is persisted",
        "engine/publishing.py",
        "        end = self._journal.persisted_end\n        if not self._owed",
        "        end = self._journal.accepted_end\n        if not self._owed",
        (_ENGINE_CRASHES,),
    ),
    Mutation(
        "a failed write or sync is taken for done",
        "journal/commit.py",
        "        elif error is not None:\n            self._latch(job, error)",
        "        elif error is job:\n            self._latch(job, error)",
        (_FAILURES,),
    ),
    Mutation(
        "the names of reserved segments are not synced",
        "journal/jobs.py",
        "        self._disk.sync_directory(JOURNAL_DIRECTORY)\n        return",
        "        return",
        (_ENGINE_CRASHES,),
    ),
    Mutation(
        "the chain of commits is not checked",
        "journal/segment.py",
        "header.number != number or header.chain != self._chain or",
        "header.number != number or",
        ("unit/journal/test_segment.py", _TRUNCATION),
    ),
    Mutation(
        "the salt of a commit is not checked",
        "journal/segment.py",
        "            header.salt == self._header.salt\n            and",
        "            True\n            and",
        ("unit/journal/test_segment.py", _TRUNCATION),
    ),
    Mutation(
        "the checksum of a body is not checked at a start",
        "journal/segment.py",
        "(self._deep and crc32c(body) != header.body_crc)",
        "(self._deep and crc32c(body) == -1)",
        (_TRUNCATION,),
    ),
    Mutation(
        "the checksum of a body is not checked when it is read",
        "journal/reading.py",
        "            if crc32c(body) == header.body_crc:",
        "            if crc32c(body) >= 0:",
        (_FLIPS,),
    ),
    Mutation(
        "recovery does not look at what was synced through",
        "journal/segment.py",
        "and header.synced_through >= number:",
        "and header.synced_through < 0:",
        (_FLIPS,),
    ),
    Mutation(
        "recovery forgets the highest sequences of all segments but the last",
        "journal/seen.py",
        "        if highest is not None:\n            self.count(highest)\n",
        "",
        (_ENGINE_CRASHES,),
    ),
    Mutation(
        "recovery does not write again what may only be in the page cache",
        "journal/recovery.py",
        "    _write_back(disk, file.number, unproven, ending.end)\n",
        "",
        (_JOURNAL_CRASHES,),
    ),
    Mutation(
        "no mark after idleness",
        "journal/commit.py",
        "            self._write(CommitKind.MARK, None)",
        "            self._mark_at = None",
        ("unit/journal/test_commit.py",),
    ),
    Mutation(
        "the duplicate filter is off",
        "engine/publishing.py",
        """now: Now) -> None:
        highest = self._journal.highest.get(publisher, 0)
        if last""",
        """now: Now) -> None:
        highest = 0
        if last""",
        (_ENGINE_CRASHES,),
    ),
    Mutation(
        "of a frame that is half known, all is taken for known",
        "engine/publishing.py",
        "        if last <= highest:",
        "        if batch.run(0).first_sequence <= highest:",
        ("integration/test_promises.py::test_promise_3_what_comes_again_is_stored_once",),
    ),
    Mutation(
        "the end of a range by bookmark takes in the message named, whatever the bracket",
        "engine/points.py",
        "extent._replace(stop=max(positions) + (1 if point.end_inclusive else 0))",
        "extent._replace(stop=max(positions) + 1)",
        ("unit/engine", "integration/test_promises.py::test_promise_5_a_subscription_starts_anywhere"),
    ),
    Mutation(
        "a range that begins after a moment in the future takes in that moment",
        "engine/points.py",
        "not_before=point.micros if inclusive else point.micros + 1)",
        "not_before=point.micros)",
        ("unit/engine",),
    ),
    Mutation(
        "a bookmark starts at its message, not after it",
        "engine/points.py",
        "return Extent(min(positions) + (0 if inclusive else 1))",
        "return Extent(min(positions))",
        (_HANDOVER,),
    ),
    Mutation(
        "who leaves the shared end goes on one message later",
        "engine/dispatcher.py",
        "        sub.position = max(sub.position, position)\n",
        "        sub.position = max(sub.position, position + 1)\n",
        (_HANDOVER,),
    ),
    Mutation(
        "who joins the shared end is given the commit at the seam again",
        "engine/dispatcher.py",
        "        if not part.first_position < sub.position < part.end_position:",
        "        if sub.place is self:",
        (_HANDOVER,),
    ),
    Mutation(
        "credit is not counted",
        "engine/subscription.py",
        "        self.allowance.credit -= batch.cost",
        "        self.allowance.credit -= 0",
        (_HANDOVER,),
    ),
    Mutation(
        "the topic index skips the block it should read",
        "journal/reader.py",
        "            self._offset = segment.index.offsets[wanted]\n            self.position = max(",
        "            self._offset = segment.end\n            self.position = max(",
        (_HANDOVER, "unit/journal/test_reading.py"),
    ),
    Mutation(
        "the checksum of a commit's head is not checked",
        "journal/reader.py",
        "        if crc32c(encoded) != header.head_crc:",
        "        if crc32c(encoded) == -1:",
        ("unit/journal/test_reader_sparse.py",),
    ),
    Mutation(
        "a client's store lets go of one message too many",
        "client/publish_store/memory.py",
        'np.uint64(sequence), side="right"))',
        'np.uint64(sequence), side="right")) + 1',
        ("unit/client/publish_store", "property/test_client_reconnects.py"),
    ),
    Mutation(
        "a damaged body denies the commits after it",
        "journal/reading.py",
        "            if excuse is not None and excuse(header, body):",
        "            if excuse is not None and not header:",
        ("unit/journal/test_reading.py",),
    ),
    Mutation(
        "a log that lost its end starts as if nothing were missing",
        "journal/recovery.py",
        "    if reached is None:\n        return\n",
        "    if reached is None or reached:\n        return\n",
        ("unit/server/test_opening.py",),
    ),
    Mutation(
        "segments go before what must outlive them is recorded",
        "journal/jobs.py",
        "        if job.retired is not None:\n            write_retired",
        "        if job.retired is None:\n            write_retired",
        (_RETENTION,),
    ),
    Mutation(
        "what is kept of removed segments is not synced",
        "journal/retired.py",
        "        disk.write(handle, 0, [data])\n        disk.sync(handle)\n",
        "        disk.write(handle, 0, [data])\n",
        (_RETENTION,),
    ),
    Mutation(
        "a segment goes though a reader is in it",
        "journal/retention.py",
        "segment.end_position > oldest:",
        "segment.end_position > oldest + 10:",
        ("unit/engine/test_retaining.py",),
    ),
    Mutation(
        "who comes while old segments are read finds them gone",
        "engine/retaining.py",
        "pin.position < retired.first_position:",
        "pin.position < 0:",
        ("unit/engine/test_retaining.py",),
    ),
    Mutation(
        "a bookmark of what is gone is taken for one that never was",
        "journal/retired.py",
        "0 < bookmark.sequence <= retired.highest.of(bookmark.publisher)",
        "0 < bookmark.sequence < retired.highest.of(bookmark.publisher)",
        ("unit/engine/test_retaining.py",),
    ),
    Mutation(
        "names of publishers go with the segments that hold them",
        "journal/retention.py",
        "            records += _records(part, following.first_position)",
        "            records += _records(part, 0)",
        (_RETENTION,),
    ),
    Mutation(
        "a search cannot read what retention has removed meanwhile",
        "journal/lookup.py",
        "                if view.has(segment):\n                    raise\n                position = None",
        "                raise",
        ("unit/engine/test_retaining_and_searches.py",),
    ),
    Mutation(
        "a live subscription that comes back is given all that is not persisted at once",
        "engine/live.py",
        "if sent >= outbox_bytes_max:",
        "if sent < 0:",
        ("unit/engine/test_live.py",),
    ),
    Mutation(
        "who has many bookmarks looked up is read from all the same",
        "engine/searches.py",
        "        if self._crowded(session.conn):\n            self._pauses.pause",
        "        if self._crowded(-1):\n            self._pauses.pause",
        ("unit/engine/test_searches.py",),
    ),
    Mutation(
        "what a subscription becomes is passed over by what it is",
        "engine/cursors.py",
        "            reached = min(\n",
        "            reached = max(\n",
        ("unit/engine/test_replacing.py",),
    ),
    Mutation(
        "one of several that were resumed together passes the others",
        "engine/combined.py",
        "        limit = min(limit, reached)",
        "        limit = max(limit, reached)",
        ("unit/engine/test_pausing.py",),
    ),
    Mutation(
        "a connection is given all that a commit holds for it at once",
        "engine/dispatcher.py",
        "                room -= cost",
        "                room -= 0",
        ("unit/engine/test_sharing.py",),
    ),
    Mutation(
        "who joins a cohort in the middle of a part has its first messages passed over",
        "engine/cohorts.py",
        "ahead = sub.position - cohort.dispatcher.open_from",
        "ahead = sub.position - cohort.position",
        ("simulation/test_cohorts.py",),
    ),
    Mutation(
        "who is in the middle of what is handed out is given it from its beginning",
        "engine/dispatcher.py",
        "                number = rest\n",
        "                pass\n",
        ("unit/engine/test_cohorts.py",),
    ),
    Mutation(
        "those with filters each read for themselves when publishers are faster",
        "engine/delivery.py",
        "        for everybody in self.dispatcher.take_filtered():",
        "        for everybody in ():",
        ("unit/engine/test_cohorts.py",),
    ),
    Mutation(
        "the place of a cohort holds nothing back from retention",
        "engine/subscribing.py",
        "sub.phase in (Phase.BEHIND, Phase.TOGETHER)",
        "sub.phase in (Phase.BEHIND, Phase.OVER)",
        ("unit/engine/test_cohorts.py",),
    ),
    Mutation(
        "many replays of one connection have as many turns",
        "engine/cursors.py",
        "self._runnable.put(cursor.session.conn, cursor)",
        "self._runnable.put(cursor, cursor)",
        ("unit/engine/test_cohorts.py",),
    ),
    Mutation(
        "what conflation held back for one comes behind what took its place",
        "engine/unrecorded.py",
        "            self._queue = self._given or self._publishes\n",
        "            self._queue = self._publishes or self._given\n",
        ("unit/engine/test_unrecorded_conflation.py",),
    ),
    Mutation(
        "the clock ends an interval before what was published in it was looked at",
        "engine/unrecorded.py",
        "        time = self._publishes[0].time if self._publishes else micros(self.backlogs.now)\n",
        "        time = micros(self.backlogs.now)\n",
        ("unit/engine/test_unrecorded_conflation.py",),
    ),
    Mutation(
        "what was read is life, though it had arrived long before",
        "wire/pulse.py",
        "        elif arrived > self._arrived_bytes:\n",
        "        elif sight.heard_at > self._heard_at or arrived > self._arrived_bytes:\n",
        (_SILENCE, "unit/wire/test_pulse.py"),
    ),
    Mutation(
        "only what was read is life, not what has arrived",
        "wire/pulse.py",
        "        arrived = sight.read_bytes + sight.unread_bytes\n",
        "        arrived = sight.read_bytes\n",
        (_SILENCE, "unit/wire/test_pulse.py"),
    ),
    Mutation(
        "a server waits for three intervals",
        "engine/beats.py",
        "Pulse(interval, heartbeat_missed_intervals * interval, now)",
        "Pulse(interval, 3 * interval, now)",
        (_SILENCE,),
    ),
    *STORE_MUTATIONS,
    *TRANSACTION_MUTATIONS,
    *QUEUE_MUTATIONS,
    *ARCHIVE_MUTATIONS,
    Mutation(
        "two clients of one name throw each other out for ever",
        "client/session.py",
        "            if self._came_back and lasted < name_settled_seconds:\n",
        "            if False:\n",
        ("unit/client/test_session.py",),
    ),
    Mutation(
        "subscriptions are placed again before what is left was sent",
        "client/session.py",
        "        self._effects += (GoOn(), Resubscribe(attempt))\n",
        "        self._effects += (Resubscribe(attempt), GoOn())\n",
        ("unit/client/test_session.py", "property/test_ha_session.py"),
    ),
    Mutation(
        "a logon that nobody waits for any more is kept",
        "client/session.py",
        "        if self.step is not Step.CONNECTING or attempt != self.attempt:\n"
        "            self._effects.append(HangUp",
        "        if False:\n            self._effects.append(HangUp",
        ("unit/client/test_session.py",),
    ),
    Mutation(
        "the end of a connection that an earlier attempt left ends the present one",
        "client/keeping.py",
        "        return lost.connection >= self._connection\n",
        "        return lost.connection > 0\n",
        ("unit/client/test_ha.py",),
    ),
    Mutation(
        "what is published after giving up goes into a store from which nobody sends",
        "client/standing.py",
        "        self._publishing.lost(loss, storing=self._stopped is None)\n",
        "        self._publishing.lost(loss)\n",
        ("unit/client/test_ha.py",),
    ),
)
