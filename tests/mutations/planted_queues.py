"""Planted defects of message queues, with the tests that must detect them.

Must never hold one without an effect that a consumer could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_CHECKPOINTS = "simulation/test_queue_checkpoints.py"
_CRASHES = "simulation/test_queue_crashes.py"
_DELIVERING = "unit/engine/queues/test_dispatch.py"
_FILTERS = "unit/engine/queues/test_many_filters.py"
_STEPS = "unit/engine/queues/test_bounded_steps.py"
_PASSED_OVER = "unit/engine/queues/test_passed_over.py"
_ORDER = "unit/engine/queues/state/test_delivery_order.py"

QUEUE_MUTATIONS: Final = (
    Mutation(
        "a start without queues keeps the queue checkpoint",
        "server/startup.py",
        "        remove_queues(disk)\n        return []",
        "        return []",
        ("unit/server/test_queue_checkpoint.py",),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "Spark acknowledges a batch before it is committed",
        "spark/queues/stream_reader.py",
        "        if batch is not None and batch.end == end:\n",
        "        if batch is not None:\n",
        ("unit/spark/queues/test_stream_reader.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "expired messages are delivered while others expire",
        "engine/queues/worker.py",
        "        return not self.queue.late or self._retry_at is not None\n",
        "        return True\n",
        (f"{_STEPS}::test_messages_that_expire_together_are_expired_in_steps_without_delivery",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a batch that Spark repeats after a restart has other messages",
        "spark/queues/stream_reader.py",
        "        if batch is None or (batch.start, batch.end) != (begin, after):\n",
        "        if batch is None:\n",
        ("unit/spark/queues/test_stream_reader.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a stored set may extend beyond the log",
        "engine/queues/state/position_set_format.py",
        "    if int(edges[-1]) > end:\n",
        "    if int(edges[-1]) < 0:\n",
        ("unit/engine/queues/state/test_position_set_format.py::test_invalid_position_set_is_refused",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a checkpoint is encoded on the event loop",
        "engine/queues/checkpoints.py",
        "partial(encode_snapshots, self._waiting)",
        "partial(bytes, encode_snapshots(self._waiting))",
        (f"{_STEPS}::test_checkpoint_of_a_deep_queue_encodes_no_set_in_the_engine_step",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a checkpoint has one position of the log for all its queues",
        "engine/queues/checkpoints.py",
        "            self._waiting, self._copied = self._copied, []\n",
        "            self._waiting = [one._replace(records=self._end) for one in self._copied]\n"
        "            self._copied = []\n",
        (f"{_CHECKPOINTS}::test_checkpoint_copied_between_other_inputs_restores_the_state",),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "the snapshot of a checkpoint changes with its queue",
        "engine/queues/state/checkpoint.py",
        "            state.ready.copy(),\n",
        "            state.ready,\n",
        (f"{_CHECKPOINTS}::test_checkpoint_snapshot_encoded_after_later_work_is_unchanged",),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "commits wait for a checkpoint of queues",
        "server/storage/disk_worker.py",
        "RetireSegments | WriteQueues):\n",
        "RetireSegments):\n",
        (
            (
                "unit/server/storage/test_disk_worker.py"
                "::test_commit_while_a_checkpoint_is_encoded_is_not_delayed"
            ),
        ),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a consumer that hangs gets its message again",
        "engine/queues/worker.py",
        "                queue.pass_over(lease.holder, self._clock.mono)\n",
        "                pass\n",
        (f"{_PASSED_OVER}::test_expired_lease_moves_the_message_to_another_consumer",),
        promise="behaviour 39",
        tier="unit",
    ),
    Mutation(
        "the end of a wait for other consumers is not a deadline",
        "engine/queues/worker.py",
        "earlier(self.queue.leases.next_deadline(), self.queue.next_pass_over_end())",
        "self.queue.leases.next_deadline()",
        (f"{_PASSED_OVER}::test_consumer_with_an_expired_lease_gets_messages_after_another_lease_period",),
        promise="behaviour 39",
        tier="unit",
    ),
    Mutation(
        "each new filter delays deliveries again",
        "engine/queues/consumer_filter.py",
        "or number <= self._held_by\n",
        "or number > 0\n",
        (f"{_FILTERS}::test_priority_queue_filters_that_keep_arriving_do_not_stop_deliveries",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "messages stay delayed after their awaited filter is removed",
        "engine/queues/registry.py",
        "                self._wake(worker)  # the filter may have delayed messages for other consumers\n",
        "",
        (f"{_FILTERS}::test_messages_blocked_by_a_filter_are_delivered_when_the_consumer_is_replaced",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "one delivery more than allowed",
        "engine/queues/state/queue.py",
        "at_least(left, deliveries_max - 1)",
        "at_least(left, deliveries_max)",
        (_CRASHES,),
        promise="behaviour 36",
        tier="simulation",
    ),
    Mutation(
        "a settlement by bookmark ends the lease of another connection",
        "engine/queues/settlement.py",
        "    if not (by_filter and lenient):\n",
        "    if not lenient:\n",
        (_CRASHES,),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "with strict leasing an unleased message can be settled by filter",
        "engine/queues/settlement.py",
        "    if lenient and found:\n",
        "    if found:\n",
        (_CRASHES,),
        promise="behaviour 46",
        tier="simulation",
    ),
    Mutation(
        "a consumer of several queues with free backlog is served by one of them only",
        "engine/queues/registry.py",
        "            if queue is not worker.queue:\n",
        "            if queue is None:\n",
        (f"{_DELIVERING}::test_backlog_freed_in_one_queue_serves_other_queues_of_a_pattern",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a barrier is delivered before earlier messages are acknowledged",
        "engine/queues/state/delivery_order.py",
        "        return barrier + 1 if oldest == barrier else barrier\n",
        "        return barrier + 1 if oldest != -1 else barrier\n",
        (_CRASHES,),
        promise="behaviour 41",
        tier="simulation",
    ),
    Mutation(
        "the lowest priority is delivered first",
        "engine/queues/state/delivery_order.py",
        "            waiting = self._levels[rising[at]] & ready\n",
        "            waiting = self._levels[rising[-1 - at]] & ready\n",
        (f"{_ORDER}::test_delivery_order_returns_several_levels_together",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "returned messages of a priority are not delivered again",
        "engine/queues/state/delivery_order.py",
        "                    self._activate(priority)\n",
        "                    pass\n",
        (f"{_ORDER}::test_order_of_leases_and_returns_matches_sorting",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "the backlog limit of a queue is ignored",
        "engine/queues/state/queue.py",
        "        return None if limit is None else max(limit - self.leases.count, 0)\n",
        "        return None if limit is None else limit\n",
        (_CRASHES,),
        promise="behaviour 38",
        tier="simulation",
    ),
    Mutation(
        "outcomes are not applied at a start",
        "engine/queues/checkpoints.py",
        "                own.worker.queue.apply(outcome)\n",
        "                pass\n",
        (_CRASHES,),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "returns are not counted",
        "engine/queues/state/messages.py",
        "        self.deliveries.add_one(positions)\n        if reason",
        "        if reason",
        (_CRASHES,),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "expired messages are forgotten before their dead letters are in the log",
        "engine/queues/state/queue.py",
        "        doomed = self.definition.dead_letter is not None\n",
        "        doomed = False\n",
        (_CRASHES,),
        promise="R11",
        tier="simulation",
    ),
    Mutation(
        "a browse does not wait for the queue to catch up",
        "engine/queues/browser.py",
        "        return self.queue.considered >= self._persisted\n",
        "        return True\n",
        ("unit/engine/queues/test_browser.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a thread settles beside the event loop while disconnected",
        "client/aio/driver.py",
        "        if loop is not None and not self._is_here(loop):",
        "        if loop is not None and self.connection is not None and not self._is_here(loop):",
        ("unit/client/api/test_queue_calls.py",),
        promise="R11",
        tier="unit",
    ),
)
