"""Load programs of the comparison with brokers: bodies, meters, windows, outputs of native loaders."""

from __future__ import annotations

import json
import time

import pytest

from tests.bench.peers import postgres, valkey
from tests.bench.peers.loading import (
    BODY_BYTES,
    Arrivals,
    Meter,
    Schedule,
    Task,
    age,
    at,
    make_bodies,
    run,
    stamp,
)
from tests.bench.peers.rabbitmq import settle
from tests.bench.peers.tickertape import WindowStore
from tickertape.batch import batch_from_bodies
from tickertape.client.publish_store.protocol import Stored

TASK = Task("address", seconds=100.0, warm=10.0)


def test_bodies_are_different_json_of_equal_size() -> None:
    bodies = make_bodies()
    assert {len(body) for body in bodies} == {BODY_BYTES}
    assert len(set(bodies)) == len(bodies)
    assert {json.loads(body)["carrier"] for body in bodies} > {"AA", "UA"}
    assert bodies == make_bodies()


def test_stamped_body_keeps_the_size_and_has_an_age() -> None:
    body = stamp(make_bodies()[0])
    assert len(body) == BODY_BYTES
    assert 0 <= age(body) < 10


def test_meter_counts_messages_after_the_warm_part_only() -> None:
    now = time.perf_counter()
    warm, measured, over = (Meter(TASK, now - past) for past in (5.0, 50.0, 200.0))
    for meter in (warm, measured, over):
        meter.done(9, now)
    assert (warm.count, measured.count, over.count) == (0, 9, 0)
    assert (warm.running(), measured.running(), over.running()) == (True, True, False)
    result = measured.result()
    assert result["rate"] == pytest.approx(9 / 90)
    assert 0 <= result["p50"] == result["p99"] < 10e6
    assert set(warm.result()) == {"rate", "count"}


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 0.0), (0.5, 50.0), (0.99, 99.0), (1.0, 99.0)])
def test_percentile_of_a_sorted_list(fraction: float, value: float) -> None:
    assert at([float(number) for number in range(100)], fraction) == value


def test_schedule_returns_each_due_message_once() -> None:
    schedule = Schedule(Task("address", rate=1e6))
    time.sleep(0.001)
    first = schedule.due()
    assert first >= 1_000
    assert schedule.due() + first == schedule.sent


def test_arrivals_measure_the_age_of_stamped_bodies() -> None:
    body = make_bodies()[0]
    plain, stamped = (Arrivals(Task("address", seconds=60, stamped=stamped)) for stamped in (False, True))
    plain.add([body, body])
    stamped.add([stamp(body)])
    assert plain.result()["count"] == 2
    assert "p50" not in plain.result()
    assert 0 <= stamped.result()["p50"] < 10e6


def test_load_program_prints_the_result_of_an_action(capsys: pytest.CaptureFixture[str]) -> None:
    run({"double": lambda task: {"count": 2.0 * task.count}}, ["double", Task("a", count=21).to_json()])
    assert json.loads(capsys.readouterr().out) == {"count": 42.0}


def test_window_store_frees_places_and_measures_calls_with_all_messages_persisted() -> None:
    store = WindowStore(4)
    store.meter = Meter(Task("address", seconds=60))
    first = 1_000_001  # sequences of a client do not start at 1
    for start in (first, first + 2):
        store.enter(2)
        for sequence in (start, start + 1):
            store.put(Stored(sequence, sequence, batch_from_bodies("t", [b"a"])))
    store.discard(first)
    assert store.meter.count == 0
    store.discard(first + 2)
    assert store.meter.count == 2
    store.enter(3)
    store.discard(first + 3)
    assert store.meter.count == 4
    assert len(store.meter.taken) == 2


def test_confirms_of_rabbitmq_settle_one_or_all_up_to_the_tag() -> None:
    waiting = {tag: float(tag) for tag in range(1, 7)}
    assert settle(waiting, 3, multiple=False) == [3.0]
    assert settle(waiting, 3, multiple=False) == []
    assert settle(waiting, 5, multiple=True) == [1.0, 2.0, 4.0, 5.0]
    assert list(waiting) == [6]


REDIS_BENCHMARK = (
    '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",'
    '"max_latency_ms"\n'
    '"XADD orders * b {"origin": "EWR", "delay": 210, "note": "a, b"}",'
    '"4166.67","0.232","0.184","0.231","0.279","0.319","0.439"\n'
)


def test_figures_of_redis_benchmark_follow_a_name_with_quotes_and_commas() -> None:
    found = valkey.parse_benchmark(REDIS_BENCHMARK)
    assert found == pytest.approx({"rate": 4166.67, "p50": 231.0, "p99": 319.0})


@pytest.mark.parametrize("text", ["", "Could not connect\n", REDIS_BENCHMARK.partition("\n")[0]])
def test_redis_benchmark_without_figures_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="printed no figure"):
        valkey.parse_benchmark(text)


def test_figures_of_pgbench_are_the_rate_and_percentiles_of_the_log() -> None:
    text = "latency average = 0.3 ms\ntps = 3312.125000 (without initial connection time)\n"
    log = "".join(f"0 {number} {number * 10} 0 1700000000 0\n" for number in range(100))
    assert postgres.parse_benchmark(text, log) == {"rate": 3312.125, "p50": 500.0, "p99": 990.0}
    assert postgres.parse_benchmark(text, "") == {"rate": 3312.125}
    with pytest.raises(ValueError, match="printed no figure"):
        postgres.parse_benchmark("pgbench: error", "")
