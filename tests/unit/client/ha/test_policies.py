"""Defective authenticators, choosers, delay strategies and managers of an application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tickertape as tt
from tests.unit.client.socket_server import socket_server


class Nonsense(tt.DefaultAuthenticator):
    """Calls `act` at the second authentication."""

    def __init__(self, act: Callable[[], str]) -> None:
        self.asked = 0
        self._act = act

    def authenticate(self, user: str | None, password: str | None) -> str | None:
        self.asked += 1
        return self._act() if self.asked == 2 else password


class AwaitedNonsense(Nonsense):
    """`Nonsense` with a coroutine."""

    async def authenticate(  # type: ignore[override]
        self, user: str | None, password: str | None
    ) -> str | None:
        await asyncio.sleep(0)
        return super().authenticate(user, password)


class FailuresKept(tt.DefaultServerChooser):
    """Keeps the errors of failed attempts."""

    def __init__(self, uri: str, authenticator: tt.Authenticator) -> None:
        super().__init__(uri, authenticator=authenticator)
        self.failures: list[str] = []

    def report_failure(self, error: tt.TickertapeError, info: tt.ConnectionInfo) -> None:
        self.failures.append(str(error))


def raising(error: BaseException) -> Callable[[], str]:
    def act() -> str:
        raise error

    return act


def when_back(notify: Callable[[], None]) -> Callable[[tt.ConnectionState], None]:
    """Return a listener that calls `notify` after resubscription."""

    def received(state: tt.ConnectionState) -> None:
        if state is tt.ConnectionState.RESUBSCRIBED:
            notify()

    return received


NONSENSE = [
    pytest.param(raising(asyncio.CancelledError()), "ancelled", id="cancelled"),
    pytest.param(raising(GeneratorExit()), "GeneratorExit", id="generator exit"),
    pytest.param(lambda: "\ud800secret", "Invalid password: it is not valid Unicode", id="no Unicode"),
    pytest.param(lambda: "secret" * 1_000_000, "User and password of 6000000 bytes", id="too long"),
    pytest.param(lambda: "secret" * 2_500, "User and password of 15000 bytes", id="too long for a logon"),
]


@pytest.mark.parametrize("kind", [Nonsense, AwaitedNonsense])
@pytest.mark.parametrize(("act", "expected"), NONSENSE)
def test_defective_authenticator_costs_asyncio_client_one_attempt(
    kind: type[Nonsense], act: Callable[[], str], expected: str
) -> None:
    async def run() -> None:
        reported: list[BaseException] = []
        back = asyncio.Event()
        tokens = kind(act)

        with socket_server() as server:
            chooser = FailuresKept(server.uri, tokens)
            async with tt.AsyncHAClient("a", server_chooser=chooser, reconnect_delay=0.001) as client:
                client.set_exception_listener(reported.append)
                client.add_connection_state_listener(when_back(back.set))
                server.drop()
                await asyncio.wait_for(back.wait(), 20.0)
        assert tokens.asked == 3
        assert reported == []
        (failure,) = chooser.failures
        assert expected in failure
        assert "secret" not in failure

    asyncio.run(run())


@pytest.mark.parametrize(("act", "expected"), NONSENSE)
def test_defective_authenticator_costs_blocking_client_one_attempt(
    act: Callable[[], str], expected: str
) -> None:
    reported: list[BaseException] = []
    back = threading.Event()
    tokens = Nonsense(act)

    with socket_server() as server:
        chooser = FailuresKept(server.uri, tokens)
        with tt.HAClient("a", server_chooser=chooser, reconnect_delay=0.001) as client:
            client.set_exception_listener(reported.append)
            client.add_connection_state_listener(when_back(back.set))
            server.drop()
            assert back.wait(20.0)
    assert tokens.asked == 3
    assert reported == []
    (failure,) = chooser.failures
    assert expected in failure
    assert "secret" not in failure


class Odd:
    """Raises CancelledError once, at one of the calls of the application's objects."""

    def __init__(self, where: str) -> None:
        self._where = where

    def check(self, where: str) -> None:
        if where == self._where:
            self._where = ""
            raise asyncio.CancelledError


class OddAuthenticator(tt.DefaultAuthenticator):
    """Raises in `completed`, once."""

    def __init__(self, odd: Odd) -> None:
        self.odd = odd

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        self.odd.check("completed")


class OddChooser(tt.DefaultServerChooser):
    """Raises in a report, once."""

    def __init__(self, uri: str, odd: Odd) -> None:
        super().__init__(uri, authenticator=OddAuthenticator(odd))
        self.odd = odd

    def report_success(self, info: tt.ConnectionInfo) -> None:
        self.odd.check("report")


class OddDelays(tt.FixedDelayStrategy):
    """Raises in `reset`, once."""

    def __init__(self, odd: Odd) -> None:
        super().__init__(0.001)
        self.odd = odd

    def reset(self) -> None:
        self.odd.check("reset")


class OddManager(tt.MemorySubscriptionManager):
    """Raises in `stored`, once."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.odd = odd

    def stored(self) -> tuple[tt.StoredSubscription, ...]:
        self.odd.check("stored")
        return ()


@pytest.mark.parametrize("where", ["report", "reset", "stored", "completed"])
def test_cancelled_error_of_application_object_is_reported_and_client_connects(where: str) -> None:
    async def run() -> None:
        reported: list[BaseException] = []
        odd = Odd(where)
        with socket_server() as server:
            client = tt.AsyncHAClient(
                "a",
                server_chooser=OddChooser(server.uri, odd),
                reconnect_delay=OddDelays(odd),
                subscription_manager=OddManager(odd),
            )
            client.set_exception_listener(reported.append)
            await client.connect_and_logon(20.0)
            await client.close()
        assert [type(error) for error in reported] == [tt.UsageError]
        assert "CancelledError" in str(reported[0])

    asyncio.run(run())


class FixedAnswer(tt.FixedDelayStrategy):
    """Returns `answer` as the delay."""

    def __init__(self, answer: object) -> None:
        super().__init__(0.001)
        self._answer: Any = answer

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        answer: float | None = self._answer
        return answer


@pytest.mark.parametrize("answer", [-1, 10**400, float("inf"), float("nan"), "1s"])
def test_invalid_delay_is_reported_as_the_value_the_strategy_returned(answer: object) -> None:
    reported: list[BaseException] = []
    with socket_server() as server:
        uri = server.uri
    client = tt.HAClient(
        "a", server_chooser=tt.DefaultServerChooser(uri), reconnect_delay=FixedAnswer(answer)
    )
    client.set_exception_listener(reported.append)
    with pytest.raises(tt.Disconnected) as caught:
        client.connect_and_logon(20.0)
    client.close()
    assert f"Cannot connect: the delay strategy returned {answer!r}, which is neither" in str(caught.value)
    assert [str(error) for error in reported] == [
        f"Invalid delay {answer!r} from the delay strategy. Return finite seconds >= 0, or None."
    ]


class WrongAuthenticatorChooser(tt.DefaultServerChooser):
    """Returns a password instead of an authenticator."""

    def current_authenticator(self) -> Any:
        """Return a text."""
        return "secret"


def test_authenticator_of_wrong_type_is_not_called_an_exception_of_the_chooser() -> None:
    reported: list[BaseException] = []
    client = tt.HAClient("a", server_chooser=WrongAuthenticatorChooser("tcp://127.0.0.1:1"))
    client.set_exception_listener(reported.append)
    with pytest.raises(tt.Disconnected, match=r"no server: Invalid authenticator of type str\. Use"):
        client.connect_and_logon(20.0)
    client.close()
    assert [type(error) for error in reported] == [tt.BadOption]
