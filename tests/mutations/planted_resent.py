"""Planted defects of resent messages: topics that links bring whole, and searches of the log.

Must never hold one of the filter by holes alone.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_WHOLE = "engine/replication/destination/whole_topics.py"
_RESENT = "engine/replication/destination/resent_messages.py"
_TOPICS = "unit/engine/replication/test_whole_topics.py"
_MESSAGES = "unit/engine/replication/test_resent_messages.py"
_ENGINES = "simulation/test_linked_engines.py"


def _of_resent(
    name: str, module: str, old: str, new: str, *, tests: tuple[str, ...] = (_MESSAGES,), promise: str = "R8"
) -> Mutation:
    """Return a defect that a test of resent messages must detect."""
    tier = tests[0].split("/")[0]
    return Mutation(name, module, old, new, tests, promise=promise, tier=tier)


RESENT_MUTATIONS: Final = (
    _of_resent(
        "resent messages of topics without a link are acknowledged without a copy",
        "engine/replication/links/registry.py",
        "        exact.decide_resent_with(self._resent)\n",
        "        assert self._resent\n",
        tests=(_ENGINES,),
    ),
    _of_resent(
        "a search does not see messages that are not on the disk yet",
        _RESENT,
        "            for one in (*self._unpersisted, *self._journal.accepted)\n",
        "            for one in self._journal.accepted\n",
        promise="invariant 11",
    ),
    _of_resent(
        "each resent message is searched alone",
        _RESENT,
        "        last = min(first + resent_search_sequences - 1, self._known.highest(publisher))\n",
        "        last = min(first, resent_search_sequences)\n",
        promise="R14",
    ),
    _of_resent(
        "one search counts for all later messages of a connection",
        _RESENT,
        "np.isin(wanted, searched.sequences).all()):\n",
        "searched.sequences.any()):\n",
    ),
    _of_resent(
        "all searched messages count as absent",
        _RESENT,
        "        absent = np.setdiff1d(asked, np.concatenate(found))\n",
        "        absent = np.setdiff1d(asked, found[0][:0])\n",
        tests=(_MESSAGES, _ENGINES),
        promise="invariant 11",
    ),
    _of_resent(
        "whole topics are searched",
        _RESENT,
        "if topic not in self._whole]\n",
        "if topic and self._whole is not None]\n",
        promise="R14",
    ),
    _of_resent(
        "links may raise the highest sequence above a frame during its look-up",
        "engine/commands/publish.py",
        "        return exact.look_up(session.publisher, batch, session.publishing) is not None\n",
        "        return exact.look_up(session.publisher, batch, session.publishing) is session\n",
    ),
    _of_resent(
        "a frame is stored after a failed search",
        "engine/commands/publish.py",
        "                lookup.result()\n",
        "                assert lookup.closed\n",
    ),
    _of_resent(
        "a topic with a filter counts as whole",
        _WHOLE,
        "        return all(rule is not None and rule.filter is None for rule in found)\n",
        "        return all(rule is not None for rule in found)\n",
        tests=(_TOPICS,),
    ),
    _of_resent(
        "a topic is whole if one of several links brings it",
        _WHOLE,
        "        return all(rule is not None and rule.filter is None for rule in found)\n",
        "        return any(rule is not None and rule.filter is None for rule in found)\n",
        tests=(_TOPICS,),
    ),
    _of_resent(
        "unknown sources count as links of everything",
        _WHOLE,
        "any(one.log not in self._brought for one in self._origins)\n",
        "any(not one.log for one in self._origins)\n",
        tests=(_TOPICS,),
    ),
    _of_resent(
        "rules before the source of a link are ignored",
        _WHOLE,
        "            self._filtered = self._filtered or not {*origin.digests} <= digests\n",
        "            self._filtered = self._filtered or not origin.log\n",
        tests=(_TOPICS,),
    ),
    _of_resent(
        "rules of an earlier connection are forgotten",
        _WHOLE,
        "        digests = rules.digests()\n",
        "        digests = rules.digests()\n        self._rules.clear()\n",
        tests=(_TOPICS,),
    ),
)
