"""Planted defects of the configuration of SOW topics, with the tests that must detect them.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_CATALOG = "unit/engine/runtime/test_topic_catalog.py"
_CONFIG = "unit/server/config/test_config_sow.py"
_OVERLAP = "unit/filter/test_pattern_overlap.py"
_DEFINITION = "unit/engine/runtime/test_sow_definition.py"

SOW_CONFIG_MUTATIONS: Final = (
    Mutation(
        "a checkpoint of another key domain counts as equal",
        "engine/runtime/sow_definition.py",
        "            self.key_domain,\n",
        "",
        (_DEFINITION,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a checkpoint made with other earlier patterns counts as equal",
        "engine/runtime/sow_definition.py",
        "            self.earlier_patterns,\n",
        "",
        (_DEFINITION,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a pattern whose topics may be in another SOW topic counts as disjoint",
        "filter/pattern_overlap.py",
        "    return first.startswith(second) or second.startswith(first)\n",
        "    return first == second\n",
        (_OVERLAP,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the last matching pattern has the topic",
        "engine/runtime/topic_catalog.py",
        "in sorted(patterns.found(topic))), None)",
        "in sorted(patterns.found(topic), reverse=True)), None)",
        (_CATALOG,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a SOW topic has records of topics that the log does not have",
        "engine/runtime/topic_catalog.py",
        "        if patterns is not None and plain and self.recorded(topic):\n",
        "        if patterns is not None and plain:\n",
        (_CATALOG,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the cache of topics and their SOW topics has no bound",
        "engine/runtime/topic_catalog.py",
        "            self._sow_of = dict(self._sow_by_name)\n",
        "            pass\n",
        (_CATALOG,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a queue may have the name of its SOW topic",
        "server/config/sow.py",
        "        one = _owner(queue.name, read, patterned if own else ())\n",
        "        one = _owner(queue.name, {}, patterned if own else ())\n",
        (_CONFIG,),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a SOW topic may refuse dead letters",
        "server/config/sow.py",
        "        one = None if queue.dead_letter is None else _owner(queue.dead_letter, read, patterned)\n",
        "        one = None if queue.dead_letter is None else _owner(queue.dead_letter, read, ())\n",
        (_CONFIG,),
        promise="R11",
        tier="unit",
    ),
)
