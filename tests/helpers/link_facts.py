"""Facts of two servers that replicate to each other, for tests of the validation.

Must never make facts that do not fit unless a test changes them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tickertape.engine.replication.link_facts import IncomingLink, LinkFacts, OriginFacts, OutgoingLink
from tickertape.engine.replication.routes import ReplicationRule, RuleSet


def rule(topic: str, filter: str | None = None, *, sync: bool = True) -> ReplicationRule:
    """Return a rule."""
    return ReplicationRule(topic=topic, filter=filter, sync=sync)


def facts(name: str, other: str, *rules: ReplicationRule, **fields: Any) -> LinkFacts:
    """Return the facts of server `name`, whose link to `other` has these rules. `fields` replaces fields, of
    the link also."""
    link = OutgoingLink(destination=other, rules=rules or (rule("orders"),))
    of_link = {key: fields.pop(key) for key in ("destination", "pass_through", "excluded") if key in fields}
    made = LinkFacts(
        instance=name,
        group=name,
        log=name.encode() * 16,
        start=sum(name.encode()),
        versions=(1,),
        link=msgspec.structs.replace(link, **of_link),
    )
    return msgspec.structs.replace(made, **fields)


def incoming(name: str, *origins: OriginFacts, rules: tuple[ReplicationRule, ...] = ()) -> IncomingLink:
    """Return a link from server `name` that brings its messages and those of `origins`."""
    rules = rules or (rule("orders"),)
    own = origin(name, rules)
    return IncomingLink(
        instance=name, log=name.encode() * 16, start=sum(name.encode()), rules=rules, origins=(own, *origins)
    )


def origin(name: str, *paths: tuple[ReplicationRule, ...]) -> OriginFacts:
    """Return a server whose messages pass the rules of each of `paths`."""
    digests = frozenset[bytes]().union(*(RuleSet(rules).digests() for rules in paths))
    return OriginFacts(instance=name, group=name, log=name.encode() * 16, digests=tuple(sorted(digests)))
