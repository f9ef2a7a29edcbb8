"""Spark reads, writes and audits through TLS with a token, and is refused without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.helpers.certificates import Authority, transport
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking.client import Client
from tickertape.security.tls_options import TLS
from tickertape.security.tokens import new_token
from tickertape.spark import register
from tickertape.testing import running_server

SECONDS = 120


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the options to connect to a server with TLS and tokens."""
    authority, token = Authority(tmp_path), new_token("spark")
    file, tokens = tmp_path / "spark.token", tmp_path / "tokens.toml"
    for path in (file, tokens):
        path.touch(mode=0o600)
    file.write_text(token.text)
    tokens.write_text(f'[spark]\nsha256 = "{token.sha256}"\nclients = "^spark-"\n')
    own = authority.issue("executor", label="executor")
    config = transport(authority.issue("127.0.0.1"), client_ca=authority.ca)
    config += f'[authentication]\ntokens_file = "{tokens}"\n'
    with running_server(config=config, listen=None) as server:
        yield {
            "servers": server.uri,
            "caFile": str(authority.ca),
            "certificateFile": str(own.certificate),
            "keyFile": str(own.key),
            "tokenFile": str(file),
        }


@pytest.mark.full
def test_batch_and_stream_queries_reach_a_server_with_tls_and_tokens(
    spark: SparkSession, reached: dict[str, str], tmp_path: Path
) -> None:
    register(spark)
    rows = spark.range(0, 1_000, numPartitions=2).selectExpr("cast(id as string) as data")
    sink = {**reached, "publisher": "spark-secure", "topic": "numbers"}
    rows.write.format("tickertape").options(**sink).mode("append").save()
    source = spark.readStream.format("tickertape").options(**reached, topic="numbers").load()
    query = (
        source.selectExpr("data")
        .writeStream.format("tickertape")
        .options(**reached, publisher="spark-copier", topic="copies")
        .option("checkpointLocation", (tmp_path / "checkpoint").as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(SECONDS)
    copies = spark.read.format("tickertape").options(**reached, topic="copies").load()
    numbers = sorted(int(bytes(row.data)) for row in copies.select("data").collect())
    assert numbers == list(range(1_000))
    del sink["tokenFile"]
    with pytest.raises(PySparkException, match="this server requires a token"):
        rows.write.format("tickertape").options(**sink).mode("append").save()
    assert copies.count() == 1_000


@pytest.mark.full
def test_audit_reaches_a_server_with_tls_and_tokens(spark: SparkSession, reached: dict[str, str]) -> None:
    register(spark)
    token = Path(reached["tokenFile"]).read_text()
    tls = TLS(ca=reached["caFile"], certificate=reached["certificateFile"], key=reached["keyFile"])
    with Client("spark-publisher", reached["servers"], token=token, tls=tls) as client:
        client.publish_batch("numbers", [b"%d" % n for n in range(100)])
        client.publish_flush()
    files = {"--ca": "caFile", "--certificate": "certificateFile", "--key": "keyFile"}
    shown = [word for name, option in files.items() for word in (name, reached[option])]
    audit = ["pipeline", "audit", reached["servers"], *shown]
    result = CliRunner().invoke(cli, audit)
    assert result.exit_code != 0
    assert "this server requires a token" in result.output
    result = CliRunner().invoke(cli, [*audit, "--token-file", reached["tokenFile"]])
    assert result.exit_code == 0, result.output
    assert "in order: 100 messages of 1 publishers" in result.output
