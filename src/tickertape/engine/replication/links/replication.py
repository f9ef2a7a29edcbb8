"""Replication: the facts and the configuration that make an engine replicate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.link_facts import OutgoingLink, TopicFacts
from tickertape.engine.replication.links.sync_topics import SyncTopics
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.routes import RuleSet
from tickertape.engine.sessions.registry import LinkPolicy

NO_DOWNGRADES: Final[Mapping[str, DowngradePolicy]] = MappingProxyType({})
"""No destination has a policy."""


class SentTopics:
    """Topics that the links to some destinations send."""

    def __init__(self, destinations: Iterable[OutgoingLink], derived: Sequence[str]) -> None:
        """`derived`: topics of recorded views."""
        self._rules = [RuleSet(link.rules, derived) for link in destinations]

    def replicates(self, topic: str) -> bool:
        """Return whether a link sends messages of a topic."""
        return any(rules.rule_of(topic) is not None for rules in self._rules)


class Replication(NamedTuple):
    """Argument of a `Broker` that replicates."""

    facts: LogFacts
    """Recovered facts of the log."""
    start: int
    """Random number of this run of the server, above 0."""
    group: str
    destinations: tuple[OutgoingLink, ...]
    topics: TopicFacts
    policy: LinkPolicy
    """Decides about incoming links."""
    acknowledge: int | None = None
    """Number of synchronous destinations for which an acknowledgement waits. None: all of them."""
    downgrades: Mapping[str, DowngradePolicy] = NO_DOWNGRADES
    """Policies of destinations that are downgraded and upgraded by themselves, by their names."""

    def sent_topics(self) -> SentTopics:
        """Return the topics that links send."""
        return SentTopics(self.destinations, self.topics.derived)

    def sync_topics(self) -> SyncTopics | None:
        """Return the synchronous links and their topics, or None without a synchronous link."""
        found = SyncTopics(self.destinations, self.topics.derived, self.acknowledge)
        return found if found.numbers else None
