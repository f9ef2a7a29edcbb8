"""Authenticators, choosers, delays and managers that give or raise what they should not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import tickertape as tt
from tests.unit.client.socket_server import socket_server


class Nonsense(tt.DefaultAuthenticator):
    """Does something else the second time it is asked."""

    def __init__(self, act: Callable[[], str]) -> None:
        self.asked = 0
        self._act = act

    def authenticate(self, user: str | None, password: str | None) -> str | None:
        self.asked += 1
        return self._act() if self.asked == 2 else password


class AwaitedNonsense(Nonsense):
    """The same in a coroutine."""

    async def authenticate(  # type: ignore[override]
        self, user: str | None, password: str | None
    ) -> str | None:
        await asyncio.sleep(0)
        return super().authenticate(user, password)


class FailuresKept(tt.DefaultServerChooser):
    """Keeps what attempts failed with."""

    def __init__(self, uri: str, authenticator: tt.Authenticator) -> None:
        super().__init__(uri, authenticator=authenticator)
        self.failures: list[str] = []

    def report_failure(self, error: tt.TickertapeError, info: tt.ConnectionInfo) -> None:
        self.failures.append(str(error))


def raising(error: BaseException) -> Callable[[], str]:
    def act() -> str:
        raise error

    return act


def when_back(tell: Callable[[], None]) -> Callable[[tt.ConnectionState], None]:
    """A listener that tells when everything may be called again."""

    def heard(state: tt.ConnectionState) -> None:
        if state is tt.ConnectionState.RESUBSCRIBED:
            tell()

    return heard


NONSENSE = [
    pytest.param(raising(asyncio.CancelledError()), "ancelled", id="cancelled"),
    pytest.param(raising(GeneratorExit()), "GeneratorExit", id="generator exit"),
    pytest.param(lambda: "\ud800secret", "Invalid password: it must be valid Unicode", id="no Unicode"),
    pytest.param(lambda: "secret" * 1_000_000, "User and password of 6000000 bytes", id="too long"),
    pytest.param(lambda: "secret" * 2_500, "User and password of 15000 bytes", id="too long for a logon"),
]


@pytest.mark.parametrize("kind", [Nonsense, AwaitedNonsense])
@pytest.mark.parametrize(("act", "expected"), NONSENSE)
def test_an_authenticator_that_does_nonsense_costs_one_attempt(
    kind: type[Nonsense], act: Callable[[], str], expected: str
) -> None:
    async def run() -> None:
        told: list[BaseException] = []
        back = asyncio.Event()
        tokens = kind(act)

        with socket_server() as server:
            chooser = FailuresKept(server.uri, tokens)
            async with tt.AsyncHAClient("a", server_chooser=chooser, reconnect_delay=0.001) as client:
                client.set_exception_listener(told.append)
                client.add_connection_state_listener(when_back(back.set))
                server.drop()
                await asyncio.wait_for(back.wait(), 20.0)
        assert tokens.asked == 3
        assert told == []
        (failure,) = chooser.failures
        assert expected in failure
        assert "secret" not in failure

    asyncio.run(run())


@pytest.mark.parametrize(("act", "expected"), NONSENSE)
def test_it_costs_one_attempt_of_the_blocking_client_too(act: Callable[[], str], expected: str) -> None:
    told: list[BaseException] = []
    back = threading.Event()
    tokens = Nonsense(act)

    with socket_server() as server:
        chooser = FailuresKept(server.uri, tokens)
        with tt.HAClient("a", server_chooser=chooser, reconnect_delay=0.001) as client:
            client.set_exception_listener(told.append)
            client.add_connection_state_listener(when_back(back.set))
            server.drop()
            assert back.wait(20.0)
    assert tokens.asked == 3
    assert told == []
    (failure,) = chooser.failures
    assert expected in failure
    assert "secret" not in failure


class Odd:
    """What only the asyncio machinery should raise, from every object of the application."""

    def __init__(self, where: str) -> None:
        self._where = where

    def check(self, where: str) -> None:
        if where == self._where:
            self._where = ""
            raise asyncio.CancelledError


class OddChooser(tt.DefaultServerChooser):
    """Reports raise, once."""

    def __init__(self, uri: str, odd: Odd) -> None:
        super().__init__(uri)
        self.odd = odd

    def report_success(self, info: tt.ConnectionInfo) -> None:
        self.odd.check("report")


class OddDelays(tt.FixedDelayStrategy):
    """Beginning afresh raises, once."""

    def __init__(self, odd: Odd) -> None:
        super().__init__(0.001)
        self.odd = odd

    def reset(self) -> None:
        self.odd.check("reset")


class OddManager(tt.MemorySubscriptionManager):
    """What was stored raises, once."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.odd = odd

    def stored(self) -> tuple[tt.StoredSubscription, ...]:
        self.odd.check("stored")
        return ()


@pytest.mark.parametrize("where", ["report", "reset", "stored"])
def test_a_cancellation_out_of_nowhere_is_told_and_ends_nothing(where: str) -> None:
    async def run() -> None:
        told: list[BaseException] = []
        odd = Odd(where)
        with socket_server() as server:
            client = tt.AsyncHAClient(
                "a",
                server_chooser=OddChooser(server.uri, odd),
                reconnect_delay=OddDelays(odd),
                subscription_manager=OddManager(odd),
            )
            client.set_exception_listener(told.append)
            await client.connect_and_logon(20.0)
            await client.close()
        assert [type(error) for error in told] == [tt.UsageError]
        assert "CancelledError" in str(told[0])

    asyncio.run(run())
