"""A Spark job over the log: flights and departure delay by carrier.

Run by the demonstration, and on its own while a server runs:

    python -m examples.demo.spark_job tcp://127.0.0.1:9007
"""

from __future__ import annotations

import argparse
import sys
import time

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def delay_by_carrier(spark: SparkSession, server: str) -> DataFrame:
    """A row for each carrier: flights, flights that departed, sum and mean of their delays in minutes.

    Spark finds the source by its short name, because the package is installed in Spark's Python.
    """
    log = (
        spark.read.format("tickertape")
        .schema("data binary")  # bookmarks and times are not needed, so they are not made
        .option("servers", server)
        .option("topic", "flights")
        .option("startingBookmark", "epoch")
        .load()
    )
    flight = f.from_json(f.col("data").cast("string"), "carrier string, dep_delay int")
    return (
        log.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.sum("dep_delay").alias("delay_minutes"),
            f.avg("dep_delay").alias("mean_delay"),
        )
        .orderBy(f.desc("flights"))
    )


def main() -> None:
    """Print the table, or with `--json` one object: seconds for session and job, and the rows."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.spark_job", description=__doc__)
    parser.add_argument("server", help="where the server is: tcp://HOST:PORT")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
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
    table = delay_by_carrier(spark, arguments.server)
    rows = [row.asDict() for row in table.collect()]
    seconds = {"session_seconds": ready - began, "job_seconds": time.monotonic() - ready}
    if arguments.json:
        print(msgspec.json.encode(seconds | {"rows": rows}).decode())
    else:
        spark.createDataFrame(rows, table.schema).show(len(rows))
    spark.stop()


if __name__ == "__main__":
    main()
