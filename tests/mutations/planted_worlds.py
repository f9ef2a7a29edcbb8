"""Owns the defects that only worlds have to notice: in what drives the machines, and between two of them.

Must never hold one that a test of a single module is meant to notice, or one that keeps time from passing.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_WORLDS = "world/test_worlds.py::"
_MACHINES = _WORLDS + "test_state_machines_with_faults_and_crashes_keep_their_guarantees"
_KEPT = _WORLDS + "test_simulation_with_a_seed_that_once_failed_passes"
_SMALL = _WORLDS + "test_publisher_and_reader_with_one_server_keep_their_guarantees"
_TRIO = _WORLDS + "test_publisher_reader_and_worker_with_one_server_keep_their_guarantees"
_PAIR = _WORLDS + "test_publishers_failing_over_between_two_servers_keep_their_guarantees"
_UNLIKE = _WORLDS + "test_publishers_failing_over_to_a_server_with_fewer_topics_lose_nothing"
_LARGE = _WORLDS + "test_readers_queues_and_transactions_on_one_server_keep_their_guarantees"

WORLD_MUTATIONS: Final = (
    # -- what a publisher was promised -------------------------------------------------------------------
    Mutation(
        "what a server does not record is sent unsequenced, whatever was said when it was accepted",
        "client/publishing/server_topics.py",
        "        promised = apart & (",
        "        promised = (apart ^ apart) & (",
        (_UNLIKE,),
        promise="R9",
        tier="world",
    ),
    # -- who connects, and notices that a connection is none any more -----------------------------------
    Mutation(
        "an asyncio client looks at its connection only once",
        "client/aio/driver.py",
        "liveness(), moment)\n            self.drive()\n        self._arm_beats()",
        "liveness(), moment)\n            self.drive()",
        (_SMALL,),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "a server takes every silence for its own",
        "server/network/connection.py",
        "            excused=excused,",
        "            excused=not excused,",
        (_SMALL,),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "an attempt to connect has no end",
        "client/aio/driver.py",
        "            async with asyncio.timeout(seconds):\n                await connection.dial()",
        "            async with asyncio.timeout(None):\n                await connection.dial()",
        (_LARGE, _PAIR),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "the task that keeps a connection does not hear that it is lost",
        "client/aio/ha_driver.py",
        "            self.feed(machine.ConnectionLost(lost.error))",
        "            self._changed.wake()",
        (_SMALL,),
        promise="R8",
        tier="world",
    ),
    # -- what drives the engine -------------------------------------------------------------------------
    Mutation(
        "a command that lets others go first is taken only when there is other work",
        "server/engine_driver.py",
        "if (self.broker.has_work or self._scheduler.has_work) and",
        "if self.broker.has_work and",
        (_SMALL,),
        promise="R22",
        tier="world",
    ),
    Mutation(
        "the thread of the disk keeps errors to itself",
        "server/storage/disk_worker.py",
        "            error = failed\n",
        "            error = None if failed else failed\n",
        (_KEPT,),
        promise="R5",
        tier="world",
    ),
    # -- between a client, the engine and their disks ---------------------------------------------------
    Mutation(
        "a flush whose connection is lost says that everything is persisted",
        "client/protocol/calls.py",
        "        tokens.extend(token for _, token in self._flushes)",
        "        self._effects.extend(ResolveCall(token, None) for _, token in self._flushes)",
        (_PAIR, _LARGE),
        promise="R9",
        tier="world",
    ),
    Mutation(
        "what was discarded while it lay in the batch at hand is handed out",
        "client/subscriptions/duplicates.py",
        "    return _is_discarded(context.store, context.sub_id, batch.publisher(at), batch.sequence(at))",
        "    return False",
        (_SMALL,),
        promise="R8",
        tier="world",
    ),
    Mutation(
        "what is discarded is not written into the log of a bookmark store",
        "client/bookmark_store/logged.py",
        "            _pack_into(self._file.map, at, crc, what, ordinal)\n",
        "",
        (_KEPT,),
        promise="R9",
        tier="world",
    ),
    Mutation(
        "on a full disk a publish store is told to let go of what there is no room for",
        "engine/commands/publish.py",
        "if command.sequenced and isinstance(error, JournalFull):",
        "if not command.sequenced and isinstance(error, JournalFull):",
        (_MACHINES,),
        promise="R16",
        tier="world",
    ),
    Mutation(
        "who begins a live subscription is not given what is just on its way to the disk",
        "engine/delivery/log_delivery.py",
        "            self.live.begin(self._journal.commits.accepted_end)\n        self.cursors.add(sub)",
        "            self.live.begin(self._journal.commits.persisted_end)\n        self.cursors.add(sub)",
        (_KEPT,),
        promise="R10",
        tier="world",
    ),
    Mutation(
        "the subscriptions of a connection that is gone go on",
        "engine/broker.py",
        "            self.subscriptions.drop(session)\n",
        "",
        (_LARGE,),
        promise="R11",
        tier="world",
    ),
    Mutation(
        "a start forgets which transactions were committed",
        "engine/broker.py",
        "CommittedTransactions(registry.latest.values())",
        "CommittedTransactions(())",
        (_KEPT,),
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
    # -- transactions of several frames -----------------------------------------------------------------
    Mutation(
        "a transaction whose connection is lost between two frames goes on with the next frame",
        "client/protocol/transactions.py",
        "            same.check(core.logon.logged_on)\n",
        "            on = core.logon.logged_on\n"
        "            vars(same).update(_first=on) if batch else same.check(on)\n",
        (_SMALL,),
        promise="invariant 5",
        tier="world",
    ),
)
