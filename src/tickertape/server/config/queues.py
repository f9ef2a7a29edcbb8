"""Queue configuration: the tables `[[queue]]`, their defaults, limits and contradictions.

Invariant: an option without effect is rejected, and a queue that no message can enter or leave. The log is
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from tickertape.base.bookmarks import BOOKMARK_FORM, TIME_FORM, AtBookmarks, AtTime, Epoch, parse_bookmark
from tickertape.base.errors import BadBookmark, BadFilter, BadTopic, ConfigurationError
from tickertape.base.limits import lease_seconds_max, queue_backlog_max
from tickertape.base.names import is_pattern
from tickertape.base.text_format import shown
from tickertape.engine.runtime.queue_definition import (
    EXPIRATION_MODELS,
    FAIRNESS,
    LEASING,
    SEMANTICS,
    QueueDefinition,
)
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE
from tickertape.payload import MessageType, message_type
from tickertape.server.config.document import (
    Section,
    choice_of,
    count_of,
    flag_of,
    kind_of,
    seconds_of,
    text_of,
    topic_of,
)
from tickertape.server.limits import (
    lease_seconds_min,
    queue_count_max,
    queue_depth_max,
    queue_expiration_seconds_max,
    queues_max,
)

if TYPE_CHECKING:
    from tickertape.filter import TopicSet

QueueReplication = Literal["local"]

QUEUE_REPLICATION: Final[tuple[QueueReplication, ...]] = ("local",)
QUEUE_REPLICATION_LATER: Final = ("distributed", "group-local")
"""Values of planned features."""
NO_END: Final = "none"
"""Value of a lease that never expires."""
_OF_LEASES: Final = ("lease_period", "max_deliveries", "max_cancels")
_POINT_FORM: Final = f"epoch, now, {BOOKMARK_FORM} or {TIME_FORM}"
_OF_MESSAGES: Final = frozenset({"topics", "bookmarks", "correlation_ids", "sow_keys"})
"""Fields of a filter's context that do not depend on the subscriber or the time."""

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class _Known:
    """Other parts of the configuration that queues refer to."""

    recorded: TopicSet | None
    """Persistent topics. None: all topics, or unknown because of a reported problem."""
    types: Mapping[str, str]
    """Message types by topic."""
    local: set[str] | None
    """Gets the names of queues that each server has for itself. None: the server does not replicate."""


def read_queues(
    sections: Sequence[Section],
    recorded: Sequence[str] | None,
    types: Mapping[str, str],
    local: set[str] | None = None,
) -> list[QueueDefinition]:
    """Read the queues.

    `recorded`: names and patterns of persistent topics (None: all topics). `types`: configured message types
    by topic. `local`: gets the names of the queues with `replication = "local"`. None: the server does not
    replicate."""
    known = _Known(topic_set_of(recorded), types, local)
    queues: list[tuple[Section, QueueDefinition]] = []
    names: set[str] = set()
    for number, section in enumerate(sections):
        if number == queues_max:
            section.problem("", f"too many queues (limit {queues_max:,}). Remove some.")
            break
        queue = _queue(section, known)
        if queue.name in names:
            section.problem("name", f"duplicate name {shown(queue.name)}. Rename or remove one of them.")
        elif queue.name:
            names.add(queue.name)
            queues.append((section, queue))
    _check_detours(queues)
    _check_circles(queues)
    return [queue for _, queue in queues]


def topic_set_of(names: Iterable[str] | None) -> TopicSet | None:
    """Return the topics of names and patterns. None for all topics, or for an invalid value."""
    if names is None or "" in (names := list(names)):  # an empty name marks an invalid value
        return None
    from tickertape.filter import TopicSet  # late import: most configurations have no queue

    try:
        return TopicSet(names)
    except BadTopic:
        return None


def _queue(section: Section, known: _Known) -> QueueDefinition:
    name = section.required("name", topic_of, "")
    underlying = section.value("underlying", _underlying, name)
    covered = topic_set_of([underlying])
    _check_recorded(section, "underlying" if section.has("underlying") else "name", underlying, known)
    literal = bool(underlying) and not is_pattern(underlying)
    target = section.value("default_publish_target", topic_of, None)
    if target is None:
        target = underlying if literal and underlying != name else None
    elif _check_recorded(section, "default_publish_target", target, known) and covered is not None:
        _check_target(section, target, underlying, covered)
    dead_letter = section.value("dead_letter", topic_of, None)
    _check_recorded(section, "dead_letter", dead_letter, known)
    if dead_letter is not None and covered is not None and dead_letter in covered:
        section.problem(
            "dead_letter",
            f"{shown(dead_letter)} is a topic of the queue itself, so dead letters would enter it again. "
            "Use a topic outside of the queue.",
        )
    types = types_of(underlying, covered, known.types)
    semantics = section.value("semantics", choice_of(SEMANTICS), SEMANTICS[0])
    fairness = section.value("fairness_model", choice_of(FAIRNESS), None)
    if semantics == "at-most-once":
        _check_at_most_once(section, fairness)
    queue = QueueDefinition(
        name=name,
        underlying=underlying,
        default_publish_target=target,
        filter=section.value("filter", message_filter(types), None),
        semantics=semantics,
        lease_period=section.value("lease_period", _lease, None),
        fairness=fairness,
        max_backlog=section.value("max_backlog", _backlog, None),
        max_per_subscription_backlog=section.value("max_per_subscription_backlog", _backlog, None),
        max_deliveries=section.value("max_deliveries", lambda v: count_of(v, 1, queue_count_max), None),
        max_cancels=section.value("max_cancels", lambda v: count_of(v, 0, queue_count_max), None),
        expiration=section.value("expiration", _expiration, None),
        expiration_model=section.value(
            "expiration_model", choice_of(EXPIRATION_MODELS), QueueDefinition("").expiration_model
        ),
        priority=section.value("priority", _priority(types), None),
        barrier_expression=section.value("barrier_expression", message_filter(types), None),
        leasing=section.value("leasing", choice_of(LEASING), QueueDefinition("").leasing),
        recovery_point=section.value("recovery_point", _point, QueueDefinition("").recovery_point),
        file_backed_metadata=section.value("file_backed_metadata", flag_of, False),
        target_queue_depth=section.value(
            "target_queue_depth", lambda v: count_of(v, 1, queue_depth_max), None
        ),
        dead_letter=dead_letter,
    )
    if section.value("replication", _replication, None) is not None and known.local is not None:
        known.local.add(name)
    section.finish()
    if known.local is None and section.has("replication"):
        section.problem("replication", "has no effect without a table [replication]. Remove it.")
    return queue


# -- contradictions -----------------------------------------------------------------------------------


def _check_recorded(section: Section, key: str, topic: str | None, known: _Known) -> bool:
    """Return whether `topic` is persistent, and report it if not. A pattern may match future topics."""
    if not topic or is_pattern(topic) or known.recorded is None or topic in known.recorded:
        return True
    section.problem(key, f"topic {shown(topic)} is not persistent. Add a [[journal.topic]] for it.")
    return False


def _check_target(section: Section, target: str, underlying: str, covered: TopicSet) -> None:
    if target not in covered:
        section.problem(
            "default_publish_target",
            f"{shown(target)} is not a topic of the queue, so published messages would not enter the queue. "
            f"Use a topic of {shown(underlying)}.",
        )


def _check_at_most_once(section: Section, fairness: str | None) -> None:
    for key in _OF_LEASES:
        if section.has(key):
            section.problem(
                key, 'has no effect with semantics = "at-most-once", which has no leases. Remove it.'
            )
    if fairness not in (None, "round-robin"):
        section.problem(
            "fairness_model",
            f'must be "round-robin" with semantics = "at-most-once", not "{fairness}". Or remove it.',
        )


def _check_detours(queues: Iterable[tuple[Section, QueueDefinition]]) -> None:
    """Reject topics that are the name of a queue with other topics: such a topic gets no messages."""
    queues = list(queues)
    by_name = {queue.name: queue for _, queue in queues}
    for section, queue in queues:
        for key, topic in (
            ("underlying", queue.underlying),
            ("dead_letter", queue.dead_letter),
            ("default_publish_target", queue.default_publish_target),
        ):
            other = by_name.get(topic or "")
            if other is None or topic in (other.underlying, other.default_publish_target):
                continue
            if section.has(key):
                section.problem(
                    key,
                    f"{shown(other.name)} is a queue over {shown(other.underlying)}, not a topic. Use the "
                    "topic that its messages are published to.",
                )


def _check_circles(queues: Iterable[tuple[Section, QueueDefinition]]) -> None:
    """Reject cycles of dead-letter topics, in which a dead letter would circulate for ever."""
    queues = list(queues)
    for section, queue in queues:
        topic, passed = queue.dead_letter, {queue.name}
        while topic is not None:
            following = [
                other
                for _, other in queues
                if other.dead_letter is not None and other.name not in passed and _covers(other, topic)
            ]
            if queue.name in passed and len(passed) > 1 and _covers(queue, topic):
                section.problem(
                    "dead_letter",
                    f"dead letters of {shown(queue.name)} return to it through the dead-letter topics of "
                    "other queues. Remove dead_letter from one of these queues.",
                )
                break
            if not following:
                break
            passed.add(following[0].name)
            topic = following[0].dead_letter


def _covers(queue: QueueDefinition, topic: str) -> bool:
    covered = topic_set_of([queue.topic])
    return covered is not None and topic in covered


# -- values -------------------------------------------------------------------------------------------


def _underlying(value: Any) -> str:
    if not is_pattern(text_of(value)):
        return topic_of(value)
    from tickertape.filter import compile_topic_pattern

    return compile_topic_pattern(value).text


def _backlog(value: Any) -> int:
    return count_of(value, 1, queue_backlog_max)


def _lease(value: Any) -> float | None:
    if value == NO_END:
        return None
    seconds = seconds_of(value)
    if not lease_seconds_min <= seconds <= lease_seconds_max:
        least, most = f"{lease_seconds_min * 1000:g} ms", f"{lease_seconds_max / 86_400:g} days"
        raise ConfigurationError(f'must be {least} to {most}, or "{NO_END}", not {kind_of(value)}')
    return seconds


def _expiration(value: Any) -> float:
    seconds = seconds_of(value)
    if not 0 < seconds <= queue_expiration_seconds_max:
        most = f"{queue_expiration_seconds_max / 86_400:,.0f} days"
        raise ConfigurationError(
            f"must be above 0 and at most {most}, not {kind_of(value)}. Remove the key to keep messages for "
            "ever."
        )
    return seconds


def _replication(value: Any) -> QueueReplication:
    if value in QUEUE_REPLICATION_LATER:
        raise ConfigurationError(f'cannot be "{value}": not supported yet. Use "{QUEUE_REPLICATION[0]}".')
    return choice_of(QUEUE_REPLICATION)(value)


def _point(value: Any) -> str:
    """Return the canonical form of a recovery point, so that equal points compare equal."""
    text = text_of(value)
    if text.lower() in ("epoch", "now"):
        return text.lower()
    refused = ConfigurationError(f"must be {_POINT_FORM}, not {kind_of(value)}")
    if "," in text or text.lstrip()[:1] in ("[", "("):
        raise refused
    try:
        point = parse_bookmark(text, _POINT_FORM)
    except BadBookmark as error:
        raise ConfigurationError(str(error)) from None
    if isinstance(point, AtTime) or (isinstance(point, AtBookmarks) and not point.unknown):
        return str(point)
    if isinstance(point, AtBookmarks):
        raise refused
    return "epoch" if isinstance(point, Epoch) else "now"


# -- expressions --------------------------------------------------------------------------------------


def types_of(topics: str, covered: TopicSet | None, types: Mapping[str, str]) -> list[MessageType]:
    """Return the known message types of a topic or pattern, by the same rule as for a subscription.

    `covered`: the topics of a valid pattern."""
    if not is_pattern(topics):
        return [message_type(types.get(topics, DEFAULT_TYPE))]
    named = {kind for name, kind in types.items() if covered is not None and name in covered}
    return [message_type(kind) for kind in sorted({DEFAULT_TYPE} | named)]


def _for_one(types: Iterable[MessageType], make: Callable[[MessageType], _Made]) -> _Made:
    """Return the result of `make` for the first type that accepts it. Raises `BadFilter` if none does."""
    refusal: BadFilter | None = None
    for kind in types:
        try:
            return make(kind)
        except BadFilter as error:
            refusal = refusal or error
    assert refusal is not None, "at least one type"
    raise refusal


def message_filter(types: Sequence[MessageType]) -> Callable[[Any], str]:
    """Return a converter of filters for messages of these types, without subscriber and time."""

    def convert(value: Any) -> str:
        from tickertape.filter import compile_filter

        text = text_of(value)
        made = _for_one(types, lambda kind: compile_filter(text, kind))
        if not made.needs <= _OF_MESSAGES:
            raise ConfigurationError(
                "must not use the subscriber or the current time. Remove these functions from the filter."
            )
        return text

    return convert


def _priority(types: Sequence[MessageType]) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        from tickertape.filter import compile_value

        text = text_of(value)
        _for_one(types, lambda kind: compile_value(text, kind))
        return text

    return convert
