"""Known answer of a SOW topic: the last flight of each aircraft in 2013, over kills and removed segments."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import pytest

import tickertape as tt
from examples.demo.aircraft import TOPIC, carriers_of, last_flights, query, refused_keys
from examples.demo.flights import FLIGHTS_FILE, encoder, read_rows
from tests.helpers.admin import stats_of
from tests.helpers.processes import run_tickertape
from tickertape.testing import running_server, wait_until

SECONDS: Final = 60.0
BATCH: Final = 2_000
CONFIG: Final = """
[journal]
segment_size = "4MB"
retain_size = "12MB"
[[sow]]
name = "aircraft"
key = ["/tailnum"]
checkpoint_interval = "1s"
"""
FLIGHTS: Final = 336_776
REFUSED: Final = 2_512
CARRIERS: Final = [
    *(("DL", 620), ("UA", 620), ("AA", 600), ("WN", 582), ("EV", 316), ("US", 289), ("MQ", 237)),
    *(("9E", 195), ("B6", 193), ("FL", 129), ("AS", 84), ("YV", 58), ("VX", 53), ("OO", 28)),
    *(("F9", 25), ("HA", 14)),
]


def flights_of_the_file() -> list[bytes]:
    """Return all flights as messages, in the order of the file."""
    rows = read_rows(FLIGHTS_FILE)
    return list(map(encoder(next(rows)), rows))


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_last_flights_of_2013_survive_kills_and_retention(tmp_path: Path) -> None:
    flights = flights_of_the_file()
    assert len(flights) == FLIGHTS
    expected = last_flights(flights)
    kills = sorted(Random(2013).sample(range(1, FLIGHTS // BATCH), 3))
    refused: list[int] = []
    with running_server(tmp_path / "data", CONFIG) as server:
        client = tt.HAClient.memory_backed("tower", servers=server.uri, reconnect_delay=0.05, timeout=SECONDS)
        client.set_failed_write_handler(lambda error, batch: refused.append(refused_keys(error, batch)))
        client.connect_and_logon()
        waiting = 0
        for number in range(FLIGHTS // BATCH + 1):
            if number in kills:
                waiting += client.unpersisted_count() > 0
                server.kill()
                server.restart()
            client.publish_batch(TOPIC, flights[number * BATCH : (number + 1) * BATCH])
        client.publish_flush(timeout=SECONDS)
        client.close()
        assert waiting, "no kill had unacknowledged messages"
        assert sum(refused) == REFUSED
        wait_until(lambda: stats_of(server).journal.first_position > FLIGHTS // 2, SECONDS)
        found = query(server.uri)
        assert carriers_of(found.values()) == CARRIERS
        assert found == expected
        code, printed, problem = run_tickertape("sow", TOPIC, "--server", server.uri)
        assert (code, problem) == (0, "")
        assert sorted(printed.encode().splitlines()) == sorted(expected.values())
        assert server.stop() == 0
        server.start()
        assert query(server.uri) == expected
