"""TLS channel without I/O: two ends joined in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.helpers.certificates import Authority
from tickertape.base.errors import TlsFailed
from tickertape.security.contexts import client_context, server_context
from tickertape.security.limits import encrypted_at_once_bytes_max
from tickertape.security.tls_channel import HANDSHAKE_BYTE, TlsChannel, portions
from tickertape.security.tls_options import TLS


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[TlsChannel, TlsChannel]]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    identity = authority.issue("localhost")

    def ends() -> tuple[TlsChannel, TlsChannel]:
        server = TlsChannel(server_context(*identity, None), server=True)
        return TlsChannel(client_context(TLS(ca=authority.ca)), server_name="localhost"), server

    return ends


@pytest.fixture
def joined(make: Callable[[], tuple[TlsChannel, TlsChannel]]) -> tuple[TlsChannel, TlsChannel]:
    client, server = make()
    shake(client, server)
    return client, server


def shake(client: TlsChannel, server: TlsChannel, piece: int = 1 << 20) -> int:
    """Complete the handshake in pieces of `piece` bytes, and return the bytes of the client."""
    said = 0
    while not (client.established and server.established):
        for one, other in ((client, server), (server, client)):
            one.shake()
            data = one.take()
            said += len(data) if one is client else 0
            for at in range(0, len(data), piece):
                other.feed(data[at : at + piece])
                if not other.established:
                    other.shake()
    return said


def read_all(channel: TlsChannel, room: int = 4096) -> bytes:
    memory = memoryview(bytearray(room))
    got = b""
    while count := channel.read_into(memory):
        got += memory[:count]
    return got


def test_tls_handshake_starts_with_the_handshake_byte(
    make: Callable[[], tuple[TlsChannel, TlsChannel]],
) -> None:
    client, _ = make()
    assert not client.shake()
    assert client.take()[0] == HANDSHAKE_BYTE


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_tls_handshake_in_small_pieces_completes(
    make: Callable[[], tuple[TlsChannel, TlsChannel]], piece: int
) -> None:
    client, server = make()
    assert 300 < shake(client, server, piece) < 16_000
    server.feed(client.encrypted(b"said"))
    assert read_all(server) == b"said"


def test_random_bytes_in_random_pieces_are_decrypted_unchanged(joined: tuple[TlsChannel, TlsChannel]) -> None:
    client, server = joined
    random = Random(7)
    data = random.randbytes(700_000)
    sizes = iter(lambda: random.choice([1, 30, 5_000, 17_000, 300_000]), 0)
    cipher = b""
    at = 0
    while at < len(data):
        size = next(sizes)
        cipher += client.encrypted(data[at : at + size])
        at += size
    got = b""
    at = 0
    while at < len(cipher):
        size = next(sizes)
        server.feed(cipher[at : at + size])
        got += read_all(server, random.choice([1000, 16_384, 200_000]))
        at += size
    assert got == data
    assert server.drained


def test_close_notify_marks_the_channel_closed(joined: tuple[TlsChannel, TlsChannel]) -> None:
    client, server = joined
    server.feed(client.encrypted(b"last"))
    assert read_all(server) == b"last"
    assert not server.closed
    server.feed(client.farewell())
    assert read_all(server) == b""
    assert server.closed


def test_data_before_close_notify_is_read_first(joined: tuple[TlsChannel, TlsChannel]) -> None:
    client, server = joined
    server.feed(client.encrypted(b"last") + client.farewell())
    memory = memoryview(bytearray(100))
    assert bytes(memory[: server.read_into(memory)]) == b"last"
    assert server.read_into(memory) == 0
    assert server.closed


def test_modified_record_raises_tls_failed_and_stops_reading(joined: tuple[TlsChannel, TlsChannel]) -> None:
    client, server = joined
    server.feed(client.encrypted(b"good"))
    bad = bytearray(client.encrypted(b"bad"))
    bad[-1] ^= 1
    server.feed(bytes(bad))
    memory = memoryview(bytearray(100))
    assert bytes(memory[: server.read_into(memory)]) == b"good"
    for _ in range(2):  # the failure is permanent
        with pytest.raises(
            TlsFailed, match="Cannot use TLS: decryption failed or bad record mac with the client"
        ):
            server.read_into(memory)
    server.feed(client.encrypted(b"more"))
    with pytest.raises(TlsFailed):
        server.read_into(memory)


def test_plain_text_answer_raises_tls_failed(make: Callable[[], tuple[TlsChannel, TlsChannel]]) -> None:
    client, _ = make()
    client.shake()
    client.feed(b"tktape/0 and more")
    with pytest.raises(TlsFailed, match="the server does not use TLS"):
        client.shake()


def test_tls_below_1_2_is_refused(make: Callable[[], tuple[TlsChannel, TlsChannel]], tmp_path: Path) -> None:
    _, server = make()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    old = TlsChannel(context, server_name="localhost")
    old.shake()
    server.feed(old.take())
    with pytest.raises(TlsFailed, match="Cannot use TLS: unsupported protocol with the client"):
        server.shake()


def test_portions_join_and_split_buffers_in_order() -> None:
    random = Random(11)
    large = encrypted_at_once_bytes_max
    for _ in range(50):
        sizes = [random.choice([0, 1, 10, 70_000, large, large + 1, 3 * large + 5]) for _ in range(6)]
        buffers = [random.randbytes(size) for size in sizes]
        pieces = list(portions(buffers))
        assert b"".join(pieces) == b"".join(buffers)
        assert all(len(piece) <= large for piece in pieces)
