"""A Spark job on the log: flights and departure delays by carrier, and by hour of the day.

The demo runs it. You can also run it separately while a server runs:

    python -m examples.demo.spark_job tcp://127.0.0.1:9007
"""

from __future__ import annotations

import argparse
import sys
import time

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def read_flights(spark: SparkSession, server: str) -> DataFrame:
    """Return a row for each flight in the log.

    Spark finds the data source by its short name, because the package is installed in Spark's Python.
    """
    log = (
        spark.read.format("tickertape")
        .schema("data binary")  # read only the bodies, without bookmarks and times
        .option("servers", server)
        .option("topic", "flights")
        .option("startingBookmark", "epoch")
        .load()
    )
    flight = f.from_json(f.col("data").cast("string"), "carrier string, hour int, dep_delay int")
    return log.select(flight.alias("flight")).select("flight.*")


def delays_by(flights: DataFrame, column: str) -> DataFrame:
    """Return a row for each carrier or hour: flights, departures, sum and mean of the delays in minutes."""
    return (
        flights.groupBy(f.col(column).cast("string").alias("name"))
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.sum("dep_delay").alias("delay_minutes"),
            f.avg("dep_delay").alias("mean_delay"),
        )
        .orderBy(f.desc("flights"))
    )


def main() -> None:
    """Print tables, or with `--json` one object with the rows and the duration of session and job."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.spark_job", description=__doc__)
    parser.add_argument("server", help="address of the server: tcp://HOST:PORT")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    began = time.monotonic()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("tickertape demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.pyspark.python", sys.executable)
        .getOrCreate()
    )
    ready = time.monotonic()
    flights = read_flights(spark, arguments.server).cache()
    carriers = [row.asDict() for row in delays_by(flights, "carrier").collect()]
    hours = [row.asDict() for row in delays_by(flights, "hour").collect()]
    seconds = {"session_seconds": ready - began, "job_seconds": time.monotonic() - ready}
    if arguments.json:
        print(msgspec.json.encode(seconds | {"carriers": carriers, "hours": hours}).decode())
    else:
        for column, rows in (("carrier", carriers), ("hour", hours)):
            delays_by(flights, column).show(len(rows))
    spark.stop()


if __name__ == "__main__":
    main()
