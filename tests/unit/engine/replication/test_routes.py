"""Routes of a replication link: rules, digests, pass-through, and the records that travel."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pytest

from tests.helpers.reserved_batches import with_reserved
from tickertape.base.errors import BadFilter, BadOption, JournalCorrupt
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import routed_topics_kept_max
from tickertape.engine.replication.routes import (
    EVERY_GROUP,
    DestinationRoutes,
    PassThrough,
    ReplicationRule,
    RuleSet,
    RunHandling,
    RunOrigin,
    topics_of_delete,
)
from tickertape.engine.runtime.topic_catalog import TopicCatalog

HERE = b"h" * 16
THERE = b"t" * 16
OTHER = b"o" * 16


def rule(topic: str, filter: str | None = None, *, sync: bool = False) -> ReplicationRule:
    return ReplicationRule(topic=topic, filter=filter, sync=sync)


def routes(
    *rules: ReplicationRule, pass_through: str = EVERY_GROUP, catalog: TopicCatalog | None = None
) -> DestinationRoutes:
    return DestinationRoutes(RuleSet(rules), PassThrough(pass_through), THERE, catalog or TopicCatalog())


def batch(*rows: tuple[str, bytes]) -> MessageBatch:
    """Return a batch of messages, with control records on topics with a $."""
    builder = BatchBuilder()
    for topic, body in rows:
        builder.add(topic, body, kind=int(topic.startswith("$")))
    return builder.build(1, 1, 1)


def sent(found: DestinationRoutes, messages: MessageBatch) -> list[int]:
    rows: list[int] = found.split(messages, 0, messages.count, {}).sent.tolist()
    return rows


def sow_record(topic: str, kind: int, topics: list[str]) -> bytes:
    return msgspec.msgpack.encode([topic, kind, [0, 0, 0], False, [], topics, *[b""] * 9])


# -- rules --------------------------------------------------------------------------------------------


def test_first_rule_of_a_topic_counts_for_names_and_patterns() -> None:
    rules = RuleSet([rule("a/x", sync=True), rule("^a/"), rule("a/y", sync=True), rule("^b", sync=True)])
    assert rules.rule_of("a/x") is rules.rules[0]
    assert rules.rule_of("a/y") is rules.rules[1]
    assert rules.rule_of("b") is rules.rules[3]
    assert rules.rule_of("c") is None
    assert [rules.is_sync(topic) for topic in ("a/x", "a/y", "b", "c")] == [True, False, True, False]
    assert rules.names == [rules.rules[0]]
    assert rules.patterns == [rules.rules[1], rules.rules[3]]
    ends = RuleSet([rule("a$"), rule("^b"), rule("^a", sync=True)])
    assert [ends.rule_of(topic) for topic in ("a", "ab", "ba")] == [
        ends.rules[0], ends.rules[2], ends.rules[0],
    ]  # fmt: skip


def test_message_that_fails_the_filter_of_the_first_rule_falls_through_to_no_other_rule() -> None:
    found = routes(rule("a", "/n > 1"), rule(".*"))
    assert sent(found, batch(("a", b'{"n": 1}'), ("a", b'{"n": 2}'), ("b", b'{"n": 1}'))) == [1, 2]


def test_rules_match_no_internal_server_or_derived_topic() -> None:
    rules = RuleSet([rule(".*"), rule("view"), rule("/tickertape/events")], derived=["view"])
    for topic in ("$control", "$sow", "$queue", "$link", "/tickertape/events", "view"):
        assert rules.rule_of(topic) is None
    assert rules.rule_of("tickertape/events") is rules.rules[0]
    assert rules.names == []


def test_cache_of_topics_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet([rule("^a")])
    for number in range(routed_topics_kept_max + 1):
        assert rules.rule_of(f"a{number}") is rules.rules[0]
    assert len(rules._rule_of) == 1
    monkeypatch.setattr(rules, "_search", None)
    assert rules.rule_of(f"a{routed_topics_kept_max}") is rules.rules[0]


def test_rule_set_is_synchronous_only_with_a_synchronous_rule_that_has_an_effect() -> None:
    assert RuleSet([rule("a"), rule("b", sync=True)]).has_sync
    assert RuleSet([rule("^a"), rule("^b", sync=True)]).has_sync
    assert not RuleSet([rule("a"), rule("a", sync=True)]).has_sync
    assert not RuleSet([rule(".*"), rule("^a", sync=True), rule("a", sync=True)]).has_sync


def test_rules_that_overlap_a_pattern_end_with_the_first_that_matches_all_topics() -> None:
    rules = RuleSet([rule("a"), rule("^a/b"), rule("^a"), rule("^b"), rule("z$"), rule(".*")])
    assert [one.topic for one in rules.overlapping("^a/b/c")] == ["^a/b"]
    assert [one.topic for one in rules.overlapping("^a/")] == ["^a/b", "^a"]
    assert [one.topic for one in rules.overlapping("x$")] == ["^a/b", "^a", "^b", "z$", ".*"]
    assert [one.topic for one in rules.overlapping("x$", "^a")] == ["^a/b", "^a"]


def test_rules_cover_a_pattern_if_one_rule_matches_all_topics() -> None:
    rules = RuleSet([rule("a"), rule("^b")])
    assert rules.covers("^b/c")
    assert rules.covers("x$", "^b")
    assert not rules.covers("x$", "^a")
    assert not RuleSet([rule("a")]).covers("a$")


# -- digests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([rule("a"), rule("b")], [rule("b"), rule("a", sync=True)]),
        ([rule("a", sync=True), rule("^a")], [rule("^a")]),
        ([rule("^a"), rule("a", "/n > 1")], [rule("^a")]),
        ([rule("^a"), rule("^a/", "/n > 1")], [rule("^a")]),
        ([rule("a"), rule("a", "/n > 1")], [rule("a")]),
        ([rule("a", sync=True), rule(".*")], [rule(".*", sync=True)]),
    ],
)
def test_digests_are_equal_if_the_same_messages_pass(
    one: list[ReplicationRule], other: list[ReplicationRule]
) -> None:
    assert RuleSet(one).digests() == RuleSet(other).digests()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([rule("a")], [rule("b")]),
        ([rule("a")], [rule("a", "/n > 1")]),
        ([rule("a")], [rule("a"), rule("b")]),
        ([rule("a", "/n > 1"), rule("^a")], [rule("^a")]),
        ([rule("a", "/n > 1"), rule("^a")], [rule("^a"), rule("a", "/n > 1")]),
        ([rule("^a", "/n > 1"), rule("b$")], [rule("b$"), rule("^a", "/n > 1")]),
        ([rule("a", "/n > 1"), rule(".*")], [rule(".*")]),
        ([], [rule("a")]),
        ([], [rule(".*")]),
    ],
)
def test_digests_differ_if_other_messages_pass(
    one: list[ReplicationRule], other: list[ReplicationRule]
) -> None:
    assert RuleSet(one).digests() != RuleSet(other).digests()


def test_digests_of_rules_for_everything_are_empty_and_of_others_one_digest() -> None:
    assert RuleSet([rule(".*"), rule("^a", "/n > 1")]).digests() == frozenset()
    (digest,) = RuleSet([rule(".*", "/n > 1")]).digests()
    assert len(digest) == 16
    (golden,) = RuleSet([rule("a", "/n > 1"), rule("^b")]).digests()
    # MessagePack of [1, [["a", "/n > 1"]], [["^b", nil]]]. Servers of different versions compare digests.
    assert golden == blake2b(b"\x93\x01\x91\x92\xa1a\xa6/n > 1\x91\x92\xa2^b\xc0", digest_size=16).digest()


# -- origins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pass_through", "group", "path", "handling"),
    [
        (".*", "ny", (OTHER,), RunHandling.SENT),
        (".*", "ny", (OTHER, THERE), RunHandling.NAMED),
        (".*", "ny", (THERE,), RunHandling.NAMED),
        ("", "ny", (OTHER,), RunHandling.LEFT_OUT),
        ("", "", (OTHER,), RunHandling.LEFT_OUT),
        ("", "ny", (THERE,), RunHandling.LEFT_OUT),
        ("^ny$", "ny", (OTHER,), RunHandling.SENT),
        ("^ny$", "nyc", (OTHER,), RunHandling.LEFT_OUT),
        ("ny", "nyc", (OTHER,), RunHandling.SENT),
        ("^ldn$", "ny", (THERE,), RunHandling.LEFT_OUT),
    ],
)
def test_run_of_another_server_is_sent_named_or_left_out(
    pass_through: str, group: str, path: tuple[bytes, ...], handling: RunHandling
) -> None:
    assert routes(pass_through=pass_through).handling(RunOrigin(group, path)) is handling


def test_run_of_an_own_client_is_sent_with_every_pass_through() -> None:
    for pass_through in ("", "x", ".*"):
        assert routes(pass_through=pass_through).handling(None) is RunHandling.SENT


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "\ud800"])
def test_invalid_pass_through_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadOption, match="Invalid pattern "):
        PassThrough(pattern)


def test_named_runs_hold_only_the_messages_that_the_rules_select() -> None:
    found = routes(rule("a"))
    messages = with_reserved(batch(("a", b"{}"), ("b", b"{}"), ("a", b"{}")), origins=[7])
    rows = found.split(messages, 0, 3, {7: RunOrigin("ny", (THERE,))})
    assert (rows.sent.tolist(), rows.named.tolist()) == ([], [0, 2])


# -- records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "travels"),
    [
        ("after", True),
        ("copy", True),
        ("covered", True),
        ("downgraded", True),
        ("publisher", True),
        ("upgraded", True),
        ("holes", False),
        ("link", False),
        ("origin", False),
        ("queue", False),
        ("started", False),
        ("transaction", False),
        ("owned", False),
        ("seized", False),
        ("unknown", False),
    ],
)
def test_control_record_travels_by_type_without_a_rule_and_with_every_origin(
    kind: str, travels: bool
) -> None:
    body = msgspec.msgpack.encode({"type": kind, "log": OTHER})
    messages = with_reserved(batch(("$control", body)), origins=[3])
    for path in ((OTHER,), (THERE,)):
        rows = routes(pass_through="").split(messages, 0, 1, {3: RunOrigin("ny", path)})
        assert rows.sent.tolist() == [0] * travels
        assert rows.named.tolist() == []


def test_records_of_queues_links_and_restated_messages_do_not_travel() -> None:
    found = routes(rule(".*"))
    assert sent(found, batch(("$queue", b""), ("$link", b""))) == []
    assert sent(found, with_reserved(batch(("a", b"{}"), ("a", b"{}")), kinds=[2, 0])) == [1]


def test_delete_of_records_travels_with_messages_of_the_topic_despite_the_content_filter() -> None:
    found = routes(rule("a", "FALSE"), rule("^b/"))
    records = [
        sow_record("a", 1, []),
        sow_record("c", 1, []),
        sow_record("b/1", 1, []),
        sow_record("c", 1, ["c", "b/2"]),
        sow_record("a", 1, ["c", "d"]),
        sow_record("a", 2, []),
        sow_record("c", 2, ["a"]),
    ]
    messages = batch(*[("$sow", body) for body in records], ("a", b"{}"))
    assert sent(found, messages) == [0, 2, 3]


def test_delete_of_records_of_another_server_is_handled_as_messages() -> None:
    found = routes(rule("a"), pass_through="^ny$")
    messages = with_reserved(batch(("$sow", sow_record("a", 1, []))), origins=[1])
    for group, path, expected in (
        ("ny", (OTHER,), ([0], [])),
        ("ny", (OTHER, THERE), ([], [0])),
        ("ldn", (OTHER,), ([], [])),
    ):
        rows = found.split(messages, 0, 1, {1: RunOrigin(group, path)})
        assert (rows.sent.tolist(), rows.named.tolist()) == expected


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode(["a", 1]), b"\x90" * 2000])
def test_invalid_record_of_deleted_keys_is_corruption(body: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="invalid record of deleted keys"):
        topics_of_delete(body)


# -- filters ------------------------------------------------------------------------------------------


def test_filter_reads_each_topic_by_message_type() -> None:
    catalog = TopicCatalog(message_types={"a/fix": "fix"})
    found = routes(rule("^a", "/44 > 1"), catalog=catalog)
    messages = batch(("a/fix", b"44=2\x01"), ("a/json", b'{"44": 2}'), ("a/fix", b"44=1\x01"))
    assert sent(found, messages) == [0, 1]


def test_body_that_a_filter_cannot_read_is_not_sent_and_counted() -> None:
    found = routes(rule("a", "/n > 1"))
    assert sent(found, batch(("a", b"{"), ("a", b'{"n": 2}'))) == [1]
    assert found.unreadable == 1


def test_invalid_filter_is_refused() -> None:
    with pytest.raises(BadFilter):
        routes(rule("a", "/n >"))


def test_pieces_are_bounded_only_with_a_filter() -> None:
    messages = batch(*[("a", b'{"n": 1}')] * 70_000)
    assert routes(rule("a")).piece_end(messages, 0) == 70_000
    found = routes(rule("a", "/n > 1"))
    assert 0 < (end := found.piece_end(messages, 0)) < 70_000
    assert found.piece_end(messages, end) > end


def test_rows_outside_of_the_piece_are_not_selected() -> None:
    messages = batch(*[("a", b"{}"), ("$sow", sow_record("a", 1, []))] * 3)
    rows = routes(rule("a")).split(messages, 1, 4, {})
    assert rows.sent.tolist() == [1, 2, 3]
