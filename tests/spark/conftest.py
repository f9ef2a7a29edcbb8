"""Spark session and server that all Spark tests share, because they start slowly.

No Java machine remains after the tests.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.helpers.java import short_lived_java
from tests.helpers.processes import source_environment
from tickertape.testing.server import RunningServer, running_server


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession.Builder]:
    """Yield a builder of small local sessions whose workers import this checkout."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", source_environment()["PYTHONPATH"])
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark starts Python processes for each query: they must not compile this checkout each time.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        for name, value in short_lived_java().items():
            patch.setenv(name, value)
        built = (
            SparkSession.builder.master("local[2]")
            .appName("tickertape tests")
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            # These queries compile slower than they run. The tests of the README use compiled queries.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        )
        yield built
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


@pytest.fixture
def spark(builder: SparkSession.Builder) -> SparkSession:
    """Return the shared session, or a new one if another test has stopped it."""
    return SparkSession.getActiveSession() or builder.getOrCreate()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server that records the configured topics only."""
    directory = tmp_path_factory.mktemp("server")
    topics = "".join(f'[[journal.topic]]\nname = "{name}"\n' for name in ("flights", "large", "quiet"))
    with running_server(directory / "data", f"[journal]\n{topics}") as running:
        yield running


@pytest.fixture
def unused() -> Iterator[str]:
    """Yield an address without a listener, reserved by a bound socket."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{holder.getsockname()[1]}"
