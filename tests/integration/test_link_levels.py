"""Downgrades, upgrades, pauses and `fully_durable` deliveries of real servers, and commands to links."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

import tickertape as tt
from tests.helpers.admin import ask, stats_of, status_of
from tests.helpers.linked_servers import (
    RULE,
    SECONDS,
    TOPIC,
    LinkedServer,
    bodies,
    destination,
    publish,
    servers,
)
from tickertape.cli.support.command_group import cli
from tickertape.server.admin.schema import LinkStatus
from tickertape.testing.server import wait_until

pytestmark = pytest.mark.slow

SYNC = RULE.replace("false", "true")
JSON = {"content-type": "application/json"}


def start_pair(
    first: LinkedServer, second: LinkedServer, more: str = "", of_first: str = "", settings: str = ""
) -> None:
    """Start two servers with synchronous links. `of_first`: keys of the destination of the first."""
    first.configure(destination("ny-2", second.address, rules=SYNC, more=of_first), more=more)
    assert first.config is not None
    text = first.config.read_text().replace("[replication]\n", f"[replication]\n{settings}")
    first.config.write_text(text)
    second.configure(destination("ny-1", first.address, rules=SYNC))
    for server in (first, second):
        server.start()
    wait_until(lambda: link(first).state == "live", SECONDS)


def link(server: LinkedServer) -> LinkStatus:
    """Return the state of the link to the only destination."""
    return next(one for one in stats_of(server).links if one.direction == "out")


def command(server: LinkedServer, action: str, *more: str, name: str = "ny-2") -> Result:
    """Run a command of the command line."""
    return CliRunner().invoke(cli, ["replication", action, name, "--admin", server.admin_url, *more])


def post(server: LinkedServer, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """Send a POST request. Return status and body of the answer."""
    place = urlsplit(server.admin_url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_stopped_destination_holds_up_flushes_and_durable_deliveries_until_a_downgrade(
    tmp_path: Path,
) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second)
        with (
            first.client("reader") as reader,
            first.client("b", tt.MemoryPublishStore()) as client,
            reader.bookmark_subscribe(TOPIC, tt.EPOCH, fully_durable=True) as durable,
        ):
            client.publish(TOPIC, b'"both"')
            client.publish_flush(SECONDS)
            assert client.ack_level == "replicated(1)"
            assert bytes(durable.get(SECONDS).data) == b'"both"'
            second.kill()
            client.publish(TOPIC, b'"one"')
            with pytest.raises(tt.TimedOut):
                client.publish_flush(timeout=2)
            with pytest.raises(tt.TimedOut):
                durable.get(0.1)
            assert command(first, "downgrade").stdout == "ny-2: downgraded\n"
            client.publish_flush(SECONDS)
            assert client.ack_level == "local"
            assert bytes(durable.get(SECONDS).data) == b'"one"'
            refused = command(first, "upgrade")
            assert (refused.exit_code, "lacks messages from before the downgrade" in refused.stderr) == (
                *(1, True),
            )
            second.start()
            wait_until(lambda: link(first).behind_messages == 0, SECONDS)
            assert command(first, "upgrade").stdout == "ny-2: sync\n"
            client.publish(TOPIC, b'"again"')
            client.publish_flush(SECONDS)
            assert client.ack_level == "replicated(1)"
            assert bytes(durable.get(SECONDS).data) == b'"again"'
        assert [len(server.events("link_downgraded")) for server in (first, second)] == [1, 0]
        assert len(first.events("link_upgraded")) == 1


def test_flush_and_durable_deliveries_go_on_when_the_destination_is_back(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second)
        second.kill()
        with (
            first.client("reader") as reader,
            first.client("b", tt.MemoryPublishStore()) as client,
            reader.bookmark_subscribe(TOPIC, tt.EPOCH, fully_durable=True) as durable,
        ):
            client.publish(TOPIC, b"1")
            with pytest.raises(tt.TimedOut):
                client.publish_flush(timeout=2)
            with pytest.raises(tt.TimedOut):
                durable.get(0.1)
            second.start()
            client.publish_flush(SECONDS)
            assert bytes(durable.get(SECONDS).data) == b"1"


def test_policy_downgrades_and_upgrades_a_destination_through_a_restart(tmp_path: Path) -> None:
    keys = 'downgrade_after = "1s"\ndowngrade_grace = "0s"\nupgrade_below = "500ms"'
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second, of_first=keys)
        second.kill()
        publish(first, "a", bodies("a", 10))  # returns after the downgrade
        assert link(first).level == "downgraded"
        assert link(first).behind_seconds > 0
        first.kill()
        first.start()
        assert link(first).level == "downgraded"
        publish(first, "a", bodies("a", 1, first=10))
        second.start()
        wait_until(lambda: link(first).level == "sync", SECONDS)
        with first.client("b") as client:
            client.publish(TOPIC, b"1")
            client.publish_flush(SECONDS)
            assert client.ack_level == "replicated(1)"
        assert len(second.log()) == 12


def test_paused_link_is_listed_and_sends_nothing_until_resumed(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second)
        assert command(first, "pause").stdout == "ny-2: sync, paused\n"
        listed = CliRunner().invoke(cli, ["replication", "ls", "--admin", first.admin_url]).stdout
        assert listed.splitlines()[1].split()[:4] == ["ny-2", "out", "sync", "paused"]
        with first.client("b", tt.MemoryPublishStore()) as client:
            client.publish(TOPIC, b"1")
            with pytest.raises(tt.TimedOut):
                client.publish_flush(0.5)
            assert second.log() == []
            row = json.loads(command(first, "resume", "--output", "json").stdout)
            assert (row["action"], row["level"], row["paused"]) == ("resume", "sync", False)
            client.publish_flush(SECONDS)
        assert second.log() == [b"1"]


def test_metrics_have_the_level_of_a_link(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second)
        command(first, "downgrade")
        command(first, "pause")
        lines = ask(first, "/metrics")[2].decode().splitlines()
        for name, value in (
            ("sync", 0.0), ("downgraded", 1.0), ("paused", 1.0), ("downgrades_total", 1.0),
            ("behind_seconds", 0.0),
        ):  # fmt: skip
            found = [line for line in lines if line.startswith(f'tickertape_link_{name}{{direction="out"')]
            assert [float(line.split()[1]) for line in found] == [value] or name == "behind_seconds", name
            assert len(found) == 1


def test_ready_page_names_the_destination_that_acknowledgements_wait_for(tmp_path: Path) -> None:
    text = "acknowledgements wait for the destination 'ny-2'"
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second, settings='ready = "synchronous"\n')
        assert status_of(first, "/ready") == (200, {"status": "ready"})
        assert command(first, "pause").exit_code == 0
        assert status_of(first, "/ready") == (503, {"status": "waiting", "reason": text})
        assert status_of(first, "/health")[0] == 200
        command(first, "downgrade")
        assert status_of(first, "/ready") == (200, {"status": "ready"})
        command(first, "resume")
        assert command(second, "pause", name="ny-1").exit_code == 0
        reason = text.replace("ny-2", "ny-1")
        assert status_of(second, "/ready") == (200, {"status": "ready", "reason": reason})


def test_commands_are_refused_with_the_cause(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        start_pair(first, second)
        unknown = command(first, "downgrade", name="ny-3")
        assert unknown.exit_code == 2
        assert unknown.stderr == "tickertape: Unknown destination 'ny-3'. Did you mean 'ny-2'? Use ny-2.\n"
        end = stats_of(first).journal.accepted_end
        path = "/replication/ny-2/downgrade"
        assert post(first, path, {})[0] == 415
        assert post(first, path, {"content-type": "text/plain"})[0] == 415
        assert post(first, path, JSON, b"{}")[0] == 413
        assert post(first, "/replication/ny-2/delete", JSON)[0] == 404
        assert post(first, "/replication/ny-2", JSON)[0] == 404
        assert post(first, "/stats", JSON)[0] == 404
        assert post(first, path, {**JSON, "host": "evil.example"})[0] == 421
        for method in ("GET", "HEAD", "PUT", "OPTIONS", "DELETE"):
            assert ask(first, path, method, JSON)[0] in (404, 405)
        assert (link(first).level, stats_of(first).journal.accepted_end - end < 5) == ("sync", True)


def test_commands_of_a_server_with_tokens_require_one_of_clients(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    runner = CliRunner()
    for name, more in (("ops", []), ("ny-2", ["--links", "^ny-2$"])):
        made = ["token", "new", name, "--add", str(tokens), "--out", str(tmp_path / f"{name}.token"), *more]
        assert runner.invoke(cli, made).exit_code == 0
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        authentication = f'[authentication]\ntokens_file = "{tokens}"\n'
        first.configure(destination("ny-2", second.address, rules=SYNC), more=authentication)
        second.configure(destination("ny-1", first.address, rules=SYNC, token=str(tmp_path / "ny-2.token")))
        first.start()
        second.start()
        path = "/replication/ny-2/downgrade"
        assert post(first, path, JSON)[0] == 401
        assert post(first, path, {**JSON, "authorization": "Bearer ops.wrong"})[0] == 401
        link_token = (tmp_path / "ny-2.token").read_text().strip()
        status, body = post(first, path, {**JSON, "authorization": f"Bearer {link_token}"})
        assert (status, json.loads(body)["code"]) == (401, "authentication_failed")
        assert link_token.encode() not in body
        refused = command(first, "downgrade")
        assert "this server requires a token for commands (--token-file)" in refused.stderr
        assert link(first).level == "sync"
        done = command(first, "downgrade", "--token-file", str(tmp_path / "ops.token"))
        assert done.stdout == "ny-2: downgraded\n", done.stderr


def test_server_without_replication_takes_no_command(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1") as (only,):
        assert only.config is not None
        only.config.write_text(f'[instance]\nname = "ny-1"\n[[transport]]\nlisten = "{only.address}"\n')
        only.start()
        refused = command(only, "downgrade")
        assert refused.exit_code == 1
        assert "this server has no [replication]" in refused.stderr
