"""Query checks: validate queries of records, and create their selections.

A rejected query has no effect. A pattern treats queues as it treats SOW topics: no message type of one of
them, and no stopped queue, makes it fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import BadFilter, BadOption, BadTopic, NotBuilt
from tickertape.base.names import is_pattern
from tickertape.base.options import parse_options
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.query.order import SortOrder
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.registry import StateRegistry
from tickertape.engine.sow.selection import QueryGroup, QuerySelection, QueueGroup, SelectedKeys
from tickertape.engine.sow.topic import StateTopic
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS
from tickertape.wire.commands import Sow
from tickertape.wire.sow_command import SOW_TOPIC, check_keys

_FLAGS: Final = frozenset({"replace", "timestamp"})
_WHY_NOT: Final = {
    "fully_durable": "a result would wait for a destination that is not connected",
    "conflation": "a result has each record once",
    "replace": "it is for queries that continue as a subscription",
}


class QueryOptions(NamedTuple):
    """Validated options of a query."""

    select: str | None = None
    replace: bool = False


def query_options(text: str, *, follow: bool) -> QueryOptions:
    """Return the options of a query. Raises `BadOption`."""
    options = parse_options(text)
    for name, value in options.items():
        if (name not in _FLAGS and name != "select") or (name == "replace" and not follow):
            why = f": {_WHY_NOT[name]}" if name in _WHY_NOT else ""
            raise BadOption(f"Cannot use option {name} with a query of records{why}. Remove the option.")
        if name in _FLAGS and value is not None:
            raise BadOption(f"Option {name} takes no value, got {shown(value)}. Remove the value.")
        if name not in _FLAGS and value is None:
            raise BadOption(f"Option {name} requires a value. Use {name}=VALUE.")
    return QueryOptions(options.get("select"), "replace" in options)


class _Sources(NamedTuple):
    """SOW topics and queues of a query, in the order of the configuration."""

    topics: list[StateTopic]
    workers: list[QueueWorker]


def check_query(
    session: Session,
    command: Sow,
    options: QueryOptions,
    states: StateRegistry,
    queues: QueueRegistry,
    compiler: InterestCompiler,
) -> QuerySelection:
    """Return the selection of a query. Raises the error of an invalid one."""
    check_keys(command.keys, command.canonical)
    _check_form(command)
    sources = _sources(session, command, states, queues, compiler)
    topics, workers = sources
    _check_built(command)
    interest = _interest(session, command, options, sources, compiler)
    content = interest.content
    if command.follow and content is not None:
        _check_follow(content, topics)
    order = SortOrder.parse(command.order_by) if command.order_by else None
    if order is not None and (topics or workers):
        compiler.for_types(interest, order.check)
    of_queues: tuple[QueueGroup, ...] = ()
    if workers:
        named = not is_pattern(command.topic)
        of_queues = _queue_groups(queues, workers, content, compiler, named=named)
    types = _types(interest, topics, compiler)
    groups = []
    for topic in topics:
        only = _only(command, topic)
        if only is not None and content is None:
            content = compiler.compile_for(interest, None, None, session.subscriber)
        record_topics = RecordTopics(topic.definition, compiler.filter_context)
        groups.append(QueryGroup(topic, record_topics, content, types.get(topic.name, {}), only))
    return QuerySelection(
        (*groups, *of_queues),
        SelectedKeys(command.keys, command.canonical),
        order,
        command.top_n,
        command.skip_n,
        command.batch_size,
        interest if command.follow else None,
        of_queues,
    )


def _check_form(command: Sow) -> None:
    if command.skip_n and command.top_n is None:
        raise BadOption("Option skip_n requires top_n. Add top_n, or remove skip_n.")
    if command.bookmark is not None:
        raise NotBuilt(
            f"Cannot query records of {shown(command.topic)} at a bookmark: this version of the server keeps "
            "no history. Query the current records."
        )


def _sources(
    session: Session,
    command: Sow,
    states: StateRegistry,
    queues: QueueRegistry,
    compiler: InterestCompiler,
) -> _Sources:
    """Return the SOW topics and queues of a query. Raises `BadTopic`, and the errors of `_queues`."""
    name = command.topic
    found = None if is_pattern(name) else states.of(name)
    if found is not None:
        return _Sources([found], [])
    asked = compiler.compile(name, None, None, session.subscriber)
    workers = _queues(session, command, asked, queues)
    records_only = bool(command.follow or command.keys or command.canonical)
    if not states and (records_only or not queues):
        raise BadTopic(
            f"Cannot query records of {shown(name)}: this server has no SOW topic. Configure one in a "
            "[[sow]] section."
        )
    if asked.topic_name is None:
        return _Sources([topic for topic in states.topics if asked.covers(topic.name)], workers)
    if workers:
        return _Sources([], workers)
    known = [topic.name for topic in states.topics] + [worker.queue.name for worker in queues.workers]
    raise BadTopic(
        f"Cannot query records of {shown(name)}: it is not a SOW topic or queue of this server."
        f"{did_you_mean(name, known)} Use the name of a SOW topic or queue."
    )


def _check_built(command: Sow) -> None:
    """Refuse queries that this version cannot answer. Raises `NotBuilt`."""
    name = shown(command.topic)
    if command.follow and (command.keys or command.canonical):
        raise NotBuilt(
            f"Cannot follow records of {name} by their keys: this version of the server cannot select "
            "messages by keys. Use a filter."
        )


def _interest(
    session: Session,
    command: Sow,
    options: QueryOptions,
    sources: _Sources,
    compiler: InterestCompiler,
) -> Interest:
    """Return the interest in messages of the query. Raises `BadFilter` or `BadOption`.

    With a pattern it covers SOW topics only, and queues have the same content. JSON can have all fields, so
    no message type of a queue makes it invalid."""
    text, select, (topics, workers) = command.filter, options.select, sources
    if not (topics or workers):
        compiler.compile(command.topic, text, select, session.subscriber)
        return NO_TOPICS
    if workers and not is_pattern(command.topic):
        return compiler.compile(workers[0].queue.definition.topic, text, select, session.subscriber)
    literal = not is_pattern(command.topic)
    if literal and (topics[0].definition.pattern is None or topics[0].name != command.topic):
        return compiler.compile(command.topic, text, select, session.subscriber)
    content = None
    if text is not None or select is not None:
        plain = _of_topics(command.topic, topics, compiler, None)
        content = compiler.compile_for(plain, text, select, session.subscriber)
    return _of_topics(command.topic, topics, compiler, content)


def _check_follow(content: ContentFilter, topics: Sequence[StateTopic]) -> None:
    """Raise `BadFilter` if a filter has other values for records than for the messages that follow."""
    for topic in topics:
        key = topic.definition.key
        if key and MESSAGE_FUNCTIONS["SOW_KEY"] in content.needs:
            raise BadFilter(
                f"Cannot subscribe to {shown(topic.name)} with SOW_KEY() in the filter: it is NULL in all "
                f"messages that follow the query result. Use the key fields in the filter: {', '.join(key)}."
            )


def _types(
    interest: Interest, topics: list[StateTopic], compiler: InterestCompiler
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the topics of each SOW topic that are not JSON, by message type."""
    if not topics:
        return {}
    found = compiler.other_types(interest)
    if len(topics) == 1:
        return {topics[0].name: found}
    types: dict[str, dict[str, list[str]]] = {topic.name: {} for topic in topics}
    for kind, names in found.items():
        for name in names:
            definition = compiler.catalog.sow_of(name)
            assert definition is not None
            types[definition.name].setdefault(kind, []).append(name)
    return {name: {kind: tuple(some) for kind, some in of.items()} for name, of in types.items()}


def _of_topics(
    topic: str,
    topics: list[StateTopic] | tuple[StateTopic, ...],
    compiler: InterestCompiler,
    content: ContentFilter | None,
) -> Interest:
    """Return the interest in all topics of some SOW topics."""
    names = frozenset(one.name for one in topics)
    sow_of = compiler.catalog.sow_of

    def covers(name: str) -> bool:
        found = sow_of(name)
        return found is not None and found.name in names

    # The names are in its key, because other interests with this topic cover other messages.
    return Interest(topic, covers, content, frozenset((SOW_TOPIC, *names)))


def _only(command: Sow, topic: StateTopic) -> str | None:
    """Return the only topic to select in a SOW over a pattern, or None."""
    if is_pattern(command.topic) or command.topic == topic.name:
        return None
    return command.topic


# -- queues -------------------------------------------------------------------------------------------


def _queues(session: Session, command: Sow, asked: Interest, queues: QueueRegistry) -> list[QueueWorker]:
    """Return the queues of a query of the topics `asked`, in the order of the configuration.

    A pattern covers queues only without `follow` and keys, and may cover stopped ones. Raises `BadOption` for
    both with the name of a queue, and the error of a queue that has stopped or may not be read."""
    by_keys = bool(command.keys or command.canonical)
    workers = queues.named(asked)
    if asked.topic_name is None:
        workers = [] if by_keys or command.follow else workers
        for worker in workers:
            queues.permit(session, worker)
        return workers
    if workers and by_keys:
        raise BadOption(
            f"Cannot query queue {shown(command.topic)} by keys: the messages of a queue have no keys. "
            "Use a filter."
        )
    if workers and command.follow:
        raise BadOption(
            f"Cannot query and follow queue {shown(command.topic)}: each of its messages goes to one "
            "consumer. Query its available messages with sow, or consume them with subscribe."
        )
    queues.check(session, workers, None)
    return workers


def _queue_groups(
    queues: QueueRegistry,
    workers: Sequence[QueueWorker],
    content: ContentFilter | None,
    compiler: InterestCompiler,
    *,
    named: bool,
) -> tuple[QueueGroup, ...]:
    """Return the parts of a query for queues. `named`: the query has the name of its only queue.

    Raises `LimitReached` for too many topics."""
    return tuple(
        QueueGroup(
            queues,
            worker,
            RecordTopics(worker.queue.definition, compiler.filter_context),
            content,
            _types_of_queue(worker.admission.interest, compiler),
            named=named,
        )
        for worker in workers
    )


def _types_of_queue(interest: Interest, compiler: InterestCompiler) -> dict[str, tuple[str, ...]]:
    """Return the topics of a queue that are not JSON, by message type."""
    if interest.topic_name is None:
        return compiler.other_types(interest)
    kind = compiler.catalog.message_type(interest.topic_name)
    return {} if kind == DEFAULT_TYPE else {kind: (interest.topic_name,)}
