"""A Ctrl-C while a stream is read: later reads return every message once.

The interpreter runs signal handlers after a call, at the start of a function, and at a jump back in a loop.
At these points no message may be lost, and all credit is returned once. At any other bytecode one read may
lose its messages, and the credit of one batch may be returned twice. Today no handler runs at these.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.helpers.interrupts import TRACED, Interrupt, interrupted_at
from tests.helpers.threads import in_a_thread_of_its_own
from tests.unit.client.blocking.test_interrupted_publish import Harness
from tests.unit.client.blocking.test_streams import Fed, batch
from tests.unit.client.peer import START
from tickertape.base.errors import StreamEnded, TimedOut
from tickertape.base.interfaces import Buffer
from tickertape.client.blocking.receivers import ThreadReceiver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.wire.commands import Ack, Credit
from tickertape.wire.connection import Received

READ = (
    "client/blocking/receivers.py",
    "client/blocking/streams.py",
    "client/api/streams.py",
    "client/subscriptions/receiver.py",
    "client/subscriptions/message_buffer.py",
    "threading.py",
)
BODIES = [[b"a1", b"a2", b"a3"], [b"b1", b"b2 longer"]]


@functools.cache
def bytecode(code: CodeType) -> bytes:
    return code.co_code


class Interrupter:
    """Raises before bytecode number `step`. `may_be` is true if a signal handler may run at that point."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._inlined: set[FrameType] = set()
        self._before: dict[FrameType, str] = {}
        self.hit = False
        self.may_be = False

    def run(self, act: Callable[[], None]) -> None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            act()
        except Interrupt:
            pass
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call" and frame.f_back is not None and not frame.f_code.co_name.startswith("__"):
            self._inlined.add(frame.f_back)  # the interpreter continues at the caller's next bytecode
        if not frame.f_code.co_filename.endswith(READ):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame, "")
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                self.hit = True
                self.may_be = before in ("RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX") or (
                    before == "CALL" and frame not in self._inlined
                )
                raise Interrupt
            self._before[frame] = dis.opname[bytecode(frame.f_code)[frame.f_lasti]]
            self._inlined.discard(frame)
        return self._trace


def loop(stream: MessageStream, got: list[bytes]) -> None:
    for message in stream:
        got.append(message.data)  # noqa: PERF401 - messages read before an exception are kept


def take_next(stream: MessageStream, got: list[bytes]) -> None:
    while (message := next(stream, None)) is not None:
        got.append(message.data)


def get(stream: MessageStream, got: list[bytes]) -> None:
    while True:
        try:
            message = stream.get()
        except StreamEnded:
            return
        got.append(message.data)


def batches(stream: MessageStream, got: list[bytes]) -> None:
    for taken in stream.batches():
        got.extend(taken.bodies_list())


def first_and_rest(stream: MessageStream, got: list[bytes]) -> None:
    take = next(stream, None)
    if take is not None:
        got.append(take.data)
    batches(stream, got)


@pytest.mark.slow
@pytest.mark.parametrize("read", [loop, take_next, get, batches, first_and_rest])
@in_a_thread_of_its_own
def test_read_interrupted_at_any_bytecode_continues_without_loss(
    read: Callable[[MessageStream, list[bytes]], None], full: bool
) -> None:
    bodies = [body for some in BODIES for body in some]
    costs = [batch(*some).cost for some in BODIES]
    step, points = 0, 0
    while True:
        fed, got = Fed(), list[bytes]()
        for some in BODIES:
            fed.push(*some)
        fed.receiver.end("complete", None)
        interrupter = Interrupter(step)
        interrupter.run(lambda: read(fed.stream, got))  # noqa: B023 - called here
        assert not fed.receiver.owns_lock()
        read(fed.stream, got)
        where = f"step {step}"
        assert got == [body for body in bodies if body in got], where
        paid = sum(fed.consumed)
        if interrupter.may_be or not interrupter.hit:
            assert got == bodies, where
            assert paid == sum(costs), where
        else:
            lost = [body for body in bodies if body not in got]
            assert len(lost) <= 1 or lost in BODIES or lost in (some[1:] for some in BODIES), where
            assert sum(costs) <= paid <= sum(costs) + max(costs), where
        points += interrupter.may_be
        if not interrupter.hit:
            break
        step += 1 if full else 3
    assert points > 6


@pytest.mark.parametrize("timeout", [0.001, 0])
@in_a_thread_of_its_own
def test_get_after_interrupted_wait_is_woken_by_a_message(timeout: float) -> None:
    step, hit = 0, True
    while hit:
        fed = Fed()
        stream = fed.stream

        def wait() -> None:
            with pytest.raises(TimedOut):
                stream.get(timeout)  # noqa: B023 - called here

        hit = interrupted_at(step, wait, READ)
        assert not fed.receiver.owns_lock()
        waiters: Any = fed.receiver.changed._waiters  # type: ignore[attr-defined]
        stale = len(waiters)

        def push() -> None:
            while len(waiters) <= stale:  # noqa: B023 - called here
                done.wait(0.0005)  # noqa: B023 - called here
            fed.push(b"1")  # noqa: B023 - called here

        done = threading.Event()
        thread = threading.Thread(target=push)
        thread.start()
        assert stream.get(5).data == b"1", f"step {step}"
        thread.join()
        step += 3
    assert step > 40


@in_a_thread_of_its_own
def test_interrupted_wait_caught_up_returns_all_credit_once() -> None:
    step = 0
    cost = batch(b"x" * 68).cost
    while True:
        fed = Fed()
        fed.push(b"x" * 68)
        interrupter = Interrupter(step)

        def wait() -> None:
            with pytest.raises(TimedOut):
                fed.stream.wait_caught_up(0.001)  # noqa: B023 - called here

        interrupter.run(wait)
        assert not fed.receiver.owns_lock()
        fed.receiver.end("complete", None)
        assert [message.data for message in fed.stream] == [b"x" * 68]
        paid = sum(fed.consumed)
        if interrupter.may_be or not interrupter.hit:
            assert paid == cost, f"step {step}"
        if not interrupter.hit:
            break
        step += 1
    assert step > 100


class Subscribed(Harness):
    """A client with a subscription of window 1000. `credit` is the credit that the server received."""

    def __init__(self) -> None:
        self.credit = 0
        super().__init__()
        self.request = make_request("orders", "s", depth=1000)
        self.client._driver.core.subscribe(
            ThreadWaiter(), self.request, ThreadReceiver(self.request, self.client._driver)
        )
        self.drive()
        self.core().receive(b"".join(self.server.send(Ack(id=1, start=0))), START)
        self.drive()

    def read(self, data: Buffer) -> None:
        for event in self.server.feed(bytes(data)):
            assert isinstance(event, Received), event
            if isinstance(event.command, Credit):
                self.credit += event.command.bytes
            else:
                self.server.logged_on()


@in_a_thread_of_its_own
def test_interrupted_credit_report_sends_nothing_or_ends_the_connection() -> None:
    step, hit, ended, returning = 0, True, 0, 0
    while hit:
        harness = Subscribed()
        driver, request = harness.client._driver, harness.request
        hit = interrupted_at(step, lambda: driver.consumed(request, 600), TRACED)  # noqa: B023
        assert not driver.owns_lock()
        if harness.link.hung_up:
            ended += 1
        elif hit and harness.credit:
            returning += 1  # after the last step, where no signal handler runs
        elif hit:
            driver.consumed(request, 600)
        assert harness.credit == 600 or harness.link.hung_up, f"step {step}"
        step += 1
    assert 0 < ended < step - 10
    assert returning <= 2
