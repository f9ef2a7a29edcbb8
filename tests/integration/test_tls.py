"""TLS between real clients and a real server: accepted and refused connections."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.conformance.fronts import EVERY_FRONT, Front, front_fixture
from tests.helpers.admin import stats_of
from tests.helpers.certificates import Authority, transport
from tickertape.server.limits import handshake_bytes_max
from tickertape.testing import FaultProxy, running_server
from tickertape.testing.ports import ReservedPort
from tickertape.testing.server import RunningServer, wait_until
from tickertape.wire.commands import PREFACE, Logon
from tickertape.wire.connection import Connection

pytestmark = pytest.mark.slow

SECONDS = 20.0
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[RunningServer]:
    with running_server(config=transport(authority.issue(HOST, "localhost")), listen=None) as running:
        yield running


@pytest.fixture
def tls(authority: Authority) -> tt.TLS:
    return tt.TLS(ca=authority.ca)


front = front_fixture(*EVERY_FRONT)


def raw(server: RunningServer) -> socket.socket:
    """Return a plain connection to the port of the server."""
    port = int(server.uri.rpartition(":")[2])
    return socket.create_connection((HOST, port), SECONDS)


def secure(server: RunningServer, ca: str) -> ssl.SSLSocket:
    """Return a TLS connection without sent data."""
    return ssl.create_default_context(cafile=ca).wrap_socket(raw(server), server_hostname=HOST)


def logon(name: str) -> bytes:
    return PREFACE + b"".join(bytes(part) for part in Connection("client").send(Logon(name=name)))


def everything(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes."""
    connection.settimeout(SECONDS)
    got = b""
    while data := connection.recv(65536):
        got += data
    return got


def ended(server: RunningServer, code: str) -> int:
    return stats_of(server).totals.ended.get(code, 0)


# -- accepted -----------------------------------------------------------------------------------------


def test_ready_line_has_the_tls_address(server: RunningServer) -> None:
    assert server.uri.startswith(f"tls://{HOST}:")


def test_messages_pass_in_both_directions_over_tls(front: Front, server: RunningServer, tls: tt.TLS) -> None:
    bodies = [bytes([n % 251]) * (n % 3000) for n in range(6000)]  # about 9 MB
    topic = f"both-ways-{front.kind}"
    with front.connect(f"writer-{front.kind}", server.uri, tls=tls) as client:
        client.publish_batch(topic, bodies)
        client.publish_flush()
        assert [message.data for message in client.replay(topic)] == bodies


def test_large_message_passes_over_tls(front: Front, server: RunningServer, tls: tt.TLS) -> None:
    body = bytes(range(256)) * 4 * 1024 * 10  # 10 MB: larger than all buffers
    topic = f"large-{front.kind}"
    with front.connect(f"large-{front.kind}", server.uri, tls=tls) as client:
        stream = client.subscribe(topic)
        client.publish(topic, body)
        client.publish(topic, b"after it")
        assert [next(stream).data, next(stream).data] == [body, b"after it"]


def test_tcps_address_with_a_host_name_is_accepted(server: RunningServer, tls: tt.TLS) -> None:
    port = server.uri.rpartition(":")[2]
    with tt.Client("tcps", f"tcps://localhost:{port}", tls=tls) as client:
        client.publish("words", b"1")
        client.publish_flush()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_accepted(
    server: RunningServer, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=authority.ca)
    context.minimum_version = context.maximum_version = version
    with context.wrap_socket(raw(server), server_hostname=HOST) as connection:
        connection.sendall(logon(f"version-{version.value}"))
        assert connection.recv(65536)


def test_logon_sent_byte_by_byte_over_tls_is_accepted(server: RunningServer, authority: Authority) -> None:
    with secure(server, authority.ca) as connection:
        for byte in logon("slow-speaker"):
            connection.sendall(bytes([byte]))  # a record each
        assert connection.recv(65536)


def test_ha_client_reconnects_over_tls(
    authority: Authority, tls: tt.TLS, tmp_path: Path, front: Front
) -> None:
    port = ReservedPort()
    config = transport(authority.issue(HOST, label="ha"), port=port.number)
    with running_server(tmp_path / "data", config, listen=None) as server:
        client = front.make_ha("ha", servers=server.uri, tls=tls, reconnect_delay="20ms")
        client.connect_and_logon(SECONDS)
        client.publish("orders", b"1")
        client.publish_flush(SECONDS)
        server.kill()
        client.publish("orders", b"2")
        server.start()
        client.publish_flush(SECONDS)
        assert [message.data for message in client.replay("orders")] == [b"1", b"2"]
        client.close()
    port.release()


def test_heartbeats_keep_an_idle_tls_connection_alive(
    front: Front, server: RunningServer, tls: tt.TLS
) -> None:
    with front.connect(f"beats-{front.kind}", server.uri, tls=tls) as client:
        client.set_heartbeat(0.1)
        time.sleep(0.7)  # several times the heartbeat timeout
        client.publish_flush()
        assert client.connected


# -- certificates -------------------------------------------------------------------------------------


def refused(front: Front, uri: str, tls: tt.TLS | None) -> str:
    """Return the text of the refusal."""
    with pytest.raises(tt.TlsFailed) as caught:
        front.connect("refused", uri, tls=tls)
    return str(caught.value)


def test_certificate_of_another_authority_is_refused(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    text = refused(front, server.uri, tt.TLS(ca=other.ca))
    assert server.uri in text
    assert "the certificate of the server is not accepted: unable to get local issuer certificate" in text
    assert "Pass the CA certificate with TLS(ca=...) or --ca" in text


def test_certificate_outside_the_system_trust_store_is_refused(front: Front, server: RunningServer) -> None:
    assert "the certificate of the server is not accepted" in refused(front, server.uri, None)


def test_certificate_for_another_host_name_is_refused(
    front: Front, server: RunningServer, authority: Authority
) -> None:
    text = refused(front, server.uri, tt.TLS(ca=authority.ca, server_name="elsewhere.example"))
    assert "Hostname mismatch, certificate is not valid for 'elsewhere.example'" in text


def test_expired_certificate_is_refused(front: Front, authority: Authority, tls: tt.TLS) -> None:
    config = transport(authority.issue(HOST, label="expired", days=-1))
    with running_server(config=config, listen=None) as server:
        assert "certificate has expired" in refused(front, server.uri, tls)
        wait_until(lambda: ended(server, "tls_failed") >= 1)
        wait_until(lambda: "the client refused the connection: certificate expired" in server.errors())


def test_client_without_a_required_certificate_is_refused(
    front: Front, authority: Authority, tls: tt.TLS, tmp_path: Path
) -> None:
    clients = Authority(tmp_path, "clients")
    own, foreign = clients.issue("desk", label="desk"), authority.issue("desk", label="foreign")
    config = transport(authority.issue(HOST, label="mutual"), client_ca=clients.ca)
    with running_server(config=config, listen=None) as server:
        assert "the server refused the connection" in refused(front, server.uri, tls)
        assert "the server refused the connection" in refused(
            front, server.uri, tt.TLS(ca=authority.ca, certificate=foreign.certificate, key=foreign.key)
        )
        good = tt.TLS(ca=authority.ca, certificate=own.certificate, key=own.key)
        with front.connect("desk", server.uri, tls=good) as client:
            client.publish("orders", b"1")
            client.publish_flush()
        assert stats_of(server).totals.logons == 1


def test_new_certificates_are_used_after_sighup(authority: Authority, tls: tt.TLS, tmp_path: Path) -> None:
    identity = authority.issue(HOST, label="reloaded")
    other = Authority(tmp_path)
    with (
        running_server(config=transport(identity), listen=None) as server,
        tt.Client("before", server.uri, tls=tls) as before,
    ):
        for old, new in zip(identity, other.issue(HOST), strict=True):
            Path(old).write_bytes(Path(new).read_bytes())
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: " reloaded" in server.errors())
        with pytest.raises(tt.TlsFailed, match="unable to get local issuer"):
            tt.Client("after", server.uri, tls=tls)
        tt.Client("after", server.uri, tls=tt.TLS(ca=other.ca)).close()
        Path(identity.key).write_text("no key")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "reload_failed" in server.errors())
        tt.Client("again", server.uri, tls=tt.TLS(ca=other.ca)).close()
        before.publish("orders", b"1")
        before.publish_flush()


# -- who does not speak it ----------------------------------------------------------------------------


def test_plain_client_on_a_tls_address_gets_tls_required(front: Front, server: RunningServer) -> None:
    with pytest.raises(tt.TlsRequired, match=r"this address requires TLS\. Connect to tls://"):
        front.connect("plain", server.uri.replace("tls://", "tcp://"))


def test_tls_client_on_a_plain_address_is_refused_with_the_cure(front: Front, tls: tt.TLS) -> None:
    with running_server() as server:
        text = refused(front, server.uri.replace("tcp://", "tls://"), tls)
        assert "Use tcp://, or check the port." in text
        wait_until(lambda: "this address does not use TLS" in server.errors())


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"\x16" * 4000, b"\x16\x03\x01\x40\x00"]
)
def test_bytes_that_are_not_tls_close_the_connection(server: RunningServer, said: bytes) -> None:
    before = ended(server, "tls_failed")
    with raw(server) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        assert PREFACE[:-1] not in everything(connection)
    if len(said) > 5:
        wait_until(lambda: ended(server, "tls_failed") > before)


def test_logon_before_the_end_of_the_handshake_is_ignored(server: RunningServer) -> None:
    before = stats_of(server).totals.logons
    with raw(server) as connection:
        connection.sendall(b"\x16\x03\x01" + logon("intruder"))
        connection.shutdown(socket.SHUT_WR)
        everything(connection)
    assert stats_of(server).totals.logons == before


@pytest.mark.full
def test_stalled_handshakes_are_closed_after_the_logon_timeout(server: RunningServer, tls: tt.TLS) -> None:
    hello = client_hello()
    stalled = []
    try:
        for number in range(1000):
            connection = raw(server)
            connection.sendall(hello[: 1 + number % len(hello)])
            stalled.append(connection)
        began = time.monotonic()
        with tt.Client("beside", server.uri, tls=tls) as client:  # other connections do not wait for them
            client.publish("beside", b"1")
            client.publish_flush()
        assert time.monotonic() - began < 5
        for connection in stalled:
            everything(connection)
        assert time.monotonic() - began < 14
        assert ended(server, "logon_timeout") >= 1000
    finally:
        for connection in stalled:
            connection.close()


def test_handshake_larger_than_a_logon_is_refused(server: RunningServer) -> None:
    # A handshake message of 60,000 bytes in records of 16,000 bytes.
    whole = b"\x01" + (60_000).to_bytes(3, "big") + bytes(60_000)
    records = b"".join(
        b"\x16\x03\x01" + struct.pack(">H", len(part)) + part
        for part in (whole[at : at + 16_000] for at in range(0, len(whole), 16_000))
    )
    before = ended(server, "tls_failed")
    with raw(server) as connection:
        connection.sendall(records[:handshake_bytes_max])
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the server waits for the rest
            connection.recv(1)
        connection.sendall(records[handshake_bytes_max : handshake_bytes_max + 100])
        everything(connection)
    assert ended(server, "tls_failed") == before + 1
    wait_until(lambda: f"the handshake has more than {handshake_bytes_max} bytes" in server.errors())


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# -- truncated connections ----------------------------------------------------------------------------


def test_connection_cut_without_close_notify_raises_disconnected(
    front: Front, server: RunningServer, tls: tt.TLS
) -> None:
    topic = f"cut-{front.kind}"
    body = bytes(300_000)
    with front.connect(f"reader-{front.kind}", server.uri, tls=tls) as other:
        other.publish_batch(topic, [body] * 20)
        other.publish_flush()
    with FaultProxy(server.uri) as proxy:
        client = front.connect(f"cut-{front.kind}", proxy.uri, tls=tls)
        cut_done = proxy.to_client.after(2_000_000, "cut")  # without a close notification
        stream = client.replay(topic)
        got: list[bytes] = []
        with pytest.raises(tt.Disconnected, match="cut off without a TLS close notification"):
            got.extend(message.data for message in stream)
        assert cut_done.wait(SECONDS)
        assert 0 < len(got) < 20
        assert set(got) == {body}
        client.close()


def test_truncated_publish_frame_is_not_stored(server: RunningServer, tls: tt.TLS) -> None:
    with FaultProxy(server.uri) as proxy:
        client = tt.Client("cut-writer", proxy.uri, tls=tls)
        cut_done = proxy.to_server.after(100_000, "cut")
        client.publish("cut-frames", bytes(200_000))
        with pytest.raises(tt.Disconnected):
            client.publish_flush()
        assert cut_done.wait(SECONDS)
        client.close()
    with tt.Client("cut-reader", server.uri, tls=tls) as reader:
        assert list(reader.replay("cut-frames")) == []


def test_modified_tls_record_closes_the_connection(server: RunningServer, authority: Authority) -> None:
    before = ended(server, "tls_failed")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=authority.ca)
    tls = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with raw(server) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        tls.write(logon("changed"))
        said = bytearray(outgoing.read())
        said[-20] ^= 1
        connection.sendall(said)
        everything(connection)
    wait_until(lambda: ended(server, "tls_failed") == before + 1)
    assert "changed" not in [session.client for session in stats_of(server).sessions]


def test_stopping_server_sends_goodbye_over_tls(front: Front, authority: Authority, tls: tt.TLS) -> None:
    with running_server(config=transport(authority.issue(HOST, label="stops")), listen=None) as server:
        client = front.connect("stops", server.uri, tls=tls)
        stream = client.subscribe("orders")
        server.stop()
        assert list(stream) == []
        assert stream.end_reason == "not_ready"
        client.close()
