"""Batches of clients: every part that only the server writes is refused, also one without a meaning yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.reserved_batches import with_reserved
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import BadBatch
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies, merge
from tickertape.engine.commands.publish_checks import check_from_client
from tickertape.wire.commands import Command, Publish, Stage, Transaction

_COLUMNS_OF_CLIENTS = {0: "sequences", 1: "expirations", 2: "correlation ids", 3: "keys"}


def _batch() -> MessageBatch:
    return MessageBatch.parse(batch_from_bodies("t", [b"1", b"2"]).encode())


@pytest.mark.parametrize("bit", range(16))
def test_batch_of_a_client_has_no_column_of_the_server(bit: int) -> None:
    batch = _batch()
    batch.columns |= 1 << bit
    if bit in _COLUMNS_OF_CLIENTS:
        check_from_client(batch)
        return
    with pytest.raises(BadBatch, match=rf"columns {1 << bit:#x}\. Send only"):
        check_from_client(batch)


@pytest.mark.parametrize("bit", range(32))
def test_batch_of_a_client_has_no_run_flag_of_the_server(bit: int) -> None:
    batch = _batch()
    batch.first_run = batch.first_run._replace(flags=1 << bit)
    if bit == 0:
        check_from_client(batch)
        return
    with pytest.raises(
        BadBatch,
        match=rf"run has flags {1 << bit:#x} and origin 0\. Set origin to 0, and flags to 0 or 0x1",
    ):
        check_from_client(batch)


@pytest.mark.parametrize("bit", range(32))
def test_batch_of_a_client_has_no_origin(bit: int) -> None:
    batch = _batch()
    batch.first_run = batch.first_run._replace(origin=1 << bit)
    with pytest.raises(BadBatch, match=rf"and origin {1 << bit}\. Set origin to 0, and flags to 0 or 0x1"):
        check_from_client(batch)


_RESERVED: dict[str, Callable[[MessageBatch], MessageBatch]] = {
    "late": lambda batch: with_reserved(batch, run_flags=[2]),
    "merged": lambda batch: with_reserved(batch, run_flags=[5]),
    "origin": lambda batch: with_reserved(batch, origins=[1]),
    "control": lambda batch: with_reserved(batch, kinds=[0, 1]),
    "restated": lambda batch: with_reserved(batch, kinds=[0, 2]),
    "superseded": lambda batch: with_reserved(batch, message_flags=[1, 0]),
    "superseded delta": lambda batch: with_reserved(batch, message_flags=[0, 3]),
    "superseded beside a delta": lambda batch: with_reserved(batch, message_flags=[1, 2]),
    "flags of zero": lambda batch: with_reserved(batch, message_flags=[0, 0]),
    "order stamp": lambda batch: with_reserved(batch, order_stamps=[1 << 62]),
    "order stamp of zero": lambda batch: with_reserved(batch, order_stamps=[0]),
    "headers": lambda batch: with_reserved(batch, headers=[b"\x81\xa1a\xa1b", b""]),
    "no headers": lambda batch: with_reserved(batch, headers=[b"", b""]),
    "two runs": lambda batch: merge([batch, batch]),
}


def _sent(command: Command, batch: MessageBatch) -> EngineWorld:
    world = EngineWorld(1)
    peer = world.connect("pub")
    peer.send(command, MessageBatch.parse(batch.encode()))
    world.settle()
    assert peer.goodbye is not None
    assert peer.goodbye.code == BadBatch.code
    assert peer.goodbye.text.startswith("Cannot store a batch of a client: ")
    return world


@pytest.mark.parametrize("name", _RESERVED)
def test_publish_frame_with_a_part_of_the_server_is_refused(name: str) -> None:
    assert _sent(Publish(frame=1), _RESERVED[name](_batch())).log() == []


_STAGED: dict[str, Callable[[MessageBatch], MessageBatch]] = {
    **_RESERVED,
    "delta": lambda batch: with_reserved(batch, message_flags=[0, 2]),
}


@pytest.mark.parametrize("name", _STAGED)
def test_staged_batch_with_a_part_of_the_server_is_refused(name: str) -> None:
    command = Stage(id=1, transaction=Transaction(publisher="pub", name="t"), part="0")
    assert _sent(command, _STAGED[name](_batch())).log() == []


def test_publish_frame_with_every_column_of_clients_is_stored() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", sequence=1, expiration_ms=60_000, correlation_id="c", key="k")
    builder.add("u", b"2", sequence=3)
    world = EngineWorld(1)
    world.acknowledged = lambda _: None  # type: ignore[assignment,method-assign]  # it counts one by one
    peer = world.connect("pub")
    assert peer.logged_on is not None
    batch = builder.build(peer.logged_on.publisher)
    peer.send(Publish(frame=1, sequenced=True), MessageBatch.parse(batch.encode()))
    world.settle()
    assert peer.goodbye is None
    assert len(world.log()) == 2
