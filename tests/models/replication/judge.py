"""Judge of a finished schedule: plain sets of messages."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.models.replication.rules import Rules
from tests.models.replication.schedule import Schedule, Setup

FAILURES: Final = ("lost", "untrue", "twice", "missed")


def judge(schedule: Schedule) -> Counter[str]:
    """Return 1 for each kind of failure of a finished schedule.

    `lost`: a log lacks a message that another log has, or all logs lack a message that must survive.
    `untrue`: a message was acknowledged that was not on each disk that its acknowledgement names.
    `twice`: a log has a message twice, or the subscriber got it twice.
    `missed`: the subscriber did not get a message of the logs.
    """
    logs = [set(instance.positions) for instance in schedule.instances]
    union = set[tuple[int, int]]().union(*logs)
    delivered = schedule.subscriber.delivered
    # An old copy loses messages that only its instance had. Synchronous links give each a second log.
    must_survive = (
        schedule.acknowledged if schedule.setup.sync or not schedule.events["copies lost"] else set()
    )
    found: Counter[str] = Counter()
    found["lost"] = any(log != union for log in logs) or bool(must_survive - union)
    found["untrue"] = schedule.events["untrue"] > 0
    found["twice"] = any(i.repeated for i in schedule.instances) or max(delivered.values(), default=0) > 1
    found["missed"] = bool(union - set(delivered))
    schedule.events["whole logs"] = schedule.subscriber.whole_logs
    return found


def failures(seeds: range, rules: Rules, setup: Setup) -> Counter[str]:
    """Return the number of schedules with each kind of failure."""
    found: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
    for seed in seeds:
        schedule = Schedule(seed, rules, setup)
        schedule.run()
        found.update(judge(schedule))
    return found
