"""Tokens at the logon of a real server: accepted, refused, expired and revoked ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tests.conformance.test_transactions import begin
from tests.helpers.admin import ask, stats_of
from tests.helpers.peer import Peer, frame
from tickertape.cli.support.command_group import cli
from tickertape.security.tokens import Token, new_token
from tickertape.testing import running_server
from tickertape.testing.server import RunningServer, wait_until
from tickertape.wire.commands import PREFACE, Goodbye, Logon

pytestmark = pytest.mark.slow

CONFIG = '[authentication]\ntokens_file = "tokens.toml"\n'
SECONDS = 20.0


class Site:
    """A server with tokens, and its tokens."""

    def __init__(self, server: RunningServer, file: Path, tokens: dict[str, Token]) -> None:
        self.server = server
        self.file = file
        self.tokens = tokens

    def text(self, name: str) -> str:
        return self.tokens[name].text


def table(name: str, token: Token, more: str = "") -> str:
    return f'[{name}]\nsha256 = "{token.sha256}"\n{more}\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    tokens = {name: new_token(name) for name in ("spark", "desk", "old", "unknown")}
    past = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    file = directory / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text(
        table("spark", tokens["spark"], "clients = '^spark-'")
        + table("desk", tokens["desk"])
        + table("old", tokens["old"], f"expires = {past}")
    )
    (directory / "tickertape.toml").write_text(CONFIG)
    with running_server(directory / "data", directory / "tickertape.toml") as server:
        yield Site(server, file, tokens)
        shown = server.errors()
        for token in tokens.values():  # no event contains a token or a hash
            assert token.text.rpartition("_")[2] not in shown
            assert token.sha256 not in shown


front = front_fixture(*BOTH_FRONTS)


def test_client_with_a_valid_token_publishes_and_replays(front: Front, site: Site) -> None:
    topic = f"orders-{front.kind}"
    with front.connect(f"desk-{front.kind}", site.server.uri, token=site.text("desk")) as client:
        client.publish(topic, b"1")
        client.publish_flush()
        assert [message.data for message in client.replay(topic)] == [b"1"]
    with front.connect(f"spark-{front.kind}", site.server.uri, token=site.text("spark")) as client:
        assert client.connected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "Authentication failed: this server requires a token"),
        ("unknown", "Authentication failed: unknown token"),
        ("old", "token 'old' has expired"),
        ("spark", "is for clients with names like '^spark-', not for 'guest'"),
    ],
)
def test_client_with_an_invalid_token_is_refused_and_counted(
    front: Front, site: Site, given: str | None, says: str
) -> None:
    before = stats_of(site.server).totals
    token = None if given is None else site.text(given)
    with pytest.raises(tt.AuthenticationFailed) as caught:
        front.connect("guest", site.server.uri, token=token)
    assert says in str(caught.value)
    after = stats_of(site.server).totals
    code = tt.AuthenticationFailed.code
    assert after.ended[code] == before.ended.get(code, 0) + 1
    assert after.logons == before.logons
    _, _, page = ask(site.server, "/metrics")
    assert f'tickertape_ended_connections_total{{code="{code}"}} {after.ended[code]}'.encode() in page
    wait_until(lambda: "WARNING connection_close" in site.server.errors())
    wait_until(lambda: f"reason={code}" in site.server.errors())


def test_token_is_checked_before_other_fields_of_a_logon(site: Site) -> None:
    wrong = Logon(name="", versions=(99,), options="zzz", heartbeat_ms=1, password="wrong")
    for logon in (wrong, msgspec.structs.replace(wrong, password=None)):
        with Peer(site.server.uri) as peer:
            peer.send(PREFACE + frame(logon))
            (said,) = peer.until_closed()
            assert isinstance(said, Goodbye)
            assert said.code == tt.AuthenticationFailed.code


def test_client_name_of_another_token_cannot_be_taken_over(site: Site) -> None:
    with tt.Client("spark-name", site.server.uri, token=site.text("spark")) as first:
        with pytest.raises(tt.NameInUse, match="in use by another user"):
            tt.Client("spark-name", site.server.uri, token=site.text("desk"))
        with pytest.raises(tt.AuthenticationFailed, match="the name of the token, 'desk', not 'spark'"):
            tt.Client("spark-name", site.server.uri, user="spark", token=site.text("desk"))
        assert first.connected
        with tt.Client("spark-name", site.server.uri, token=site.text("spark")) as second:
            assert second.connected


def test_authenticator_supplies_a_new_token_on_retry(front: Front, site: Site) -> None:
    class Fresh(tt.DefaultAuthenticator):
        """Authenticator with a wrong token first and a valid one on retry."""

        def authenticate(self, user: str | None, password: str | None) -> str:
            return site.text("unknown")

        def retry(self, user: str | None, password: str | None) -> str:
            return site.text("desk")

    chooser = tt.DefaultServerChooser(site.server.uri, authenticator=Fresh())
    client = front.make_ha(f"fresh-{front.kind}", server_chooser=chooser, reconnect_delay="10ms")
    client.connect_and_logon(SECONDS)
    assert client.connected
    client.close()


def test_commands_read_tokens_from_files_and_the_environment(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "desk.token"
    file.touch(mode=0o600)
    file.write_text(site.text("desk") + "\n")
    publish = ["publish", "lines", "--server", site.server.uri]
    run = CliRunner()
    refused = run.invoke(cli, publish, input="1\n")
    assert refused.exit_code == 1
    assert "requires a token" in refused.stderr
    assert run.invoke(cli, [*publish, "--token-file", str(file)], input="1\n").exit_code == 0
    done = run.invoke(cli, publish, input="2\n", env={"TICKERTAPE_TOKEN": site.text("desk")})
    assert done.exit_code == 0
    file.chmod(0o644)
    open_to_all = run.invoke(cli, [*publish, "--token-file", str(file)], input="3\n")
    assert open_to_all.exit_code == 2
    assert "chmod 600" in open_to_all.stderr


def test_removed_token_closes_the_session_on_reload(site: Site) -> None:
    kept, passing = new_token("kept"), new_token("passing")
    before = site.file.read_text()
    times = site.server.errors().count("INFO reloaded")
    site.file.write_text(before + table("kept", kept) + table("passing", passing))
    reload(site, times + 1)
    with (
        tt.Client("kept", site.server.uri, token=kept.text) as staying,
        tt.Client("passing", site.server.uri, token=passing.text) as closing,
    ):
        stream = closing.subscribe("orders")
        site.file.write_text(before + table("kept", kept))
        reload(site, times + 2)
        assert list(stream) == []
        assert stream.end_reason == tt.AuthenticationFailed.code
        with pytest.raises(tt.AuthenticationFailed):
            closing.connect()
        staying.publish("orders", b"1")
        staying.publish_flush()
        site.file.write_text("[kept]\n")
        os.kill(site.server.pid, signal.SIGHUP)
        wait_until(lambda: "ERROR reload_failed" in site.server.errors())
        site.file.write_text(table("kept", kept, f"expires = {'9' * 5_000}"))
        os.kill(site.server.pid, signal.SIGHUP)
        wait_until(lambda: site.server.errors().count("ERROR reload_failed") == 2)
        staying.publish_flush()
        assert staying.connected
    site.file.write_text(before)
    reload(site, times + 3)


def test_reload_of_an_emptied_tokens_file_ends_all_sessions(site: Site) -> None:
    before = site.file.read_text()
    times = site.server.errors().count("INFO reloaded")
    with tt.Client("desk-emptied", site.server.uri, token=site.text("desk")) as client:
        stream = client.subscribe("orders")
        site.file.write_text("# every token is revoked\n")
        os.kill(site.server.pid, signal.SIGHUP)
        assert list(stream) == []
        assert stream.end_reason == tt.AuthenticationFailed.code
        with pytest.raises(tt.AuthenticationFailed):
            client.connect()
    assert site.server.errors().count("WARNING reloaded") == 1
    site.file.write_text(before)
    reload(site, times + 1)


def test_replaced_token_closes_the_sessions_of_the_old_token(site: Site) -> None:
    old, new = new_token("same"), new_token("same")
    before = site.file.read_text()
    times = site.server.errors().count("INFO reloaded")
    site.file.write_text(before + table("same", old))
    reload(site, times + 1)
    with tt.Client("same", site.server.uri, token=old.text) as closing:
        stream = closing.subscribe("orders")
        site.file.write_text(before + table("same", new))
        reload(site, times + 2)
        assert list(stream) == []
        assert stream.end_reason == tt.AuthenticationFailed.code
    with tt.Client("same", site.server.uri, token=new.text) as accepted:
        site.file.write_text(before + table("same", new, "clients = 'same'"))
        reload(site, times + 3)
        accepted.publish("orders", b"1")
        accepted.publish_flush()
        site.file.write_text(before + table("same", new, "clients = '^other'"))
        stream = accepted.subscribe("orders")
        reload(site, times + 4)
        assert list(stream) == []
    site.file.write_text(before)
    reload(site, times + 5)


def test_transaction_of_a_publisher_outside_the_token_is_refused(front: Front, site: Site) -> None:
    name = f"spark-tx-{front.kind}"
    with front.connect(name, site.server.uri, token=site.text("spark")) as client:
        for publisher, refused in ((None, False), ("spark-query", False), ("billing", True)):
            transaction = begin(client, publisher=publisher)
            transaction.publish(f"tx-{front.kind}", b"1")
            if refused:
                with pytest.raises(tt.AuthenticationFailed, match="not for 'billing'"):
                    transaction.commit()
            else:
                assert transaction.commit().message_count == 1
    with front.connect(f"desk-tx-{front.kind}", site.server.uri, token=site.text("desk")) as client:
        assert begin(client, publisher="billing").commit().message_count == 0


def reload(site: Site, times: int) -> None:
    os.kill(site.server.pid, signal.SIGHUP)
    wait_until(lambda: site.server.errors().count("INFO reloaded") == times)


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "Cannot read tokens_file"), ("[a]\n", "[a] sha256 must be 64 hexadecimal digits")],
)
def test_server_with_an_unreadable_tokens_file_does_not_start(
    tmp_path: Path, text: str | None, says: str
) -> None:
    (tmp_path / "tickertape.toml").write_text(CONFIG)
    if text is not None:
        (tmp_path / "tokens.toml").touch(mode=0o600)
        (tmp_path / "tokens.toml").write_text(text)
    arguments = ["serve", str(tmp_path / "tickertape.toml"), "--data", str(tmp_path / "data")]
    result = CliRunner().invoke(cli, [*arguments, "--listen", "tcp://127.0.0.1:0", "--admin", "off"])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not (tmp_path / "data").exists()
