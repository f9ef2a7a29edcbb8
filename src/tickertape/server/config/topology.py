"""Replication topology of several configurations: the mismatches of links between the servers.

Texts are those that the servers report for a refused link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tickertape.base.text_format import shown
from tickertape.engine.replication.link_facts import TopicFacts
from tickertape.engine.replication.topology import ReplicationServer, topology_mismatches
from tickertape.server.config.config import Config


def topology_problems(configs: Iterable[Config]) -> Iterator[str]:
    """Yield all reasons to refuse links between the servers of these configurations.

    Links to other servers are not checked."""
    servers: dict[str, ReplicationServer] = {}
    for config in configs:
        name = config.instance.name
        if name in servers:
            yield f"Two configurations have the instance name {shown(name)}. Give each server its own name."
        elif config.replication is None:
            yield f"The server {shown(name)} does not replicate. Add a table [replication]."
        replication = config.replication
        servers[name] = ReplicationServer(
            instance=name,
            group=config.instance.group or name,
            topics=TopicFacts.of(config.catalog()),
            links=() if replication is None else tuple(one.link() for one in replication.destinations),
        )
    yield from map(str, topology_mismatches(servers.values()))
