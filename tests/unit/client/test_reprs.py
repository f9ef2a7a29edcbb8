"""Reprs and rejected attributes of public objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.base import errors


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


def test_client_repr_has_name_address_and_state(server: SocketServer) -> None:
    uri = server.uri.replace("tcp://", "tcp://me:secret@")
    client = tt.Client("desk", uri)
    shown = uri.replace("secret", "...")
    assert repr(client) == f"<Client 'desk' of {shown}, connected>"
    client.close()
    assert repr(client) == f"<Client 'desk' of {shown}, closed>"


def test_ha_client_repr_has_the_connection_state(server: SocketServer) -> None:
    client = tt.HAClient("desk", server.uri)  # the server as second argument, as for a Client
    assert repr(client) == "<HAClient 'desk', not connected>"
    with client:
        assert repr(client) == f"<HAClient 'desk' of {server.uri}, connected>"


def test_stream_and_transaction_reprs_have_the_state(server: SocketServer) -> None:
    with tt.Client("desk", server.uri) as client:
        stream = client.subscribe("orders", sub_id="s")
        assert repr(stream) == "<MessageStream 's' on 'orders', running>"
        client.unsubscribe("s")
        assert repr(stream) == "<MessageStream 's' on 'orders', ended: unsubscribed>"
        assert repr(client.transaction("t")) == "<ClientTransaction 't', open>"


def test_store_reprs_have_paths_and_sizes(tmp_path: Path) -> None:
    assert repr(tt.MemoryPublishStore("1KB")) == "<MemoryPublishStore, 0 of 1,024 bytes>"
    with tt.FilePublishStore(tmp_path / "p", "1MB") as store:
        assert repr(store) == f"<FilePublishStore {str(tmp_path / 'p')!r}, 0 of 1,048,576 bytes>"
    with tt.HybridPublishStore(tmp_path / "h", bytes_max="1MB") as hybrid:
        assert repr(hybrid).startswith(f"<HybridPublishStore {str(tmp_path / 'h')!r}, 0 of ")
    assert repr(tt.MemoryBookmarkStore()) == "<MemoryBookmarkStore, 0 subscription(s)>"
    with tt.LoggedBookmarkStore(tmp_path / "b") as logged:
        assert repr(logged) == f"<LoggedBookmarkStore {str(tmp_path / 'b')!r}, 0 subscription(s)>"


@pytest.mark.parametrize(("name", "near"), [("ack_batchsize", "ack_batch_size"), ("autoack", "auto_ack")])
def test_client_rejects_misspelt_attribute_and_suggests_the_right_one(
    server: SocketServer, name: str, near: str
) -> None:
    class Own(tt.Client):
        """A client subclass of an application, which may have further attributes."""

    with Own("desk", server.uri) as client:
        other: Any = client
        with pytest.raises(AttributeError, match=f"Cannot set {name!r}.*Did you mean {near!r}"):
            setattr(client, name, 10)
        other.colour = "red"
        assert other.colour == "red"


def test_client_rejects_unknown_attribute(server: SocketServer) -> None:
    with tt.Client("desk", server.uri) as client, pytest.raises(AttributeError, match="Cannot set 'colour'"):
        client.colour = "red"


def test_stream_rejects_unknown_attribute(server: SocketServer) -> None:
    with tt.Client("desk", server.uri) as client:
        stream = client.subscribe("orders")
        stream.timeout = 1.0
        with pytest.raises(AttributeError):
            stream.timout = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("servers", [[], ()])
def test_ha_client_without_servers_raises_at_once(servers: list[str]) -> None:
    with pytest.raises(tt.BadOption, match="the list is empty"):
        tt.HAClient("desk", servers=servers)


def test_errors_have_the_public_module_name() -> None:
    assert {kind.__module__ for kind in errors.all_codes().values()} == {"tickertape"}
    assert errors.TickertapeError.__module__ == "tickertape"
    again = pickle.loads(pickle.dumps(tt.BadTopic("x")))
    assert (type(again), str(again)) == (tt.BadTopic, "x")
