"""Replication of engines in tests."""

from __future__ import annotations

from collections.abc import Mapping

from tickertape.base.errors import AuthenticationFailed
from tickertape.base.interfaces import Now
from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.link_facts import OutgoingLink, TopicFacts
from tickertape.engine.replication.links.replication import NO_DOWNGRADES, Replication
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.journal.journal import Journal


class LinkToken:
    """Policy that admits links with one token. None admits all."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def admit_link(self, instance: str, token: str | None, now: Now) -> None:
        """Raise an error for another token."""
        if self._token is not None and token != self._token:
            raise AuthenticationFailed(
                f"Cannot open a link from {instance!r}: unknown token. Use another one."
            )


def make_replication(
    journal: Journal,
    *destinations: OutgoingLink,
    facts: LogFacts | None = None,
    start: int = 7,
    token: str | None = None,
    topics: TopicFacts | None = None,
    acknowledge: int | None = None,
    downgrades: Mapping[str, DowngradePolicy] = NO_DOWNGRADES,
) -> Replication:
    """Return the replication of an engine with these destinations."""
    return Replication(
        facts or LogFacts(journal.journal_id),
        start,
        "group",
        destinations,
        topics or TopicFacts(),
        LinkToken(token),
        acknowledge,
        downgrades,
    )
