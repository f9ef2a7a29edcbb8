"""Routes of replication links compared with a naive evaluation of each message."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.reserved_batches import with_reserved
from tickertape.base.names import is_pattern
from tickertape.batch import BatchBuilder, MessageBatch, merge
from tickertape.batch.format import I8, U8
from tickertape.engine.replication.routes import (
    DestinationRoutes,
    PassThrough,
    ReplicationRule,
    RuleSet,
    RunOrigin,
)
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, encode

DESTINATION: Final = b"d" * 16
OTHER: Final = b"o" * 16
TOPICS: Final = ("a", "a/1", "ab", "b", "b/1", "c", "/tickertape/x", "view")
DERIVED: Final = frozenset({"view"})
PATTERNS: Final = (".*", "^a", "^a/", "^b", "1$", "^(a|b)$", "[bc]")
GROUPS: Final = ("north", "northeast", "south")
RECORDS: Final = (
    "after", "copy", "covered", "downgraded", "holes", "link", "origin", "publisher", "queue", "started",
    "transaction", "unknown", "upgraded",
)  # fmt: skip
SENT_RECORDS: Final = {"after", "copy", "covered", "downgraded", "publisher", "upgraded"}

RULES = st.lists(
    st.builds(
        ReplicationRule,
        topic=st.sampled_from(TOPICS + PATTERNS),
        filter=st.none() | st.sampled_from(["/n > 2", "/n < 4"]),
        sync=st.booleans(),
    ),
    max_size=5,
)


EVERY: Final = ReplicationRule(topic=".*", sync=False)


class Row(NamedTuple):
    """A row of the log: a message (`kind` 0) with a number, or a record."""

    topic: str
    kind: int
    number: int = 0
    """Number in the body of a message."""
    record: str = ""
    """Type of a control record."""
    topics: tuple[str, ...] = ()
    """Topics of a delete or expiry."""

    def body(self) -> bytes:
        if self.topic == "$control":
            return msgspec.msgpack.encode({"type": self.record, "latest_of": "x"})
        if self.topic == "$sow":
            built = DeleteBuilder(
                self.topics[0],
                bytes(16),
                DeleteKind.DELETED if self.record == "deleted" else DeleteKind.EXPIRED,
            )
            several = self.topics if len(self.topics) > 1 else None
            keys = [str(at).encode() for at in range(len(self.topics))]
            numbers = np.arange(1, len(keys) + 1)
            built.add(keys, numbers.astype(U8), numbers.astype(U8), numbers.astype(I8), topics=several)
            return encode(built.build())
        return json.dumps({"n": self.number}).encode()


MESSAGES = st.builds(Row, topic=st.sampled_from(TOPICS), kind=st.just(0), number=st.integers(0, 6))
ROWS = st.one_of(
    MESSAGES,
    MESSAGES,
    st.builds(Row, topic=st.sampled_from(TOPICS), kind=st.just(2), number=st.integers(0, 6)),
    st.builds(Row, topic=st.just("$control"), kind=st.just(1), record=st.sampled_from(RECORDS)),
    st.builds(Row, topic=st.sampled_from(["$queue", "$link"]), kind=st.just(1)),
    st.builds(
        Row,
        topic=st.just("$sow"),
        kind=st.just(1),
        record=st.sampled_from(["deleted", "expired"]),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(tuple),
    ),
)
RUNS = st.lists(st.tuples(st.integers(0, 3), st.lists(ROWS, min_size=1, max_size=5)), min_size=1, max_size=5)
ORIGINS = st.lists(
    st.builds(
        RunOrigin,
        group=st.sampled_from(GROUPS),
        path=st.sampled_from([(OTHER,), (DESTINATION,), (OTHER, DESTINATION)]),
    ),
    min_size=3,
    max_size=3,
)


def batch_of(runs: list[tuple[int, list[Row]]]) -> MessageBatch:
    batches = []
    for publisher, (_, rows) in enumerate(runs, 1):
        builder = BatchBuilder()
        for row in rows:
            builder.add(row.topic, row.body())
        batches.append(builder.build(publisher, 1, publisher))
    kinds = [row.kind for _, rows in runs for row in rows]
    return with_reserved(merge(batches), origins=[origin for origin, _ in runs], kinds=kinds)


def naive_rule(rules: list[ReplicationRule], topic: str) -> ReplicationRule | None:
    """Return the first rule of a topic by a search of all rules."""
    if topic[0] == "$" or topic.startswith("/tickertape/") or topic in DERIVED:
        return None
    for rule in rules:
        if re.search(rule.topic, topic) if is_pattern(rule.topic) else rule.topic == topic:
            return rule
    return None


def naive_selects(rules: list[ReplicationRule], row: Row) -> bool:
    """Return whether the rules select a message or delete."""
    if row.topic == "$sow":
        return row.record == "deleted" and any(naive_rule(rules, topic) for topic in row.topics)
    rule = naive_rule(rules, row.topic)
    if rule is None or row.kind:
        return False
    return {None: True, "/n > 2": row.number > 2, "/n < 4": row.number < 4}[rule.filter]


def naive_split(
    rules: list[ReplicationRule],
    pass_through: str,
    origins: list[RunOrigin],
    runs: list[tuple[int, list[Row]]],
) -> tuple[list[int], list[int]]:
    """Return the indices of sent and of named rows."""
    sent: list[int] = []
    named: list[int] = []
    rows = [(origin, row) for origin, rows in runs for row in rows]
    for at, (number, row) in enumerate(rows):
        if row.topic == "$control":
            if row.record in SENT_RECORDS:
                sent.append(at)
        elif naive_selects(rules, row):
            if number == 0:
                sent.append(at)
                continue
            origin = origins[number - 1]
            if pass_through and re.search(pass_through, origin.group):
                (named if DESTINATION in origin.path else sent).append(at)
    return sent, named


@pytest.mark.slow
@given(
    RULES, st.sampled_from([".*", "", "north", "^north$", "south|north"]), ORIGINS, RUNS, st.integers(1, 30)
)
def test_routes_select_the_rows_of_a_naive_evaluation(
    rules: list[ReplicationRule],
    pass_through: str,
    origins: list[RunOrigin],
    runs: list[tuple[int, list[Row]]],
    piece: int,
) -> None:
    batch = batch_of(runs)
    routes = DestinationRoutes(
        RuleSet(rules, DERIVED), PassThrough(pass_through), DESTINATION, TopicCatalog()
    )
    sent: list[int] = []
    named: list[int] = []
    for low in range(0, batch.count, piece):
        found = routes.split(batch, low, min(low + piece, batch.count), dict(enumerate(origins, 1)))
        sent += found.sent.tolist()
        named += found.named.tolist()
    assert (sent, named) == naive_split(rules, pass_through, origins, runs)


@given(RULES, st.lists(st.sampled_from(TOPICS), max_size=30))
def test_rule_of_a_topic_is_the_first_match_in_any_order_of_questions(
    rules: list[ReplicationRule], topics: list[str]
) -> None:
    rule_set = RuleSet(rules, DERIVED)
    for topic in [*topics, "$sow", "$control"]:
        assert rule_set.rule_of(topic) is naive_rule(rules, topic)
        assert rule_set.is_sync(topic) is ((rule := naive_rule(rules, topic)) is not None and rule.sync)


@given(RULES, st.data())
def test_rules_with_equal_digests_select_equal_messages(
    one: list[ReplicationRule], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(one)) + data.draw(st.lists(st.sampled_from(one or [EVERY])))
    first, second = RuleSet(one), RuleSet(other)
    if first.digests() == second.digests():
        for topic in (*TOPICS, "never named", "^"):
            a, b = first.rule_of(topic), second.rule_of(topic)
            assert (a is None, a and a.filter) == (b is None, b and b.filter)


@given(RULES, st.randoms(use_true_random=False))
def test_digest_ignores_sync_repeated_rules_and_the_order_of_names(
    rules: list[ReplicationRule], random: object
) -> None:
    names = RuleSet([rule for rule in rules if not rule.has_pattern]).names
    patterns = [rule for rule in rules if rule.has_pattern]
    digests = RuleSet([*names, *patterns]).digests()
    changed = [msgspec.structs.replace(rule, sync=not rule.sync) for rule in reversed(names)]
    assert RuleSet([*changed, *patterns, *names, *patterns]).digests() == digests


def test_pieces_of_a_batch_with_filters_are_bounded() -> None:
    batch = batch_of([(0, [Row("a", 0, 1)] * 3)])
    whole = DestinationRoutes(RuleSet([]), PassThrough(""), DESTINATION, TopicCatalog())
    assert whole.piece_end(batch, 1) == 3
    assert np.array_equal(whole.split(batch, 0, 3, {}).sent, [])
