"""Aggregates of real flights and weather, compared with pandas on the source files."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.demo.flights import FLIGHTS_FILE, WEATHER_FILE, data_file, read_flights, read_weather
from tickertape.client.blocking.client import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

FLIGHTS = 20_000
SCHEDULE = ["year", "month", "day", "sched_dep_time"]
SCHEMA = "topic string, carrier string, origin string, dep_delay double, temp double, hour integer"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Yield a server with the first flights of the year and the weather in between."""
    bodies = [flight.body for flight in read_flights(FLIGHTS)]
    weather = read_weather()
    with running_server(tmp_path_factory.mktemp("answers") / "data") as server:
        with Client("answers", server.uri) as client:
            for at in range(0, FLIGHTS, 1000):
                client.publish_batch("ny/flights", bodies[at : at + 1000])
                client.publish_batch("ny/weather", weather[at * 2 : at * 2 + 2000] or [b"no JSON"])
            client.publish_flush()
        yield server


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return the same flights from the source file."""
    frame = pd.read_csv(data_file(FLIGHTS_FILE))
    return frame.sort_values(SCHEDULE, kind="stable").head(FLIGHTS)


@pytest.fixture(params=["server", pytest.param("files", marks=pytest.mark.full)])
def load(request: pytest.FixtureRequest, spark: SparkSession, log: RunningServer) -> Any:
    """Return `load(option=...)`, which reads the columns above from the server or from files."""

    def loaded(**options: str) -> DataFrame:
        given = {"servers": log.uri} | options
        if request.param == "files":
            given["journal"] = str(log.data)
        return spark.read.format("tickertape").schema(SCHEMA).options(**given).load()

    return loaded


def counted(frame: DataFrame, *by: str) -> dict[Any, int]:
    found = frame.groupBy(*by).count().collect()
    return {row[0] if len(by) == 1 else tuple(row[: len(by)]): row["count"] for row in found}


@pytest.mark.full
def test_spark_aggregates_of_flights_and_weather_equal_pandas(load: Any, flights: pd.DataFrame) -> None:
    own = load(topic="ny/flights")
    assert counted(own, "carrier", "origin") == flights.groupby(["carrier", "origin"]).size().to_dict()
    mean = {row[0]: row[1] for row in own.groupBy("origin").avg("dep_delay").collect()}
    assert mean == pytest.approx(flights.groupby("origin").dep_delay.mean().to_dict())
    assert own.where("dep_delay is null").count() == int(flights.dep_delay.isna().sum()) > 0

    late = load(topic="ny/flights", filter="/dep_delay > 60 AND /carrier IN ('UA', 'EV')")
    expected = flights[(flights.dep_delay > 60) & flights.carrier.isin(["UA", "EV"])]
    assert counted(late, "carrier") == expected.groupby("carrier").size().to_dict()

    weather = pd.read_csv(data_file(WEATHER_FILE))
    both = load(topicPattern="^ny/")
    assert counted(both, "topic")["ny/flights"] == FLIGHTS
    hours = both.where("topic = 'ny/weather' and hour is not null")
    assert counted(hours, "hour") == weather.groupby("hour").size().to_dict()
    warmest = {row[0]: row[1] for row in hours.groupBy("origin").agg(f.max("temp")).collect()}
    assert warmest == weather.groupby("origin").temp.max().to_dict()
