"""Query checks: validate queries of records, and create their selections.

A rejected query has no effect.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base.errors import BadOption, BadTopic, NotBuilt
from tickertape.base.names import is_pattern
from tickertape.base.options import parse_options
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.query.order import SortOrder
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.registry import StateRegistry
from tickertape.engine.sow.selection import QueryGroup, QuerySelection, SelectedKeys
from tickertape.engine.sow.topic import StateTopic
from tickertape.wire.commands import Sow
from tickertape.wire.sow_command import SOW_TOPIC, check_keys

_FLAGS: Final = frozenset({"replace", "timestamp"})
_WHY_NOT: Final = {
    "fully_durable": "a result would wait for a destination that is not connected",
    "conflation": "a result has each record once",
    "replace": "it is for queries with follow",
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


def check_query(
    session: Session, command: Sow, options: QueryOptions, states: StateRegistry, compiler: InterestCompiler
) -> QuerySelection:
    """Return the selection of a query. Raises the error of an invalid one."""
    check_keys(command.keys, command.canonical)
    _check_form(command)
    topics = _topics(session, command, states, compiler)
    _check_built(command)
    interest = _interest(session, command, options, topics, compiler)
    content = interest.content
    order = SortOrder.parse(command.order_by) if command.order_by else None
    if order is not None and topics:
        compiler.for_types(interest, order.check)
    types = _types(interest, topics, compiler)
    groups = []
    for topic in topics:
        only = _only(command, topic)
        if only is not None and content is None:
            content = compiler.compile_for(interest, None, None, session.subscriber)
        record_topics = RecordTopics(topic.definition, compiler.filter_context)
        groups.append(QueryGroup(topic, record_topics, content, types.get(topic.name, {}), only))
    return QuerySelection(
        tuple(groups),
        SelectedKeys(command.keys, command.canonical),
        order,
        command.top_n,
        command.skip_n,
        command.batch_size,
        interest if command.follow else None,
    )


def _check_form(command: Sow) -> None:
    if command.skip_n and command.top_n is None:
        raise BadOption("Option skip_n requires top_n. Add top_n, or remove skip_n.")
    if command.bookmark is not None:
        raise NotBuilt(
            f"Cannot query records of {shown(command.topic)} at a bookmark: this version of the server keeps "
            "no history. Query the current records."
        )


def _topics(
    session: Session, command: Sow, states: StateRegistry, compiler: InterestCompiler
) -> list[StateTopic]:
    """Return the SOW topics of a query, in the order of the configuration. Raises `BadTopic`."""
    name = command.topic
    found = None if is_pattern(name) else states.of(name)
    if found is not None:
        return [found]
    asked = compiler.compile(name, None, None, session.subscriber)
    if not states:
        raise BadTopic(
            f"Cannot query records of {shown(name)}: this server has no SOW topic. "
            "Configure one in a [[sow]] section."
        )
    if asked.topic_name is None:
        return [topic for topic in states.topics if asked.covers(topic.name)]
    near = did_you_mean(name, [topic.name for topic in states.topics])
    raise BadTopic(
        f"Cannot query records of {shown(name)}: it is not a SOW topic of this server.{near} "
        "Use the name of a SOW topic."
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
    topics: list[StateTopic],
    compiler: InterestCompiler,
) -> Interest:
    """Return the interest in messages of the query. Raises `BadFilter` or `BadOption`."""
    text, select = command.filter, options.select
    if not topics:
        compiler.compile(command.topic, text, select, session.subscriber)
        return NO_TOPICS
    whole = topics[0].definition.pattern is not None and topics[0].name == command.topic
    if not (is_pattern(command.topic) or whole):
        return compiler.compile(command.topic, text, select, session.subscriber)
    content = None
    if text is not None or select is not None:
        plain = _of_topics(command.topic, topics, compiler, None)
        content = compiler.compile_for(plain, text, select, session.subscriber)
    return _of_topics(command.topic, topics, compiler, content)


def _types(
    interest: Interest, topics: list[StateTopic], compiler: InterestCompiler
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the topics of each SOW topic that are not JSON, by message type."""
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
