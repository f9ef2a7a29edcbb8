"""Planted defects of routes and validation of replication links, with the tests that must detect them.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_ROUTES: Final = "engine/replication/routes.py"
_ROUTE_TESTS: Final = ("unit/engine/replication/test_routes.py",)
_VALIDATION: Final = "engine/replication/validation.py"
_VALIDATION_TESTS: Final = ("unit/engine/replication/test_validation.py",)
_TOPIC_CHECKS: Final = "engine/replication/topic_checks.py"
_CONFIG: Final = "server/config/replication.py"
_TOPICS: Final = "server/config/replicated_topics.py"
_CONFIG_TESTS: Final = ("unit/server/config/test_config_replication.py",)
_CHECKS: Final = (
    "server_checks.instance_name", "server_checks.link_version", "server_checks.log_twice",
    "server_checks.instance_twice", "server_checks.one_stream", "server_checks.routes",
    "server_checks.sync_pass_through", "topic_checks.derived_topic", "topic_checks.txlog",
    "topic_checks.replicate", "topic_checks.sync_type", "topic_checks.message_type", "topic_checks.sow",
)  # fmt: skip

ROUTE_MUTATIONS: Final = (
    Mutation(
        "a later name has the topic of an earlier pattern",
        _ROUTES,
        "        first = min(self._by_name.get(topic, behind), behind)\n",
        "        first = self._by_name.get(topic, behind)\n",
        _ROUTE_TESTS,
        promise="invariant 13",
        tier="unit",
    ),
    Mutation(
        "a later pattern has the topic of an earlier one",
        _ROUTES,
        "self._with_patterns[min(found)]",
        "self._with_patterns[max(found)]",
        _ROUTE_TESTS,
        promise="invariant 13",
        tier="unit",
    ),
    Mutation(
        "a pattern replicates internal topics",
        _ROUTES,
        "        if topic.startswith((_INTERNAL, SERVER_TOPICS)) or",
        "        if topic.startswith(SERVER_TOPICS) or",
        _ROUTE_TESTS,
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "the cache of rules by topic has no bound",
        _ROUTES,
        "            self._rule_of.clear()\n",
        "            pass\n",
        _ROUTE_TESTS,
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "an empty pass_through passes on every group",
        _ROUTES,
        "        return self._pattern is not None and self",
        "        return self._pattern is None or self",
        _ROUTE_TESTS,
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "runs that the destination has are sent instead of named",
        _ROUTES,
        "        return RunHandling.NAMED if self._log in origin.path else RunHandling.SENT\n",
        "        return RunHandling.SENT\n",
        _ROUTE_TESTS,
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "a delete of records is left out if the first of several topics is not replicated",
        _ROUTES,
        "    return (head.topics or (head.topic,))",
        "    return (head.topic,)",
        _ROUTE_TESTS,
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "expiries of records are sent",
        _ROUTES,
        " if head.kind == _DELETED else ()",
        " if head.kind else ()",
        _ROUTE_TESTS,
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "holes are not passed on",
        _ROUTES,
        'frozenset({"after", ',
        "frozenset({",
        _ROUTE_TESTS,
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "all control records travel",
        _ROUTES,
        "            return decode_head(body).type in TRAVELLING_RECORDS\n",
        "            return True\n",
        _ROUTE_TESTS,
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "rules with other filters have equal digests",
        _ROUTES,
        "        patterns = [(rule.topic, rule.filter) for rule in self.patterns]\n",
        "        patterns = [(rule.topic, None) for rule in self.patterns]\n",
        _ROUTE_TESTS,
        promise="R9",
        tier="unit",
    ),
    *(
        Mutation(
            f"a link is accepted without {check}",
            _VALIDATION,
            f"    {check},\n",
            "",
            _VALIDATION_TESTS,
            promise="R9",
            tier="unit",
        )
        for check in _CHECKS
    ),
    Mutation(
        "checks without which messages are lost may be excluded",
        _VALIDATION,
        "if not (one.excludable and one.check",
        "if not (one.check",
        _VALIDATION_TESTS,
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a topic with other records at both servers may be excluded",
        _TOPIC_CHECKS,
        '            yield pair.mandatory_topic("sow", name,',
        '            yield pair.excludable_topic("sow", name,',
        _VALIDATION_TESTS,
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "SOW tables in another order count as equal",
        _TOPIC_CHECKS,
        ', "earlier_patterns": "order of tables"}',
        "}",
        _VALIDATION_TESTS,
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "synchronous patterns are compared only with patterns of the same text",
        "engine/replication/server_checks.py",
        "        if any(one.sync for one in rules.overlapping(rule.topic)):\n",
        "        if any(one.sync for one in rules.patterns if one.topic == rule.topic):\n",
        _VALIDATION_TESTS,
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a token is sent to another machine without encryption",
        _CONFIG,
        "    if plain and not destination.insecure:\n",
        "    if plain and destination.insecure:\n",
        _CONFIG_TESTS,
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a token file that other users can read is accepted",
        _CONFIG,
        '            check_private(destination.token_file, "token file", ConfigurationError)\n',
        "            pass\n",
        _CONFIG_TESTS,
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "an acknowledgement waits for more destinations than a topic has",
        _CONFIG,
        "        if count < needed:\n",
        "        if count > needed:\n",
        _CONFIG_TESTS,
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "topics of a pattern count as synchronous if some of them are",
        _CONFIG,
        "    return other.covers(rule.topic) and not any(differ)\n",
        "    return other.covers(rule.topic)\n",
        _CONFIG_TESTS,
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "two servers may replicate with the default name",
        _CONFIG,
        "    if not server.is_named:\n",
        "    if not server:\n",
        _CONFIG_TESTS,
        promise="invariant 11",
        tier="unit",
    ),
    Mutation(
        "a queue over replicated topics need not be local",
        _TOPICS,
        "        if queue.name not in server.local_queues and",
        "        if queue.name in server.local_queues and",
        _CONFIG_TESTS,
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a synchronous rule behind an asynchronous one of the same topics is accepted",
        _TOPICS,
        "    if shadow is None or shadow is rule:\n",
        "    if shadow is None or shadow is not None:\n",
        _CONFIG_TESTS,
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "messages that have passed the destination count as a second path to it",
        "engine/replication/server_checks.py",
        "        and link.destination not in (origin.instance, *origin.path)\n",
        "        and link.destination != origin.instance\n",
        ("unit/engine/replication/test_topology.py",),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "rules of earlier links of a path do not count",
        "engine/replication/server_checks.py",
        "        union = tuple(sorted({*origin.digests, *digests}))\n",
        "        union = tuple(sorted(digests))\n",
        ("unit/engine/replication/test_topology.py",),
        promise="R9",
        tier="unit",
    ),
)
