"""Oracle of queues: judges each delivery by dictionaries and lists of requests and persisted messages.

Must never share code with the engine, nor trust it about the state of a message. Some facts are invisible
from outside: a lease that ends right now, or work in flight during a crash. Then the oracle keeps both
possibilities until an event decides. The reference of queues documents each rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tests.simulation.queue_entries import (
    MICROS,
    NEVER,
    SLACK,
    Consumer,
    Entry,
    Key,
    QueueState,
    passes,
)
from tickertape.engine.runtime.queue_definition import QueueDefinition

EXPIRIES: Final = ("expiration", "max_deliveries", "max_cancels", "expire")


class Arrived(msgspec.Struct, frozen=True):
    """A message of the log."""

    position: int
    key: Key
    topic: str
    raw: bytes
    stamp: int
    life_ms: int
    correlation: str | None = None


class QueueModel:
    """All queues of one engine, as they can be known from outside."""

    def __init__(self, definitions: Iterable[QueueDefinition], counts: Counter[str]) -> None:
        self.queues = {definition.name: QueueState(definition) for definition in definitions}
        self.consumers: dict[tuple[int, str], Consumer] = {}
        self.parting: dict[tuple[int, str], Consumer] = {}
        """Consumers that end after a settlement that is looked up: they may still receive messages."""
        self.counts = counts
        self.end_position = 0
        """The end of the known log."""
        self.interval = 0
        """Rises with each idle state: then every state is known."""
        self.moved = False
        """Deliveries and records may be in flight, invisible from outside."""
        self.first_life = True
        self.disturbed = True
        """Set by any action but publishing since the last idle state."""
        self._late: dict[Key, list[tuple[QueueState, Entry, int | None, str]]] = {}
        """Entries that late settlements may have moved, by settlement, with the connection of a possible
        lease. None: any connection. The engine decided on these settlements after they arrived.
        """
        self._late_filters: dict[Key, tuple[QueueState, int | None, str, str]] = {}
        """The late settlements by filter: they also apply to messages that enter before the engine decides.
        """
        self._orders = 0

    # -- new messages, and settlements, as they become persisted --------------------------------------

    def persisted(self, message: Arrived) -> None:
        """Enter a message that is in the log. Known messages are skipped."""
        if message.position < self.end_position:
            return
        self.end_position = message.position + 1
        letters = {s.definition.dead_letter for s in self.queues.values()}
        if message.topic in letters and message.correlation:
            self._dead_letter(message)
        for state in self.queues.values():
            before = len(state.entries)
            state.enter(*_fields(message))
            if len(state.entries) > before:
                state.entries[message.key].since = self.interval
                self.counts["entered"] += 1

    def _dead_letter(self, message: Arrived) -> None:
        label = msgspec.json.decode(message.correlation or "{}")
        if "queue" not in label:
            return
        state = self.queues[label["queue"]]
        assert message.topic == state.definition.dead_letter
        publisher, sequence, _ = label["bookmark"].split("|")
        key = int(publisher), int(sequence)
        entry = state.entries[key]
        assert (entry.raw, entry.topic) == (message.raw, label["topic"]), (
            "a dead letter has the body of its message"
        )
        assert label["reason"] in EXPIRIES
        may = self._may_expire(state, entry, message.stamp) or self._awaited(entry)
        assert not entry.here or may, f"{entry} lives, and is dead"
        assert entry.why in ("", "not sure", *EXPIRIES), f"{entry} has a dead letter and did not expire"
        state.letters[key] = state.letters.get(key, 0) + 1
        assert state.letters[key] == 1 or key in state.letters_twice, f"{entry} has two dead letters"
        state.letters_now.add(key)
        if entry.state not in ("leaving", "returning"):
            self.end(state, entry, entry.why if entry.why in EXPIRIES else label["reason"])
        self.counts["dead letters"] += 1

    def _may_expire(self, state: QueueState, entry: Entry, now: int) -> bool:
        """Return whether a message that is certain to be queued may have expired by age or returns."""
        if entry.state == "leased" and now < entry.ends[0]:
            return False
        most = state.definition.max_deliveries
        spent = most is not None and entry.deliveries[1] + (entry.state == "leased") >= most
        return now >= entry.expires or spent

    def settled(self, by: Key) -> None:
        """Apply a settlement that is in the log."""
        late = self._late.pop(by, [])
        if by in self._late_filters:
            state, conn, action, condition = self._late_filters.pop(by)
            known = {entry.key for _, entry, _, _ in late}
            since = [e for e in state.entries.values() if e.key not in known and passes(condition, e.body)]
            late += [(state, entry, conn, action) for entry in since]
        for state, entry, conn, action in late:
            holder = entry.holder
            theirs = holder is not None and conn in (None, holder.conn)
            if entry.state == "ready" or (entry.state == "leased" and theirs):
                self._settle_one(state, entry, action, by, perhaps=True, extend_ms=0, now=entry.arrived)
        for state in self.queues.values():
            for entry in state.of("leaving", "returning"):
                if entry.by == by:
                    self._carry_out(state, entry)

    def _carry_out(self, state: QueueState, entry: Entry) -> None:
        if entry.state == "leaving":
            self.end(state, entry, entry.why)
        else:
            self._return(state, entry, cancelled=True)
        entry.by = None

    # -- consumers ------------------------------------------------------------------------------------

    def subscribed(
        self, conn: int, sub_id: str, queues: Sequence[str], backlog: int, condition: str | None
    ) -> None:
        """Add a subscription, or replace one."""
        old = self.consumers.get((conn, sub_id))
        if old is not None:
            old.earlier.append(old.condition)
            old.wider = max(old.wider, old.backlog)
            old.before.update(old.queues)
            old.fresh = True
            old.queues, old.backlog, old.condition = tuple(queues), backlog, condition
            old.orders = {name: old.orders.get(name, self._next_order()) for name in queues}
            self.counts["replaced"] += 1
            return
        orders = dict.fromkeys(queues, self._next_order())
        self.consumers[conn, sub_id] = Consumer(conn, sub_id, tuple(queues), backlog, condition, orders)

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    def unsubscribed(self, conn: int, sub_id: str, *, waits: bool = False) -> None:
        """End a subscription. Its messages return, also those of queues that a replace took away.

        `waits`: the engine may first have to finish earlier commands.
        """
        consumer = self.consumers.pop((conn, sub_id))
        if waits:
            self.parting[conn, sub_id] = consumer
        held = {name for name, _ in consumer.held | consumer.maybe}
        self._release(consumer, held | {*consumer.queues, *consumer.before})

    def gone(self, conn: int) -> None:
        """End the consumers of a lost connection."""
        for holder in [key for key in self.consumers if key[0] == conn]:
            self.unsubscribed(*holder)
        for holder in [key for key in self.parting if key[0] == conn]:
            self.parted(*holder)

    def parted(self, conn: int, sub_id: str) -> None:
        """Confirm the end of a consumer: it receives no more messages."""
        self.parting.pop((conn, sub_id), None)

    def _release(self, consumer: Consumer, queues: Iterable[str]) -> None:
        for name in queues:
            state = self.queues[name]
            for entry in list(state.entries.values()):
                if entry.holder is not consumer:
                    self._perhaps_picked(state, entry, consumer)
                elif entry.state == "leased":
                    self._return(state, entry)
                    self.counts["returned: holder gone"] += 1
                else:
                    entry.holder = None
            for held in [held for held in consumer.held | consumer.maybe if held[0] == name]:
                consumer.held.discard(held)
                consumer.maybe.discard(held)

    def _perhaps_picked(self, state: QueueState, entry: Entry, consumer: Consumer) -> None:
        """Count a possible delivery to a leaving consumer: its body may be in flight. Then it returns
        unchanged.
        """
        if entry.state == "ready" and self.moved and consumer.takes(entry.body):
            entry.deliveries = entry.deliveries[0], entry.deliveries[1] + 1
            self._limits(state, entry)
            if state.definition.at_most_once:
                entry.unsure = True

    # -- deliveries -----------------------------------------------------------------------------------

    def delivered(
        self, conn: int, sub_id: str, queue: str, lease: int, once: bool, keys: Sequence[Key], now: int
    ) -> None:
        """Judge a delivered frame. Raises `AssertionError` for a violation."""
        state = self.queues[queue]
        consumer = self.consumers.get((conn, sub_id)) or self.parting[conn, sub_id]
        definition = state.definition
        assert queue in consumer.queues or queue in consumer.before
        assert once == definition.at_most_once
        self._check_lease(definition, lease, now)
        for key in keys:
            entry = state.entries[key]
            self._check_deliverable(state, entry, now)
            assert consumer.takes(entry.body), f"{entry} does not pass {consumer.condition}"
            room = max(consumer.backlog, consumer.wider) - self.holds(consumer, now)
            assert room > 0, f"beyond its backlog of {consumer.backlog}: {entry}"
            if definition.max_backlog is not None:
                assert self.held(queue, now) < definition.max_backlog, (
                    f"beyond the backlog of the queue: {entry}"
                )
            consumer.maybe.discard((queue, key))
            consumer.held.add((queue, key))
            entry.holder, entry.unsure = consumer, False
            state.recent.append((consumer, entry))
            entry.delivered = "yes"
            if once:
                self.end(state, entry, "taken")
            else:
                entry.state = "leased"
                entry.ends = (lease, lease) if lease else (NEVER, NEVER)
            self.counts["delivered"] += 1
            self.counts["delivered again"] += entry.deliveries[0] > 0
            self.counts["a barrier was delivered"] += entry.barrier
        if (conn, sub_id) in self.parting:
            self.counts["delivered to one that leaves"] += len(keys)
            self._release(consumer, (queue,))

    def _check_lease(self, definition: QueueDefinition, lease: int, now: int) -> None:
        if definition.lease_period is None or definition.at_most_once:
            assert lease == 0
            return
        latest = now + int(definition.lease_period * MICROS)
        assert latest - SLACK <= lease <= latest + 1000, f"a lease until {lease}, {latest} is the end"

    def _check_deliverable(self, state: QueueState, entry: Entry, now: int) -> None:
        if entry.state == "returning":
            self._carry_out(state, entry)
        if entry.state == "leased":
            # A settlement that had to be looked up may have ended the lease before the consumer is notified.
            assert now >= entry.ends[0] or self._awaited(entry), f"two leases at a time: {entry}"
            self._return(state, entry)
            self.counts["returned: lease ended"] += 1
        assert entry.state == "ready" or entry.unsure, f"redelivered after it left: {entry}"
        entry.state = "ready"
        assert now < entry.expires + SLACK, f"it is too old to be delivered: {entry}"
        assert not state.barred(entry, now), f"a barrier is in between: {entry}"
        depth = state.definition.target_queue_depth
        if depth is not None:
            before = sum(e.stays(now) and e.position < entry.position for e in state.entries.values())
            assert before < depth, f"more active messages than there should be: {entry}"

    def holds(self, consumer: Consumer, now: int, queue: str | None = None) -> int:
        """Return the number of messages (of one queue) that a consumer certainly holds, without uncertain
        leases.
        """
        found = 0
        for name, key in consumer.held:
            entry = self.queues[name].entries[key]
            sure = entry.state != "leased" or (now < entry.ends[0] and not self._awaited(entry))
            found += sure and queue in (None, name)
        return found

    def _awaited(self, entry: Entry) -> bool:
        """Return whether a settlement that may not be in the log may concern a message."""
        if any(entry is other for late in self._late.values() for _, other, _, _ in late):
            return True
        return any(
            passes(condition, entry.body) and state.entries.get(entry.key) is entry
            for state, _, _, condition in self._late_filters.values()
        )

    def held(self, queue: str, now: int) -> int:
        """Return the number of messages of a queue that all consumers hold."""
        return sum(self.holds(consumer, now, queue) for consumer in self.consumers.values())

    # -- settlements, judged when the engine takes them -----------------------------------------------

    def settle(
        self, conn: int, queue: str, action: str, by: Key, now: int, *, extend_ms: int = 0,
        keys: Sequence[Key] = (), condition: str | None = None, late: bool = False,
    ) -> None:  # fmt: skip
        """Apply a settlement of a client by the table of leasing.

        `late`: the engine may decide later than now, in another state.
        """
        state = self.queues[queue]
        by_filter = condition is not None
        anybody = by_filter and state.definition.leasing == "lenient"
        whose = None if anybody else conn
        if late and condition is not None:
            self._late_filters[by] = (state, whose, action, condition)
        entries = list(state.entries.values())
        if by_filter:
            entries = [entry for entry in entries if passes(condition, entry.body)]
        else:
            entries = [state.entries[key] for key in dict.fromkeys(keys) if key in state.entries]
        for entry in entries:
            if state.definition.at_most_once:
                self._settle_taken(state, entry, conn, action, by_filter)
            else:
                effect = self._effect(state, entry, conn, by_filter, now)
                if late and entry.state != "done":
                    effect = effect and "perhaps"
                    self._late.setdefault(by, []).append((state, entry, whose, action))
                if effect:
                    self._settle_one(state, entry, action, by, effect == "perhaps", extend_ms, now)

    def _settle_taken(self, state: QueueState, entry: Entry, conn: int, action: str, by_filter: bool) -> None:
        """Free backlog of the holder of an at-most-once message. Nothing else happens."""
        held = state.name, entry.key
        for consumer in self.consumers.values():
            if held in consumer.held and action == "ack" and (consumer.conn == conn or by_filter):
                consumer.held.discard(held)
                consumer.maybe.add(held)

    def _effect(self, state: QueueState, entry: Entry, conn: int, by_filter: bool, now: int) -> str:
        """Return whether a settlement moves a message: "surely", "perhaps", or "" for not at all."""
        strict = state.definition.leasing == "strict"
        if entry.state == "done":
            return "perhaps" if entry.unsure else ""
        if entry.state in ("leaving", "returning"):
            # A settled message stays settled. A cancelled one may count as queued.
            return "" if entry.state == "leaving" else "perhaps"
        perhaps = "perhaps" if entry.unsure else "surely"
        if entry.state == "ready":
            if now >= entry.expires:
                perhaps = "perhaps"  # it may have left recently
            return "" if strict else perhaps
        assert entry.holder is not None
        if now >= entry.ends[0]:
            return "perhaps"  # the lease may have ended, and another consumer may have the message
        if entry.holder.conn == conn:
            return perhaps
        return perhaps if by_filter and not strict else ""

    def _settle_one(
        self, state: QueueState, entry: Entry, action: str, by: Key, perhaps: bool, extend_ms: int, now: int
    ) -> None:
        """`perhaps`: it moves it, or it does not."""
        self.counts[f"settled: {action}"] += 1
        if action == "extend":
            if entry.state == "leased" and state.definition.lease_period is not None:
                end, (low, high) = now + extend_ms * 1000, entry.ends
                # Whether an extension may shorten a lease is unspecified. An extension that lengthens it
                # does.
                low = end if not perhaps and low < end else min(low, end)
                entry.ends = low, max(high, end + SLACK)
            return
        if action == "cancel" and (perhaps or entry.state == "ready"):
            # A message without a holder has nothing to return. Whether it is counted is invisible from
            # outside.
            entry.cancels = entry.cancels[0], entry.cancels[1] + 1
            entry.deliveries = entry.deliveries[0], entry.deliveries[1] + 1
            self._limits(state, entry)
            if entry.state == "leased":
                entry.ends = now, entry.ends[1]
            return
        self._free_backlog(state, entry)
        if perhaps:
            entry.unsure = True
            if entry.state == "done":
                entry.state = "ready"
            return
        entry.state = "returning" if action == "cancel" else "leaving"
        entry.why = {"ack": "acknowledged", "expire": "expire"}.get(action, "")
        entry.by = by

    def _free_backlog(self, state: QueueState, entry: Entry) -> None:
        holder = entry.holder
        if holder is not None and (state.name, entry.key) in holder.held:
            holder.held.discard((state.name, entry.key))
            holder.maybe.add((state.name, entry.key))

    # -- the rule for returned messages ---------------------------------------------------------------

    def lapse(self, state: QueueState, entry: Entry) -> None:
        """Note that the lease of a message may have expired."""
        period = state.definition.lease_period
        if entry.holder is not None and entry.state == "leased" and period is not None:
            until = entry.ends[1] + 2 * SLACK + int(period * MICROS)
            known = entry.holder.passed_over
            known[state.name] = max(known.get(state.name, 0), until)

    def _return(self, state: QueueState, entry: Entry, *, cancelled: bool = False) -> None:
        if not cancelled:
            self.lapse(state, entry)
        self._free_backlog(state, entry)
        entry.holder = None
        entry.state, entry.why, entry.ends = "ready", "", (NEVER, NEVER)
        entry.since = self.interval
        entry.soft += not cancelled
        if entry.delivered == "yes":
            entry.delivered = "perhaps"
        entry.deliveries = entry.deliveries[0] + 1, entry.deliveries[1] + 1
        if cancelled:
            entry.cancels = entry.cancels[0] + 1, entry.cancels[1] + 1
            self.counts["returned: cancelled"] += 1
        self._limits(state, entry)

    def _limits(self, state: QueueState, entry: Entry) -> None:
        """Expire a message that was returned too often."""
        definition = state.definition
        for most, why, (low, high) in (
            (definition.max_deliveries, "max_deliveries", entry.deliveries),
            (
                None if definition.max_cancels is None else definition.max_cancels + 1,
                "max_cancels",
                entry.cancels,
            ),
        ):
            if most is not None and high >= most:
                if low >= most and entry.state == "ready":
                    self.end(state, entry, "not sure" if entry.unsure else why)
                    return
                entry.unsure = True

    def end(self, state: QueueState, entry: Entry, why: str) -> None:
        """End a message that has left the queue."""
        if entry.state != "done":
            self.counts[f"done: {why}"] += 1
            state.left[why] += 1
        if why in EXPIRIES:
            self.lapse(state, entry)
        entry.state, entry.why, entry.unsure, entry.since = "done", why, False, self.interval
        if why != "taken":
            holder, entry.holder = entry.holder, None
            if holder is not None:
                held = state.name, entry.key
                if held in holder.held:
                    holder.held.discard(held)
                    holder.maybe.add(held)

    # -- another life ---------------------------------------------------------------------------------

    def restarted(self, durable: set[Key], log: Iterable[Arrived], *, now: int) -> None:
        """Restart with a log of these messages and settlements."""
        for message in log:
            self.persisted(message)
        for state in self.queues.values():
            state.letters_twice |= state.letters_now
            for entry in state.entries.values():
                self._restart(state, entry, durable, now)
        self.consumers.clear()
        self.parting.clear()
        self._late.clear()
        self._late_filters.clear()
        self.first_life = False

    def _restart(self, state: QueueState, entry: Entry, durable: set[Key], now: int) -> None:
        if entry.state in ("leaving", "returning"):
            if entry.by in durable:
                self._carry_out(state, entry)
            else:
                entry.state, entry.why, entry.by = "ready", "", None
        elif entry.state == "leased":
            entry.state = "ready"
            if now >= entry.ends[0]:
                entry.deliveries = entry.deliveries[0], entry.deliveries[1] + 1
        elif (
            entry.since == self.interval
            and entry.why.startswith(("max_", "not"))
            and entry.key not in state.letters
        ):
            # It is not known whether the engine had it in the log.
            entry.state, entry.why, entry.unsure = "ready", "", True
        if entry.state == "ready":
            entry.unsure |= state.definition.at_most_once and self.moved
            entry.deliveries = max(0, entry.deliveries[0] - entry.soft), entry.deliveries[1]
            self._limits(state, entry)
        entry.holder, entry.soft = None, 0
        entry.ends = NEVER, NEVER
        entry.since = self.interval
        if entry.delivered == "yes":
            entry.delivered = "perhaps"


def _fields(message: Arrived) -> tuple[int, Key, str, bytes, int, int]:
    return message.position, message.key, message.topic, message.raw, message.stamp, message.life_ms
