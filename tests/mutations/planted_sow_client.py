"""Planted defects of deletes and deltas in clients, with the tests that must detect them.

Must never hold one without an effect that an application could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_DELETES = "unit/client/publishing/test_deletes.py"
_KILLS = "faults/test_sow_delete_sigkill.py"
_RECORDS = (
    "world/test_worlds.py::test_changes_and_queries_of_records_on_one_or_two_servers_keep_the_guarantees"
)

SOW_CLIENT_MUTATIONS: Final = (
    Mutation(
        "the purge of a recovery point waits for its answer",
        "client/bookmark_store/sow_adapter.py",
        "data=self._key(sub_id), wait=False)",
        "data=self._key(sub_id))",
        ("conformance/test_sow_recovery_points.py",),
        promise="R9",
        tier="conformance",
    ),
    Mutation(
        "deletes of records count as messages of a transient topic",
        "client/publishing/server_topics.py",
        "or topic in (QUEUE_TOPIC, SOW_TOPIC)\n",
        "or topic == QUEUE_TOPIC\n",
        (_DELETES,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a persisted delete without an answer is not resent",
        "client/publishing/server_topics.py",
        "            refused = SOW_TOPIC in batch.topics or any(",
        "            refused = any(",
        (_DELETES,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a delete is resolved again when it is resent",
        "engine/commands/publish.py",
        "            return self._writer.known(session.publisher, batch, session.publishing)\n",
        "            pass\n",
        (_KILLS, _RECORDS),
        promise="R9",
        tier="faults",
    ),
    Mutation(
        "a delete is repeated although no match is left",
        "client/blocking/driver.py",
        "            result, more = with_answer(result, answer), answer.more\n",
        "            result, more = with_answer(result, answer), answer.deleted > 0\n",
        (_KILLS,),
        promise="R9",
        tier="faults",
    ),
    Mutation(
        "a delete whose answer was lost deleted no records",
        "engine/commands/frame_requests.py",
        "                counted=record is not None,\n",
        "",
        ("unit/engine/sow/test_deletes.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "the counts of a delete leave out a lost answer",
        "client/publishing/pending_deletes.py",
        "    if not answer.counted or records is None or topic_matches is None:\n",
        "    if records is None or topic_matches is None:\n",
        ("unit/client/api/test_queue_calls.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "the position of a delete counts refused messages of its frame",
        "engine/commands/frame_requests.py",
        "            refused = len(bad) - bisect_left(bad, row)\n",
        "            refused = 0\n",
        ("unit/engine/sow/test_deletes.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a repeated query keeps the position of its first result",
        "client/subscriptions/message_buffer.py",
        "        self.as_of, self.as_of_position = as_of, position\n",
        "        self.as_of, self.as_of_position = as_of, self.as_of_position or position\n",
        ("unit/client/subscriptions/test_message_buffer_queries.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a delete of many records ends after its first part",
        "client/aio/driver.py",
        "            result, more = with_answer(result, answer), answer.more\n",
        "            result, more = with_answer(result, answer), False\n",
        ("unit/client/api/test_queue_calls.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a publish store on disk keeps a delta as a whole message",
        "client/publishing/publisher.py",
        "            if delta:  # ",
        "            if delta and not appending:  # ",
        (_DELETES,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a delta is resent from memory as a whole message",
        "client/publishing/send_buffer.py",
        "                flags=FLAG_DELTA * delta,\n",
        "                flags=FLAG_DELTA * (delta and not self.sequenced),\n",
        (_DELETES,),
        promise="R9",
        tier="unit",
    ),
)
