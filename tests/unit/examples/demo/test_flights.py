"""Input of the demonstration: rows of the real files as messages, in order and complete."""

from __future__ import annotations

import sys
from importlib import metadata
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from examples.demo import flights
from examples.demo.flights import (
    CarrierTruth,
    Digests,
    Flight,
    NoData,
    carrier_groups,
    encoder,
    read_flights,
    read_rows,
    read_weather,
    truth_by_carrier,
)

KNOWN_FLIGHTS = {
    "UA": 58_665,
    "B6": 54_635,
    "EV": 54_173,
    "DL": 48_110,
    "AA": 32_729,
    "MQ": 26_397,
    "US": 20_536,
    "9E": 18_460,
    "WN": 12_275,
    "VX": 5_162,
    "FL": 3_260,
    "AS": 714,
    "F9": 685,
    "YV": 601,
    "HA": 342,
    "OO": 32,
}


def test_csv_row_becomes_json_with_the_digits_and_nulls_of_the_source() -> None:
    header = ["origin", "temp", "wind_gust", "flight", "time_hour"]
    rows = [["EWR", "39.020", "NA", "1545", "2013-01-01T06:00:00Z"], ["NA", "-0.5", "1e3", "01", ""]]
    assert [encoder(header)(row) for row in rows] == [
        b'{"origin":"EWR","temp":39.020,"wind_gust":null,"flight":1545,"time_hour":"2013-01-01T06:00:00Z"}',
        # a number with a leading zero is invalid in JSON and stays text
        b'{"origin":null,"temp":-0.5,"wind_gust":1e3,"flight":"01","time_hour":""}',
    ]


def test_text_columns_stay_text_and_are_escaped() -> None:
    header = ["tailnum", 'a%s"b']
    assert [encoder(header)(["123", '"\\\n'])] == [b'{"tailnum":"123","a%s\\"b":"\\"\\\\\\n"}']


def test_csv_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        encoder(["origin", "temp"])(["EWR"])


@pytest.mark.full
@pytest.mark.slow
def test_flights_are_ordered_by_schedule() -> None:
    found = read_flights(3000)
    assert len(found) == 3000
    rows = [msgspec.json.decode(flight.body) for flight in found]
    assert rows[0] == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }
    schedule = [(row["month"], row["day"], row["sched_dep_time"]) for row in rows]
    assert schedule == sorted(schedule)
    assert [flight.carrier for flight in found] == [row["carrier"] for row in rows]
    assert any(row["dep_time"] is None for row in rows)
    assert len({flight.body for flight in found}) == 3000
    # The expected totals cover the same flights.
    truth = truth_by_carrier(3000)
    assert sum(known.flights for known in truth.values()) == 3000
    united = [row["dep_delay"] for row in rows if row["carrier"] == "UA"]
    flown = [delay for delay in united if delay is not None]
    assert truth["UA"] == CarrierTruth(len(united), len(flown), sum(flown))
    assert truth["UA"].mean_delay == sum(flown) / len(flown)


@pytest.mark.slow
@pytest.mark.full  # the package is pinned: every run reads the first 3,000
def test_flight_file_has_the_known_counts() -> None:
    truth = truth_by_carrier()
    assert {carrier: known.flights for carrier, known in truth.items()} == KNOWN_FLIGHTS
    assert sum(KNOWN_FLIGHTS.values()) == 336_776
    assert (truth["UA"].departed, truth["UA"].delay_minutes) == (57_979, 701_898)


def test_weather_file_has_the_known_hours() -> None:
    hours = read_weather()
    assert len(hours) == 26_115
    first = msgspec.json.decode(hours[0])
    assert (first["origin"], first["temp"], first["wind_gust"]) == ("EWR", 39.02, None)
    assert list(first) == next(read_rows(flights.WEATHER_FILE))


def test_data_files_are_read_without_importing_the_package() -> None:
    assert len(list(islice(read_rows(flights.FLIGHTS_FILE), 5))) == 5
    assert flights.PACKAGE not in sys.modules


def test_missing_package_or_file_raises_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoData, match=r"has no file 'data/trains\.csv'"):
        next(read_rows("data/trains.csv"))
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package")
    with pytest.raises(NoData, match=r"Cannot find package 'no-such-package'\. Run script/demo"):
        next(read_rows(flights.FLIGHTS_FILE))


def test_damaged_file_raises_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "flights.csv.zip"
    damaged.write_bytes(b"PK but not really")
    monkeypatch.setattr(flights, "data_file", lambda _: damaged)
    with pytest.raises(NoData, match="Cannot read"):
        next(read_rows(flights.FLIGHTS_FILE))


def test_carriers_are_grouped_evenly_and_completely() -> None:
    counted = [Flight(carrier, b"") for carrier, size in KNOWN_FLIGHTS.items() for _ in range(size // 30 + 1)]
    groups = carrier_groups(counted)
    assert sorted(carrier for group in groups for carrier in group) == sorted(KNOWN_FLIGHTS)
    sizes = [sum(flight.carrier in group for flight in counted) for group in groups]
    assert len(groups) == 4
    assert max(sizes) < 1.1 * min(sizes)
    assert carrier_groups([Flight("UA", b"")]) == [frozenset({"UA"})]


def test_digests_depend_on_content_and_order() -> None:
    def digest(*bodies: bytes) -> str:
        digests = Digests()
        for body in bodies:
            digests.add("UA", body)
        return digests.texts()["UA"]

    assert digest(b"1", b"2") == digest(b"1", b"2")
    assert len({digest(b"1", b"2"), digest(b"2", b"1"), digest(b"12"), digest(b"1")}) == 4


def test_installed_package_has_the_pinned_version() -> None:
    assert metadata.version(flights.PACKAGE) == "0.0.3"
