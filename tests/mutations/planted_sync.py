"""Planted defects of acknowledgements that wait for synchronous links.

Must never hold one that an engine without synchronous links shows.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_TRACKER = "engine/sessions/sync_ack_tracker.py"
_DURABILITY = "engine/runtime/durability.py"
_TOPICS = "engine/replication/links/sync_topics.py"
_REGISTRY = "engine/replication/links/registry.py"
_SOURCE = "engine/replication/source/link_source.py"
_ACKS = "unit/engine/replication/test_sync_acks.py"
_OF_TOPICS = "unit/engine/replication/test_sync_topics.py"
_HORIZON = "unit/engine/runtime/test_durability.py"
_ENGINES = "simulation/test_linked_engines.py"


def _sync(name: str, module: str, old: str, new: str, *tests: str, promise: str = "R1") -> Mutation:
    """Return a defect that a test of synchronous links must detect."""
    return Mutation(name, module, old, new, tests, promise=promise, tier=tests[0].split("/")[0])


_COVERED = "        return self._routed.passed if self.durable == self.end else self.durable\n"

SYNC_MUTATIONS: Final = (
    _sync(
        "an acknowledgement waits until a row is sent, not until the destination has it on its disk",
        _SOURCE,
        _COVERED,
        "        return self._routed.passed\n",
        _ACKS,
        _ENGINES,
    ),
    _sync(
        "a destination acknowledges a row to a synchronous source at its arrival",
        _REGISTRY,
        "                one.taker.log_persisted(end)\n",
        "                one.taker.log_persisted(self._commits.accepted_end)\n",
        _ENGINES,
    ),
    _sync(
        "a duplicate is acknowledged when this log has it",
        _TRACKER,
        "        return not owed.links or self._links.horizon(LinkSet(owed.links), owed.end) >= owed.end\n",
        "        horizon = self._links.horizon(LinkSet(owed.links), owed.end)\n"
        "        return not owed.links or horizon >= owed.end or owed.sequence < owed.end - 1\n",
        _ACKS,
        _ENGINES,
    ),
    _sync(
        "any N waits for all links",
        _DURABILITY,
        "        return min(end, positions[required - 1]) if required else end\n",
        "        return min(end, positions[-1]) if required else end\n",
        _HORIZON,
        _ACKS,
    ),
    _sync(
        "a waiting acknowledgement holds up another connection",
        _TRACKER,
        "            held = self._held.get(conn)\n",
        "            held = next(iter(self._held.values()), None)\n",
        _ACKS,
    ),
    _sync(
        "an acknowledgement overtakes a waiting one of its connection",
        _TRACKER,
        "            if held is not None:\n                held.append(owed)\n            elif",
        "            if",
        _ACKS,
        _ENGINES,
    ),
    _sync(
        "a link keeps the position of a destination that lost the end of its log",
        _REGISTRY,
        "            self._sync.reset(number, source.covered)\n",
        "            self._sync.durable(number, source.covered, 'written')\n",
        _ACKS,
        _ENGINES,
    ),
    _sync(
        "rows that are not for a link hold up acknowledgements",
        _SOURCE,
        _COVERED,
        "        return self.durable\n",
        _ENGINES,
        promise="R8",
    ),
    _sync(
        "rows are sent to synchronous links after the acknowledgements",
        "engine/broker.py",
        "        links.step_sync()\n",
        "        links.take_moved()\n",
        _ACKS,
        promise="R8",
    ),
    _sync(
        "answers that wait for links have no bound",
        _TRACKER,
        "        if self._owed_count > owed_max and session.conn in self._owed:\n",
        "        if self._owed_count > owed_max and session.conn not in self._owed:\n",
        _ACKS,
        promise="R14",
    ),
    _sync(
        "answers of closed connections are kept",
        _TRACKER,
        "        self._held.pop(conn, None)\n        self._owed_count",
        "        self._owed_count",
        _ACKS,
        promise="R14",
    ),
    _sync(
        "connections that closed while links were down stay in a heap",
        _TRACKER,
        "            heap[:] = [front for front in heap if front[1] in self._held]\n",
        "            heap[:] = [front for front in heap if front]\n",
        _ACKS,
        promise="R14",
    ),
    _sync(
        "one acknowledgement for several frames names the strongest level",
        _TRACKER,
        "            level = weaker(level, before[1].level)\n",
        "            level = max(level, before[1].level)\n",
        _ENGINES,
    ),
    _sync(
        "a destination without a level counts as synced",
        _DURABILITY,
        'self._durable[link], self._level[link] = position, "written"\n',
        'self._durable[link], self._level[link] = position, "local"\n',
        _HORIZON,
    ),
    _sync(
        "a topic waits for links with an asynchronous first rule",
        _TOPICS,
        "if rules.is_sync(topic)]",
        "if rules.rule_of(topic)]",
        _OF_TOPICS,
        promise="R8",
    ),
    _sync(
        "a frame waits for the links of one of its topics",
        _TOPICS,
        "            found = LinkSet(found | (self._search(topic) if known is None else known))\n",
        "            found = self._search(topic) if known is None else known\n",
        _OF_TOPICS,
        _ENGINES,
    ),
)
