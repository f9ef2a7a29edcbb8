"""Planted defects of downgrades, upgrades, pauses and `fully_durable` deliveries.

Must never hold one that an engine without synchronous links shows.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_LEVELS = "engine/replication/levels/link_levels.py"
_POLICY = "engine/replication/levels/policy.py"
_BACKLOG = "engine/replication/levels/backlog.py"
_CURSORS = "engine/delivery/cursor_scheduler.py"
_TOPICS = "engine/replication/links/sync_topics.py"
_OF_LEVELS = "unit/engine/replication/test_link_levels.py"
_OF_POLICY = "unit/engine/replication/test_downgrade_policy.py"
_OF_BACKLOG = "unit/engine/replication/test_link_backlog.py"
_OF_DELIVERY = "unit/engine/replication/test_durable_delivery.py"
_OF_TOPICS = "unit/engine/replication/test_sync_topics.py"


def _level(name: str, module: str, old: str, new: str, *tests: str, promise: str = "R1") -> Mutation:
    """Return a defect that a test of levels must detect."""
    return Mutation(name, module, old, new, tests, promise=promise, tier="unit")


LEVEL_MUTATIONS: Final = (
    _level(
        "a downgrade does not release fully_durable deliveries",
        "engine/broker.py",
        "            self._delivery.links_moved()\n",
        "",
        _OF_DELIVERY,
        promise="R14",
    ),
    _level(
        "fully_durable messages are delivered when they are persisted here",
        _CURSORS,
        "        sub.limit = sub.horizon.position(end)\n",
        "        sub.limit = end\n",
        _OF_DELIVERY,
        promise="R14",
    ),
    _level(
        "a fully_durable subscription joins the other ones at the end of the log",
        "engine/subscriptions/log_feed.py",
        "            or self.horizon is not None\n        )\n",
        "        )\n",
        _OF_DELIVERY,
        promise="R14",
    ),
    _level(
        "a fully_durable subscription to a pattern waits for the links of one topic",
        _TOPICS,
        "            links = self.links.link_set(found)\n",
        "            links = self.links.link_set(found[:1])\n",
        _OF_TOPICS,
        promise="R14",
    ),
    _level(
        "any N of all links suffices for a pattern with different rules",
        _TOPICS,
        "            alike = all(rules[number] == rules[found[0]] for number in found)\n",
        "            alike = True\n",
        _OF_TOPICS,
        promise="R14",
    ),
    _level(
        "a policy upgrades a destination before the place has passed the downgrade",
        _POLICY,
        "    return covered >= last.position\n",
        "    return covered >= last.covered\n",
        _OF_POLICY,
        _OF_LEVELS,
    ),
    _level(
        "an operator upgrades a destination before the place has passed the downgrade",
        _LEVELS,
        "            if not (downgraded or has_passed(last, covered)):\n",
        "            if not (downgraded or covered >= 0):\n",
        _OF_LEVELS,
    ),
    _level(
        "a downgrade is lost at a restart",
        "engine/replication/log_facts.py",
        '"reporter ", "level ", _COVERED)',
        '"reporter ", _COVERED)',
        _OF_LEVELS,
    ),
    _level(
        "a downgrade takes effect before the record of it is persisted",
        _LEVELS,
        "        self._pending.append((self._commits.accepted_end, record))\n",
        "        self._apply(record)\n",
        _OF_LEVELS,
    ),
    _level(
        "a policy ends the downgrade of an operator",
        _POLICY,
        'last.reason == "policy" and recovered',
        "recovered",
        _OF_POLICY,
        _OF_LEVELS,
    ),
    _level(
        "rows of asynchronous topics downgrade a synchronous link",
        _LEVELS,
        "            waiting = self._topics.links_of(batch.topics)\n",
        "            waiting = -1\n",
        _OF_LEVELS,
    ),
    _level(
        "the age of the oldest row is the age of the newest one",
        _BACKLOG,
        "        return mono - self._marks[0][1]\n",
        "        return mono - self._marks[-1][1]\n",
        _OF_BACKLOG,
    ),
    _level(
        "a paused link sends rows",
        "engine/replication/links/source_end.py",
        "        if self.state.stopped:\n            return False\n",
        "",
        _OF_LEVELS,
        promise="R8",
    ),
    _level(
        "a command to a link is answered before its record is persisted",
        "server/admin/link_commands.py",
        "        if not changes_level or self._driver.broker.journal.commits.persisted_end >= end:\n",
        "        if end:\n",
        "unit/server/admin/test_link_commands.py",
    ),
    _level(
        "the checks of a command to a link never end",
        "server/admin/link_commands.py",
        "        elif time.monotonic() >= late:\n",
        "        elif not late:\n",
        "unit/server/admin/test_link_commands.py",
    ),
    _level(
        "a message that waits for a destination announces no check of the policy",
        _LEVELS,
        "        self._parts.clock.announce(self)\n        due = ",
        "        due = ",
        _OF_LEVELS,
    ),
)
