"""Message streams. The thread of the test is also the receive thread."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.unit.client.stream_owner import Owner, asked
from tickertape.base.errors import Closed, Disconnected, StreamEnded, TimedOut, UsageError
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.blocking.receivers import HandlerReceiver, ThreadReceiver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.subscriptions import message_buffer as inbox


class Fed:
    """A stream and the reports to its client."""

    def __init__(self, *, limited: bool = False) -> None:
        owner = Owner()
        self.consumed, self.unsubscribed = owner.costs, owner.left
        self.receiver = ThreadReceiver(asked("sub", limited=limited), owner)
        self.stream = MessageStream(self.receiver)

    def push(self, *bodies: bytes) -> None:
        self.receiver.push(batch(*bodies))


def batch(*bodies: bytes) -> MessageBatch:
    return batch_from_bodies("orders", bodies, publisher=1, first_sequence=1)


def test_iteration_returns_messages_in_order_and_ends_without_exception() -> None:
    fed = Fed()
    fed.push(b"1", b"2")
    fed.push(b"3")
    fed.receiver.end("complete", None)
    assert [message.data for message in fed.stream] == [b"1", b"2", b"3"]
    assert fed.stream.end_reason == "complete"
    assert list(fed.stream) == []


@pytest.mark.behaviour(33)
def test_iteration_over_lost_stream_ends_without_exception_and_sets_end_reason() -> None:
    fed = Fed()
    fed.push(b"1")
    error = Disconnected("gone")
    fed.receiver.end("disconnected", error)
    assert [message.data for message in fed.stream] == [b"1"]
    assert (fed.stream.end_reason, fed.stream.end_error) == ("disconnected", error)


def test_iteration_over_lost_replay_raises_disconnected() -> None:
    fed = Fed(limited=True)
    fed.push(b"1")
    fed.receiver.end("disconnected", Disconnected("gone"))
    assert next(fed.stream).data == b"1"
    with pytest.raises(Disconnected):
        next(fed.stream)


def test_iteration_left_by_break_can_be_continued() -> None:
    fed = Fed()
    fed.push(b"1", b"2", b"3", b"4")
    fed.push(b"5")
    fed.receiver.end("complete", None)
    for message in fed.stream:
        if message.data == b"2":
            break
    assert fed.stream.get(0).data == b"3"
    assert [message.data for message in fed.stream] == [b"4", b"5"]


def test_get_and_iteration_share_one_position_across_batches() -> None:
    fed = Fed()
    for body in (b"1", b"2", b"3"):
        fed.push(body)
    fed.receiver.end("complete", None)
    assert next(fed.stream).data == b"1"
    assert fed.stream.get(0).data == b"2"
    assert next(fed.stream).data == b"3"
    with pytest.raises(StreamEnded, match="complete"):
        fed.stream.get(0)


def test_iteration_continues_in_the_batch_started_by_get() -> None:
    fed = Fed()
    fed.push(b"1")
    fed.push(b"2", b"3")
    fed.receiver.end("complete", None)
    assert next(fed.stream).data == b"1"
    assert fed.stream.get(0).data == b"2"
    assert [message.data for message in fed.stream] == [b"3"]


def test_get_without_message_times_out() -> None:
    fed = Fed()
    with pytest.raises(TimedOut, match=r"Cannot read stream 'sub': no message received within 0 s"):
        fed.stream.get(0)
    with pytest.raises(TimedOut):
        fed.stream.get(0.01)
    fed.push(b"1")
    assert fed.stream.get(0.01).data == b"1"


def test_batch_counts_as_consumed_when_the_next_is_requested() -> None:
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


def test_batches_end_at_the_end_of_the_stream() -> None:
    fed = Fed()
    fed.push(b"1", b"2")
    fed.receiver.end("complete", None)
    assert [len(taken) for taken in fed.stream.batches()] == [2]


def test_wait_caught_up_returns_credit_of_waiting_messages_once() -> None:
    fed = Fed()
    fed.push(b"x" * 68)
    fed.receiver.caught_up()
    fed.stream.wait_caught_up(0)
    assert fed.consumed == [100]
    fed.push(b"y" * 18)
    fed.receiver.end("complete", None)
    assert [len(message.data) for message in fed.stream] == [68, 18]
    assert fed.consumed == [100, 50]


def test_messages_during_wait_caught_up_are_kept_and_credit_is_returned() -> None:
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


def test_wait_caught_up_returns_no_credit_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "catch_up_bytes_max", 150)
    fed = Fed()
    fed.push(b"x" * 68)
    fed.push(b"x" * 68)
    with pytest.raises(TimedOut, match="Read its messages in another thread"):
        fed.stream.wait_caught_up(0)
    assert fed.consumed == []


def test_wait_caught_up_raises_timed_out_or_stream_ended() -> None:
    fed = Fed()
    with pytest.raises(TimedOut, match="Cannot catch up"):
        fed.stream.wait_caught_up(0)
    fed.receiver.end("disconnected", Disconnected("gone"))
    with pytest.raises(StreamEnded, match="gone"):
        fed.stream.wait_caught_up(0)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (Closed("Cannot use client 'c': it is closed."), "(the client is closed). Create a new client."),
        (Disconnected("Cannot read: lost. Connect again."), "(Cannot read: lost). Subscribe again."),
    ],
)
def test_read_after_the_end_names_the_cause_and_one_cure(error: Disconnected | Closed, end: str) -> None:
    fed = Fed()
    fed.receiver.end("disconnected", error)
    with pytest.raises(StreamEnded) as caught:
        fed.stream.get(0)
    assert str(caught.value) == f"Cannot read stream 'sub': it has ended {end}"
    with pytest.raises(StreamEnded) as caught:
        fed.stream.wait_caught_up(0)
    assert str(caught.value) == f"Cannot catch up: stream 'sub' ended before the end of its replay {end}"


def test_close_unsubscribes_once_and_drops_waiting_messages() -> None:
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


def test_waiting_consumer_is_woken_by_the_end_of_the_stream() -> None:
    fed = Fed()
    taken: list[bytes] = []
    consumer = threading.Thread(target=lambda: taken.extend(message.data for message in fed.stream))
    consumer.start()
    fed.push(b"1")
    fed.receiver.end("complete", None)
    consumer.join(5)
    assert not consumer.is_alive()
    assert taken == [b"1"]


def handled(
    seen: list[bytes], reported: list[BaseException]
) -> tuple[HandlerReceiver, MessageStream, list[int]]:
    consumed: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise ValueError(message.data)
        if message.data == b"stop":
            stream.close()

    handlers = HandlerRunner()
    handlers.listener = reported.append
    request = msgspec.structs.replace(asked("sub"), handled=True)
    receiver = HandlerReceiver(request, Owner(consumed), handler=handle, handlers=handlers)
    stream = MessageStream(receiver)
    return receiver, stream, consumed


def test_handler_that_raises_gets_every_message() -> None:
    seen: list[bytes] = []
    reported: list[BaseException] = []
    receiver, _, consumed = handled(seen, reported)
    receiver.push(batch(b"1", b"bad", b"2"))
    assert seen == [b"1", b"bad", b"2"]
    assert [type(error) for error in reported] == [ValueError]
    assert consumed == [5 + 3 * 32]


def test_handler_that_closes_the_stream_gets_no_more_messages() -> None:
    seen: list[bytes] = []
    receiver, _, _ = handled(seen, [])
    receiver.push(batch(b"1", b"stop", b"2"))
    receiver.push(batch(b"3"))
    assert seen == [b"1", b"stop"]


def test_iteration_over_stream_with_handler_raises() -> None:
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
