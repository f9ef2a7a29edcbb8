"""A Spark driver as a program: a streaming query from log to log, with another order of rows at each
attempt.

Arguments: URI of the server, checkpoint directory, Spark master, `topic` or `queue` to read from. Must never
stop by itself: it is killed.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

ROWS_A_BATCH = 500
SOURCES = {"topic": {"topic": "numbers"}, "queue": {"queue": "work"}}


def main() -> None:
    """Run the query until the process is killed."""
    uri, checkpoint, master, kind = sys.argv[1:]
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.task.maxFailures", "4")
        # To compile these queries takes longer than to run them.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    print("session", flush=True)
    while True:
        try:
            _run(spark, uri, checkpoint, SOURCES[kind])
        except Exception as error:  # noqa: BLE001 - a server that is killed ends the query: it is begun again
            print(f"again after {type(error).__name__}: {str(error)[:300]}", flush=True)


def _run(spark: SparkSession, uri: str, checkpoint: str, options: dict[str, str]) -> None:
    source = (
        spark.readStream.format("tickertape")
        .options(servers=uri, maxRowsPerTrigger=str(ROWS_A_BATCH), minPartitions="3", **options)
        .load()
    )
    number = sql.get_json_object(sql.col("data").cast("string"), "$.n").cast("long")
    # Each attempt distributes the rows anew, so that no task repeats the rows or the order of an earlier one.
    rows: Any = source.select(number.alias("n")).repartition(2, sql.rand())
    body = sql.to_json(sql.struct(sql.col("n"), (sql.col("n") * 2).alias("twice")))
    query = (
        rows.select(body.alias("data"))
        .writeStream.format("tickertape")
        .options(servers=uri, publisher="doubler", topic="doubled", checkpointLocation=checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("query", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
