"""Whole topics: incoming links bring all of their messages.

A message of a whole topic at or below the highest sequence of its publisher is in this log. A link with rules
for other topics raises the highest sequence without the messages of this one.

Invariants:
- A topic counts as whole only if all links whose messages this log has bring it without a filter.
- Rules of earlier connections since the start count too: their rows are in the log. Unknown sources count as
  links that bring no topic whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from tickertape.engine.limits import link_rule_sets_kept_max, routed_topics_kept_max
from tickertape.engine.replication.link_facts import OriginFacts
from tickertape.engine.replication.origins import Origins
from tickertape.engine.replication.routes import RuleSet
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC


class WholeTopics:
    """The topics that incoming links bring whole."""

    def __init__(self, origins: Origins) -> None:
        """`origins`: origins of all rows of this log."""
        self._origins = origins
        self._rules: dict[frozenset[bytes], RuleSet] = {}
        """Rules of all links since the start, by their digests."""
        self._brought: set[bytes] = set()
        """Logs of the origins that links since the start bring. All paths of an origin have equal rules."""
        self._filtered = False
        """Whether other rules selected the messages before they reached the source of a link."""
        self._examined = 0
        """Number of origins that `_unknown` covers."""
        self._unknown = False
        """Whether the log has messages of an origin of no link since the start."""
        self._whole: dict[str, bool] = {}

    def opened(self, rules: RuleSet, origins: Iterable[OriginFacts]) -> None:
        """Note a link with the origins whose messages it brings."""
        digests = rules.digests()
        if digests not in self._rules and len(self._rules) < link_rule_sets_kept_max:
            self._rules[digests] = rules
        self._filtered = self._filtered or digests not in self._rules
        for origin in origins:
            self._brought.add(origin.log)
            self._filtered = self._filtered or not {*origin.digests} <= digests
        self._examined = 0
        self._whole.clear()

    def __contains__(self, topic: str) -> bool:
        """Return whether the log has all messages of a topic up to the highest sequences. Results are cached.

        Settlements of queues belong to one server, so no link brings them. They count as whole."""
        if self._examined != len(self._origins):
            self._examine()
        try:
            return self._whole[topic]
        except KeyError:
            whole = not self._filtered and not self._unknown and self._is_whole(topic)
        if len(self._whole) >= routed_topics_kept_max:
            self._whole.clear()
        self._whole[topic] = whole
        return whole

    def _examine(self) -> None:
        """Check that links since the start bring all origins of the log."""
        self._examined = len(self._origins)
        self._unknown = any(one.log not in self._brought for one in self._origins)
        self._whole.clear()

    def _is_whole(self, topic: str) -> bool:
        if topic == QUEUE_TOPIC:
            return True
        if topic == SOW_TOPIC:  # deletes of records of all topics
            return not any(self._rules)
        found = [rules.rule_of(topic) for rules in self._rules.values()]
        return all(rule is not None and rule.filter is None for rule in found)
