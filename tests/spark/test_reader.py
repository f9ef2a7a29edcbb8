"""The reader by itself, as the driver and the tasks use it, against real servers: what must fail, fails."""

from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.spark.test_schema import struct
from tickertape.base.errors import Disconnected, WrongJournal
from tickertape.client.blocking import Client
from tickertape.spark.options import read_options
from tickertape.spark.partitions import LogPart
from tickertape.spark.schema import arrow_schema
from tickertape.spark.source import TickertapeReader
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark


def reader_of(uri: str, topic: str, **options: str) -> TickertapeReader:
    given = {"servers": uri, "topic": topic} | options
    return TickertapeReader(read_options(given), arrow_schema(struct("sequence long, data binary")))


def parts_of(reader: TickertapeReader) -> list[LogPart]:
    parts = reader.partitions()
    assert all(isinstance(part, LogPart) for part in parts)
    return [part for part in parts if isinstance(part, LogPart)]


def test_positions_are_never_read_from_another_log(server: RunningServer, tmp_path: Path) -> None:
    with Client("wrong-journal", server.uri) as client:
        client.publish("quiet", b"one")
        client.publish_flush()
    part = parts_of(reader_of(server.uri, "quiet"))[0]
    with running_server(tmp_path / "data") as other:
        moved = replace(part, servers=(other.uri,))
        with pytest.raises(WrongJournal, match=part.journal):
            list(reader_of(server.uri, "quiet").read(moved))


def test_a_read_cut_short_raises_and_is_not_taken_for_the_end(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        with Client("cut-short", server.uri) as client:
            for _ in range(40):
                client.publish("large", b"x" * 1_000_000)
                client.publish_flush()
        reader = pickle.loads(pickle.dumps(reader_of(server.uri, "large", minPartitions="1")))
        batches = reader.read(parts_of(reader)[0])
        assert next(batches).num_rows >= 4
        server.kill()
        with pytest.raises(Disconnected):
            list(batches)


def test_the_server_that_planned_is_asked_first_by_the_tasks(server: RunningServer, unused: str) -> None:
    part = parts_of(reader_of(f"{unused},{server.uri}", "flights"))[0]
    assert part.servers == (server.uri, unused)


def test_an_empty_part_needs_no_server(unused: str) -> None:
    part = LogPart((unused,), "any", "flights", 7, 7, 1.0)
    assert list(reader_of(unused, "flights").read(part)) == []


def test_every_server_that_does_not_answer_is_named(unused: str) -> None:
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        other = f"tcp://127.0.0.1:{quiet.getsockname()[1]}"
        with pytest.raises(Disconnected) as caught:
            reader_of(f"{unused},{other}", "flights").partitions()
    assert unused in str(caught.value)
    assert other in str(caught.value)
    assert "\n" not in str(caught.value)
