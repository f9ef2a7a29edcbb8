"""SOW configuration: the tables `[[sow]]`, their defaults, limits and contradictions.

Invariants:
- An option without effect is rejected.
- A name belongs to one SOW topic, and no pattern of another one matches it.
- If two patterns match a topic, it belongs to the SOW topic that is first in the file. Whether two patterns
  can match one topic is not decided here: a cautious rule would also reject pairs without a common topic,
  such as `^[a-z]+/orders$` and `^[a-z]+/fills$`. Earlier patterns that may match are part of the
  fingerprint, because they decide which records exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

from tickertape.base.errors import BadOption, BadPath, BadTopic, ConfigurationError
from tickertape.base.limits import topic_bytes_max
from tickertape.base.names import is_pattern
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.limits import (
    sow_checkpoint_seconds_default,
    sow_checkpoint_seconds_max,
    sow_checkpoint_seconds_min,
    sow_expiration_seconds_max,
    sow_index_fields_max,
    sow_indexes_max,
    sow_key_fields_max,
    sow_patterns_max,
    sow_topics_max,
)
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import (
    ENABLED,
    MISSING_KEYS,
    Enabled,
    SowDefinition,
)
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE
from tickertape.filter import Pattern, TopicSet, compile_topic_pattern
from tickertape.filter.pattern_overlap import may_overlap
from tickertape.payload import message_type, parse_path
from tickertape.server.config.document import (
    UNUSABLE,
    Section,
    choice_of,
    kind_of,
    seconds_of,
    text_of,
    topic_of,
)
from tickertape.server.config.topics import pattern_of

_CONTROL: Final = frozenset(map(chr, (*range(32), 127)))
_OF_GENERATED_KEYS: Final = ("key_domain", "missing_key")
_PERSISTENT: Final = "persistent"
_NOT_TRANSIENT: Final = "SOW topics that are not persistent are not supported."


@dataclass(frozen=True, slots=True)
class _ConfiguredTopics:
    """Topics of other tables."""

    all_recorded: bool
    recorded: TopicSet | None
    """Persistent topics. None: all topics, or unknown because of a reported problem."""
    recorded_names: frozenset[str] | None
    """Names of the persistent topics. None: all topics, or topics of patterns too."""
    types: Mapping[str, str]

    def is_recorded(self, topic: str) -> bool | None:
        """Return whether a topic is persistent. None: unknown."""
        if self.recorded is None:
            return True if self.all_recorded else None
        return topic in self.recorded


@dataclass(frozen=True, slots=True)
class _ReadTopic:
    """A SOW topic with its table."""

    section: Section
    definition: SowDefinition
    pattern: Pattern | None

    @property
    def text(self) -> str:
        """The text of the pattern, or an empty text."""
        return self.definition.pattern or ""

    def covers(self, topic: str) -> bool:
        """Return whether a persistent topic is the name or matches the pattern."""
        return topic == self.definition.name or (self.pattern is not None and self.pattern.search(topic))

    def key_of(self, topic: str) -> str:
        """Return the key of the table that covers a topic."""
        return "name" if topic == self.definition.name else "pattern"


def read_sow(
    sections: Sequence[Section],
    recorded: Sequence[str] | None,
    types: Mapping[str, str],
    queues: Sequence[QueueDefinition],
) -> list[SowDefinition]:
    """Read the SOW topics.

    `recorded`: names and patterns of persistent topics (None: all topics). `types`: configured message types
    by topic."""
    configured = _configured(recorded, types)
    read: dict[str, _ReadTopic] = {}
    for number, section in enumerate(sections):
        if number == sow_topics_max:
            section.problem("", f"too many SOW topics (limit {sow_topics_max:,}). Remove some.")
            break
        one = _sow_topic(section, configured)
        name = one.definition.name
        if name in read:
            section.problem("name", f"duplicate name {shown(name)}. Rename or remove one of them.")
        elif name:
            read[name] = one
    patterned = [one for one in read.values() if one.pattern is not None]
    if len(patterned) > sow_patterns_max:
        text = f"too many patterns (limit {sow_patterns_max}). Merge some."
        patterned[sow_patterns_max].section.problem("pattern", text)
        return []
    _check_names(read.values(), patterned)
    _check_queues(read, patterned, queues)
    return [_completed(one, patterned, configured) for one in read.values()]


def _configured(recorded: Sequence[str] | None, types: Mapping[str, str]) -> _ConfiguredTopics:
    if recorded is None:
        return _ConfiguredTopics(True, None, None, types)
    if "" in recorded:  # marks an invalid value
        return _ConfiguredTopics(False, None, None, types)
    try:
        topics = TopicSet(recorded)
    except BadTopic:
        return _ConfiguredTopics(False, None, None, types)
    literal = not any(is_pattern(name) for name in recorded)
    return _ConfiguredTopics(False, topics, topics.literals if literal else None, types)


def _sow_topic(section: Section, configured: _ConfiguredTopics) -> _ReadTopic:
    name = section.required("name", topic_of, "")
    pattern = section.value("pattern", pattern_of, None)
    section.value("durability", _durability, None)
    definition = SowDefinition(
        name=name,
        pattern=pattern,
        key=section.value("key", _key, ()),
        key_domain=section.value("key_domain", _domain, ""),
        missing_key=section.value("missing_key", choice_of(MISSING_KEYS), MISSING_KEYS[0]),
        index=section.value("index", _index, ()),
        expiration=section.value("expiration", _expiration, None),
        checkpoint_interval=section.value(
            "checkpoint_interval", _checkpoint_interval, sow_checkpoint_seconds_default
        ),
    )
    section.finish()
    if not section.has("key"):
        for key in _OF_GENERATED_KEYS:
            if section.has(key):
                section.problem(key, "has no effect without key. Remove it, or add key.")
    one = _ReadTopic(section, definition, None if pattern is None else compile_topic_pattern(pattern))
    if name:
        _check_persistent(one, configured)
    return one


def _completed(
    one: _ReadTopic, patterned: Sequence[_ReadTopic], configured: _ConfiguredTopics
) -> SowDefinition:
    """Return the definition with the message types of its topics, and the earlier patterns."""
    definition = one.definition
    earlier = [*takewhile(lambda other: other is not one, patterned)] if one.pattern is not None else []
    types = _covered_types(one, earlier, configured)
    _check_fields(one, "key", [definition.key], types)
    _check_fields(one, "index", definition.index, types)
    return replace(
        definition,
        message_types=tuple(sorted(item for item in types.items() if item[1] != DEFAULT_TYPE)),
        earlier_patterns=tuple(other.text for other in earlier if may_overlap(other.text, one.text)),
    )


# -- contradictions -----------------------------------------------------------------------------------


def _check_persistent(one: _ReadTopic, configured: _ConfiguredTopics) -> None:
    """Report topics that are not persistent, because records are restored from the log."""
    section, name, names = one.section, one.definition.name, configured.recorded_names
    if configured.is_recorded(name) is False:
        section.problem(
            "name",
            f"topic {shown(name)} is not persistent. {_NOT_TRANSIENT} Add a [[journal.topic]] for it.",
        )
    if one.pattern is not None and names is not None and not any(map(one.pattern.search, names - {name})):
        section.problem(
            "pattern", "matches no persistent topic but the name. Add a [[journal.topic]], or remove the key."
        )


def _covered_types(
    one: _ReadTopic, earlier: Sequence[_ReadTopic], configured: _ConfiguredTopics
) -> dict[str, str]:
    """Return the message types of the known topics of a SOW topic: the name, and topics of the pattern."""
    name = one.definition.name
    types = {name: configured.types.get(name, DEFAULT_TYPE)}
    if one.pattern is None:
        return types
    types.update(
        (topic, kind)
        for topic, kind in configured.types.items()
        if topic
        and configured.is_recorded(topic) is not False
        and one.covers(topic)
        and not any(other.covers(topic) for other in earlier)
    )
    return types


def _check_fields(
    one: _ReadTopic, key: str, groups: Iterable[tuple[str, ...]], types: Mapping[str, str]
) -> None:
    """Report fields that messages of a topic cannot have."""
    examples = {kind: topic for topic, kind in types.items()}
    for fields in groups:
        paths = [parse_path(field) for field in fields]
        for kind, topic in examples.items():
            try:
                message_type(kind).reader(paths)
            except BadPath as error:
                text = str(error)
                one.section.problem(
                    key, f"not possible for topic {shown(topic)}: {text[:1].lower()}{text[1:]}"
                )
                return


def _check_names(read: Iterable[_ReadTopic], patterned: Sequence[_ReadTopic]) -> None:
    """Report names that the pattern of another SOW topic matches: such a topic would have two records."""
    for one in read:
        name = one.definition.name
        other = next((p for p in patterned if p is not one and p.covers(name)), None)
        if other is not None:
            one.section.problem(
                "name",
                f"{shown(name)} belongs to the SOW topic {shown(other.definition.name)}, too, because its "
                "pattern matches. Change the pattern, or remove one of the two tables.",
            )


def _check_queues(
    read: Mapping[str, _ReadTopic], patterned: Sequence[_ReadTopic], queues: Sequence[QueueDefinition]
) -> None:
    """Report names of queues and dead-letter topics that belong to a SOW topic.

    A command for such a name could mean the queue or the records. A dead letter must never be refused, but
    a message without a key is."""
    for queue in queues:
        own = queue.name in (queue.underlying, queue.default_publish_target)
        one = _owner(queue.name, read, patterned if own else ())
        if one is not None:
            one.section.problem(
                one.key_of(queue.name),
                f"{shown(queue.name)} is the name of a queue. Rename the queue, because a queue over a SOW "
                "topic needs a name of its own.",
            )
        one = None if queue.dead_letter is None else _owner(queue.dead_letter, read, patterned)
        if one is not None and queue.dead_letter is not None:
            one.section.problem(
                one.key_of(queue.dead_letter),
                f"{shown(queue.dead_letter)} is the dead-letter topic of queue {shown(queue.name)}. Use "
                "another dead_letter, because a SOW topic refuses messages without a key.",
            )


def _owner(topic: str, read: Mapping[str, _ReadTopic], patterned: Iterable[_ReadTopic]) -> _ReadTopic | None:
    """Return the SOW topic of a persistent topic, or None."""
    return read.get(topic) or next((one for one in patterned if one.covers(topic)), None)


# -- values -------------------------------------------------------------------------------------------


def _durability(value: Any) -> None:
    """Accept the only supported durability."""
    if value == "transient":
        raise ConfigurationError(f'cannot be "transient". {_NOT_TRANSIENT} Remove the key.')
    if value != _PERSISTENT:
        near = did_you_mean(value, (_PERSISTENT,)) if isinstance(value, str) else ""
        raise ConfigurationError(f'must be "{_PERSISTENT}", not {kind_of(value)}{near and "."}{near}')


def _key(value: Any) -> tuple[str, ...]:
    return _paths(value, "key", sow_key_fields_max, "Remove the key for explicit keys of publishers.")


def _index(value: Any) -> tuple[tuple[str, ...], ...]:
    form = 'must be a list of lists of field paths such as [["/symbol"]]'
    if not isinstance(value, list):
        raise ConfigurationError(f"{form}, not {kind_of(value)}")
    if len(value) > sow_indexes_max:
        raise ConfigurationError(f"must have at most {sow_indexes_max} indexes, not {len(value):,}")
    found: list[tuple[str, ...]] = []
    for member in value:
        if member.value is UNUSABLE:
            continue
        if not isinstance(member.value, list):
            raise ConfigurationError(f"{form}, not {kind_of(member.value)} in the list")
        fields = _paths(member.value, "index", sow_index_fields_max, "Remove the empty list.")
        if fields and any(set(fields) == set(other) for other in found):
            raise ConfigurationError(f"has two indexes of {shown(', '.join(fields))}. Remove one of them.")
        found.append(fields)
    return tuple(found)


def _paths(value: Any, noun: str, most: int, empty: str) -> tuple[str, ...]:
    """Return a list of field paths in their canonical form."""
    if not isinstance(value, list):
        raise ConfigurationError(f'must be a list of field paths such as ["/id"], not {kind_of(value)}')
    if not value:
        raise ConfigurationError(f"must have at least one field. {empty}")
    if len(value) > most:
        raise ConfigurationError(f"must have at most {most} fields in one {noun}, not {len(value):,}")
    paths = [str(parse_path(text_of(member.value))) for member in value if member.value is not UNUSABLE]
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise ConfigurationError(f"has the field {shown(path)} twice. Remove one of them.")
    return tuple(paths)


def _domain(value: Any) -> str:
    domain = text_of(value)
    if not 0 < len(domain.encode()) <= topic_bytes_max or not _CONTROL.isdisjoint(domain):
        raise ConfigurationError(
            f"must be 1 to {topic_bytes_max:,} bytes without control characters, not {shown(domain)}"
        )
    return domain


def _expiration(value: Any) -> int | Enabled:
    """Return the milliseconds of a default life, or `ENABLED`."""
    if value == ENABLED:
        return ENABLED
    try:
        life = seconds_of(value) * 1000
    except BadOption as error:
        near = did_you_mean(value, (ENABLED,)) if isinstance(value, str) else ""
        raise ConfigurationError(f"{error}{near}") from None
    most = sow_expiration_seconds_max
    if not 1 <= life <= most * 1000:
        raise ConfigurationError(
            f'must be 1 ms to {most / 86_400:,.0f} days, or "{ENABLED}", not {kind_of(value)}. Remove the '
            "key to keep records for ever."
        )
    return round(life)


def _checkpoint_interval(value: Any) -> float:
    seconds = seconds_of(value)
    least, most = sow_checkpoint_seconds_min, sow_checkpoint_seconds_max
    if not least <= seconds <= most:
        raise ConfigurationError(f"must be {least:g} s to {most / 3600:g} h, not {kind_of(value)}")
    return seconds
