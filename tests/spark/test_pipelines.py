"""Historical state and pipeline projects, compared with pandas.

Flights and weather are the rows of the source files. Pandas reads the files, never our messages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tickertape as tt
from examples.demo.flights import FLIGHTS_FILE, WEATHER_FILE, data_file, read_flights, read_weather
from tests.helpers.processes import source_environment
from tickertape.base.errors import BadBookmark, UsageError
from tickertape.base.names import derived_publisher_id
from tickertape.cli.support.command_group import cli
from tickertape.spark.last_values import last_values
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

FLIGHTS = 3_000
PROJECT_SECONDS_MAX = 300
PLACE = "position long, publisher string, sequence long, timestamp timestamp"


@pytest.fixture(scope="module")
def limit(request: pytest.FixtureRequest) -> int | None:
    """Return the number of flights, or None for the whole year with --full."""
    return None if request.config.getoption("--full") else FLIGHTS


@pytest.fixture(scope="module")
def flown(limit: int | None) -> pd.DataFrame:
    """Return the flights in publish order, read by pandas."""
    rows = pd.read_csv(data_file(FLIGHTS_FILE))
    rows = rows.sort_values(["year", "month", "day", "sched_dep_time"], kind="stable")
    rows["time_hour"] = pd.to_datetime(rows["time_hour"])
    return rows if limit is None else rows.head(limit)


@pytest.fixture(scope="module")
def server(limit: int | None) -> Iterator[RunningServer]:
    """Yield a server with the flights in two halves and the weather by hour."""
    bodies = [flight.body for flight in read_flights(limit)]
    weather = sorted(read_weather(), key=lambda body: str(json.loads(body)["time_hour"]))
    if limit is not None:
        weather = weather[:3_000]
    half = len(bodies) // 2
    with running_server() as running, tt.Client("airport", running.uri) as client:
        for part in (bodies[:half], bodies[half:]):
            for at in range(0, len(part), 1000):
                client.publish_batch("flights", part[at : at + 1000])
            client.publish_flush()
        for at in range(0, len(weather), 1000):
            client.publish_batch("weather", weather[at : at + 1000])
        client.publish_flush()
        yield running


def load(spark: SparkSession, server: RunningServer, topic: str, columns: str) -> DataFrame:
    return spark.read.format("tickertape").schema(columns).options(servers=server.uri, topic=topic).load()


def part(directory: Path, example: str, name: str) -> ModuleType:
    """Return a module of a project from `pipeline init`."""
    place = directory / example
    if not place.exists():
        made = CliRunner().invoke(cli, ["pipeline", "init", str(place), "--example", example])
        assert made.exit_code == 0, made.output
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", place / "flights" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("projects")


# -- state --------------------------------------------------------------------------------------------


def last_by_pandas(flown: pd.DataFrame, count: int) -> set[tuple[Any, ...]]:
    last = flown.head(count).dropna(subset=["tailnum"]).groupby("tailnum", sort=False).tail(1)
    return set(last[["tailnum", "carrier", "flight", "dest"]].itertuples(index=False, name=None))


@pytest.mark.full
def test_last_values_as_of_any_position_equal_pandas(
    spark: SparkSession, server: RunningServer, flown: pd.DataFrame, projects: Path
) -> None:
    messages = part(projects, "state", "messages")
    flights = load(spark, server, "flights", f"{PLACE}, {messages.FLIGHT}").cache()

    def last(as_of: str | datetime | None) -> set[tuple[Any, ...]]:
        found = last_values(flights, "tailnum", as_of=as_of).select("tailnum", "carrier", "flight", "dest")
        rows = [tuple(row) for row in found.collect()]
        assert len({row[0] for row in rows}) == len(rows)
        return set(rows)

    count, half = len(flown), len(flown) // 2
    assert last(None) == last_by_pandas(flown, count)
    for index in (0, half // 3, half - 1):
        at = flights.orderBy("position").offset(index).first()
        assert at is not None
        assert last(f"{at['publisher']}|{at['sequence']}|") == last_by_pandas(flown, index + 1)
    earliest = flights.orderBy("position").offset(half).agg(f.min("timestamp").alias("t")).first()
    before = flights.where("position >= 0").orderBy("position").limit(half).agg(f.max("timestamp")).first()
    assert earliest is not None
    assert before is not None
    if before[0] < earliest[0]:  # the second half was published after the first was on disk
        assert last(before[0].astimezone()) == last_by_pandas(flown, half)
    flights.unpersist()


def test_last_values_accept_several_key_columns_and_refuse_unknown_bookmarks(spark: SparkSession) -> None:
    rows = [(1, "7", 5, "a", 1), (2, "7", 6, "a", 2), (3, "7", 7, "a", 1), (4, "7", 8, None, None)]
    frame = spark.createDataFrame(rows, "position long, publisher string, sequence long, x string, y int")
    assert {tuple(row) for row in last_values(frame, "x", f.col("y")).collect()} == {rows[1], rows[2]}
    assert last_values(frame, "x", as_of="7|6|,7|5|").collect() == [rows[1]]
    with pytest.raises(PySparkException, match=r"as_of: 7\|99\| is not among these messages"):
        last_values(frame, "x", as_of="7|99|").collect()
    with pytest.raises(UsageError, match="without a key"):
        last_values(frame)
    for text in ("epoch", "0", "[7|1|:7|2|)"):
        with pytest.raises(BadBookmark):
            last_values(frame, "x", as_of=text)


# -- the projects, over the source --------------------------------------------------------------------


def streamed(frame: DataFrame, name: str, checkpoint: Path) -> DataFrame:
    """Return the rows of a stream over all available messages."""
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return frame.sparkSession.table(name)


def follow(spark: SparkSession, server: RunningServer, topic: str, columns: str, rows: int) -> DataFrame:
    return (
        spark.readStream.format("tickertape")
        .schema(columns)
        .options(servers=server.uri, topic=topic, startingBookmark="epoch", maxRowsPerTrigger=str(rows))
        .load()
    )


@pytest.mark.full
def test_delays_by_hour_equal_pandas_and_each_hour_is_published_once(
    spark: SparkSession, server: RunningServer, flown: pd.DataFrame, projects: Path, tmp_path: Path
) -> None:
    messages, delays = part(projects, "delays", "messages"), part(projects, "delays", "delays")
    sums = flown.groupby(["time_hour", "carrier"])["dep_delay"].agg(["size", "count", "sum"])
    expected = {
        f"{hour:%Y-%m-%dT%H:%M:%SZ}|{carrier}": (int(size), int(count), int(total) if count else None)
        for (hour, carrier), (size, count, total) in zip(sums.index, sums.to_numpy(), strict=True)
    }

    def counts_by_hour(flights: DataFrame) -> dict[str, tuple[int, int, int | None]]:
        found = {}
        for data, key in flights.collect():
            body = json.loads(data)
            assert key not in found
            found[key] = (body["flights"], body["departed"], body.get("delay_minutes"))
        return found

    batch = load(spark, server, "flights", messages.FLIGHT)
    assert counts_by_hour(delays.as_messages(delays.delays_by_hour(batch))) == expected
    stream = follow(spark, server, "flights", messages.FLIGHT, len(flown) // 2)
    query = (
        delays.as_messages(delays.delays_by_hour(stream))
        .writeStream.format("tickertape")
        .options(servers=server.uri, publisher="delays-1", topic="hours")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    early = counts_by_hour(load(spark, server, "hours", "data binary, key string"))
    assert early.items() <= expected.items()
    over = f"{flown['time_hour'].max() - pd.Timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"
    assert {key for key in expected if key < over} <= early.keys()


def by_origin_and_carrier(joined: pd.DataFrame) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the number of flights with weather, and the sum of their temperatures."""
    sums = joined.groupby(["origin", "carrier"])["temp"].agg(["size", "sum"]).round(4)
    return {key: (int(n), float(temp)) for key, (n, temp) in zip(sums.index, sums.to_numpy(), strict=True)}


def weather_by_pandas(flown: pd.DataFrame) -> dict[tuple[str, str], tuple[int, float]]:
    weather = pd.read_csv(data_file(WEATHER_FILE))
    weather["time_hour"] = pd.to_datetime(weather["time_hour"])
    merged = flown.merge(weather[["origin", "time_hour", "temp"]], on=["origin", "time_hour"])
    return by_origin_and_carrier(merged)


@pytest.mark.full
def test_flights_joined_with_weather_by_hour_equal_pandas(
    spark: SparkSession, server: RunningServer, flown: pd.DataFrame, projects: Path, tmp_path: Path
) -> None:
    messages, joined = part(projects, "weather", "messages"), part(projects, "weather", "joined")

    def answer(frame: DataFrame) -> dict[tuple[str, str], tuple[int, float]]:
        rows = frame.groupBy("origin", "carrier").agg(f.count("*").alias("n"), f.sum("temp").alias("temp"))
        return {(row["origin"], row["carrier"]): (row["n"], round(row["temp"], 4)) for row in rows.collect()}

    both = [
        follow(spark, server, topic, schema, rows)
        for topic, rows, schema in (
            ("flights", len(flown), messages.FLIGHT),
            ("weather", 2_000, messages.WEATHER),
        )
    ]
    found = answer(streamed(joined.with_weather(*both), "flights_weather", tmp_path / "checkpoint"))
    assert found == weather_by_pandas(flown)


# -- whole projects -----------------------------------------------------------------------------------


def run_in(place: Path, *command: str) -> str:
    """Run a command of this environment in a project, check its success, and return its output."""
    environment = source_environment() | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYTEST_ADDOPTS", None)  # the project lacks the plugins of this run
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROJECT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(4 * PROJECT_SECONDS_MAX)
@pytest.mark.parametrize("example", ["state", "delays", "weather"])
def test_example_project_passes_the_included_tests_and_runs_twice(
    server: RunningServer, flown: pd.DataFrame, tmp_path: Path, example: str
) -> None:
    place = tmp_path / "project"
    made = CliRunner().invoke(
        cli, ["pipeline", "init", str(place), "--example", example, "--server", server.uri]
    )
    assert made.exit_code == 0, made.output
    run_in(place, sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
    page = (place / "README.md").read_text(encoding="utf-8")
    (documented,) = re.findall(r"^\$ (tickertape pipeline run(?: --conf \S+)?) +#", page, re.MULTILINE)
    for _ in range(2):
        run_in(place, *documented.split())
    if example == "delays":
        with tt.Client("reader", server.uri) as client:
            own_publisher = str(derived_publisher_id("project", "tickertape"))
            hours = [
                message.sow_key for message in client.replay("delays") if message.publisher == own_publisher
            ]
        assert len(hours) == len(set(hours)) > 0
    elif example == "weather":
        joined = pd.read_parquet(place / "spark-warehouse" / "flights_weather")
        assert by_origin_and_carrier(joined) == weather_by_pandas(flown)
    else:
        last = pd.read_parquet(place / "spark-warehouse" / "last_flights")
        rows = last[["tailnum", "carrier", "flight", "dest"]].itertuples(index=False, name=None)
        assert sorted(rows) == sorted(last_by_pandas(flown, len(flown)))
