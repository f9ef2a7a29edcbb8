"""Transactions of all four clients: atomic, and committed once per name over any connection fault."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import tickertape as tt
from tests.conformance.fronts import Driven, Front
from tests.helpers.relay import Relay
from tickertape.base.limits import publish_topics_max
from tickertape.client.protocol.transactions import aborting
from tickertape.testing import FaultProxy, RunningServer, wait_until
from tickertape.testing.fault_proxy import Fault
from tickertape.wire.commands import Abort, Commit, Stage

SECONDS = 30.0
CYCLES = 12
CYCLES_FULL = 200


def begin(client: tt.Client, name: str | None = None, **options: Any) -> Any:
    """Return a transaction with blocking calls, on either front."""
    made: Any = client.transaction(name, **options)
    return Driven(client.thread, made) if isinstance(client, Driven) else made


def held(client: tt.Client, topic: str) -> list[bytes]:
    return [message.data for message in client.replay(topic)]


@pytest.fixture(params=["plain", "ha"])
def any_client(request: pytest.FixtureRequest, front: Front, uri: str, name: str) -> tt.Client:
    """Each of the four clients, connected to the shared server."""
    if request.param == "plain":
        return front.connect(name, uri)
    client = front.make_ha(name, servers=[uri])
    client.connect_and_logon(timeout=SECONDS)
    return client


def test_transaction_block_commits_all_published_messages(
    any_client: tt.Client, topic: str, other_topic: str
) -> None:
    with begin(any_client) as transaction:
        transaction.publish(topic, b"1", correlation_id="c", expiration=60)
        transaction.publish_batch(topic, [b"2", b"3"])
        transaction.publish(other_topic, {"a": 1})
        transaction.publish_arrow(topic, pa.table({"data": [b"4", b"5"]}))
        assert held(any_client, topic) == []
    result = transaction.result
    assert (result.message_count, result.repeated) == (6, False)
    messages = list(any_client.replay(topic))
    assert [message.data for message in messages] == [b"1", b"2", b"3", b"4", b"5"]
    assert messages[0].correlation_id == "c"
    assert messages[-1].bookmark == result.bookmark
    assert held(any_client, other_topic) == [b'{"a":1}']


def test_transaction_block_that_raises_publishes_nothing(any_client: tt.Client, topic: str) -> None:
    transaction = begin(any_client)
    transaction.publish(topic, b"1")
    with pytest.raises(ZeroDivisionError), transaction:
        raise ZeroDivisionError
    assert transaction.aborted
    assert transaction.result is None
    with pytest.raises(tt.UsageError):
        transaction.publish(topic, b"2")
    assert held(any_client, topic) == []


def test_transaction_name_is_committed_once(any_client: tt.Client, topic: str, name: str) -> None:
    for number, repeated in ((1, False), (2, True)):
        transaction = begin(any_client, f"{name}-tx")
        transaction.publish(topic, b"%d" % number)
        result = transaction.commit()
        assert (result.repeated, result.message_count) == (repeated, 1 - repeated)
        assert (result.bookmark is None) is repeated
    assert held(any_client, topic) == [b"1"]


def test_numbered_transactions_of_a_space_commit_only_rising_numbers(
    any_client: tt.Client, topic: str, name: str
) -> None:
    outcomes = []
    for number in ("3", "5", "4", "5", "6"):
        transaction = begin(any_client, number, space="s", publisher=f"{name}-query")
        transaction.publish(topic, number)
        outcomes.append(transaction.commit().repeated)
    assert outcomes == [False, False, True, True, False]
    assert held(any_client, topic) == [b"3", b"5", b"6"]


def test_empty_transaction_and_transaction_of_many_frames_commit(any_client: tt.Client, topic: str) -> None:
    assert begin(any_client).commit().bookmark is None
    transaction = begin(any_client, bytes_max="8MB")
    bodies = [b"%0100000d" % number for number in range(40)]
    for body in bodies:
        transaction.publish(topic, body)
    assert transaction.commit().message_count == len(bodies)
    assert held(any_client, topic) == bodies


def test_publish_beyond_transaction_limit_raises_and_rest_commits(any_client: tt.Client, topic: str) -> None:
    transaction = begin(any_client, bytes_max="1MB")
    transaction.publish(topic, bytes(900_000))
    with pytest.raises(tt.TransactionTooLarge, match="exceeds 1048576 bytes"):
        transaction.publish(topic, bytes(200_000))
    assert transaction.commit().message_count == 1


def test_rejected_commit_raises_and_publishes_nothing(any_client: tt.Client, topic: str) -> None:
    transaction = begin(any_client)
    transaction.publish(topic, b"1")
    transaction.publish("not recorded", b"2")
    with pytest.raises(tt.BadTopic, match="topic is not persistent"):
        transaction.commit()
    with pytest.raises(tt.BadOption):
        begin(any_client, "x", space="s").commit()
    assert held(any_client, topic) == []
    with begin(any_client) as again:
        again.publish(topic, b"3")
    assert held(any_client, topic) == [b"3"]


def test_commit_after_timeout_commits_once(
    front: Front, relay: Relay, uri: str, name: str, topic: str
) -> None:
    client = front.connect(name, relay.uri)
    transaction = begin(client, "late")
    transaction.publish(topic, b"1")
    relay.hold()
    with pytest.raises(tt.TimedOut):
        transaction.commit(timeout=0.3)
    relay.release()
    assert transaction.commit().message_count in (0, 1)
    assert held(client, topic) == [b"1"]
    with begin(client, "late") as again:
        again.publish(topic, b"1")
    assert again.result.repeated


def test_abort_drops_messages_staged_at_the_server(front: Front, relay: Relay, name: str, topic: str) -> None:
    client = front.connect(name, relay.uri)
    transaction = begin(client, "left")
    transaction.publish(topic, b"1")
    transaction.abort()
    assert not any(isinstance(command, Abort) for command in relay.asked), "nothing was staged"
    transaction = begin(client, "left")
    transaction.publish(topic, b"1")
    relay.hold()
    with pytest.raises(tt.TimedOut):
        transaction.commit(timeout=0.3)
    relay.release()
    with pytest.raises(ZeroDivisionError), transaction:
        raise ZeroDivisionError
    assert isinstance(relay.asked[-1], Abort)
    assert transaction.aborted
    assert held(client, topic) == []


def test_concurrent_commit_calls_share_one_result(front: Front, relay: Relay, name: str, topic: str) -> None:
    client = front.connect(name, relay.uri)
    transaction = begin(client, "shared")
    transaction.publish(topic, b"1")
    relay.hold()
    with ThreadPoolExecutor(4) as pool:
        commits = [pool.submit(transaction.commit, timeout=SECONDS) for _ in range(3)]
        wait_until(lambda: any(isinstance(command, Stage) for command in relay.asked), SECONDS)
        late = pool.submit(transaction.commit, timeout=0.05)
        with pytest.raises(tt.TimedOut):
            late.result(SECONDS)
        relay.release()
        results = [commit.result(SECONDS) for commit in commits]
    assert results == [transaction.result] * 3
    assert transaction.result.message_count == 1
    assert [type(command).__name__ for command in relay.asked].count("Commit") == 1
    assert transaction.commit() == transaction.result
    assert held(client, topic) == [b"1"]


def test_connection_lost_between_two_frames_restages_the_transaction(
    front: Front, relay: Relay, name: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends the next frame on a new connection, which has no data of the first."""
    client = front.make_ha(name, servers=[relay.uri], reconnect_delay=0.01)
    client.connect_and_logon(timeout=SECONDS)
    transaction = begin(client, "two frames")
    transaction.publish_batch(topic, [b"1", b"2"])
    transaction.publish_batch(topic, [b"3"])
    real: Any = client.target if isinstance(client, Driven) else client
    ask, first = real._driver.ask, real._driver.logon.logged_on
    asked: list[object] = []

    def cuts_once() -> bool:
        asked.append(None)
        if len(asked) == 1:
            relay.cut()
        return len(asked) == 1

    def ask_and_cut(*arguments: Any) -> Any:
        answer = ask(*arguments)
        if cuts_once():
            wait_until(lambda: real._driver.logon.logged_on is not first, SECONDS)
        return answer

    async def ask_and_cut_async(*arguments: Any) -> Any:
        answer = await ask(*arguments)
        if cuts_once():
            await asyncio.to_thread(wait_until, lambda: real._driver.logon.logged_on is not first, SECONDS)
        return answer

    monkeypatch.setattr(real._driver, "ask", ask_and_cut if real is client else ask_and_cut_async)
    assert transaction.commit(timeout=SECONDS).message_count == 3
    assert held(client, topic) == [b"1", b"2", b"3"]
    assert len(asked) > 4, "the transaction was staged a second time"


def test_parts_dropped_between_two_frames_prevent_the_commit(
    uri: str, name: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tt.Client(name, uri) as client, tt.Client(f"{name}-2", uri) as other:
        transaction = client.transaction("dropped")
        transaction.publish_batch(topic, [b"1", b"2"])
        transaction.publish_batch(topic, [b"3"])
        ask = client._driver.ask

        def ask_and_drop(*arguments: Any) -> Any:
            answer = ask(*arguments)
            monkeypatch.undo()
            other._driver.ask(aborting(transaction._buffer.key), None, SECONDS)
            return answer

        monkeypatch.setattr(client._driver, "ask", ask_and_drop)
        with pytest.raises(tt.TransactionUnknown, match="only 1 of the transaction's 3 messages"):
            transaction.commit(timeout=SECONDS)
        assert held(client, topic) == []
        assert transaction.commit(timeout=SECONDS).message_count == 3
        assert held(client, topic) == [b"1", b"2", b"3"]


def test_plain_client_commits_on_the_next_connection(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    client = front.connect(name, relay.uri)
    transaction = begin(client, "again")
    transaction.publish(topic, b"1")
    relay.cut()
    with pytest.raises(tt.Disconnected):
        transaction.commit(timeout=SECONDS)
    client.connect()
    assert not transaction.commit().repeated
    assert held(client, topic) == [b"1"]


def test_commit_without_reconnect_times_out(front: Front, relay: Relay, name: str, topic: str) -> None:
    """The client retries from time to time, and does not block other threads."""
    lost = threading.Event()
    client = front.connect(name, relay.uri)
    client.set_disconnect_handler(lambda _: lost.set())  # without a reconnect
    transaction = begin(client, "late")
    transaction.publish(topic, b"1")
    relay.cut()
    with pytest.raises(tt.TimedOut, match="Cannot complete a transaction: no answer within"):
        transaction.commit(timeout=0.3)
    assert lost.wait(SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_connections_lost_at_any_byte_commit_each_transaction_once(
    front: Front, server: RunningServer, name: str, full: bool
) -> None:
    rng = Random(7)
    faults: tuple[Fault, ...] = ("cut", "reset")
    expected: list[bytes] = []
    occurred = 0
    with FaultProxy(server.uri) as proxy:
        client = front.make_ha(name, servers=[proxy.uri], reconnect_delay=0.01)
        client.connect_and_logon(timeout=SECONDS)
        for number in range(CYCLES_FULL if full else CYCLES):
            bodies = [b"%d %d" % (number, i) for i in range(rng.choice((1, 3, 50)))]
            transaction = begin(client, str(number), space="s" if number % 2 else "")
            transaction.publish_batch("orders", bodies)
            way = proxy.to_server if rng.random() < 0.5 else proxy.to_client
            event = way.after(rng.randrange(1_500 if way is proxy.to_server else 90), rng.choice(faults))
            result = transaction.commit(timeout=SECONDS)
            assert result.repeated or result.message_count == len(bodies)
            occurred += event.is_set()
            expected += bodies
        wait_until(lambda: client.connected, SECONDS)
    with tt.Client("auditor", server.uri) as auditor:
        assert [message.data for message in auditor.replay("orders")] == expected
    assert occurred >= CYCLES // 3


def test_invalid_stage_frame_is_not_resent_after_reconnect(
    front: Front, relay: Relay, name: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection, with all other calls on it."""
    monkeypatch.setattr("tickertape.client.protocol.transactions.publish_topics_max", 10 * publish_topics_max)
    client = front.make_ha(name, servers=[relay.uri], reconnect_delay=0.01)
    client.connect_and_logon(timeout=SECONDS)
    transaction = begin(client, "too many topics")
    for number in range(publish_topics_max + 1):
        transaction.publish(f"{topic}-{number}", b"1")
    with pytest.raises(tt.Disconnected, match=r"\(bad_batch\)"):
        transaction.commit(timeout=SECONDS / 3)
    assert [type(command).__name__ for command in relay.asked].count("Stage") == 1


def test_commit_sends_stage_prepare_and_commit(front: Front, relay: Relay, name: str, topic: str) -> None:
    client = front.connect(name, relay.uri)
    before = len(relay.asked)
    with begin(client, "wire") as transaction:
        transaction.publish(topic, b"1")
        assert len(relay.asked) == before, "nothing before the commit"
    asked = relay.asked[before:]
    assert [type(command).__name__ for command in asked] == ["Stage", "Prepare", "Commit"]
    assert isinstance(asked[-1], Commit)
    assert asked[-1].transaction.publisher == name
