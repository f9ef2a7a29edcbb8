"""Sessions end when their token expires or is replaced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tickertape.base.errors import AuthenticationFailed, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.session_expiry import SessionExpiry


class FakeInstance:
    """Sessions by connection, and the closed connections."""

    def __init__(self, **users: str) -> None:
        sessions = {
            number: SimpleNamespace(user=user, name="any") for number, user in enumerate(users.values())
        }
        self.broker = SimpleNamespace(sessions=sessions)
        self.links: dict[int, Any] = {}
        self.ended: list[tuple[int, str]] = []

    def link_connections(self) -> dict[int, Any]:
        return dict(self.links)

    def violated(self, conn: int, error: TickertapeError) -> None:
        for connections in (self.broker.sessions, self.links):
            connections.pop(conn, None)
        self.ended.append((conn, f"{error.code}: {error}"))


class FakeAdmission:
    """Admission with valid users, which counts its calls."""

    def __init__(self, *good: str, wants_tokens: bool = True) -> None:
        self.good = set(good)
        self.wants_tokens = wants_tokens
        self.asked = 0

    def still_good(self, user: str | None, name: str, now: Now) -> bool:
        self.asked += 1
        return user in self.good

    def link_still_good(self, user: str | None, instance: str, now: Now) -> bool:
        return user in self.good and instance == "ny-1"


def watch(instance: FakeInstance, admission: FakeAdmission, seconds: float = 0.01) -> SessionExpiry:
    return SessionExpiry(cast("EngineDriver", instance), cast("CredentialStore", admission), seconds)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


def test_session_expiry_closes_session_when_the_token_becomes_invalid() -> None:
    async def scenario() -> None:
        instance, admission = FakeInstance(a="spark", b="desk"), FakeAdmission("spark", "desk")
        watching = watch(instance, admission)
        watching.start()
        assert instance.ended == []
        admission.good.remove("desk")
        await until(lambda: instance.ended)
        assert instance.ended == [
            (
                1,
                (
                    f"{AuthenticationFailed.code}: Authentication failed: token 'desk' has "
                    f"expired or was revoked. Ask for a new token."
                ),
            )
        ]
        asked = admission.asked
        await until(lambda: admission.asked > asked)  # the checks continue
        watching.stop()
        asked = admission.asked
        await asyncio.sleep(0.05)
        assert admission.asked == asked

    asyncio.run(scenario())


def test_session_expiry_without_tokens_checks_no_session() -> None:
    async def scenario() -> None:
        admission = FakeAdmission(wants_tokens=False)
        watching = watch(FakeInstance(a="anybody"), admission, 0.001)
        watching.start()
        await asyncio.sleep(0.02)
        watching.stop()
        assert admission.asked == 0

    asyncio.run(scenario())


def test_session_with_a_replaced_token_is_closed_once() -> None:
    async def scenario() -> None:
        instance, admission = FakeInstance(a="spark", b="desk"), FakeAdmission("spark", "desk")
        watching = watch(instance, admission)
        watching.check({"desk"})
        assert [conn for conn, _ in instance.ended] == [1]
        watching.check()
        assert [conn for conn, _ in instance.ended] == [1]

    asyncio.run(scenario())


def test_links_end_when_the_token_becomes_invalid_or_is_replaced() -> None:
    def link(source: str, user: str) -> SimpleNamespace:
        return SimpleNamespace(source=source, user=user)

    instance, admission = FakeInstance(), FakeAdmission("good", "new")
    instance.links = {
        1: link("ny-1", "good"),
        2: link("ny-1", "bad"),
        3: link("ldn", "good"),
        4: link("ny-1", "new"),
        5: link("", ""),  # an outgoing link
    }
    watch(instance, admission).check({"new"})
    assert [conn for conn, _ in instance.ended] == [2, 3, 4]
    assert all("has expired or was revoked" in text for _, text in instance.ended)
