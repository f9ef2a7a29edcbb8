"""Replication: the facts and the configuration that make an engine replicate."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.engine.replication.link_facts import OutgoingLink, TopicFacts
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.sessions.registry import LinkPolicy


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
