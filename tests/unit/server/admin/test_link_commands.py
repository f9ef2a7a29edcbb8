"""Commands to replication links: paths, headers, tokens, errors, and the time of the answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, cast

import pytest

from tests.simulation.linked_engine import LinkedEngine
from tests.simulation.linked_engines import link_to
from tickertape.base.errors import AuthenticationFailed
from tickertape.base.interfaces import Now
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.admin import link_commands
from tickertape.server.admin.http import Answer
from tickertape.server.admin.link_commands import LinkCommands
from tickertape.server.engine_driver import EngineDriver

JSON = "application/json"
PATH = "/replication/server-1/{}"


class Driver:
    """A driver of a simulated engine. With `slow`, its disk waits for `engine.settle()`."""

    def __init__(self, *, sync: str = "orders", slow: bool = False) -> None:
        self.engine = LinkedEngine(1, 0, (link_to(1, sync=sync),), Counter())
        self.broker = self.engine.broker
        self.slow = slow
        self.engine.settle()

    def command_link(self, destination: str, action: str) -> None:
        """Execute a command."""
        now = self.engine.now()
        if action in ("downgrade", "upgrade"):
            self.broker.change_level(destination, now, downgraded=action == "downgrade")
        else:
            self.broker.set_link_stopped(destination, now, stopped=action == "pause")
        self.engine.collect()
        if not self.slow:
            self.engine.settle()


class Tokens:
    """Credentials that admit one token. None: no token is needed."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def admit_operator(self, token: str | None, now: Now) -> None:
        """Refuse other tokens."""
        assert now.mono > 0
        if self._token is not None and token != self._token:
            raise AuthenticationFailed("Authentication failed: unknown token. Check the token.")


def make_commands(driver: Driver, token: str | None = None) -> LinkCommands:
    """Return the commands to the links of an engine, on the running event loop."""
    loop = asyncio.get_running_loop()
    return LinkCommands(cast("EngineDriver", driver), loop, cast("CredentialStore", Tokens(token)))


def send(
    driver: Driver,
    path: str,
    content_type: str = JSON,
    authorization: str = "",
    token: str | None = None,
    meanwhile: float | None = None,
) -> Answer:
    """Return the answer to a POST request. `meanwhile`: seconds after which the disk of a slow engine
    writes."""

    async def run() -> Answer:
        commands = make_commands(driver, token)
        if meanwhile is not None:
            asyncio.get_running_loop().call_later(meanwhile, driver.engine.settle)
        return await commands.answer(path, content_type, authorization)

    return asyncio.run(run())


def content(answer: Answer) -> dict[str, Any]:
    """Return the decoded body."""
    assert answer.content_type == JSON
    decoded: dict[str, Any] = json.loads(answer.body)
    return decoded


def test_command_answers_with_the_state_of_the_link() -> None:
    driver = Driver()
    for action, level, paused in (
        ("downgrade", "downgraded", False),
        ("pause", "downgraded", True),
        ("resume", "downgraded", False),
    ):
        answer = send(driver, PATH.format(action))
        assert answer.status == 200
        assert content(answer) == {
            "destination": "server-1", "action": action, "level": level, "paused": paused
        }  # fmt: skip


def test_downgrade_is_answered_when_the_record_is_persisted() -> None:
    driver = Driver(slow=True)
    answer = send(driver, PATH.format("downgrade"), meanwhile=0.05)
    assert (answer.status, content(answer)["level"]) == (200, "downgraded")


def test_downgrade_with_a_stuck_disk_is_answered_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_commands, "admin_answer_seconds_max", 0.05)
    driver = Driver(slow=True)
    answer = send(driver, PATH.format("downgrade"))
    assert (answer.status, content(answer)["code"]) == (503, "stuck")
    driver.engine.settle()
    assert content(send(driver, PATH.format("downgrade")))["level"] == "downgraded"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "json"])
def test_request_without_a_json_content_type_changes_nothing(content_type: str) -> None:
    driver = Driver()
    end = driver.broker.journal.commits.accepted_end
    assert send(driver, PATH.format("downgrade"), content_type).status == 415
    assert driver.broker.journal.commits.accepted_end == end


def test_json_content_type_may_have_a_parameter() -> None:
    assert send(Driver(), PATH.format("pause"), "Application/JSON; charset=utf-8").status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/replication", 404),
        ("/replication/server-1", 404),
        ("/replication/server-1/pause/now", 404),
        ("/stats/server-1/pause", 404),
        (PATH.format("delete"), 404),
        (PATH.format("pause") + "?x=1", 404),
        ("/replication/server-9/pause", 400),
        ("/replication/server-9/downgrade", 400),
        ("/replication/%00/pause", 400),
        (PATH.format("upgrade"), 200),
    ],
)
def test_unknown_paths_and_destinations_are_refused(path: str, status: int) -> None:
    assert send(Driver(), path).status == status


def test_name_of_a_destination_may_be_quoted() -> None:
    assert send(Driver(), "/replication/server%2D1/pause").status == 200


def test_command_that_cannot_be_executed_yet_is_refused() -> None:
    driver = Driver()
    send(driver, PATH.format("downgrade"))
    refused = send(driver, PATH.format("upgrade"))  # the destination was never connected
    assert (refused.status, content(refused)["code"]) == (503, "not_ready")
    asynchronous = send(Driver(sync=""), PATH.format("downgrade"))
    assert (asynchronous.status, content(asynchronous)["code"]) == (400, "bad_option")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer", 401),
        ("Bearer other", 401),
        ("Basic secret", 401),
        ("secret", 401),
        ("Bearer secret", 200),
        ("bearer  secret ", 200),
    ],
)
def test_server_with_tokens_requires_a_bearer_token(authorization: str, status: int) -> None:
    driver = Driver()
    answer = send(driver, PATH.format("downgrade"), authorization=authorization, token="secret")
    assert answer.status == status
    assert b"other" not in answer.body
    assert driver.broker.links is not None
    assert driver.broker.links.rows()[0].level == ("downgraded" if status == 200 else "sync")


def test_commands_of_one_commit_are_both_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_commands, "admin_answer_seconds_max", 0.5)
    driver = Driver(slow=True)

    async def both() -> list[Answer]:
        commands = make_commands(driver)
        first = asyncio.create_task(commands.answer(PATH.format("downgrade"), JSON, ""))
        await asyncio.sleep(0.02)
        topics = driver.broker._sync
        assert topics is not None
        # The destination has everything before the downgrade, so that an upgrade is accepted at once.
        topics.links.durable(0, driver.broker.journal.commits.accepted_end, "replicated")
        second = asyncio.create_task(commands.answer(PATH.format("upgrade"), JSON, ""))
        await asyncio.sleep(0.02)
        assert not first.done()
        assert not second.done()
        driver.engine.settle()
        return [await first, await second]

    assert [(answer.status, content(answer).get("level")) for answer in asyncio.run(both())] == [
        (200, "sync"),
        (200, "sync"),
    ]


def test_take_over_of_a_downgrade_is_answered_when_the_record_is_persisted() -> None:
    driver = Driver(slow=True)
    links = driver.broker.links
    assert links is not None
    assert links._levels is not None
    (link,) = links._levels._links.values()
    links._levels._append(link, "policy", downgraded=True)
    driver.broker._after_input()
    driver.engine.collect()
    driver.engine.settle()
    assert links.rows()[0].level == "downgraded"

    async def take_over() -> bool:
        answer = asyncio.create_task(make_commands(driver).answer(PATH.format("downgrade"), JSON, ""))
        await asyncio.sleep(0.05)
        early = answer.done()
        driver.engine.settle()
        assert (await answer).status == 200
        return early

    assert not asyncio.run(take_over())


def test_command_with_a_stuck_disk_leaves_no_checks_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_commands, "admin_answer_seconds_max", 0.05)
    driver = Driver(slow=True)
    checks = 0
    answer_when = LinkCommands._answer_when

    def counted(*args: Any) -> None:
        nonlocal checks
        checks += 1
        answer_when(*args)

    monkeypatch.setattr(LinkCommands, "_answer_when", counted)

    async def late() -> tuple[Answer, int]:
        answer = await make_commands(driver).answer(PATH.format("downgrade"), JSON, "")
        await asyncio.sleep(0.05)
        before = checks
        await asyncio.sleep(0.1)
        return answer, checks - before

    answer, more = asyncio.run(late())
    assert (answer.status, content(answer)["code"], more) == (503, "stuck", 0)
    assert b"not persisted" in answer.body
