"""Message streams, fed by hand: the thread of the test is the receive thread too."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.unit.client.stream_owner import Owner, asked
from tickertape.base.errors import Disconnected, StreamEnded, TimedOut, UsageError
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.blocking.receivers import HandlerReceiver, ThreadReceiver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.subscriptions import message_buffer as inbox


class Fed:
    """A stream, and what it told its client."""

    def __init__(self, *, limited: bool = False) -> None:
        owner = Owner()
        self.consumed, self.unsubscribed = owner.costs, owner.left
        self.receiver = ThreadReceiver(asked("sub", limited=limited), owner)
        self.stream = MessageStream(self.receiver)

    def push(self, *bodies: bytes) -> None:
        self.receiver.push(batch(*bodies))


def batch(*bodies: bytes) -> MessageBatch:
    return batch_from_bodies("orders", bodies, publisher=1, first_sequence=1)


def test_iteration_gives_messages_in_order_and_ends_quietly() -> None:
    fed = Fed()
    fed.push(b"1", b"2")
    fed.push(b"3")
    fed.receiver.end("complete", None)
    assert [message.data for message in fed.stream] == [b"1", b"2", b"3"]
    assert fed.stream.end_reason == "complete"
    assert list(fed.stream) == []


def test_exact_33_iteration_ends_without_an_exception_and_the_reason_says_why() -> None:
    fed = Fed()
    fed.push(b"1")
    error = Disconnected("gone")
    fed.receiver.end("disconnected", error)
    assert [message.data for message in fed.stream] == [b"1"]
    assert (fed.stream.end_reason, fed.stream.end_error) == ("disconnected", error)


def test_a_limited_reading_that_was_cut_short_raises() -> None:
    fed = Fed(limited=True)
    fed.push(b"1")
    fed.receiver.end("disconnected", Disconnected("gone"))
    assert next(fed.stream).data == b"1"
    with pytest.raises(Disconnected):
        next(fed.stream)


def test_iteration_can_be_left_and_taken_up_again() -> None:
    fed = Fed()
    fed.push(b"1", b"2", b"3", b"4")
    fed.push(b"5")
    fed.receiver.end("complete", None)
    for message in fed.stream:
        if message.data == b"2":
            break
    assert fed.stream.get(0).data == b"3"
    assert [message.data for message in fed.stream] == [b"4", b"5"]


def test_get_and_iteration_share_their_place_across_batches() -> None:
    fed = Fed()
    for body in (b"1", b"2", b"3"):
        fed.push(body)
    fed.receiver.end("complete", None)
    assert next(fed.stream).data == b"1"
    assert fed.stream.get(0).data == b"2"
    assert next(fed.stream).data == b"3"
    with pytest.raises(StreamEnded, match="complete"):
        fed.stream.get(0)


def test_iteration_goes_on_in_the_batch_that_get_has_begun() -> None:
    fed = Fed()
    fed.push(b"1")
    fed.push(b"2", b"3")
    fed.receiver.end("complete", None)
    assert next(fed.stream).data == b"1"
    assert fed.stream.get(0).data == b"2"
    assert [message.data for message in fed.stream] == [b"3"]


def test_get_times_out_when_nothing_came() -> None:
    fed = Fed()
    with pytest.raises(TimedOut, match=r"No message received within 0 s .stream 'sub'"):
        fed.stream.get(0)
    with pytest.raises(TimedOut):
        fed.stream.get(0.01)
    fed.push(b"1")
    assert fed.stream.get(0.01).data == b"1"


def test_a_batch_is_consumed_when_the_next_is_asked_for() -> None:
    fed = Fed()
    fed.push(b"12345678", b"x")
    fed.push(b"")
    taken = fed.stream.batches()
    next(taken)
    assert fed.consumed == []
    next(taken)
    assert fed.consumed == [8 + 1 + 2 * 32]
    with pytest.raises(TimedOut):
        fed.stream.get(0)
    assert fed.consumed == [8 + 1 + 2 * 32, 32]


def test_batches_end_as_messages_do() -> None:
    fed = Fed()
    fed.push(b"1", b"2")
    fed.receiver.end("complete", None)
    assert [len(taken) for taken in fed.stream.batches()] == [2]


def test_wait_caught_up_pays_for_what_it_holds_and_pays_once() -> None:
    fed = Fed()
    fed.push(b"x" * 68)
    fed.receiver.caught_up()
    fed.stream.wait_caught_up(0)
    assert fed.consumed == [100]
    fed.push(b"y" * 18)
    fed.receiver.end("complete", None)
    assert [len(message.data) for message in fed.stream] == [68, 18]
    assert fed.consumed == [100, 50]


def test_what_arrives_during_wait_caught_up_is_held_and_paid() -> None:
    fed = Fed()
    waiting = threading.Thread(target=fed.stream.wait_caught_up, args=(10,))
    fed.push(b"x" * 68)
    waiting.start()
    while not fed.consumed:
        waiting.join(0.001)
    fed.push(b"x" * 168)
    fed.receiver.caught_up()
    waiting.join()
    assert fed.consumed == [100, 200]


def test_wait_caught_up_stops_paying_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "catch_up_bytes_max", 150)
    fed = Fed()
    fed.push(b"x" * 68)
    fed.push(b"x" * 68)
    with pytest.raises(TimedOut, match="read messages meanwhile"):
        fed.stream.wait_caught_up(0)
    assert fed.consumed == []


def test_wait_caught_up_tells_an_end_from_a_timeout() -> None:
    fed = Fed()
    with pytest.raises(TimedOut, match="not caught up"):
        fed.stream.wait_caught_up(0)
    fed.receiver.end("disconnected", Disconnected("gone"))
    with pytest.raises(StreamEnded, match="gone"):
        fed.stream.wait_caught_up(0)


def test_close_ends_the_subscription_once_and_drops_what_is_left() -> None:
    fed = Fed()
    fed.push(b"1", b"2")
    assert next(fed.stream).data == b"1"
    with fed.stream:
        pass
    assert fed.unsubscribed == ["sub"]
    fed.push(b"3")
    fed.receiver.end("unsubscribed", None)
    assert list(fed.stream) == []
    fed.stream.close()
    assert fed.unsubscribed == ["sub"]


def test_a_waiting_consumer_is_woken_by_the_end() -> None:
    fed = Fed()
    taken: list[bytes] = []
    consumer = threading.Thread(target=lambda: taken.extend(message.data for message in fed.stream))
    consumer.start()
    fed.push(b"1")
    fed.receiver.end("complete", None)
    consumer.join(5)
    assert not consumer.is_alive()
    assert taken == [b"1"]


def handled(seen: list[bytes], told: list[BaseException]) -> tuple[HandlerReceiver, MessageStream, list[int]]:
    consumed: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise ValueError(message.data)
        if message.data == b"stop":
            stream.close()

    handlers = HandlerRunner()
    handlers.listener = told.append
    request = msgspec.structs.replace(asked("sub"), handled=True)
    receiver = HandlerReceiver(request, Owner(consumed), handler=handle, handlers=handlers)
    stream = MessageStream(receiver)
    return receiver, stream, consumed


def test_a_handler_gets_every_message_whatever_it_raises() -> None:
    seen: list[bytes] = []
    told: list[BaseException] = []
    receiver, _, consumed = handled(seen, told)
    receiver.push(batch(b"1", b"bad", b"2"))
    assert seen == [b"1", b"bad", b"2"]
    assert [type(error) for error in told] == [ValueError]
    assert consumed == [5 + 3 * 32]


def test_a_handler_that_closes_gets_nothing_more() -> None:
    seen: list[bytes] = []
    receiver, _, _ = handled(seen, [])
    receiver.push(batch(b"1", b"stop", b"2"))
    receiver.push(batch(b"3"))
    assert seen == [b"1", b"stop"]


def test_a_stream_with_a_handler_gives_no_messages() -> None:
    _, stream, _ = handled([], [])
    with pytest.raises(UsageError, match="on_message"):
        next(stream)


def test_handler_exceptions_without_listener_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    HandlerRunner().run(int, "x")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("tickertape.client", "ERROR")
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


def test_exceptions_of_a_listener_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    handlers = HandlerRunner()

    def listener(error: BaseException) -> None:
        raise KeyError("listener")

    handlers.listener = listener
    handlers.run(int, "x")
    assert "KeyError" in caplog.text
