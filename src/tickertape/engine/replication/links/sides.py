"""Sides: the facts of a server in the handshakes of its links, and their form for the validation.

Invariant: both ends validate facts of the same two `LinkSide`, so they find equal mismatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tickertape.base.errors import BadLink, LinkRefused
from tickertape.base.limits import link_path_logs_max, link_text_bytes_max
from tickertape.engine.limits import link_refusal_bytes_max, sow_patterns_max
from tickertape.engine.replication.link_facts import (
    IncomingLink,
    LinkFacts,
    OriginFacts,
    OutgoingLink,
    SowFacts,
    TopicFacts,
)
from tickertape.engine.replication.places import LogStarts
from tickertape.engine.replication.routes import ReplicationRule, RuleSet
from tickertape.engine.replication.server_checks import shortest_paths
from tickertape.engine.replication.validation import mismatches
from tickertape.engine.runtime.sow_definition import MISSING_KEYS, MissingKey
from tickertape.filter.pattern_overlap import may_overlap
from tickertape.wire.commands import LinkMismatch
from tickertape.wire.link import LinkedOrigin, LinkedSource, LinkRule, LinkSide, LinkSowTopic, LinkTopics
from tickertape.wire.link_rows import decode_starts, encode_pairs


class ServerFacts:
    """Facts of this server that are equal in all handshakes."""

    def __init__(
        self, instance: str, group: str, software: str, topics: TopicFacts, links: Iterable[OutgoingLink]
    ) -> None:
        self.instance = instance
        self._group = group
        self._software = software
        self._topics = _link_topics(topics)
        self._derived = topics.derived
        self._links = {link.destination: link for link in links}

    def side(self, peer: str, starts: LogStarts, sources: Iterable[LinkedSource]) -> LinkSide:
        """Return the facts for a handshake with the instance `peer`. `sources`: links to this server, without
        the one that starts."""
        rows = [*starts]
        side = LinkSide(
            software=self._software,
            instance=self.instance,
            group=self._group,
            log=starts.journal,
            starts=encode_pairs([one.start for one in rows], [one.first for one in rows]),
            topics=self._topics,
            sources=tuple(sources),
        )
        link = self._links.get(peer)
        return side if link is None else _with_link(side, link, self._derived)


def _with_link(side: LinkSide, link: OutgoingLink, derived: Iterable[str]) -> LinkSide:
    return msgspec.structs.replace(
        side,
        destination=link.destination,
        rules=_link_rules(link.rules),
        pass_through=link.pass_through,
        digests=tuple(sorted(RuleSet(link.rules, derived).digests())),
        excluded=link.excluded,
    )


def facts_of(side: LinkSide) -> LinkFacts:
    """Return the facts of one side of a link."""
    link = None
    if side.destination:
        link = OutgoingLink(
            destination=side.destination,
            rules=_rules(side.rules),
            pass_through=side.pass_through,
            excluded=side.excluded,
        )
    return LinkFacts(
        instance=side.instance,
        group=side.group,
        log=side.log,
        start=newest_start(side),
        versions=side.versions,
        features=side.features,
        required=side.required,
        topics=_topics(side.topics),
        link=link,
        incoming=tuple(map(_incoming, side.sources)),
        replaced=side.replaced,
    )


def newest_start(side: LinkSide) -> int:
    """Return the start of the running server."""
    return int(decode_starts(side.starts).starts[-1])


def has_start(side: LinkSide, start: int) -> bool:
    """Return whether a log has a start."""
    return start in decode_starts(side.starts).starts.tolist()


def linked_source(side: LinkSide, origins: Iterable[OriginFacts]) -> LinkedSource:
    """Return a link from a source, as this server reports it in other handshakes."""
    return LinkedSource(
        instance=side.instance,
        log=side.log,
        start=newest_start(side),
        rules=side.rules,
        origins=tuple(
            LinkedOrigin(
                instance=one.instance, group=one.group, log=one.log, digests=one.digests, path=one.path
            )
            for one in shortest_paths(origins)
            if len(one.path) <= link_path_logs_max  # links refuse messages that passed more servers
        ),
    )


class Refusal(NamedTuple):
    """Reasons to refuse a link, as both ends report them."""

    error: LinkRefused
    mismatches: tuple[LinkMismatch, ...]


def refusal(source: LinkSide, destination: LinkSide) -> Refusal | None:
    """Return the reasons to refuse the link between two sides. None: they fit.

    Raises `BadLink` for a source without a link, and `BadTopic` or `BadOption` for invalid patterns and too
    many rules."""
    if not source.destination:
        raise BadLink("Invalid link frame: the source names no destination. Report the defect of the source.")
    found = mismatches(
        facts_of(_without_earlier_starts(source, destination)),
        facts_of(_without_earlier_starts(destination, source)),
    )
    if not found:
        return None
    text = " ".join(one.text for one in found)
    return Refusal(
        LinkRefused(_shortened(text, link_refusal_bytes_max)),
        tuple(LinkMismatch(one.check, _shortened(one.text, link_text_bytes_max)) for one in found),
    )


def _without_earlier_starts(side: LinkSide, other: LinkSide) -> LinkSide:
    """Return a side without lost connections of earlier runs of the other server, which it still has."""
    earlier = {*decode_starts(other.starts).starts[:-1].tolist()}
    left = tuple(one for one in side.sources if one.log != other.log or one.start not in earlier)
    return side if len(left) == len(side.sources) else msgspec.structs.replace(side, sources=left)


def _shortened(text: str, bytes_max: int) -> str:
    data = text.encode()
    return text if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "..."


# -- rules and topics -----------------------------------------------------------------------------------


def _link_rules(rules: Iterable[ReplicationRule]) -> tuple[LinkRule, ...]:
    return tuple(LinkRule(topic=rule.topic, filter=rule.filter, sync=rule.sync) for rule in rules)


def _rules(rules: Iterable[LinkRule]) -> tuple[ReplicationRule, ...]:
    return tuple(ReplicationRule(topic=rule.topic, filter=rule.filter, sync=rule.sync) for rule in rules)


def _incoming(source: LinkedSource) -> IncomingLink:
    return IncomingLink(
        instance=source.instance,
        log=source.log,
        start=source.start,
        rules=_rules(source.rules),
        origins=tuple(
            OriginFacts(
                instance=one.instance, group=one.group, log=one.log, digests=one.digests, path=one.path
            )
            for one in source.origins
        ),
    )


def _link_topics(topics: TopicFacts) -> LinkTopics:
    return LinkTopics(
        recorded=topics.recorded,
        types=topics.message_types,
        validated=topics.validated,
        derived=topics.derived,
        sow=tuple(
            LinkSowTopic(
                name=one.name,
                key=one.key,
                key_domain=one.key_domain,
                missing_key=one.missing_key,
                pattern=one.pattern,
            )
            for one in topics.sow
        ),
    )


def _topics(topics: LinkTopics) -> TopicFacts:
    patterns: list[str] = []
    sow = []
    for one in topics.sow:
        # above the limit the validation refuses the server, and comparing all patterns would take seconds
        few = len(patterns) < sow_patterns_max
        earlier = _overlapping(patterns, one.pattern) if few and one.pattern is not None else ()
        sow.append(
            SowFacts(
                name=one.name,
                key=one.key,
                key_domain=one.key_domain,
                missing_key=_missing_key(one.missing_key),
                pattern=one.pattern,
                earlier_patterns=earlier,
            )
        )
        if one.pattern is not None:
            patterns.append(one.pattern)
    return TopicFacts(
        recorded=topics.recorded,
        message_types=topics.types,
        validated=topics.validated,
        sow=tuple(sow),
        derived=topics.derived,
    )


def _overlapping(patterns: Iterable[str], pattern: str) -> tuple[str, ...]:
    return tuple(one for one in patterns if may_overlap(one, pattern))


def _missing_key(text: str) -> MissingKey:
    for known in MISSING_KEYS:
        if known == text:
            return known
    raise BadLink(f"Invalid link frame: unknown value {text!r} of missing_key. Update the older server.")
