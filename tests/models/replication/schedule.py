"""Random schedules: publishes, connections, links, stops and restores, until all is delivered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from tests.models.replication.clients import OldConnection, Publisher, Subscriber
from tests.models.replication.instance import Instance
from tests.models.replication.link import Link
from tests.models.replication.records import TOPICS, Bookmark, topic_of
from tests.models.replication.rules import Rules

STEPS: Final = 350
QUIET_ROUNDS_MAX: Final = 300
QUIET_ROUNDS_MIN: Final = 15
REPORT_ROUNDS: Final = 4
AFTER_ALL_LIVES: Final = 10_000

TOPOLOGIES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "pair": ((0, 1),),
    "mesh": ((0, 1), (0, 2), (1, 2)),
    "chain": ((0, 1), (1, 2), (2, 3)),
    "ring": ((0, 1), (1, 2), (2, 3), (3, 0)),
    "star": ((0, 1), (0, 2), (0, 3)),
    "two routes": ((0, 1), (0, 2), (1, 3), (2, 3)),
}
"""Pairs of instances with links in both directions."""


@dataclass(frozen=True)
class Setup:
    """Instances, clients and faults of a schedule."""

    topology: str = "mesh"
    sync: bool = False
    publishers: int = 2
    messages: int = 15
    restores: int = 0
    """Instances that start with an old copy of their log."""
    crashes: int = 0
    """Instances that lose power. Without any, each commit is synced at once."""
    replacements: int = 0
    """Instances that start with an empty data directory under their name."""
    lost_stores: int = 0
    """Publishers that lose their publish store."""
    older_clients: bool = False
    """Publishers make no claims."""
    partial: bool = False
    """Links pass only one of two topics."""
    records: bool = False
    """Instances expire records, and forget candidates."""
    removals: int = 0
    """Removals of the oldest rows of a log."""


class Schedule:
    """One schedule of one seed."""

    def __init__(self, seed: int, rules: Rules, setup: Setup) -> None:
        self.random = Random(seed)
        self.rules = rules
        self.setup = setup
        self.ids = count(1)
        skews = Random(seed)
        pairs = TOPOLOGIES[setup.topology]
        self.instances = [Instance(name, rules, self.ids) for name in range(1 + max(map(max, pairs)))]
        for instance in self.instances:
            instance.skew = skews.randint(-50, 50)
            instance.routed = frozenset({0}) if setup.partial else TOPICS
        self._name_members()
        self.links = [self._link(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
        self.publishers = [
            Publisher(number, setup.messages, not setup.older_clients)
            for number in range(1, setup.publishers + 1)
        ]
        self.old: list[OldConnection] = []
        self.subscriber = Subscriber(rules)
        self.acknowledged: set[Bookmark] = set()
        self.removed: dict[int, set[Bookmark]] = {}
        """By log, messages that retention removed elsewhere while the log lacked them."""
        self.retired: set[Bookmark] = set()
        """Messages that retention removed from any log."""
        self.faults = [
            *[self._restore] * setup.restores,
            *[self._crash] * setup.crashes,
            *[self._replace] * setup.replacements,
            *[self._remove] * setup.removals,
            *[self._lose_store] * setup.lost_stores,
        ]
        self.random.shuffle(self.faults)
        self.events: Counter[str] = Counter()

    def _link(self, source: int, destination: int) -> Link:
        """Return a link. With unequal routes one pair of instances passes one topic."""
        equal = self.rules.equal_routes or {source, destination} != {0, 1}
        topics = TOPICS if equal and not self.setup.partial else frozenset({0})
        return Link(self.instances[source], self.instances[destination], self.setup.sync, topics)

    # -- steps ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the random steps, then repair all faults and deliver everything."""
        for publisher in self.publishers:
            self._connect(publisher)
        self.subscriber.connect(self._any())
        for _ in range(STEPS):
            for instance in self.instances:
                instance.clock += 1
            self._step(self.random.random())
            self._sync()
            self._rebuild()
        self._settle()

    def _step(self, chance: float) -> None:
        if chance < 0.25:
            for publisher in self.publishers:
                if self.random.random() < 0.5:
                    publisher.publish()
        elif chance < 0.45:
            self._send()
        elif chance < 0.55:
            self._acknowledge()
        elif chance < 0.65:
            self.subscriber.read(6)
        elif chance < 0.84:
            self.random.choice(self.links).move(self.random.randint(1, 8))
        elif chance < 0.90:
            self._report()
        else:
            self._fault(chance)

    def _report(self) -> None:
        """Report places, and close holes. Some setups need times in which all links work."""
        self._close_holes(self._any())
        if self.setup.records:
            self._any().expire()
        if not (self.setup.removals or self.setup.lost_stores or self.setup.records):
            self._any().report()
            return
        for instance in self.instances:
            instance.report()
            instance.sync()
        for _ in range(2):
            for link in self.links:
                link.move(self.random.randint(4, 16))

    def _fault(self, chance: float) -> None:
        if chance < 0.93:
            self._cut(self.random.choice(self.links))
        elif chance < 0.96:
            self._connect(self.random.choice(self.publishers))
        elif chance < 0.97:
            self.subscriber.connect(self._open())
        elif chance < 0.985 + self.setup.removals / 1000 and self.faults:
            self.faults.pop()(self._any())
        else:
            instance = self._any()
            instance.up = not instance.up

    def _any(self) -> Instance:
        return self.random.choice(self.instances)

    def _open(self, at: Instance | None = None) -> Instance:
        """Return an instance for a client, another one than `at` if possible."""
        opened = [
            instance for instance in self.instances if not (instance.closed or instance.waiting)
        ] or self.instances
        return self.random.choice([instance for instance in opened if instance is not at] or opened)

    def _send(self) -> None:
        for publisher in self.publishers:
            if publisher.sending and self.random.random() < 0.6:
                publisher.send(self.random.randint(1, 4))
        for old in list(self.old):
            if self.random.random() < 0.4:
                old.send()
            if not old.sending or self.random.random() < 0.2:
                self.old.remove(old)

    def _sync(self) -> None:
        for instance in self.instances:
            if not self.setup.crashes or self.random.random() < 0.2:
                instance.sync()

    def _acknowledge(self) -> None:
        for publisher in self.publishers:
            released = publisher.acknowledge(self.links)
            self.acknowledged.update(released)
            if publisher.at is not None:
                at = publisher.at
                others = [link.destination for link in self.links if link.sync and link.source is at]
                untrue = [b for b in released if not (at.holds(b) or self._began_behind(at, b))]
                for bookmark in released:
                    if topic_of(bookmark[1]) in at.routed:
                        untrue += [bookmark for other in others if self._is_untrue(bookmark, at, other)]
                self.events["untrue"] += bool(untrue)

    def _is_untrue(self, bookmark: Bookmark, at: Instance, other: Instance) -> bool:
        """Return whether a destination lacks a message that an instance acknowledged."""
        removed = other.replaced and bookmark in at.removed
        return not (removed or other.holds(bookmark) or self._began_behind(other, bookmark))

    def _began_behind(self, instance: Instance, bookmark: Bookmark) -> bool:
        """Return whether a new log lacks a message because retention removed it from all its sources.

        An acknowledgement of such a message is true: it was on the disks until retention removed it.
        """
        sources = [link.source for link in self.links if link.destination is instance]
        return instance.replaced and all(bookmark in source.removed for source in sources)

    def _cut(self, link: Link) -> None:
        for other in self.links:
            if {other.source, other.destination} == {link.source, link.destination}:
                other.cut = not other.cut

    def _connect(self, publisher: Publisher) -> None:
        if publisher.at is not None and publisher.sending and self.random.random() < 0.5:
            self.old.append(OldConnection(publisher))
        publisher.connect(self._open(publisher.at))

    def _restore(self, instance: Instance) -> None:
        end = instance.log.end
        oldest = max(instance.log.first, end - (100 if self.setup.removals else 25))
        instance.restart(self.random.randint(oldest, end))
        self._wait(instance)
        self.events["copies lost"] += 1
        self._disconnect(instance)

    def _crash(self, instance: Instance) -> None:
        instance.restart(self.random.randint(instance.log.synced, instance.log.end))
        self._disconnect(instance)

    def _replace(self, instance: Instance) -> None:
        instance.replace()
        self._name_members()
        self._wait(instance)
        self.events["copies lost"] += 1
        self._disconnect(instance)

    def _remove(self, instance: Instance) -> None:
        pins = [link.pinned() for link in self.links if link.source is instance]
        if self.rules.pins == "members":
            pins.append(instance.stable(self._members(), self._sources(instance)))
        ends = [end for end in instance.log.commits if end <= min(instance.log.synced, *pins)]
        removed = instance.remove(self.random.choice([ends[-1], *ends])) if ends else set()
        self.retired |= removed
        for other in self.instances:
            self.removed.setdefault(other.log_id, set()).update(b for b in removed if not other.holds(b))
        self.events["removed"] += len(removed)

    def _wait(self, instance: Instance) -> None:
        """Let an instance that lost rows wait for its sources, which have higher order stamps."""
        if self.setup.records and self.rules.wait_for_sources:
            instance.waiting = {link.source.name for link in self.links if link.destination is instance}

    def _name_members(self) -> None:
        for instance in self.instances:
            instance.members = frozenset(self._members())

    def _members(self) -> list[int]:
        return [instance.log_id for instance in self.instances]

    def _sources(self, instance: Instance) -> list[int]:
        return [link.source.log_id for link in self.links if link.destination is instance]

    def _lose_store(self, _: Instance) -> None:
        publisher = self.random.choice(self.publishers)
        publisher.lose_store()

    def _close_holes(self, instance: Instance) -> None:
        if self.rules.closing == "members":
            members = self._members()
        elif self.rules.closing == "destinations":
            members = [link.destination.log_id for link in self.links if link.source is instance]
        else:
            return
        if self.setup.records:
            instance.forget(members, self._sources(instance))
        self.events["closed"] += instance.close_holes(members, self._sources(instance))

    def _rebuild(self) -> None:
        """Replace destinations that lack removed rows, when their own rows are at all other instances."""
        for instance in {link.destination for link in self.links if link.broken}:
            instance.closed = True
            self._disconnect(instance)
            outgoing = [link for link in self.links if link.source is instance and not link.broken]
            if all(link.has(instance.log.content_end) for link in outgoing):
                self._replace(instance)
                instance.closed = False
                for link in self.links:
                    link.broken = link.broken and link.destination is not instance

    def _disconnect(self, instance: Instance) -> None:
        for publisher in self.publishers:
            if publisher.at is instance:
                publisher.disconnect()
        if self.subscriber.at is instance:
            self.subscriber.at = None
        self.old = [old for old in self.old if old.at is not instance]

    # -- the end --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        for link in self.links:
            link.cut = False
        for instance in self.instances:
            instance.up = True
        quiet = 0
        for round_ in range(QUIET_ROUNDS_MAX):
            self._settle_round(round_)
            finished = not self.old and all(publisher.finished for publisher in self.publishers)
            quiet = quiet + 1 if finished and not any(link.broken for link in self.links) else 0
            if quiet > QUIET_ROUNDS_MIN:
                break
        else:
            self.events["stuck"] += 1
        if self.setup.records:
            for instance in self.instances:
                instance.clock += AFTER_ALL_LIVES
                while instance.fold.state.due(instance.clock + instance.skew):
                    instance.expire()

    def _settle_round(self, round_: int) -> None:
        for publisher in self.publishers:
            if publisher.at is None:
                self._connect(publisher)
            publisher.publish()
        self._send()
        self._acknowledge()
        for link in self.links:
            link.move(60)
        for instance in self.instances:
            instance.sync()
        self._rebuild()
        if round_ % REPORT_ROUNDS == 0:
            self.instances[round_ // REPORT_ROUNDS % len(self.instances)].report()
        if self.subscriber.at is None:
            self.subscriber.connect(self._open())
        self.subscriber.read(100)
