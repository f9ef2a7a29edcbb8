"""Rights of replication links on real servers: addresses, names, tokens, TLS, and mismatches."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import tickertape as tt
from tests.helpers.certificates import Authority
from tests.helpers.link_frames import OPEN, SOURCE
from tests.helpers.linked_servers import (
    ONE_WAY,
    SECONDS,
    LinkedServer,
    bodies,
    destination,
    differences,
    have,
    publish,
    servers,
    two_way,
)
from tickertape.base.errors import TickertapeError
from tickertape.cli.support.command_group import cli
from tickertape.security.tokens import new_token
from tickertape.server.engine_driver import HANDSHAKES_TEXT
from tickertape.server.limits import link_handshakes_bytes_max
from tickertape.testing.server import wait_until
from tickertape.wire.accepted_connection import NO_CLIENTS_TEXT
from tickertape.wire.commands import PREFACE, Command, Goodbye
from tickertape.wire.connection import NO_LINKS_TEXT, Received
from tickertape.wire.frames import encode_frame
from tickertape.wire.link import LinkAck, LinkRule, LinkTopics
from tickertape.wire.link_connection import LinkConnection

pytestmark = pytest.mark.slow


def private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def refusal(server: LinkedServer, event: str = "link_refused") -> str:
    """Wait for the first refused link, and return its line in the event log."""
    wait_until(lambda: bool(server.events(event)), SECONDS)
    return server.events(event)[0]


def text_of(line: str) -> str:
    """Return the field `text` of a line of the event log."""
    return line.partition(' text="')[2].rpartition('"')[0].replace('\\"', '"')


def reads(server: LinkedServer, *expected: bytes) -> None:
    """Wait for the messages, and compare them."""
    have(expected, server)
    assert differences(expected, server) == {}


# -- addresses and names --------------------------------------------------------------------------------


def test_link_to_an_address_of_clients_is_refused_with_the_cure(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ny-2", second.address)).start()
        assert second.config is not None
        second.config.write_text(
            f'[instance]\nname = "ny-2"\n[[transport]]\nlisten = "{second.address}"\n[replication]\n'
            + destination("ny-1", first.address)
        )
        second.start()
        assert NO_LINKS_TEXT in text_of(refusal(first, "connection_close"))


def test_client_at_an_address_of_links_is_refused_with_the_cure(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, _):
        first.transport += "clients = false\n"
        first.configure().start()
        with pytest.raises(TickertapeError, match="accepts replication links only") as caught:
            tt.Client("a", first.address, timeout=SECONDS)
        assert NO_CLIENTS_TEXT in str(caught.value)


@pytest.mark.parametrize(
    ("opening", "code"),
    [
        (replace(OPEN, side=replace(SOURCE, rules=(LinkRule(topic="", sync=True),))), "bad_link"),
        (replace(OPEN, side=replace(SOURCE, versions=(7,))), "link_refused"),
        (LinkAck(durable=0), "bad_command"),
    ],
    ids=["invalid", "version", "other command"],
)
def test_invalid_handshake_ends_the_connection_only(tmp_path: Path, opening: Command, code: str) -> None:
    with servers(tmp_path, "ny-2") as (server,):
        server.configure().start()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port.number), SECONDS) as peer:
                peer.sendall(PREFACE + b"".join(encode_frame(opening)))
                peer.settimeout(SECONDS)
                connection = LinkConnection("source")
                connection.order.from_source(OPEN)
                events = []
                while data := peer.recv(65_536):
                    events += connection.feed(data)
                (event,) = events
                assert isinstance(event, Received)
                assert isinstance(event.command, Goodbye)
                assert event.command.code == code
        publish(server, "a", sent := bodies("a", 1))
        assert server.log() == sent


def test_link_to_a_server_of_another_name_is_refused_at_both_ends(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        first.configure(destination("ldn", second.address, more=ONE_WAY)).start()
        second.configure().start()
        assert text_of(refusal(first)) == text_of(refusal(second))
        assert "'ldn'" in text_of(refusal(first))


def test_mismatch_has_one_text_at_both_ends_and_ends_with_the_cure(tmp_path: Path) -> None:
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        only = '[[journal.topic]]\nname = "trades"\n'
        first.configure(destination("ny-2", second.address, more=ONE_WAY)).start()
        second.configure(more=only).start()
        text = text_of(refusal(first))
        assert text == text_of(refusal(second))
        assert "Cannot replicate topic 'orders' from 'ny-1' to 'ny-2'" in text
        checked = CliRunner().invoke(cli, ["check", str(first.config), "--with", str(second.config)])
        assert (checked.exit_code, checked.stdout) == (1, f"{first.config}: {text}\n")
        publish(first, "a", sent := bodies("a", 10))
        assert second.log("trades") == []
        second.stop()
        second.configure().start()
        first.stop()
        first.start()  # instead of the wait after a refusal
        reads(second, *sent)


# -- tokens -------------------------------------------------------------------------------------------


def guarded(server: LinkedServer, tmp_path: Path, entry: str) -> None:
    """Configure a server that only receives, and requires tokens."""
    tokens = private(tmp_path / "tokens.toml", entry)
    server.configure(more=f'[authentication]\ntokens_file = "{tokens}"\n')


@pytest.mark.parametrize(
    ("links", "sends", "text"),
    [
        ('links = "^ny-"', True, ""),
        ('links = "^ldn-"', True, "is for links of instances with names like '^ldn-', not of 'ny-1'"),
        ("", True, "is for clients, not for replication links"),
        ('links = "^ny-"', False, "this server requires a token for links"),
    ],
    ids=["right", "other instance", "of clients", "none"],
)
def test_link_needs_a_token_for_the_instance(tmp_path: Path, links: str, sends: bool, text: str) -> None:
    token = new_token("pair")
    file = private(tmp_path / "pair.token", token.text)
    reader = new_token("judge")
    entry = f'[pair]\nsha256 = "{token.sha256}"\n{links}\n[judge]\nsha256 = "{reader.sha256}"\n'
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        guarded(second, tmp_path, entry)
        second.start()
        first.configure(
            destination("ny-2", second.address, token=str(file) if sends else "", more=ONE_WAY)
        ).start()
        publish(first, "a", bodies("a", 10))
        if text:
            assert text in text_of(refusal(first))
            assert text_of(refusal(first)) == text_of(refusal(second))
        else:
            wait_until(lambda: bool(second.events("link_connected")), SECONDS)
        assert token.text not in first.errors() + second.errors()


def test_token_of_links_is_no_token_of_clients(tmp_path: Path) -> None:
    token = new_token("pair")
    with servers(tmp_path, "ny-1") as (server,):
        guarded(server, tmp_path, f'[pair]\nsha256 = "{token.sha256}"\nlinks = "^ny-"\n')
        server.start()
        with pytest.raises(TickertapeError, match="is for replication links, not for clients"):
            tt.Client("ny-1", server.address, password=token.text, timeout=SECONDS)


def test_revoked_token_ends_the_link(tmp_path: Path) -> None:
    token = new_token("pair")
    file = private(tmp_path / "pair.token", token.text)
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        guarded(second, tmp_path, f'[pair]\nsha256 = "{token.sha256}"\nlinks = "^ny-"\n')
        second.start()
        first.configure(destination("ny-2", second.address, token=str(file), more=ONE_WAY)).start()
        wait_until(lambda: bool(first.events("link_connected")), SECONDS)
        private(tmp_path / "tokens.toml", "")
        second.signal(signal.SIGHUP)
        assert "has expired or was revoked" in text_of(refusal(first))


# -- TLS ----------------------------------------------------------------------------------------------


def with_tls(server: LinkedServer, authority: Authority, *names: str) -> None:
    identity = authority.issue(*names, label=server.name)
    server.address = server.address.replace("tcp://", "tls://")
    server.transport = (
        f'[[transport]]\nlisten = "{server.address}"\nreplication = true\n'
        f'certificate = "{identity.certificate}"\nkey = "{identity.key}"\n'
    )
    server.tls = tt.TLS(ca=authority.ca)


def test_two_way_links_over_tls_bring_each_message_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        for server in (first, second):
            with_tls(server, authority, "127.0.0.1")
        two_way(first, second, ca=authority.ca)
        first.start()
        second.start()
        sent = bodies("a", 300)
        publish(first, "a", sent)
        publish(second, "b", more := bodies("b", 300))
        for server in (first, second):
            reads(server, *sent, *more)


@pytest.mark.parametrize("wrong", ["ca", "name"])
def test_link_to_a_server_without_a_trusted_certificate_is_not_opened(tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path)
    other = Authority(tmp_path, "other")
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        with_tls(second, authority, "127.0.0.1" if wrong == "ca" else "example.com")
        second.configure().start()
        ca = (other if wrong == "ca" else authority).ca
        first.configure(destination("ny-2", second.address, ca=ca, more=ONE_WAY)).start()
        line = refusal(first, "link_connect_failed")
        assert "the certificate of the server is not accepted" in text_of(line)
        assert second.events("link_connected") == second.events("link_refused") == []


def test_link_without_tls_to_an_address_with_tls_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with servers(tmp_path, "ny-1", "ny-2") as (first, second):
        with_tls(second, authority, "127.0.0.1")
        second.configure().start()
        plain = second.address.replace("tls://", "tcp://")
        first.configure(destination("ny-2", plain, more=ONE_WAY)).start()
        assert "requires TLS" in text_of(refusal(first, "connection_close"))


def test_incomplete_handshakes_take_a_bounded_part_of_the_memory(tmp_path: Path) -> None:
    topics = LinkTopics(recorded=tuple(f"{number:015}" for number in range(14_000)))
    data = b"".join(encode_frame(replace(OPEN, side=replace(SOURCE, topics=topics))))
    admitted = link_handshakes_bytes_max // len(data)
    with servers(tmp_path, "ny-2") as (server,), ExitStack() as peers:
        server.configure().start()
        for number in range(admitted + 8):
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", server.port.number), SECONDS))
            peer.sendall(PREFACE + data[:40_000])
            peer.settimeout(SECONDS)
            if number >= admitted:
                assert HANDSHAKES_TEXT.encode() in peer.recv(65_536)
        publish(server, "a", sent := bodies("a", 1))
        assert server.log() == sent
