"""Link validation: refuses a link between servers that do not fit, with all mismatches at once.

Both servers, and an offline check of their configurations, call `mismatches` with equal facts and so report
equal texts.

Invariant: only the source excludes checks, and only those in `EXCLUDABLE`. Without the others a link could
lose messages.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.text_format import shown
from tickertape.engine.limits import link_mismatches_max
from tickertape.engine.replication import server_checks, topic_checks
from tickertape.engine.replication.link_facts import LinkFacts
from tickertape.engine.replication.link_pair import LinkPair, Mismatch

EXCLUDABLE: Final = ("message_type", "replicate", "sow", "sync_type", "txlog")
"""Checks that a destination may exclude."""
MANDATORY: Final = (
    "derived_topic", "instance_name", "instance_twice", "link_version", "log_twice", "one_stream",
    "publisher_collision", "routes", "sync_pass_through",
)  # fmt: skip
"""Checks that always apply."""
_CHECKS: Final = (
    server_checks.instance_name,
    server_checks.link_version,
    server_checks.log_twice,
    server_checks.instance_twice,
    server_checks.one_stream,
    server_checks.routes,
    server_checks.sync_pass_through,
    topic_checks.derived_topic,
    topic_checks.txlog,
    topic_checks.replicate,
    topic_checks.sync_type,
    topic_checks.message_type,
    topic_checks.sow,
)


def mismatches(source: LinkFacts, destination: LinkFacts) -> list[Mismatch]:
    """Return all reasons to refuse the link from `source` to `destination`.

    Links in `incoming` are alive: a caller first ends a lost connection of the same source. Raises `BadTopic`
    or `BadOption` for invalid patterns and too many rules, and `ValueError` for a source without a link."""
    if source.link is None:
        raise ValueError("the source has no link")
    pair = LinkPair(source, destination, source.link)
    excluded = source.link.excluded
    found = [
        one for check in _CHECKS for one in check(pair) if not (one.excludable and one.check in excluded)
    ]
    more = found[link_mismatches_max:]
    if not more:
        return found
    further = pair.mandatory(more[0].check, f"{len(more):,} more mismatches", "Correct the others first")
    return [*found[:link_mismatches_max], further]


def publisher_collision(
    source: LinkFacts, destination: LinkFacts, publisher: int, names: tuple[str, str]
) -> Mismatch | None:
    """Return the mismatch of a publisher id, or None. `names`: client names at source and destination."""
    if names[0] == names[1]:
        return None
    here, there = shown(source.instance), shown(destination.instance)
    return Mismatch(
        "publisher_collision",
        f"Cannot replicate from {here} to {there}: publisher {publisher} is client {shown(names[0])} at "
        f"{here} and {shown(names[1])} at {there}. Rename one of the clients.",
    )
