"""Link pair: facts of both servers of a link, prepared for the checks, and their mismatches."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.base.names import is_pattern
from tickertape.base.text_format import shown
from tickertape.engine.replication.link_facts import LinkFacts, OutgoingLink, TopicIndex
from tickertape.engine.replication.routes import PassThrough, RuleSet


class Mismatch(NamedTuple):
    """A reason to refuse a link."""

    check: str
    """Name of the check (`EXCLUDABLE` and `MANDATORY` in `validation.py`)."""
    text: str
    excludable: bool = False

    def __str__(self) -> str:
        return self.text


class LinkPair:
    """The two servers of a link.

    Raises `BadTopic` or `BadOption` for invalid patterns, and `BadOption` for too many rules."""

    def __init__(self, source: LinkFacts, destination: LinkFacts, link: OutgoingLink) -> None:
        for one in (source, destination):
            one.check_bounds()
        self.source = source
        self.destination = destination
        self.link = link
        self.here, self.there = shown(source.instance), shown(destination.instance)
        """Names of source and destination, in quotes."""
        self.rules = RuleSet(link.rules, source.topics.derived)
        self.pass_through = PassThrough(link.pass_through)
        self.at_source, self.at_destination = TopicIndex(source.topics), TopicIndex(destination.topics)
        back = destination.link
        self.back = None if back is None else RuleSet(back.rules, destination.topics.derived)
        """Rules of the link in the other direction, if one is configured."""
        names = source.topics.names | destination.topics.names
        names |= {
            rule.topic for rules in (self.rules, self.back) if rules is not None for rule in rules.names
        }
        self.topics = {
            topic: rule
            for topic in sorted(names)
            if (rule := self.rules.rule_of(topic)) is not None and self.at_source.has(topic)
        }
        """Known topics that the link replicates, with their rules."""
        self.patterns = [
            (rule, recorded)
            for rule in self.rules.patterns
            for recorded in self.at_source.patterns_within(rule.topic)
        ]
        """Patterns of rules and of persistent topics at the source that further topics may match."""

    def mandatory(self, check: str, cause: str, cure: str) -> Mismatch:
        """Return a mismatch of the two servers."""
        return Mismatch(check, f"Cannot replicate from {self.here} to {self.there}: {cause}. {cure}.")

    def excludable(self, check: str, cause: str, cure: str) -> Mismatch:
        """Return a mismatch of the two servers that the source may exclude."""
        return self.mandatory(check, cause, self._or_exclude(check, cure))._replace(excludable=True)

    def mandatory_topic(self, check: str, topic: str, cause: str, cure: str) -> Mismatch:
        """Return a mismatch of a topic, or of the topics of a pattern."""
        noun = "topics matching" if is_pattern(topic) else "topic"
        return Mismatch(
            check,
            f"Cannot replicate {noun} {shown(topic)} from {self.here} to {self.there}: {cause}. {cure}.",
        )

    def excludable_topic(self, check: str, topic: str, cause: str, cure: str) -> Mismatch:
        """Return a mismatch of a topic, or of the topics of a pattern, that the source may exclude."""
        mismatch = self.mandatory_topic(check, topic, cause, self._or_exclude(check, cure))
        return mismatch._replace(excludable=True)

    def _or_exclude(self, check: str, cure: str) -> str:
        return f'{cure}, or set exclude_validation = ["{check}"] for {self.there} at {self.here}'
