"""Python calls of server and client for one query of few records.

The counts do not depend on the machine or its load, so they bound the latency of a query.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from types import FrameType

import msgspec
import pytest

from tests.bench.record_stage import CONFIG as ORDERS
from tests.helpers.counted_server import CountedCalls
from tests.helpers.processes import source_environment
from tickertape import Client
from tickertape.payload.canonical import generated_key

BEFORE = 20
COUNTED = 100
RECORDS = 500
HITS = 50
CONFIG = f"""{ORDERS}
[admin]
listen = "off"

[[sow]]
name = "labelled"
"""


def by_explicit_key(client: Client, number: int) -> None:
    assert len(list(client.sow("labelled", keys=[f"k{number}"]))) == 1


def by_generated_key(client: Client, number: int) -> None:
    key = generated_key("orders", msgspec.msgpack.encode(number))
    assert len(list(client.sow("orders", keys=[key]))) == 1


def by_index(client: Client, number: int) -> None:
    found = client.sow("orders", f"/symbol = 'S{number % (RECORDS // HITS)}'").batches()
    assert sum(map(len, found)) == HITS


Query = Callable[[Client, int], None]


class ClientCalls:
    """Profile function that counts calls of functions of the package on this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event == "call" and "/tickertape/" in frame.f_code.co_filename


def counted(data: Path, query: Query) -> tuple[CountedCalls, list[int]]:
    """Return the calls of a server and of the client for `COUNTED` queries."""
    config = data / "server.toml"
    config.write_text(CONFIG)
    arguments = ["Sow", str(BEFORE), str(BEFORE + COUNTED), str(config), "--data", str(data / "log")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.counted_server", *arguments, "--listen", "tcp://127.0.0.1:0"],
        env=source_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    of_client: list[int] = []
    with process:
        assert process.stdout is not None
        with Client("publisher", process.stdout.readline().split()[1]) as client:
            for number in range(RECORDS):
                client.publish("labelled", b"{}", sow_key=f"k{number}")
                client.publish("orders", {"id": number, "symbol": f"S{number % (RECORDS // HITS)}"})
            client.publish_flush()
            query(client, 0)
            process.send_signal(signal.SIGUSR2)
            for number in range(2 * BEFORE + COUNTED):
                calls = ClientCalls()
                sys.setprofile(calls)
                query(client, number)
                sys.setprofile(None)
                of_client.append(calls.count)
        process.send_signal(signal.SIGTERM)
        return msgspec.json.decode(process.stdout.readlines()[-1], type=CountedCalls), of_client


@pytest.mark.parametrize(
    ("query", "calls_max", "client_calls_max"),
    [(by_explicit_key, 254, 274), (by_generated_key, 264, 270), (by_index, 304, 275)],
)
def test_calls_for_a_query_of_few_records_are_few(
    tmp_path: Path, query: Query, calls_max: int, client_calls_max: int
) -> None:
    of_server, of_client = counted(tmp_path, query)
    assert len(of_server.of_commands) == COUNTED
    each = {name: calls / COUNTED for name, calls in of_server.of_functions.items()}
    # On a slow machine, timers and switches between threads add calls to many queries.
    quarter, _, _ = quantiles(of_server.of_commands)
    assert quarter <= calls_max, each
    quarter, _, _ = quantiles(of_client[BEFORE:])
    assert quarter <= client_calls_max
