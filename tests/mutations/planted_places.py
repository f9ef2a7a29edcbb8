"""Planted defects of places: notices, resume lists, and the stores of subscribers.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_WORLD = "simulation/test_linked_subscribers.py"
_MISSING = "unit/client/bookmark_store/test_missing.py"
_LATE = "unit/client/bookmark_store/test_late_messages.py"
_PLACES = "unit/engine/replication/test_product_places.py"
_NOTICES = "engine/delivery/progress_notices.py"
_LISTS = "unit/engine/replication/test_place_lists.py"
_FACTS = "engine/replication/subscribers/persisted_places.py"
_START = "engine/subscriptions/start_position.py"
_OF_CLIENT = "client/bookmark_store/missing.py"


def _of_server(name: str, module: str, old: str, new: str) -> Mutation:
    """Return a defect of a server."""
    return Mutation(name, module, old, new, (_WORLD,), promise="R10", tier="simulation")


def _of_client(name: str, old: str, new: str, *tests: str) -> Mutation:
    """Return a defect of the missing sequences of a client."""
    tests = tests or (_WORLD,)
    return Mutation(name, _OF_CLIENT, old, new, tests, promise="R10", tier=tests[0].split("/")[0])


PLACE_MUTATIONS: Final = (
    _of_server(
        "a notice has no places",
        _FACTS,
        "        return encode_notice_places(\n",
        "        return b'' and encode_notice_places(\n",
    ),
    _of_server(
        "a place of an unknown log is passed over",
        _START,
        "            start = yield from self._epoch()\n        for number",
        "            start = self.accepted_end\n        for number",
    ),
    _of_server(
        "a place names rows that are not persisted",
        _FACTS,
        "        return self._rows(position, [*self._places.newest(), *self._reports.reached(group)])\n",
        "        others = [place._replace(position=place.position + 40) for place in self._places.newest()]\n"
        "        return self._rows(position, [*others, *self._reports.reached(group)])\n",
    ),
    Mutation(
        "each place of an unknown log hashes all starts",
        _FACTS,
        "        if self._newest_id != self._starts.newest:\n",
        "        if publisher not in self._ids:\n",
        (_LISTS,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a notice describes a publisher up to the last change of holes only",
        "engine/replication/subscribers/persisted_holes.py",
        "max(holes.highest, self._highest.get(holes.publisher, 0))",
        "holes.highest or self._highest.get(holes.publisher, 0)",
        ("unit/engine/replication/test_persisted_holes.py",),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "each notice encodes the holes of the log",
        _NOTICES,
        "                if key not in made:\n",
        "                if made is not None:\n",
        (_PLACES,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a live subscription gets holes of a log that ends before its messages",
        _NOTICES,
        "        return sub.live and sub.considered_to > self._end\n",
        "        return False\n",
        (_PLACES,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a waiting notice has holes of a later commit",
        _NOTICES,
        "                same = self._facts.change == change",
        "                same = True",
        (_PLACES,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a client names positions of a server as places of the last one",
        "client/subscriptions/resubscribe.py",
        "        self.places = places\n\n    def passed",
        "        self.places = self.places\n\n    def passed",
        ("unit/client/subscriptions/test_resubscribe.py",),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a logged store forgets that deliveries are exact",
        "client/bookmark_store/base.py",
        "            elif progress.has_places and not placed:",
        "            elif False and not placed:",
        (_LATE,),
        promise="R10",
        tier="unit",
    ),
    _of_client(
        "a client drops late messages",
        "            return recent is None or sequence not in recent\n",
        "            return False\n",
    ),
    _of_client(
        "a client ignores the holes of a notice",
        "                if last > mark:\n",
        "                if last > mark + 2**63:\n",
    ),
    _of_client(
        "a recovery point does not hold back a hole",
        "            if last < sequence:\n                found += (first - 1, last)\n",
        "            if last < 0:\n                found += (first - 1, last)\n",
        _MISSING,
    ),
    _of_client(
        "a recovery point passes late messages that are not discarded",
        "_merged([*holes, *late]) if late else holes:",
        "holes:",
        _LATE,
    ),
    _of_client(
        "a recovery point is above the last notice",
        "            sequence = min(sequence, recent.mark)\n",
        "            sequence = max(sequence, recent.mark)\n",
        _MISSING,
    ),
)
