"""Link registry: handshakes, ends of connections, and the state of links."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.helpers.linked import events, join, links_of, make_pair, publish, row_of, run
from tests.simulation.journal_world import read_log
from tests.simulation.linked_engine import LinkedEngine, PipeEnd, texts_of
from tests.simulation.linked_engines import link_to
from tickertape.base.errors import AuthenticationFailed, FrameTooLarge, HeartbeatMissed, LinkRefused
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import link_heartbeat_seconds
from tickertape.engine.replication.links import destination_end, handshakes
from tickertape.engine.runtime.effects import LinkEnded
from tickertape.journal.format.replication_records import StartedRecord, decode_record
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import Ack, Goodbye, Heartbeat, Prepare, Stage, Staged, Transaction
from tickertape.wire.heartbeat import Liveness
from tickertape.wire.link import LinkAck, LinkCredit, LinkOpen


def test_record_of_the_run_is_the_first_row() -> None:
    engine, _ = make_pair()
    engine.settle()
    _, batch = read_log(engine.broker.journal, engine.disk)[0]
    record = decode_record(bytes(batch.body(0)))
    assert isinstance(record, StartedRecord)
    assert record.position == 0


def test_linked_engines_have_the_messages_of_both() -> None:
    first, second = make_pair()
    join(first, second)
    join(second, first)
    here, there = publish(first, 5), publish(second, 7, "q")
    run(first, second)
    assert {*first.persisted.values()} == {*second.persisted.values()} == here.sent | there.sent
    assert len(first.persisted) == len(second.persisted) == 12
    assert [row_of(first).state, row_of(first, "in").state] == ["live", "live"]
    assert row_of(first).counters.messages >= 5
    assert row_of(second, "in").counters.messages == row_of(first).counters.messages
    assert row_of(first, "in").position == row_of(second).position


# -- refused links --------------------------------------------------------------------------------------


def test_mismatch_refuses_the_link_with_equal_texts_at_both_ends() -> None:
    first, second = make_pair(both=False)
    first.destinations = (link_to(9),)
    first.restart()
    first.broker.link_connected(PipeEnd(first, "source").conn, "server-9", None, first.now())
    mine, theirs = [*first.ends.values()][-1], PipeEnd(second, "destination")
    mine.peer, theirs.peer = theirs, mine
    second.broker.connected(theirs.conn)
    mine.send(mine.line.preface())
    first.collect()
    run(first, second)
    (ended,) = first.ended
    assert ended.refused
    assert isinstance(ended.error, LinkRefused)
    assert "'server-0' expects 'server-9'" in str(ended.error)
    assert "does not replicate back" in str(ended.error)
    (told,) = events(second, "link_refused")
    assert told["text"] == str(ended.error) == events(first, "link_refused")[0]["text"]
    assert (told["source"], told["code"]) == ("server-0", "link_refused")
    assert row_of(first).state == row_of(second, "in").state == "refused"
    assert row_of(first).error == row_of(second, "in").error == str(ended.error)
    assert links_of(second).connections == {}


def test_wrong_token_refuses_the_link_before_the_validation() -> None:
    first, second = make_pair()
    second.token = "secret"
    second.restart()
    second.token = "other"
    join(first, second)
    (ended,) = first.ended
    assert isinstance(ended.error, AuthenticationFailed)
    assert ended.refused
    assert [row for row in links_of(second).rows() if row.direction == "in"] == []


def test_right_token_opens_the_link() -> None:
    first, second = make_pair()
    second.token = "secret"
    second.restart()
    join(first, second)
    assert row_of(first).state == "live"


def test_copy_of_a_data_directory_refuses_the_link() -> None:
    first, second = make_pair()
    run(first, second)
    second.log_id = first.log_id
    second.disk = first.copy()
    second.open()
    join(first, second)
    assert "both have the log" in texts_of(first.ended)[0]
    assert first.ended[0].refused


def test_old_copy_that_lacks_removed_rows_refuses_the_link() -> None:
    first, second = make_pair(retention=RetentionPolicy(size_bytes=1))
    join(first, second)
    join(second, first)
    publish(first, 200)
    run(first, second)
    copy = second.copy()
    publish(first, 400, "q")
    publish(first, 400, "r")
    for engine in (second, first, first):
        run(first, second)
        engine.wake(61)
    run(first, second)
    assert first.broker.journal.view.first_position > 250
    second.restore(copy)
    run(first, second)
    join(first, second)
    assert "retention removed the rows before" in texts_of(first.ended)[-1]
    assert first.ended[-1].refused
    assert row_of(first).state == "refused"


def test_handshake_that_is_too_large_to_send_is_refused() -> None:
    first, second = make_pair()
    join(first, second)
    (conn,) = first.broker.connections
    assert row_of(first).state == "live"
    first.broker.goodbye(conn, FrameTooLarge("Cannot encode the handshake."))
    assert row_of(first).state == "refused"


def test_restored_copy_of_the_source_reports_lost_history() -> None:
    first, second = make_pair()
    join(first, second)
    join(second, first)
    run(first, second)
    copy = first.copy()
    store = publish(first, 50)
    run(first, second)
    first.restore(copy)
    run(first, second)
    join(first, second)
    (lost,) = events(first, "history_lost")
    assert int(lost["positions"]) >= 50
    join(second, first)
    assert {*first.persisted.values()} == store.sent, "the reverse link brings the lost messages back"


def test_stopping_server_takes_no_links() -> None:
    first, second = make_pair()
    run(first, second)
    second.broker.close(second.now())
    second.collect()
    join(first, second)
    assert "the server is stopping" in texts_of(first.ended)[0]
    assert not first.ended[0].refused


def test_more_incoming_links_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "incoming_links_max", 1)
    first, second = make_pair()
    third = LinkedEngine(3, 2, (link_to(1, "replicate"),), Counter())
    run(third)
    join(first, second)
    join(third, second)
    assert "1 links, the largest number" in texts_of(third.ended)[0]
    first.restart()  # the place of a link without a connection is free
    run(first, second)
    join(third, second)
    assert row_of(third).state == "live"


# -- connections ----------------------------------------------------------------------------------------


def test_new_connection_ends_the_lost_one_at_both_ends() -> None:
    first, second = make_pair()
    old = join(first, second)
    old.lose_bytes(first.rng)  # neither end knows
    old.closing = old.peer.closing = False
    new = first.link_to(second)
    assert [ended.conn for ended in first.ended] == [old.conn]
    run(first, second)
    assert [*second.ends] == [new.peer.conn]
    assert row_of(first).state == row_of(second, "in").state == "live"


def test_source_after_a_restart_replaces_the_connection_of_the_last_run() -> None:
    first, second = make_pair()
    old = join(first, second)
    peer = old.peer
    first.restart()
    peer.closing = False  # half-open: the end of the old connection is unknown
    join(first, second)
    assert row_of(first).state == "live"
    assert peer.conn not in second.ends
    assert first.ended == [LinkEnded(old.conn, "server-1", None, False)] or first.ended == []


def test_server_after_a_restart_links_with_a_peer_that_has_the_old_connection() -> None:
    first, second = make_pair()
    old = join(first, second)
    peer = old.peer
    first.restart()
    run(first)
    peer.closing = False
    join(second, first)  # its handshake names the link of the last run
    assert row_of(second).state == "live"


def test_handshakes_wait_for_the_record_of_the_run() -> None:
    first, second = make_pair()
    run(second)
    end = first.link_to(second)
    assert len(end.peer.incoming) == 1, "only the preface"
    first.settle()
    assert len(end.peer.incoming) == 2
    first.restart()
    second.restart()
    run(first)
    end = first.link_to(second)
    while end.peer.deliver():
        pass
    assert not end.incoming, "the answer waits for the disk of the destination"
    run(first, second)
    assert row_of(first).state == "live"


def test_lost_connections_leave_no_handshake_that_waits_for_the_disk() -> None:
    first, second = make_pair()
    for source, destination in ((first, second), (second, first)):
        for _ in range(5):  # the disk of the destination writes nothing
            end = source.link_to(destination)
            while end.peer.deliver():
                pass
            for engine, conn in ((source, end.conn), (destination, end.peer.conn)):
                engine.broker.disconnected(conn)
                engine.collect()
        assert len(links_of(source)._handshakes._early) <= 1
        assert len(links_of(destination)._handshakes._early) <= 1
        run(destination)


def test_no_heartbeat_precedes_the_handshake() -> None:
    first, second = make_pair()
    run(second)
    end = first.link_to(second)
    for _ in range(4):  # the record of the run waits for the disk
        first.mono += link_heartbeat_seconds
        first.broker.wake(first.now())
        first.broker.probed(end.conn, Liveness(first.mono, 0, 0.0), first.now())
        first.collect()
    run(first, second)
    assert first.ended == []
    assert row_of(first).state == "live"
    assert len(first.broker.heartbeats) == 1


def test_each_connection_ends_once() -> None:
    first, second = make_pair()
    end = join(first, second)
    first.broker.goodbye(end.conn, LinkRefused("Cannot keep the link: test. Nothing."))
    first.broker.disconnected(end.conn)
    first.collect()
    run(first, second)
    assert [ended.conn for ended in first.ended] == [end.conn]
    assert first.ended[0].refused
    assert row_of(first).state == row_of(second, "in").state == "refused"
    assert row_of(first).counters.disconnects == row_of(second, "in").counters.disconnects == 1
    other = join(first, second)
    first.broker.disconnected(other.conn)
    first.collect()
    assert first.ended[1:] == [LinkEnded(other.conn, "server-1", None, False)]


def test_commands_out_of_place_end_the_connection() -> None:
    first, second = make_pair()
    end = join(first, second)
    first.broker.link_received(
        end.conn, LinkOpen(side=links_of(first)._handshakes._side("x")), None, first.now()
    )
    first.collect()
    assert "Unexpected LinkOpen from the destination" in texts_of(first.ended)[0]
    assert not first.ended[0].refused
    run(first, second)
    peer = join(first, second).peer
    second.broker.link_received(peer.conn, LinkAck(durable=1), None, second.now())
    second.collect()
    assert peer.conn not in links_of(second).connections
    conn = 900
    second.broker.connected(conn)
    second.broker.link_received(conn, LinkCredit(bytes=1), None, second.now())
    assert conn not in links_of(second).connections
    assert conn not in second.broker.connections


def test_failed_journal_ends_links() -> None:
    first, second = make_pair()
    join(first, second)
    second.disk.fail("write", 1, 5)
    publish(first, 3)
    run(first, second)
    assert second.fatal is not None
    assert links_of(second).connections == {}
    assert [ended.refused for ended in first.ended] == [False]


def test_silent_peer_ends_the_link() -> None:
    first, second = make_pair()
    end = join(first, second)
    for _ in range(6):
        first.mono += link_heartbeat_seconds
        first.broker.wake(first.now())
        if end.conn in first.ends:
            first.broker.probed(end.conn, Liveness(0.0, 0, 0.0), first.now())
        first.collect()
    (ended,) = first.ended
    assert isinstance(ended.error, HeartbeatMissed)
    assert "Cannot reach the server at the other end of the link" in str(ended.error)
    assert not ended.refused
    assert len(second.broker.heartbeats) == 1


def test_heartbeats_change_nothing() -> None:
    first, second = make_pair()
    end = join(first, second)
    first.broker.link_received(end.conn, Heartbeat(), None, first.now())
    second.broker.link_received(end.peer.conn, Heartbeat(), None, second.now())
    assert row_of(first).state == "live"


def test_goodbye_of_the_other_end_closes_the_connection() -> None:
    first, second = make_pair()
    end = join(first, second)
    goodbye = Goodbye(code="not_ready", text="Cannot go on: test. Wait.")
    first.broker.link_received(end.conn, goodbye, None, first.now())
    first.collect()
    assert texts_of(first.ended) == ["Cannot go on: test. Wait."]
    assert not first.ended[0].refused
    assert first.counts["closed: not_ready"] == 1


# -- flow -----------------------------------------------------------------------------------------------


def test_blocked_connection_gets_nothing() -> None:
    first, second = make_pair()
    end = join(first, second)
    first.broker.blocked(end.conn)
    second.broker.blocked(end.peer.conn)
    publish(first, 3)
    run(first, second)
    assert second.persisted == {}
    first.broker.writable(end.conn)
    first.collect()
    run(first, second)
    assert len(second.persisted) == 3
    assert row_of(first).behind > 0, "the acknowledgement waits"
    second.broker.writable(end.peer.conn)
    second.collect()
    run(first, second)
    assert row_of(first).behind == 0


def test_held_answers_above_the_limit_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_pair()
    join(first, second)
    join(second, first)
    run(first, second)
    copy = first.copy()
    store = publish(first, 50)
    run(first, second)
    first.restore(copy)
    run(first, second)
    monkeypatch.setattr(destination_end, "link_answer_bytes_max", 0)
    # The second engine names the lost messages of the first one, which requests them.
    join(second, first)
    assert first.counts["links not read"] >= 1
    assert row_of(first, "in").counters.requested == row_of(second).counters.requested > 0
    assert {*first.persisted.values()} == store.sent
    assert all(end.reading for end in first.ends.values())


def test_acknowledgements_and_places_wait_for_the_disk_of_the_destination() -> None:
    first, second = make_pair()
    end = join(first, second)
    waiting = 0
    for number in range(12):
        publish(first, 3, f"p{number}")
        while end.peer.deliver():
            pass
        while second.broker.has_work:
            second.work()
        second.run_job()
        while end.deliver():
            pass
        stored = {*second.persisted.values()}
        for position in (row_of(first).position, row_of(second, "in").position):
            assert {key for at, key in first.persisted.items() if at < position} <= stored
        waiting += len(stored) < len(first.persisted)
        if number == 8:
            end = first.link_to(second)
            while end.peer.deliver() or end.deliver():
                pass
            assert events(first, "link_connected")[-1]["position"] == row_of(second, "in").position
    assert waiting > 6
    assert row_of(first).position > 10
    run(first, second)
    assert row_of(first).behind == 0


def test_link_continues_after_reads_of_the_log() -> None:
    first, second = make_pair()
    publish(first, 200)
    first.restart()
    first.broker.journal.view.tail_bytes_max = 1
    run(first, second)
    join(first, second)
    assert len(second.persisted) == 200
    assert first.counts["reads"] > 1


def test_subscriber_gets_the_messages_of_another_server() -> None:
    first, second = make_pair()
    join(first, second)
    reader = second.connect("reader")
    second.settle()
    reader.subscribe("all", "orders", bookmark="0", credit=1 << 20)
    store = publish(first, 40)
    run(first, second)
    heard = [(one.publisher, one.sequence) for one in reader.heard["all"]]
    assert heard == sorted(key for key in store.sent if not key[1] % 2)


def test_link_behind_removed_rows_reports_expired_places() -> None:
    first, second = make_pair(retention=RetentionPolicy(size_bytes=1))
    first.destinations = ()
    first.restart()
    publish(first, 400)
    first.wake(61)
    run(first)
    begin = first.broker.journal.view.first_position
    assert begin > 100
    first.destinations = (link_to(1),)
    first.restart()
    run(first)
    join(first, second)
    assert events(second, "places_expired") == [{"source": "server-0"}]
    assert {*second.persisted.values()} == {key for at, key in first.persisted.items() if at >= begin}


def test_new_link_beside_other_links_is_no_old_copy() -> None:
    """The last log of a chain has reported rows of the first one. A link between them then starts."""
    counts: Counter[str] = Counter()
    links = ((1,), (0, 2), (1,))
    chain = [
        LinkedEngine(at, at, tuple(map(link_to, links[at])), counts, RetentionPolicy(size_bytes=1))
        for at in range(3)
    ]
    for at, others in enumerate(links):
        for other in others:
            join(chain[at], chain[other])
    first, _, last = chain
    for name in ("p", "q", "r", "s"):
        publish(first, 100, name)
        for engine in (*chain, *chain):
            run(*chain)
            engine.wake(61)
    begin = first.broker.journal.view.first_position
    assert begin > 100
    assert last.log_id in links_of(first)._handshakes._facts.reporters
    for engine, others in ((first, (1, 2)), (last, (1, 0))):
        engine.destinations = tuple(map(link_to, others))
        engine.restart()
    run(*chain)
    join(first, last)
    assert first.ended[-1:] == [] or not first.ended[-1].refused
    publish(first, 20, "t")
    run(first, last)
    assert len(last.persisted) == len({*last.persisted.values()}) == 420


# -- transactions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicated", [True, False])
def test_transaction_on_a_replicated_topic_is_refused(*, replicated: bool) -> None:
    first, second = make_pair(both=False)
    engine = first if replicated else second
    run(engine)
    peer = engine.connect("p")
    engine.settle()
    builder = BatchBuilder()
    builder.add("orders", b"x")
    batch = MessageBatch.parse(builder.build().encode())
    transaction = Transaction(publisher="p", space="", name="one")
    peer.send(Stage(id=1, transaction=transaction, part="a"), batch)
    engine.settle()
    answer = peer.answers.get(1)
    assert (isinstance(answer, Ack) and answer.code == "bad_option") == replicated
    peer.send(Prepare(id=2, transaction=transaction, part="", topics=("orders",)))
    engine.settle()
    if replicated:
        assert isinstance(answer, Ack)
        assert "the topic is replicated" in answer.text
        assert peer.answers.get(2) == msgspec.structs.replace(answer, id=2)
    else:
        assert peer.answers.get(2) == Staged(id=2, messages=0)
