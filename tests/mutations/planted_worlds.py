"""Planted defects that only simulations of whole systems detect: in drivers, and between state machines.

Must never hold one that a test of a single module should detect, or one that keeps time from passing.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_WORLDS = "world/test_worlds.py::"
_MACHINES = _WORLDS + "test_state_machines_with_faults_and_crashes_keep_the_guarantees"
_KEPT = _WORLDS + "test_simulation_with_a_seed_that_once_failed_passes"
_SMALL = _WORLDS + "test_publisher_and_reader_with_one_server_keep_the_guarantees"
_TRIO = _WORLDS + "test_publisher_reader_and_worker_with_one_server_keep_the_guarantees"
_PAIR = _WORLDS + "test_publishers_failing_over_between_two_servers_keep_the_guarantees"
_UNLIKE = _WORLDS + "test_publishers_failing_over_to_a_server_with_fewer_topics_lose_nothing"
_LARGE = _WORLDS + "test_readers_queues_and_transactions_on_one_server_keep_the_guarantees"
_RECORDS = _WORLDS + "test_changes_and_queries_of_records_on_one_or_two_servers_keep_the_guarantees"

WORLD_MUTATIONS: Final = (
    # -- guarantees of publishers ---------------------------------------------------------------------
    Mutation(
        "accepted persistent messages are resent unsequenced",
        "client/publishing/server_topics.py",
        "        promised = apart & (",
        "        promised = (apart ^ apart) & (",
        (_UNLIKE,),
        promise="R9",
        tier="world",
    ),
    # -- who connects, and notices that a connection is none any more ---------------------------------
    Mutation(
        "an asyncio client checks its connection only once",
        "client/aio/driver.py",
        "liveness(), moment)\n            self.drive()\n        self._arm_beats()",
        "liveness(), moment)\n            self.drive()",
        (_SMALL,),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "a connection attempt has no timeout",
        "client/aio/driver.py",
        "            async with asyncio.timeout(seconds):\n                await connection.dial()",
        "            async with asyncio.timeout(None):\n                await connection.dial()",
        ("unit/client/blocking/test_tls_connection.py", _LARGE, _PAIR),
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "the task that keeps a connection misses its loss",
        "client/aio/ha_driver.py",
        "            self.feed(machine.ConnectionLost(lost.error))",
        "            self._changed.wake()",
        (_SMALL,),
        promise="R8",
        tier="world",
    ),
    # -- drivers of the engine ------------------------------------------------------------------------
    Mutation(
        "a command that yields to others waits for other work",
        "server/engine_driver.py",
        "(self.broker.has_work or self._scheduler.waiting)",
        "self.broker.has_work",
        (_SMALL,),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "errors of the disk thread are dropped",
        "server/storage/disk_worker.py",
        "            error = failed\n",
        "            error = None if failed else failed\n",
        (_KEPT,),
        promise="R5",
        tier="world",
    ),
    # -- between a client, the engine and their disks -------------------------------------------------
    Mutation(
        "a flush on a lost connection reports everything as persisted",
        "client/protocol/calls.py",
        "        tokens.extend(token for _, token in self._flushes)",
        "        self._effects.extend(ResolveCall(token, None) for _, token in self._flushes)",
        ("unit/client/protocol/test_core.py", _PAIR, _LARGE),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a message discarded while it waits in the batch is delivered",
        "client/subscriptions/duplicates.py",
        "    return _is_discarded(context.store, context.sub_id, batch.publisher(at), batch.sequence(at))",
        "    return False",
        (_SMALL,),
        promise="R8",
        tier="world",
    ),
    Mutation(
        "a discard is not written to the log of a bookmark store",
        "client/bookmark_store/logged.py",
        "            _pack_into(self._file.map, at, crc, what, ordinal)\n",
        "",
        (_KEPT,),
        promise="R9",
        tier="world",
    ),
    Mutation(
        "on a full disk a publish store is asked to drop messages without space",
        "engine/commands/publish.py",
        "if command.sequenced and isinstance(error, JournalFull):",
        "if not command.sequenced and isinstance(error, JournalFull):",
        (_MACHINES,),
        promise="R16",
        tier="world",
    ),
    Mutation(
        "a new live subscription misses messages in flight to the disk",
        "engine/delivery/log_delivery.py",
        "            self.live.begin(self._journal.commits.accepted_end)\n        self.cursors.add(sub)",
        "            self.live.begin(self._journal.commits.persisted_end)\n        self.cursors.add(sub)",
        (_KEPT,),
        promise="R10",
        tier="world",
    ),
    Mutation(
        "subscriptions of a closed connection continue",
        "engine/broker.py",
        "            self.subscriptions.drop(session)\n",
        "",
        (_LARGE,),
        promise="R11",
        tier="world",
    ),
    Mutation(
        "a start forgets the committed transactions",
        "engine/broker.py",
        "CommittedTransactions(registry.latest.values())",
        "CommittedTransactions(())",
        (_SMALL,),
        promise="invariant 11",
        tier="world",
    ),
    Mutation(
        "a segment is followed by another before its seal is durable",
        "journal/commit/jobs.py",
        "        self._disk.truncate(handle, end)\n        self._disk.sync(handle)\n",
        "        self._disk.truncate(handle, end)\n",
        (_LARGE,),
        promise="R1",
        tier="world",
    ),
    # -- transactions of several frames ---------------------------------------------------------------
    Mutation(
        "a transaction continues on another connection after a loss between two frames",
        "client/protocol/transactions.py",
        "            same.check(core.logon.logged_on)\n",
        "            on = core.logon.logged_on\n"
        "            vars(same).update(_first=on) if batch else same.check(on)\n",
        (_SMALL,),
        promise="invariant 5",
        tier="world",
    ),
    # -- records of SOW topics ------------------------------------------------------------------------
    Mutation(
        "deletes are executed before the other messages of their frame",
        "engine/sow/commands.py",
        "        for row in sorted({*rows, *requests}):",
        "        for row in sorted({*rows, *requests}, key=lambda row: (row not in requests, row)):",
        (_KEPT,),
        promise="R9",
        tier="world",
    ),
    Mutation(
        "messages after a result start at the accepted end",
        "engine/sow/feed.py",
        "            self.log_feed.begin(ReplayRange(self.position), None)",
        "            self.log_feed.begin(ReplayRange(fold._journal.commits.accepted_end), None)",
        (_RECORDS,),
        promise="R9",
        tier="world",
    ),
    Mutation(
        "a result after a start from a checkpoint has no position",
        "engine/sow/registry.py",
        "            if self.fold.last is None:\n",
        "            if self.fold.last is None and not start:\n",
        ("simulation/test_sow_checkpoints.py", _RECORDS),
        promise="R9",
        tier="simulation",
    ),
)
