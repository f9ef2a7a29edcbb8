"""Queries in the engine: result, credit, hand-over to the log, and ends."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.record_rows import open_scans
from tests.helpers.sow_engine import publish
from tests.helpers.sow_orders import LABELLED, ORDERS, REGIONS, ask, body, orders_world
from tests.helpers.sow_peer import QueryWorld
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import feed as feed_module
from tickertape.engine.sow.feed import SowFeed
from tickertape.engine.sow.state.delete import DeleteBuilder
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.payload.canonical import generated_key
from tickertape.wire.commands import Subscribe

_ENCODE = msgspec.msgpack.encode


# -- results --------------------------------------------------------------------------------------------


def test_result_has_the_records_in_the_order_of_positions() -> None:
    world, publisher, peer = orders_world()
    result = ask(world, peer)
    assert publisher.logged_on is not None
    (group,) = result.groups
    end = world.broker.journal.commits.persisted_end
    assert (group.topic, group.position, group.key, group.domain) == ("orders", end, ("/id",), "orders")
    assert group.as_of == f"{publisher.logged_on.publisher}|20|"
    assert (group.explicit, group.pattern, group.types) == (False, "", {})
    assert result.bodies == [body(key, 1) for key in range(10)]
    assert [record.sequence for record in result.records] == [*range(11, 21)]
    assert {record.publisher for record in result.records} == {publisher.logged_on.publisher}
    assert result.end is not None
    assert (result.end.matches, result.end.topic_matches, result.end.records) == (10, 10, 10)
    assert result.completed is not None
    assert result.completed.next == end
    assert result.ended is not None
    assert result.ended.code == ""
    assert world.broker.subscriptions.of(peer.conn) == {}
    assert len(world.broker.services.records) == 0
    assert world.broker.services.records.results_bytes == 0


def test_result_of_a_topic_without_messages_is_empty() -> None:
    world, _, peer = orders_world(records=0)
    result = ask(world, peer)
    assert (result.groups[0].as_of, result.records) == ("0", [])
    assert result.end is not None
    assert (result.end.matches, result.end.records) == (0, 0)


def test_bookmark_of_a_result_is_that_of_the_last_message_also_after_a_restart() -> None:
    world, publisher, _ = orders_world(records=3)
    publish(publisher, [("other", b"x")])
    world.settle()
    assert publisher.logged_on is not None
    expected = f"{publisher.logged_on.publisher}|7|"
    assert ask(world, world.reader("one")).groups[0].as_of == expected
    world.reopen()
    assert ask(world, world.reader("two")).groups[0].as_of == expected


def test_filter_order_top_and_skip_select_records() -> None:
    world, _, peer = orders_world()
    result = ask(world, peer, filter="/id > 2", order_by="/id DESC", top_n=3, skip_n=1)
    assert result.bodies == [body(8, 1), body(7, 1), body(6, 1)]
    assert result.end is not None
    assert (result.end.matches, result.end.topic_matches, result.end.records) == (7, 10, 3)


def test_select_sends_some_fields() -> None:
    world, _, peer = orders_world(records=2)
    result = ask(world, peer, options="select=[-/,+/v],timestamp")
    assert [msgspec.json.decode(one) for one in result.bodies] == [{"v": 1}, {"v": 1}]


def test_batch_size_is_the_number_of_records_of_a_frame() -> None:
    world, _, peer = orders_world()
    assert ask(world, peer, batch_size=4, credit=100_000).frames == [4, 4, 2]


def test_canonical_and_generated_keys_select_records() -> None:
    world, _, peer = orders_world()
    result = ask(world, peer, canonical=(_ENCODE(3), _ENCODE(5), _ENCODE(77)))
    assert result.bodies == [body(3, 1), body(5, 1)]
    names = (generated_key("orders", _ENCODE(4)), "absent")
    assert ask(world, peer, keys=names).bodies == [body(4, 1)]
    assert ask(world, peer, keys=names, filter="/id > 4").bodies == []


def test_explicit_keys_select_records_and_are_in_the_result() -> None:
    world = QueryWorld(LABELLED)
    publisher, peer = world.connect("publisher"), world.reader()
    publish(publisher, [("labelled", b"1"), ("labelled", b"2")], keys=["a", "b"])
    world.settle()
    result = ask(world, peer, "labelled")
    assert [(record.key, record.body) for record in result.records] == [("a", b"1"), ("b", b"2")]
    assert result.groups[0].explicit
    assert ask(world, peer, "labelled", keys=("b", "no key of a record")).bodies == [b"2"]


def test_query_of_a_sow_over_a_pattern_has_all_topics_or_one() -> None:
    world = QueryWorld(REGIONS)
    publisher, peer = world.connect("publisher"), world.reader()
    sent = [("region/eu", body(1)), ("region/us", body(1)), ("regions", body(2)), ("other", body(3))]
    publish(publisher, sent)
    world.settle()
    result = ask(world, peer, "regions")
    assert [(record.topic, record.body) for record in result.records] == sent[:3]
    assert result.groups[0].pattern == "^region/"
    one = ask(world, peer, "region/us")
    assert [(record.topic, record.body) for record in one.records] == [sent[1]]
    assert one.groups[0].topic == "regions"
    assert one.end is not None
    assert (one.end.matches, one.end.topic_matches) == (1, 3)


def test_pattern_covers_all_sow_topics_that_match_at_one_position() -> None:
    world, publisher, peer = orders_world(LABELLED, REGIONS, records=2)
    publish(publisher, [("region/eu", body(1))])
    publish(publisher, [("labelled", b"1")], keys=["a"])
    world.settle()
    result = ask(world, peer, "^(orders|regions)$")
    assert [group.topic for group in result.groups] == ["orders", "regions"]
    assert len({group.position for group in result.groups}) == 1
    assert result.bodies == [body(0, 1), body(1, 1), body(1)]
    nothing = ask(world, peer, "^nothing", follow=True, order_by="/id", top_n=3)
    assert (nothing.groups, nothing.records) == ([], [])
    assert nothing.completed is not None
    assert nothing.completed.next == 0


@pytest.mark.parametrize("pattern", ["^(orders|regions)$", "^(orders|regions|labelled)$"])
def test_order_and_part_of_a_result_are_over_all_sow_topics(pattern: str) -> None:
    world, publisher, peer = orders_world(LABELLED, REGIONS, records=5)
    publish(publisher, [("region/eu", body(1, 7)), ("regions", body(9)), ("region/us", body(2.5))])
    publish(publisher, [("labelled", body(n)) for n in (0.5, 3.5)], keys=["a", "b"])
    publish(publisher, [("orders", body(3, 2))])
    world.settle()
    expected = {
        0: "orders",
        1: "orders",
        2: "orders",
        2.5: "region/us",
        3: "orders",
        4: "orders",
        9: "regions",
    }
    if "labelled" in pattern:
        expected |= {0.5: "labelled", 3.5: "labelled"}
    labels = {0.5: "a", 3.5: "b"}
    whole = ask(world, peer, pattern, order_by="/id")
    records = [(msgspec.json.decode(one.body)["id"], one.topic, one.key) for one in whole.records]
    ordered = sorted([*expected.items(), (1, "region/eu")], key=lambda pair: pair[0])
    assert records == [(value, topic, labels.get(value)) for value, topic in ordered]
    part = ask(world, peer, pattern, order_by="/id DESC", top_n=3, skip_n=2, batch_size=2)
    assert part.bodies == whole.bodies[::-1][2:5]
    assert part.end is not None
    assert (part.end.matches, part.end.topic_matches, part.end.records) == (len(ordered), len(ordered), 3)
    latest = ask(world, peer, pattern, top_n=len(ordered) - 1, options="select=[-/,+/id]")
    assert msgspec.json.decode(latest.bodies[-1]) in ({"id": 2.5}, {"id": 3.5})
    assert len(latest.bodies) == len(ordered) - 1
    later = ask(world, peer, pattern, top_n=1, skip_n=len(ordered) - 1)
    assert later.bodies == [body(3, 2)]


# -- credit and connections -----------------------------------------------------------------------------


def test_result_stops_without_credit_and_continues_with_more() -> None:
    world, _, peer = orders_world(records=200)
    peer.query("q", "orders", credit=1_000)
    for _ in range(100):
        world.step()
    result = peer.results["q"]
    some = len(result.records)
    assert 0 < some < 200
    assert peer.outstanding["q"] <= 1_000
    assert not world.broker.has_work
    world.settle()
    assert result.bodies == [body(key, 1) for key in range(200)]
    assert result.end is not None
    assert result.end.records == 200


def test_result_stops_for_a_full_connection() -> None:
    world, _, peer = orders_world()
    world.broker.blocked(peer.conn)
    peer.query("q", "orders")
    world.settle()
    result = peer.results["q"]
    assert (len(result.groups), result.records) == (1, [])
    world.broker.writable(peer.conn)
    world.settle()
    assert len(result.records) == 10


def test_record_larger_than_the_credit_is_sent_alone() -> None:
    world = QueryWorld(ORDERS, segment_bytes=1 << 20)
    publisher, peer = world.connect("publisher"), world.reader()
    large = body(1, "x" * 5_000)
    publish(publisher, [("orders", body(0)), ("orders", large), ("orders", body(2))])
    world.settle()
    assert ask(world, peer, credit=500).bodies == [body(0), large, body(2)]


def test_query_waits_until_messages_persisted_before_are_folded() -> None:
    world, publisher, peer = orders_world(records=0, segment_bytes=1 << 20)
    fold = world.broker.states.fold
    for first in range(0, 12_000, 4_000):
        publish(publisher, [("orders", body(key)) for key in range(first, first + 4_000)])
        while world.jobs:
            world.run_job()
    end = world.broker.journal.commits.persisted_end
    assert fold.folded < end
    peer.query("q", "orders", credit=1 << 20)
    assert peer.results["q"].groups == []
    world.settle()
    result = peer.results["q"]
    assert result.position == end
    assert len(result.records) == 12_000


def test_queries_start_between_large_commits_and_not_within_one() -> None:
    world, publisher, peer = orders_world(records=0, segment_bytes=1 << 20)
    for first in range(3):
        publish(publisher, [("orders", body(key, first)) for key in range(4_000)])
        while world.jobs:
            world.run_job()
        for number in range(2):
            peer.query(f"q{first}{number}", "orders", credit=1 << 20, canonical=(_ENCODE(0), _ENCODE(3_999)))
        world.work()
    world.settle()
    results = list(peer.results.values())
    assert len(results) == 6
    values = [[msgspec.json.decode(one)["v"] for one in result.bodies] for result in results]
    assert all(len(found) == 2 and found[0] == found[1] for found in values), values


def test_query_that_was_prepared_during_a_large_commit_does_not_start_within_the_commit() -> None:
    world, publisher, peer = orders_world(records=0, segment_bytes=1 << 22)
    for value in range(2):
        publish(publisher, [("orders", body(key, value)) for key in range(9_000)])
        if value:  # the search for generated keys takes several steps
            names = tuple(generated_key("orders", _ENCODE(key)) for key in (0, 8_999))
            peer.query("q", "orders", credit=1 << 20, keys=names)
        world.settle()
    values = [msgspec.json.decode(one)["v"] for one in peer.results["q"].bodies]
    assert values in ([0, 0], [1, 1])


def test_bookmark_of_a_result_is_that_of_a_message_behind_which_control_records_are() -> None:
    world, _, peer = orders_world(records=3)
    before = ask(world, peer).groups[0]
    world.write_delete(DeleteBuilder("orders", bytes(16)).build(0, 0))
    after = ask(world, peer).groups[0]
    assert after.position == before.position + 1
    assert after.as_of == before.as_of


# -- bounds ---------------------------------------------------------------------------------------------


def test_records_of_all_sow_topics_are_copied_before_a_slow_reader_gets_the_first() -> None:
    world, publisher, peer = orders_world(REGIONS, records=200)
    publish(publisher, [("region/eu", body(key)) for key in range(200)])
    world.settle()
    peer.query("q", "^(orders|regions)$", credit=1_000)
    for _ in range(100):
        world.step()
    result = peer.results["q"]
    some = len(result.records)
    assert 0 < some < 200
    publish(publisher, [("region/eu", body(key, "new")) for key in range(200)])
    publish(publisher, [("orders", body(key, "new")) for key in range(200)])
    for _ in range(100):
        world.step()
    assert [world.state(name).fold.changes.nbytes for name in ("orders", "regions")] == [0, 0]
    world.settle()
    assert result.bodies == [body(key, 1) for key in range(200)] + [body(key) for key in range(200)]


def test_starts_of_many_groups_are_sent_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "query_step_groups_max", 2)
    many = [SowDefinition(f"many/{number}", key=("/id",)) for number in range(7)]
    world, _, peer = orders_world(*many)
    steps: list[int] = []
    announce = SowFeed._announce

    def counted(feed: SowFeed) -> None:
        before = feed._announced
        announce(feed)
        steps.append(feed._announced - before)

    monkeypatch.setattr(SowFeed, "_announce", counted)
    result = ask(world, peer, "^many/")
    assert steps == [2, 2, 2, 1]
    assert [group.topic for group in result.groups] == [f"many/{number}" for number in range(7)]


def test_keys_of_an_ended_result_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, publisher, peer = orders_world(LABELLED)
    publish(
        publisher, [("labelled", body(key)) for key in range(2_000)], keys=[f"k{key}" for key in range(2_000)]
    )
    world.settle()
    peer.query("q", "labelled", credit=1_000)
    for _ in range(90):
        world.step()
    assert 0 < len(peer.results["q"].records) < 2_000
    memory = world.broker.services.records._memory
    assert memory.nbytes > 2_000 * 44
    freed: list[int] = []
    free = memory.free

    def counted() -> None:
        last = memory.garbage[-1]
        before = len(last)
        free()
        freed.append(before - len(last) if isinstance(last, list) else 0)

    monkeypatch.setattr(memory, "free", counted)
    peer.unsubscribe("q")
    world.settle()
    assert sum(freed) == 2_000
    assert (len(memory.garbage), memory.nbytes) == (0, 0)


def test_only_queries_of_a_writable_connection_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _, peer = orders_world()
    others = [world.reader(f"other{number}") for number in range(5)]
    for one in (peer, *others):
        world.broker.blocked(one.conn)
        one.query("q", "orders")
    world.settle()
    records = world.broker.services.records
    resumed: list[int] = []
    credit = records.credit

    def counted(feed: SowFeed) -> None:
        resumed.append(feed.session.conn)
        credit(feed)

    monkeypatch.setattr(records, "credit", counted)
    world.broker.writable(peer.conn)
    assert resumed == [peer.conn]
    world.settle()
    assert len(peer.results["q"].records) == 10


# -- the messages after the result ----------------------------------------------------------------------


def test_messages_after_the_result_follow_once() -> None:
    world, publisher, peer = orders_world(records=100)
    number = peer.query("q", "orders", follow=True, credit=1_000)
    for _ in range(60):
        world.step()
    result = peer.results["q"]
    assert result.groups
    assert result.end is None
    expected = []
    for value in range(2, 30):
        publish(publisher, [("orders", body(value, value)), ("other", b"{}")])
        expected.append(body(value, value))
        world.step()
    world.settle()
    assert peer.answer(number).code == ""
    assert result.bodies == [body(key, 1) for key in range(100)]
    assert [heard.body for heard in peer.heard["q"]] == expected
    assert result.completed is not None
    assert result.completed.next == result.position
    assert result.ended is None
    publish(publisher, [("orders", body("late"))])
    world.settle()
    assert peer.heard["q"][-1].body == body("late")
    feed = world.log_feeds(peer.conn)["q"]
    assert feed.phase is Phase.TAIL
    assert len(world.broker.subscriptions.of(peer.conn)["q"].feeds) == 1


def test_filter_selects_the_messages_after_the_result_too() -> None:
    world, publisher, peer = orders_world(REGIONS)
    peer.query("q", "^(orders|regions)$", follow=True, filter="/id > 5")
    world.settle()
    publish(publisher, [("orders", body(1)), ("orders", body(9)), ("region/eu", body(7)), ("other", body(8))])
    world.settle()
    assert peer.results["q"].bodies == [body(key, 1) for key in range(6, 10)]
    assert [(one.topic, one.body) for one in peer.heard["q"]] == [("orders", body(9)), ("region/eu", body(7))]


def test_unsubscribe_during_the_result_ends_both_feeds() -> None:
    world, publisher, peer = orders_world(records=100, segment_bytes=1 << 20)
    peer.query("q", "orders", follow=True, credit=1_000)
    for _ in range(60):
        world.step()
    log_feed = world.log_feeds(peer.conn)["q"]
    peer.unsubscribe("q")
    _check_nothing_left(world, publisher, log_feed)
    assert peer.results["q"].end is None


def test_lost_connection_during_the_result_ends_both_feeds() -> None:
    world, publisher, peer = orders_world(records=100, segment_bytes=1 << 20)
    peer.query("q", "orders", follow=True, credit=1_000)
    for _ in range(60):
        world.step()
    log_feed = world.log_feeds(peer.conn)["q"]
    world.broker.disconnected(peer.conn)
    del world.peers[peer.conn]
    world.settle()
    _check_nothing_left(world, publisher, log_feed)


def _check_nothing_left(world: QueryWorld, publisher: Peer, log_feed: LogFeed) -> None:
    assert len(world.broker.services.records) == 0
    assert world.broker.services.records.results_bytes == 0
    for first in range(0, 400, 10):  # more than one block
        publish(publisher, [("orders", body(key % 100, "x" * 8_000)) for key in range(first, first + 10)])
        world.settle()
    fold = world.state("orders").fold
    assert not open_scans(fold.changes)
    assert fold.records.blocks.held_bytes == 0
    assert log_feed.phase is Phase.ENDED
    pin = world.broker.services.log.oldest_needed()
    assert pin.position == world.broker.journal.commits.persisted_end


def test_replace_during_the_result_is_not_ready_and_later_replaces() -> None:
    world, publisher, peer = orders_world(records=100)
    peer.query("q", "orders", follow=True, credit=1_000)
    for _ in range(60):
        world.step()
    for number in (
        peer.query("q", "orders", follow=True, options="replace", refused=True),
        peer.query("q", "orders", follow=True, filter="/id = 3", options="replace", refused=True),
    ):
        assert peer.answer(number).code == "not_ready"
    peer.ids += 1
    peer.send(
        Subscribe(id=peer.ids, sub_id="q", topic="orders", bookmark="0", credit=4096, options="replace")
    )
    assert peer.answer(peer.ids).code == "not_ready"
    world.settle()
    assert len(peer.results["q"].records) == 100
    number = peer.query("q", "orders", follow=True, filter="/id < 2", options="replace", credit=9_000)
    world.settle()
    assert peer.answer(number).code == ""
    assert peer.results["q"].bodies == [body(0, 1), body(1, 1)]
    publish(publisher, [("orders", body(5)), ("orders", body(1, "new"))])
    world.settle()
    assert [heard.body for heard in peer.heard["q"]] == [body(1, "new")]


def test_pause_holds_the_messages_after_the_result() -> None:
    world, publisher, peer = orders_world()
    peer.query("q", "orders", follow=True)
    peer.pause("q")
    world.settle()
    publish(publisher, [("orders", body(1, "new"))])
    world.settle()
    assert len(peer.results["q"].records) == 10
    assert peer.results["q"].end is not None
    assert peer.heard["q"] == []
    peer.resume("q")
    world.settle()
    assert [heard.body for heard in peer.heard["q"]] == [body(1, "new")]


def test_resume_during_the_result_does_not_start_the_messages() -> None:
    world, publisher, peer = orders_world(records=100)
    peer.query("q", "orders", follow=True, credit=1_000)
    for _ in range(60):
        world.step()
    publish(publisher, [("orders", body(1, "new"))])
    peer.pause("q")
    peer.resume("q")
    world.settle()
    assert len(peer.results["q"].records) == 100
    assert [heard.body for heard in peer.heard["q"]] == [body(1, "new")]


# -- memory ---------------------------------------------------------------------------------------------


def test_oldest_query_ends_when_results_need_too_much_memory() -> None:
    world, _, slow = orders_world(records=400)
    slow.query("q", "orders", follow=True, credit=1_000)
    for _ in range(80):
        world.step()
    some = len(slow.results["q"].records)
    assert some
    services = world.broker.services
    services.records.results_bytes_max = services.records.results_bytes + 1_000
    log_feed = world.log_feeds(slow.conn)["q"]
    other = world.reader("other")
    other.query("q", "orders", credit=1 << 20)
    for _ in range(200):
        world.step()
    ended = slow.results["q"].ended
    assert ended is not None
    assert ended.code == "query_too_slow"
    assert slow.results["q"].end is None
    assert world.broker.subscriptions.of(slow.conn) == {}
    assert log_feed.phase is Phase.ENDED
    assert len(other.results["q"].records) == 400
    assert other.results["q"].end is not None
