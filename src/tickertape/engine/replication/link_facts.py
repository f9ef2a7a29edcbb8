"""Link facts: configuration and topology of one server, as the validation compares them.

Both servers of a link, and an offline check of their configurations, make these facts. Names identify
instances, because a configuration has no log ids.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tickertape.base.errors import BadOption
from tickertape.base.names import is_pattern
from tickertape.base.text_format import shown
from tickertape.engine.limits import (
    incoming_links_max,
    replication_patterns_max,
    replication_rules_max,
    sow_patterns_max,
    sow_topics_max,
)
from tickertape.engine.replication.routes import EVERY_GROUP, ReplicationRule
from tickertape.engine.runtime.sow_definition import MISSING_KEYS, MissingKey, SowDefinition
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE, TopicCatalog
from tickertape.filter import TopicSet, compile_topic_pattern
from tickertape.filter.pattern_overlap import may_overlap


class SowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A SOW topic: the parts of its definition that decide which records exist."""

    name: str
    key: tuple[str, ...] = ()
    """Paths of the key fields. Empty: explicit keys."""
    key_domain: str = ""
    missing_key: MissingKey = MISSING_KEYS[0]
    pattern: str | None = None
    earlier_patterns: tuple[str, ...] = ()
    """Patterns of earlier tables, which own the topics that both patterns match."""

    @staticmethod
    def of(definition: SowDefinition) -> SowFacts:
        """Return the facts of a definition."""
        return SowFacts(
            name=definition.name,
            key=definition.key,
            key_domain=definition.key_domain,
            missing_key=definition.missing_key,
            pattern=definition.pattern,
            earlier_patterns=definition.earlier_patterns,
        )

    def covers(self, topic: str) -> bool:
        """Return whether a topic is the name or matches the pattern."""
        return topic == self.name or (
            self.pattern is not None and compile_topic_pattern(self.pattern).search(topic)
        )

    def may_share(self, other: SowFacts) -> bool:
        """Return whether a topic may belong to both."""
        if self.pattern is None and other.pattern is None:
            return self.name == other.name
        if self.covers(other.name) or other.covers(self.name):
            return True
        return (
            self.pattern is not None
            and other.pattern is not None
            and may_overlap(self.pattern, other.pattern)
        )


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The configured topics of one server."""

    recorded: tuple[str, ...] | None = None
    """Names and patterns of persistent topics. None: all topics."""
    message_types: dict[str, str] = {}
    """Message types of topics with a table."""
    validated: tuple[str, ...] = ()
    """Topics that validate message bodies."""
    sow: tuple[SowFacts, ...] = ()
    derived: tuple[str, ...] = ()
    """Topics of recorded views."""

    @staticmethod
    def of(catalog: TopicCatalog) -> TopicFacts:
        """Return the facts of the configured topics of a server."""
        return TopicFacts(
            recorded=catalog.recorded_topics,
            message_types=dict(catalog.message_types),
            validated=tuple(sorted(catalog.validated)),
            sow=tuple(map(SowFacts.of, catalog.sow)),
        )

    @property
    def names(self) -> set[str]:
        """Names of all topics in the configuration."""
        literals = [name for name in self.recorded or () if not is_pattern(name)]
        return {
            *literals,
            *self.message_types,
            *self.validated,
            *self.derived,
            *(one.name for one in self.sow),
        }

    def message_type(self, topic: str) -> str:
        """Return the message type of a topic."""
        return self.message_types.get(topic, DEFAULT_TYPE)

    def validates(self, topic: str) -> bool:
        """Return whether a topic refuses bodies. Every body is valid binary data."""
        return topic in self.validated and self.message_type(topic) != "binary"


class OriginFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server whose clients' messages reach another server."""

    instance: str
    group: str
    log: bytes = b""
    """Id of the log. Empty: unknown."""
    digests: tuple[bytes, ...] = ()
    """Union of the digests of the rules on the path (`RuleSet.digests`)."""
    path: tuple[str, ...] = ()
    """Instances that the messages pass, from the origin to the source of the link."""


class IncomingLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link to one server, with the origins whose messages it brings."""

    instance: str
    """Its source."""
    log: bytes = b""
    start: int = 0
    """Start id of the source. 0: unknown."""
    rules: tuple[ReplicationRule, ...] = ()
    origins: tuple[OriginFacts, ...] = ()
    """Origins after the rules and the pass-through of this link. The source is one of them."""


class OutgoingLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link from one server, as it is configured there."""

    destination: str
    """Expected name of the destination."""
    rules: tuple[ReplicationRule, ...] = ()
    pass_through: str = EVERY_GROUP
    excluded: tuple[str, ...] = ()
    """Names of checks that do not apply to this link."""


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one side of a link."""

    instance: str
    group: str
    log: bytes = b""
    start: int = 0
    versions: tuple[int, ...] = ()
    """Supported versions of the link protocol. Empty: unknown."""
    features: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    """Features that the other side must have."""
    topics: TopicFacts = TopicFacts()
    link: OutgoingLink | None = None
    """The link to the other side, if one is configured."""
    incoming: tuple[IncomingLink, ...] = ()
    """Links to this side, without the validated one."""
    replaced: tuple[bytes, ...] = ()
    """Ids of logs that a newer log of the same instance has replaced (`tickertape replication forget`)."""

    def check_bounds(self) -> None:
        """Raise `BadOption` for more rules, SOW topics or links than a server may have.

        The validation of a link takes time for each of them, on the event loop."""
        rules = [link.rules for link in (*self.incoming, self.link) if link is not None]
        tables = self.topics.sow
        for noun, count, most in (
            ("links", len(self.incoming), incoming_links_max),
            ("rules", max(map(len, rules), default=0), replication_rules_max),
            (
                "patterns",
                max((sum(rule.has_pattern for rule in one) for one in rules), default=0),
                replication_patterns_max,
            ),
            ("SOW topics", len(tables), sow_topics_max),
            ("patterns", sum(table.pattern is not None for table in tables), sow_patterns_max),
        ):
            if count > most:
                raise BadOption(
                    f"Cannot validate a replication link of server {shown(self.instance)}: the server has "
                    f"{count:,} {noun}, more than {most:,}. Remove some of them."
                )

    def known_logs(self) -> Iterator[tuple[str, bytes]]:
        """Yield instance and log id of this server and of all servers whose messages reach it."""
        yield self.instance, self.log
        for link in self.incoming:
            yield link.instance, link.log
            yield from ((origin.instance, origin.log) for origin in link.origins)


class TopicIndex:
    """Persistent topics of one server."""

    def __init__(self, facts: TopicFacts) -> None:
        """Raises `BadTopic` for an invalid pattern."""
        self._topics = None if facts.recorded is None else TopicSet(facts.recorded)
        self._patterns = [name for name in facts.recorded or () if is_pattern(name)]

    def has(self, topic: str) -> bool:
        """Return whether a topic is persistent."""
        return self._topics is None or topic in self._topics

    def patterns_within(self, pattern: str) -> list[str]:
        """Return patterns of persistent topics that may match further topics of `pattern`.

        With all topics persistent, `pattern` itself is one of them."""
        if self._topics is None:
            return [pattern]
        return [one for one in self._patterns if may_overlap(one, pattern)]

    @property
    def patterns(self) -> list[str] | None:
        """Patterns of persistent topics. None: all topics are persistent."""
        return None if self._topics is None else self._patterns
