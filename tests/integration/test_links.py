"""Replication links between real servers: one-way, two-way, three servers, kills, cuts, old copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.admin import ask, stats_of
from tests.helpers.linked_servers import (
    ONE_WAY,
    RULE,
    SECONDS,
    TOPIC,
    LinkedServer,
    bodies,
    destination,
    differences,
    have,
    publish,
    servers,
    two_way,
)
from tickertape.base.errors import TickertapeError
from tickertape.cli.support.command_group import cli
from tickertape.testing import FaultProxy, running_server
from tickertape.testing.server import wait_until

pytestmark = pytest.mark.slow


def judge(expected: list[bytes], *logs: LinkedServer) -> None:
    """Wait for the messages, and compare each log with them."""
    have(expected, *logs)
    assert [differences(expected, server) for server in logs] == [{}] * len(logs)


def test_one_way_link_brings_messages_in_the_order_of_the_source(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ny-2", second.address, more=ONE_WAY)).start()
        sent = bodies("a", 500)
        publish(first, "a", sent)
        second.configure().start()
        judge(sent, second)
        publish(first, "a", more := bodies("a", 500, 500))
        judge([*sent, *more], second)
        assert second.log() == first.log() == [*sent, *more]
        publish(second, "b", bodies("b", 1))
        have([*sent, *more, b""], second)
        assert len(first.log()) == 1000, "no link leads back"


def test_two_way_links_bring_each_message_once(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        two_way(first, second)
        first.start()
        second.start()
        sent: list[bytes] = []
        for turn in range(5):
            for server, name in ((first, "a"), (second, "b")):
                publish(server, name, part := bodies(name, 200, 200 * turn))
                sent += part
        judge(sent, first, second)


def test_client_that_publishes_at_both_ends_is_in_each_log_once(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        two_way(first, second)
        first.start()
        second.start()
        sent = bodies("a", 600)
        store = tt.MemoryPublishStore()
        for turn in range(6):
            server = (first, second)[turn % 2]
            # the connection ends without a flush, so the next one sends the rest again
            with server.client("a", store) as client:
                for body in sent[100 * turn : 100 * (turn + 1)]:
                    client.publish(TOPIC, body)
                if turn == 5:
                    client.publish_flush()
        judge(sent, first, second)


def test_three_servers_pass_messages_on(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2", "ny-3") as (first, second, third):
        first.configure(destination("ny-2", second.address))
        second.configure(destination("ny-1", first.address), destination("ny-3", third.address))
        third.configure(destination("ny-2", second.address))
        for server in (first, second, third):
            server.start()
        sent: list[bytes] = []
        for server, name in ((first, "a"), (second, "b"), (third, "c")):
            publish(server, name, part := bodies(name, 300))
            sent += part
        judge(sent, first, second, third)


def test_mesh_of_three_with_kills_has_each_message_once(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2", "ny-3") as mesh:
        for server in mesh:
            others = [other for other in mesh if other is not server]
            server.configure(*(destination(other.name, other.address) for other in others)).start()
        sent: list[bytes] = []
        for turn in range(3):
            for server, name in zip(mesh, "abc", strict=True):
                publish(server, name, part := bodies(name, 100, 100 * turn))
                sent += part
            mesh[turn].kill()
            publish(mesh[(turn + 1) % 3], "d", part := bodies("d", 50, 50 * turn))
            sent += part
            mesh[turn].start()
        judge(sent, *mesh)


@pytest.mark.parametrize("killed", [(0,), (1,), (0, 1)], ids=["source", "destination", "both"])
def test_killed_server_loses_and_repeats_nothing(tmp_path: Path, killed: tuple[int, ...]) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as pair:
        two_way(pair[0], pair[1])
        for server in pair:
            server.start()
        sent: list[bytes] = []
        for turn in range(4):
            for server, name in zip(pair, ("a", "b"), strict=True):
                publish(server, name, part := bodies(name, 150, 150 * turn))
                sent += part
            for number in killed:
                pair[number].kill()
            for number in killed:
                pair[number].start()
        judge(sent, *pair)
        assert all(len(server.events("link_connected")) >= 2 for server in pair)


@pytest.mark.parametrize("count", [0, 1, 30, 500, 4000])
def test_links_cut_after_any_byte_lose_and_repeat_nothing(tmp_path: Path, count: int) -> None:
    with (
        servers(tmp_path, "ny-1", "ny-2") as (first, second),
        FaultProxy(first.address) as to_first,
        FaultProxy(second.address) as to_second,
    ):
        first.configure(destination("ny-2", to_second.uri))
        second.configure(destination("ny-1", to_first.uri))
        first.start()
        second.start()
        sent: list[bytes] = []
        rounds = 0
        for way in (to_first.to_server, to_second.to_client, to_second.to_server, to_first.to_client):
            cut = way.after(count, "cut")
            while not cut.is_set():
                rounds += 1
                assert rounds < 500, "the cut needs more bytes than the links send"
                for server, name in ((first, "a"), (second, "b")):
                    publish(server, name, part := bodies(name, 30, 30 * rounds))
                    sent += part
        judge(sent, first, second)
        assert to_first.accepted >= 3
        assert to_second.accepted >= 3


def test_half_open_link_is_noticed_and_replaced(tmp_path: Path) -> None:
    with (
        servers(tmp_path, "ny-1", "ny-2") as (first, second),
        FaultProxy(second.address) as to_second,
    ):
        second.configure().start()
        first.configure(destination("ny-2", to_second.uri, more=ONE_WAY)).start()
        publish(first, "a", sent := bodies("a", 50))
        judge(sent, second)
        to_second.half_open()
        publish(first, "a", more := bodies("a", 50, 50))
        judge([*sent, *more], second)
        assert to_second.accepted == 2
        assert "code=heartbeat" in first.events("link_disconnected")[0]


def test_links_over_unix_sockets_bring_each_message_once(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second), TemporaryDirectory() as sockets:
        for server in (first, second):
            server.address = f"unix://{sockets}/{server.name}"
            server.transport = f'[[transport]]\nlisten = "{server.address}"\nreplication = true\n'
        two_way(first, second)
        first.start()
        second.start()
        publish(first, "a", sent := bodies("a", 100))
        publish(second, "b", more := bodies("b", 100))
        judge([*sent, *more], first, second)


def test_old_copy_gets_lost_messages_back(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        two_way(first, second)
        first.start()
        second.start()
        publish(first, "a", before := bodies("a", 200))
        judge(before, first, second)
        first.stop()
        shutil.copytree(first.data, tmp_path / "copy")
        first.start()
        publish(first, "a", lost := bodies("a", 200, 200))
        judge([*before, *lost], first, second)
        first.kill()
        shutil.rmtree(first.data)
        shutil.move(tmp_path / "copy", first.data)
        first.start()
        publish(first, "c", later := bodies("c", 50))
        judge([*before, *lost, *later], first, second)
        assert first.events("history_lost")


def test_stopped_servers_end_links_with_a_goodbye(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        two_way(first, second)
        first.start()
        second.start()
        publish(first, "a", sent := bodies("a", 100))
        judge(sent, first, second)
        assert second.stop() == 0
        wait_until(lambda: len(first.events("link_disconnected")) == 2, SECONDS)
        assert all("code=not_ready" in line for line in first.events("link_disconnected"))
        assert first.stop() == 0


def consumed(server: LinkedServer, name: str, count: int) -> list[bytes]:
    """Receive and acknowledge messages of the queue `work`."""
    with server.client(name) as client:
        with client.subscribe("work", max_backlog=50) as stream:
            found = []
            for _ in range(count):
                message = stream.get(timeout=SECONDS)
                assert message is not None
                found.append(bytes(message.data))
                message.ack()
        client.publish_flush()
    return found


def test_local_queue_of_each_server_delivers_each_message_once(tmp_path: Path) -> None:
    queue = f'[[queue]]\nname = "work"\nunderlying = "{TOPIC}"\nreplication = "local"\n'
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ny-2", second.address), more=queue)
        second.configure(destination("ny-1", first.address), more=queue)
        first.start()
        second.start()
        publish(first, "a", sent := bodies("a", 60))
        assert consumed(second, "worker", 40) == sent[:40]
        assert consumed(first, "worker", 60) == sent
        second.kill()
        second.start()
        publish(second, "b", more := bodies("b", 20))
        assert consumed(second, "worker", 40) == [*sent[40:], *more], "settlements are not replicated"
        assert consumed(first, "worker", 20) == more


def test_transaction_on_a_replicated_topic_is_refused(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ny-2", second.address, more=ONE_WAY)).start()
        with (
            first.client("sink") as client,
            pytest.raises(TickertapeError, match="replicat"),
            client.transaction("t-1") as transaction,
        ):
            transaction.publish(TOPIC, b"x")
        assert first.log() == []
        publish(first, "a", sent := bodies("a", 1))
        assert first.log() == sent


def test_statistics_show_links_in_both_directions(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        missing = destination("ldn", "tcp://127.0.0.1:1")
        first.configure(destination("ny-2", second.address), missing).start()
        second.configure(destination("ny-1", first.address)).start()
        publish(first, "a", sent := bodies("a", 100))
        judge(sent, first, second)

        def caught_up() -> bool:
            link = stats_of(first).links[0]
            return (link.state, link.behind_messages) == ("live", 0)

        wait_until(caught_up, SECONDS)
        out, down, source = stats_of(first).links
        end = stats_of(first).journal.persisted_end
        assert (out.name, out.direction, out.address) == ("ny-2", "out", second.address)
        assert (out.connects, out.disconnects, out.error) == (1, 0, "")
        assert 100 <= out.position <= end, "records of places move no place"
        assert out.messages >= 100
        assert out.log == stats_of(second).journal.identity
        assert (down.name, down.state, down.address) == ("ldn", "down", "tcp://127.0.0.1:1")
        assert (down.error, down.behind_messages) == ("Connection refused", end)
        assert (source.name, source.direction, source.state) == ("ny-2", "in", "live")
        _, _, page = ask(first, "/metrics")
        lines = page.decode().splitlines()
        assert 'tickertape_link_connected{direction="out",link="ny-2"} 1.0' in lines
        assert 'tickertape_link_connected{direction="out",link="ldn"} 0.0' in lines
        assert 'tickertape_link_connects_total{direction="out",link="ny-2"} 1.0' in lines
        listed = CliRunner().invoke(cli, ["replication", "ls", "--admin", first.admin_url]).stdout
        assert [line.split()[:4] for line in listed.splitlines()[1:4]] == [
            ["ny-2", "out", "async", "live"],
            ["ldn", "out", "async", "down"],
            ["ny-2", "in", "-", "live"],
        ]
        assert listed.splitlines()[4] == "ldn (out): Connection refused"
        arguments = ["replication", "ls", "--admin", first.admin_url, "--output", "json"]
        rows = CliRunner().invoke(cli, arguments).stdout.splitlines()
        assert [json.loads(row)["name"] for row in rows] == ["ny-2", "ldn", "ny-2"]


def test_server_without_replication_lists_no_link(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        assert stats_of(server).links == []
        listed = CliRunner().invoke(cli, ["replication", "ls", "--admin", server.admin_url])
        assert listed.stdout == "no replication link is configured, and no server has opened one\n"


# -- synchronous topics ---------------------------------------------------------------------------------


def test_acknowledgement_on_a_synchronous_topic_waits_until_the_other_server_is_back(tmp_path: Path) -> None:
    rules = RULE.replace("false", "true")
    rules += '[[replication.destination.topic]]\nname = "elsewhere"\nsync = false\n'
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ny-2", second.address, rules=rules)).start()
        second.configure(destination("ny-1", first.address, rules=rules)).start()
        publish(first, "a", sent := bodies("a", 100))
        assert differences(sent, second) == {}, "an acknowledged message is on both disks"
        second.kill()
        store = tt.MemoryPublishStore()
        with first.client("b", store) as waiting, first.client("c", tt.MemoryPublishStore()) as other:
            for body in (more := bodies("b", 100)):
                waiting.publish(TOPIC, body)
            other.publish("elsewhere", b"{}")
            other.publish_flush(SECONDS)
            have([*sent, b""], first)
            with pytest.raises(tt.TimedOut):
                waiting.publish_flush(0.2)
            assert store.unpersisted_count() == 100
            second.start()
            waiting.publish_flush(SECONDS)
        assert differences([*sent, *more], second) == {}
