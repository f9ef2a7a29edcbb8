"""Judge of a finished schedule: plain sets of messages."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.helpers import sow_model
from tests.helpers.sow_model import Expired
from tests.models.replication.instance import Instance
from tests.models.replication.records import Bookmark, Copy, Stored, topic_of
from tests.models.replication.rules import Rules
from tests.models.replication.schedule import Schedule, Setup

FAILURES: Final = ("lost", "untrue", "twice", "missed", "states")


def judge(schedule: Schedule) -> Counter[str]:
    """Return 1 for each kind of failure of a finished schedule.

    `lost`: a log lacks a message that another log has, or all logs lack a message that must survive,
    or a publisher waits for ever.
    `untrue`: a message was acknowledged that was not on each disk that its acknowledgement names.
    New logs start behind messages that retention removed elsewhere.
    `twice`: a log has a message or a copy twice, or the subscriber got it twice.
    `states`: records of two instances differ, or differ from the oracle.
    `missed`: the subscriber did not get a message of the logs.
    """
    instances, subscriber = schedule.instances, schedule.subscriber
    stored = set[Bookmark]().union(*(instance.positions for instance in instances))
    union = {bookmark for bookmark in stored if topic_of(bookmark[1]) in instances[0].routed}
    known = stored.union(*(instance.removed for instance in instances))
    # An old copy loses messages that only its instance had. Synchronous links give each a second log.
    may_lose = schedule.events["copies lost"] and not schedule.setup.sync
    must_survive = set() if may_lose else schedule.acknowledged
    found: Counter[str] = Counter()
    found["lost"] = bool(schedule.events["stuck"] or must_survive - known) or any(
        _lacks(schedule, i, union) for i in instances
    )
    found["untrue"] = schedule.events["untrue"] > 0
    found["twice"] = any(i.repeated for i in instances) or max(subscriber.delivered.values(), default=0) > 1
    expired = schedule.retired if subscriber.expired else set()
    found["missed"] = bool(union - set(subscriber.delivered) - expired)
    found["states"] = schedule.setup.records and _states_differ(schedule)
    schedule.events["broken"] = any(link.was_broken for link in schedule.links)
    schedule.events["expired"] = subscriber.expired
    return found


def _lacks(schedule: Schedule, instance: Instance, union: set[Bookmark]) -> bool:
    """Return whether a log lacks a message of another log, or one that was removed elsewhere.

    A new log needs no messages that all its sources removed.
    """
    lacking = (
        (union | schedule.removed.get(instance.log_id, set())) - set(instance.positions) - instance.removed
    )
    if instance.replaced:
        sources = [link.source for link in schedule.links if link.destination is instance]
        lacking -= set[Bookmark].intersection(*(source.removed for source in sources))
    return bool(lacking)


def _states_differ(schedule: Schedule) -> bool:
    """Return whether records differ between instances, or from the oracle over all messages and copies."""
    instances = schedule.instances
    states = [instance.fold.state.records() for instance in instances]
    if any(state != states[0] for state in states):
        return True
    if any(len(instance.log.starts) > 1 or instance.replaced or instance.log.first for instance in instances):
        return False  # messages of lost rows
    rows = [row for instance in instances for row in instance.log.rows]
    messages = [row.content for row in rows if isinstance(row, Stored | Copy)]
    expiries = [row for row in rows if isinstance(row, Expired)]
    return sow_model.state([*messages, *expiries]) != states[0]


def failures(seeds: range, rules: Rules, setup: Setup) -> Counter[str]:
    """Return the number of schedules with each kind of failure."""
    found: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
    for seed in seeds:
        schedule = Schedule(seed, rules, setup)
        schedule.run()
        found.update(judge(schedule))
    return found
