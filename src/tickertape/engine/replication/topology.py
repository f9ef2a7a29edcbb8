"""Replication topology: all links between configured servers, checked without a connection.

The facts of each server follow from all configurations: a server receives the origins of its incoming links,
and of the links behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tickertape.engine.replication.link_facts import (
    IncomingLink,
    LinkFacts,
    OriginFacts,
    OutgoingLink,
    TopicFacts,
)
from tickertape.engine.replication.link_pair import Mismatch
from tickertape.engine.replication.server_checks import origins_of_link, shortest_paths
from tickertape.engine.replication.validation import mismatches


class ReplicationServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of the topology, from its configuration."""

    instance: str
    group: str
    topics: TopicFacts = TopicFacts()
    links: tuple[OutgoingLink, ...] = ()
    """Links to other servers, each to another one."""


def topology_mismatches(servers: Iterable[ReplicationServer]) -> list[Mismatch]:
    """Return all reasons to refuse links between these servers, which have different names.

    Links to other servers are not checked. Raises `BadTopic` or `BadOption` for an invalid pattern."""
    return [one for source, destination in link_facts(servers) for one in mismatches(source, destination)]


def link_facts(servers: Iterable[ReplicationServer]) -> Iterator[tuple[LinkFacts, LinkFacts]]:
    """Yield the facts of source and destination for each link between these servers."""
    known = {server.instance: server for server in servers}
    incoming = _incoming(known)
    for source in known.values():
        for link in source.links:
            destination = known.get(link.destination)
            if destination is not None:
                back = next((one for one in destination.links if one.destination == source.instance), None)
                others = [one for one in incoming[destination.instance] if one.instance != source.instance]
                yield (
                    _facts(source, link, incoming[source.instance]),
                    _facts(destination, back, others),
                )


def _incoming(servers: Mapping[str, ReplicationServer]) -> dict[str, list[IncomingLink]]:
    """Return the links to each server, with all origins that they bring."""
    links = [
        (source, link) for source in servers.values() for link in source.links if link.destination in servers
    ]
    origins: dict[tuple[str, str], list[OriginFacts]] = {}
    while True:
        incoming: dict[str, list[IncomingLink]] = {name: [] for name in servers}
        for source, link in links:
            brought = tuple(origins.get((source.instance, link.destination), ()))
            incoming[link.destination].append(
                IncomingLink(instance=source.instance, rules=link.rules, origins=brought)
            )
        found = {
            (source.instance, link.destination): shortest_paths(
                origins_of_link(_facts(source, link, incoming[source.instance]), link)
            )
            for source, link in links
        }
        if found == origins:
            return incoming
        origins = found


def _facts(
    server: ReplicationServer, link: OutgoingLink | None, incoming: Iterable[IncomingLink]
) -> LinkFacts:
    return LinkFacts(
        instance=server.instance,
        group=server.group,
        topics=server.topics,
        link=link,
        incoming=tuple(incoming),
    )
