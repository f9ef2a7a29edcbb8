"""Synchronous topics: the links for which acknowledgements of messages on a topic wait.

Invariant: a topic has a link in its set if, and only if, the first rule of that link for it is synchronous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tickertape.base.names import is_pattern
from tickertape.engine.limits import routed_topics_kept_max
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.routes import RuleSet
from tickertape.engine.runtime.durability import NO_LINKS, DurableHorizon, LinkSet, SyncLinks
from tickertape.filter import compile_topic_pattern
from tickertape.filter.pattern_overlap import may_overlap
from tickertape.wire.sow_command import SOW_TOPIC


class SyncTopics:
    """The synchronous links of one server, and their topics."""

    def __init__(
        self, destinations: Iterable[OutgoingLink], derived: Sequence[str], required: int | None = None
    ) -> None:
        """`derived`: topics of recorded views. `required`: the N of `any N`, or None for all links."""
        named = [(link.destination, RuleSet(link.rules, derived)) for link in destinations]
        found = [(name, rules) for name, rules in named if rules.has_sync]
        self._rules = [rules for _, rules in found]
        self.links = SyncLinks([name for name, _ in found], required)
        self.numbers = {name: number for number, (name, _) in enumerate(found)}
        """Number of each synchronous link, by its destination."""
        self._all = self.links.link_set(range(len(found)))
        self._of_topic: dict[str, LinkSet] = {}

    def links_of(self, topics: Iterable[str]) -> LinkSet:
        """Return the links for which an acknowledgement of messages on these topics waits."""
        found = NO_LINKS
        for topic in topics:
            known = self._of_topic.get(topic)
            found = LinkSet(found | (self._search(topic) if known is None else known))
        return found

    def horizon_of(self, topic: str) -> DurableHorizon | None:
        """Return the horizon of a topic, or of all topics that may match a pattern. None: no topic has a
        synchronous link."""
        if not is_pattern(topic):
            links, alike = self.links_of([topic]), True
        else:
            rules = {number: self._rules_of(number, topic) for number in range(len(self._rules))}
            found = [number for number, some in rules.items() if any(sync for _, sync in some)]
            links = self.links.link_set(found)
            alike = all(rules[number] == rules[found[0]] for number in found)
        return DurableHorizon(self.links, links, alike=alike) if links else None

    def _rules_of(self, number: int, pattern: str) -> list[tuple[str, bool]]:
        """Return topics and `sync` of the rules of a link that may match a topic of a pattern."""
        compiled, rules = compile_topic_pattern(pattern), self._rules[number]
        return [
            (rule.topic, rule.sync)
            for rule in (*rules.names, *rules.patterns)
            if (may_overlap(rule.topic, pattern) if rule.has_pattern else compiled.search(rule.topic))
        ]

    def _search(self, topic: str) -> LinkSet:
        if topic == SOW_TOPIC:  # a delete names its topics in its body
            found = self._all
        else:
            found = self.links.link_set(
                [number for number, rules in enumerate(self._rules) if rules.is_sync(topic)]
            )
        if len(self._of_topic) >= routed_topics_kept_max:
            self._of_topic.clear()
        self._of_topic[topic] = found
        return found
