"""Topic checks: whether both servers of a link treat the replicated topics alike.

A pattern may match topics that no configuration names. A check that is not decidable for them counts as
failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tickertape.base.text_format import shown
from tickertape.engine.replication.link_facts import SowFacts
from tickertape.engine.replication.link_pair import LinkPair, Mismatch
from tickertape.engine.replication.routes import SERVER_TOPICS, ReplicationRule
from tickertape.filter.pattern_overlap import covers, may_overlap

_TopicCheck = Callable[[str, ReplicationRule], str]
"""Returns the cause of a mismatch of a topic and its rule, or an empty text."""
_PatternCheck = Callable[[str, ReplicationRule], str]
"""The same for all topics that match a pattern of persistent topics and the pattern of the rule."""


def txlog(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that the topics are persistent at the destination."""

    def topic_cause(topic: str, _: ReplicationRule) -> str:
        return "" if pair.at_destination.has(topic) else f"{pair.there} does not record it"

    def pattern_cause(recorded: str, rule: ReplicationRule) -> str:
        there = pair.at_destination.patterns
        if there is None or any(covers(wide, one) for wide in there for one in (recorded, rule.topic)):
            return ""
        return f"{pair.there} has no pattern for all of them in [[journal.topic]]"

    yield from _each_topic(
        pair, "txlog", topic_cause, pattern_cause, f"Add a [[journal.topic]] at {pair.there}"
    )


def replicate(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that the destination replicates the topics back."""
    back = pair.back
    if back is None:
        yield pair.excludable(
            "replicate",
            f"{pair.there} does not replicate back",
            f"Add a [[replication.destination]] for {pair.here} at {pair.there}",
        )
        return

    def topic_cause(topic: str, _: ReplicationRule) -> str:
        return "" if back.rule_of(topic) is not None else f"{pair.there} does not replicate it back"

    def pattern_cause(recorded: str, rule: ReplicationRule) -> str:
        covered = back.covers(recorded, rule.topic)
        return "" if covered else f"{pair.there} has no pattern that replicates all of them back"

    cure = f"Add a [[replication.destination.topic]] for {pair.here} at {pair.there}"
    yield from _each_topic(pair, "replicate", topic_cause, pattern_cause, cure)


def sync_type(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that a topic that is synchronous in this direction is so in the other one."""
    back = pair.back
    if back is None:
        return
    cause = f"sync is true at {pair.here} and false at {pair.there}"

    def topic_cause(topic: str, rule: ReplicationRule) -> str:
        answer = back.rule_of(topic)
        return cause if rule.sync and answer is not None and not answer.sync else ""

    def pattern_cause(recorded: str, rule: ReplicationRule) -> str:
        answers = back.overlapping(recorded, rule.topic) if rule.sync else iter(())
        # An earlier rule of this side may have the topics of an asynchronous answer.
        differ = (rule in pair.rules.overlapping(recorded, one.topic) for one in answers if not one.sync)
        return cause if any(differ) else ""

    yield from _each_topic(pair, "sync_type", topic_cause, pattern_cause, "Use one value in both directions")


def _each_topic(
    pair: LinkPair, check: str, topic_cause: _TopicCheck, pattern_cause: _PatternCheck, cure: str
) -> Iterator[Mismatch]:
    """Yield mismatches of patterns, and of known topics of all other rules."""
    failed = set()
    for rule, recorded in pair.patterns:
        cause = "" if rule.topic in failed else pattern_cause(recorded, rule)
        if cause:
            failed.add(rule.topic)
            yield pair.excludable_topic(check, rule.topic, cause, cure)
    for topic, rule in pair.topics.items():
        cause = "" if rule.topic in failed else topic_cause(topic, rule)
        if cause:
            yield pair.excludable_topic(check, topic, cause, cure)


def message_type(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that topics have equal message types and validation."""
    source, destination = pair.source.topics, pair.destination.topics
    for topic in pair.topics:
        here, there = source.message_type(topic), destination.message_type(topic)
        if here != there:
            cause = f"its message_type is {shown(here)} at {pair.here} and {shown(there)} at {pair.there}"
            yield pair.excludable_topic(
                "message_type", topic, cause, "Use one value in both [[topic]] tables"
            )
        elif source.validates(topic) != destination.validates(topic):
            only = pair.here if source.validates(topic) else pair.there
            cause = f"only {only} has validate = true"
            yield pair.excludable_topic(
                "message_type", topic, cause, "Use one value in both [[topic]] tables"
            )


def derived_topic(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that no topic is replicated that each server computes or publishes itself."""
    named = {rule.topic for rule in pair.link.rules if not rule.has_pattern}
    for topic in sorted({*named, *pair.topics}):
        views = [one.instance for one in (pair.source, pair.destination) if topic in one.topics.derived]
        if topic.startswith(SERVER_TOPICS):
            cause = "each server publishes its own messages to it"
        elif views:
            cause = f"a view computes it at {' and '.join(map(shown, views))}"
        else:
            continue
        cure = f"Change the rules for {pair.there} at {pair.here} so that none matches it"
        yield pair.mandatory_topic("derived_topic", topic, cause, cure)


# -- SOW topics ---------------------------------------------------------------------------------------


def sow(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that equal messages give equal records.

    The name of a SOW topic counts: deletes name it. Only a topic with records at one server is excludable."""
    here = {one.name: one for one in pair.source.topics.sow}
    there = {one.name: one for one in pair.destination.topics.sow}
    only_here = [one for one in here.values() if one.name not in there]
    only_there = [one for one in there.values() if one.name not in here]
    for name in sorted({*here, *there}):
        one, other = here.get(name), there.get(name)
        if not any(_replicates(pair, table) for table in (one, other) if table is not None):
            continue
        if one is None:
            yield _one_sided(pair, there[name], only_here, (pair.there, pair.here))
        elif other is None:
            yield _one_sided(pair, one, only_there, (pair.here, pair.there))
        elif differing := _differing(one, other):
            cause = f"{' and '.join(differing)} in [[sow]] differ"
            yield pair.mandatory_topic("sow", name, cause, "Use equal tables at both servers")


def _one_sided(
    pair: LinkPair, table: SowFacts, others: Iterable[SowFacts], servers: tuple[str, str]
) -> Mismatch:
    """Return the mismatch of a table that only the first of `servers` has. `others`: those of the second."""
    place, lacking = servers
    for other in others:
        if other.may_share(table):
            cause = f"its records belong to [[sow]] {shown(other.name)} at {lacking}"
            return pair.mandatory_topic("sow", table.name, cause, "Use equal tables at both servers")
    cause = f"it has a [[sow]] only at {place}"
    return pair.excludable_topic("sow", table.name, cause, f"Add the table at {lacking}")


def _differing(one: SowFacts, other: SowFacts) -> list[str]:
    """Return the parts of the configuration that decide about records and differ."""
    compared = {"key": "key", "pattern": "pattern", "earlier_patterns": "order of tables"}
    if one.key and other.key:  # without key fields they have no effect
        compared |= {"key_domain": "key_domain", "missing_key": "missing_key"}
    return [name for field, name in compared.items() if getattr(one, field) != getattr(other, field)]


def _replicates(pair: LinkPair, table: SowFacts) -> bool:
    """Return whether the link may replicate a topic of a SOW topic."""
    if table.name in pair.topics:
        return True
    pattern = table.pattern
    if pattern is None:
        return False
    return any(table.covers(topic) for topic in pair.topics) or any(
        may_overlap(rule.topic, pattern) and may_overlap(recorded, pattern)
        for rule, recorded in pair.patterns
    )
