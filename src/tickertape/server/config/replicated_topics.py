"""Replicated topics: the tables `[[replication.destination.topic]]`, the rules of one destination.

Invariant: a rule that an earlier one makes useless is rejected, and a topic that the log does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tickertape.base.names import is_pattern
from tickertape.base.text_format import shown
from tickertape.engine.limits import replication_patterns_max, replication_rules_max
from tickertape.engine.replication.routes import SERVER_TOPICS, ReplicationRule, RuleSet
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.filter import TopicSet, compile_topic_pattern
from tickertape.filter.pattern_overlap import covers, may_overlap
from tickertape.server.config.document import Section, flag_of, topic_of
from tickertape.server.config.queues import message_filter, topic_set_of, types_of
from tickertape.server.config.topics import pattern_of


@dataclass(frozen=True, slots=True)
class ReplicatingServer:
    """Other parts of the configuration that replication refers to."""

    name: str
    """Name of the instance."""
    is_named: bool
    """Whether the configuration has the name, so that it is not the default."""
    recorded: Sequence[str] | None
    """Names and patterns of persistent topics. None: all topics."""
    types: Mapping[str, str]
    """Configured message types by topic."""
    queues: Sequence[QueueDefinition] = ()
    local_queues: frozenset[str] = frozenset()
    """Names of the queues with `replication = "local"`."""
    waits: bool = True
    """Whether the server supports keys of waits."""


def read_rules(sections: Sequence[Section], server: ReplicatingServer) -> tuple[ReplicationRule, ...]:
    """Read the rules of a destination. Invalid ones are left out."""
    recorded = topic_set_of(server.recorded)
    read: list[tuple[Section, ReplicationRule]] = []
    patterns = 0
    for number, section in enumerate(sections):
        if number == replication_rules_max:
            section.problem("", f"too many topics (limit {replication_rules_max:,}). Use patterns.")
            break
        rule = _rule(section, recorded, server)
        patterns += rule.has_pattern
        if patterns > replication_patterns_max:
            section.problem("pattern", f"too many patterns (limit {replication_patterns_max}). Merge some.")
            break
        if rule.topic:
            read.append((section, rule))
    rules = RuleSet(rule for _, rule in read)
    for section, rule in read:
        _check_useless(section, rules, rule)
        _check_queues(section, rule, server)
    return rules.rules


def _rule(section: Section, recorded: TopicSet | None, server: ReplicatingServer) -> ReplicationRule:
    if section.has("pattern"):
        key = "pattern"
        topic = section.value("pattern", pattern_of, "")
        if section.has("name"):
            section.problem("pattern", "excludes name. Remove one of the two keys.")
        section.value("name", topic_of, "")
        _check_pattern_recorded(section, topic, server.recorded, recorded)
    else:
        key = "name"
        topic = section.required("name", partial(topic_of, remedy="Write pattern = ... for a pattern."), "")
        section.value("pattern", pattern_of, "")  # absent, but listed among the allowed keys
        if topic and recorded is not None and topic not in recorded:
            section.problem(
                "name", f"topic {shown(topic)} is not persistent. Add a [[journal.topic]] for it."
            )
        if topic.startswith(SERVER_TOPICS):
            section.problem(
                "name", f"{shown(topic)} has messages of this server, which are not replicated. Remove it."
            )
        _check_queue_name(section, topic, server.queues)
    types = types_of(topic, topic_set_of([topic]) if key == "pattern" else None, server.types)
    text = section.value("filter", message_filter(types), None)
    sync = section.required("sync", flag_of, False)
    section.finish()
    return ReplicationRule(topic=topic, filter=text, sync=sync)


def _check_pattern_recorded(
    section: Section, pattern: str, names: Sequence[str] | None, recorded: TopicSet | None
) -> None:
    if not pattern or names is None or recorded is None:
        return
    compiled = compile_topic_pattern(pattern)
    if not any(may_overlap(name, pattern) if is_pattern(name) else compiled.search(name) for name in names):
        section.problem(
            "pattern", "matches no persistent topic. Add a [[journal.topic]], or remove the rule."
        )


def _check_queue_name(section: Section, topic: str, queues: Sequence[QueueDefinition]) -> None:
    for queue in queues:
        if queue.name == topic and topic not in (queue.topic, queue.default_publish_target):
            section.problem(
                "name",
                f"{shown(topic)} is a queue over {shown(queue.topic)}, not a topic. Use the topic that its "
                "messages are published to.",
            )


def _check_useless(section: Section, rules: RuleSet, rule: ReplicationRule) -> None:
    """Report a rule whose topics an earlier rule has."""
    key, shadow = "name", rules.rule_of(rule.topic)
    if rule.has_pattern:
        key, shadow = "pattern", next(one for one in rules.patterns if covers(one.topic, rule.topic))
    if shadow is None or shadow is rule:
        return
    if shadow.topic == rule.topic:
        section.problem(key, f"duplicate {key} {shown(rule.topic)}. Remove one of them.")
    elif shadow.sync != rule.sync:
        had = "true" if shadow.sync else "false"
        section.problem(
            key,
            f"{shown(shadow.topic)} already matches {shown(rule.topic)} with sync = {had}. Move this rule "
            "before that one.",
        )
    else:
        section.problem(
            key,
            f"{shown(rule.topic)} has no effect, because {shown(shadow.topic)} matches it first. Remove this "
            "rule, or move it before that one.",
        )


def _check_queues(section: Section, rule: ReplicationRule, server: ReplicatingServer) -> None:
    """Report queues over the topics of a rule that are not local."""
    for queue in server.queues:
        if queue.name not in server.local_queues and _may_share(queue.topic, rule.topic):
            section.problem(
                "pattern" if rule.has_pattern else "name",
                f'{shown(rule.topic)} has messages of queue {shown(queue.name)}. Set replication = "local" '
                "in its [[queue]]: then each server delivers its own copy of each message.",
            )


def _may_share(one: str, other: str) -> bool:
    """Return whether two names or patterns may have a topic in common."""
    if is_pattern(one) and is_pattern(other):
        return may_overlap(one, other)
    if is_pattern(one) or is_pattern(other):
        pattern, name = (one, other) if is_pattern(one) else (other, one)
        return compile_topic_pattern(pattern).search(name)
    return one == other
