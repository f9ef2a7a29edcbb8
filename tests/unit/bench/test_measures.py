"""Measures of the benches: delays, processor time, and the servers and sources beside ours."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.bench.__main__ import measure
from tests.bench.compare import HERE, measured
from tests.bench.mixed_load import TimedStore, delays, quantile
from tests.bench.registry import LOG_BYTES_QUICK, Room, Shared, discover
from tests.helpers.processes import processor_seconds
from tests.helpers.redis_server import RedisConnection, encode_command, is_complete, parse_version
from tickertape.batch import batch_from_bodies
from tickertape.client.publish_store.protocol import Stored
from tickertape.server.admin.schema import Durations

AGAINST_REDIS = "one_in_flight.always_against_redis"


def test_delay_counts_from_the_planned_time_to_the_first_acknowledgement() -> None:
    planned = [1.0, 2.0, 3.0, 4.0]
    persisted = [(6, 0.5), (8, 2.5), (9, 4.5), (10, 4.25)]
    assert delays(planned, 10, persisted) == [1.5, 0.5, 1.5, 0.25]


def test_quantile_of_steps_is_the_bound_of_the_bucket_that_reaches_the_share() -> None:
    buckets = [(0.001, 900), (0.005, 998), (0.01, 999)]
    steps = Durations(
        count=1_000,
        total_seconds=1.0,
        highest_seconds=0.03,
        p50_seconds=0.001,
        p99_seconds=0.005,
        buckets=buckets,
    )
    assert [quantile(steps, share) for share in (0.5, 0.99, 0.999, 1.0)] == [0.001, 0.005, 0.01, 0.03]


def test_timed_store_records_acknowledgements_and_discards() -> None:
    store = TimedStore()
    store.attach("bench")
    store.put(Stored(1, 3, batch_from_bodies("t", [b"a", b"b", b"c"])))
    store.discard(3)
    assert [sequence for sequence, _ in store.persisted] == [3]
    assert store.unpersisted_count() == 0


def test_processor_seconds_are_those_of_the_whole_process() -> None:
    def work() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    before = time.process_time()
    start = processor_seconds(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    end = processor_seconds(os.getpid())
    assert before <= start <= end <= time.process_time()
    assert end - start >= 0.02


def test_benches_against_redis_are_skipped_without_a_redis_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (bench,) = (bench for bench in discover() if bench.name == AGAINST_REDIS)
    room = Room(tmp_path / "room", True, Shared(tmp_path / "shared"), LOG_BYTES_QUICK)
    outcome = measure(bench, room, repeat=1)
    assert (outcome.values, outcome.error) == ([], "")
    assert outcome.skipped == "Install redis-server or valkey-server to measure this row."


def test_compared_checkout_leaves_out_skipped_benches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measured(HERE, [AGAINST_REDIS], quick=True) == {}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", "Redis 7.0.15"),
        ("Valkey server v=8.1.0 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "Valkey 8.1.0"),
        ("another program", "unknown version"),
    ],
)
def test_version_of_redis_and_valkey_is_parsed(text: str, version: str) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("answer", "complete"),
    [
        (b"", False),
        (b"+PONG\r", False),
        (b"+PONG\r\n", True),
        (b"$3\r\n", False),
        (b"$3\r\nabc\r", False),
        (b"$3\r\nabc\r\n", True),
    ],
)
def test_redis_answer_is_complete_with_the_last_byte(answer: bytes, complete: bool) -> None:
    assert is_complete(answer) is complete


class Answers:
    """A server that answers each command with the next pieces."""

    def __init__(self, *answers: list[bytes]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, args=(answers,))
        self._thread.start()

    def _serve(self, answers: tuple[list[bytes], ...]) -> None:
        connection, _ = self._listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pieces in answers:
                self.received.append(connection.recv(65_536))
                for piece in pieces:
                    connection.sendall(piece)

    def end(self) -> None:
        self._thread.join()
        self._listening.close()


def test_redis_connection_reads_answers_in_pieces_and_raises_errors() -> None:
    server = Answers([b"$3\r", b"\na", b"bc\r\n"], [b"+PO", b"NG\r\n"], [b"-ERR no\r\n"], [])
    connection = RedisConnection(server.port)
    command = encode_command(b"XADD", b"a\r\n")
    assert command == b"*2\r\n$4\r\nXADD\r\n$3\r\na\r\n\r\n"
    try:
        assert connection.call(command) == b"$3\r\nabc\r\n"
        assert connection.call(command) == b"+PONG\r\n"
        with pytest.raises(RuntimeError, match="ERR no"):
            connection.call(command)
        with pytest.raises(RuntimeError, match="closed"):
            connection.call(command)
    finally:
        connection.close()
        server.end()
    assert server.received == [command] * 4


def test_empty_spark_source_yields_the_requested_rows() -> None:
    pytest.importorskip("pyspark", reason="provides the data source")
    from tests.helpers.constant_source import ConstantReader

    reader = ConstantReader(100_003, 7, 2)
    batches = [list(reader.read(partition)) for partition in reader.partitions()]
    assert [sum(batch.num_rows for batch in task) for task in batches] == [50_002, 50_001]
    assert {body.as_py() for task in batches for batch in task for body in batch["data"][:2]} == {bytes(7)}
