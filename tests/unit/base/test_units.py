from __future__ import annotations

import math

import pytest

from tickertape.base.errors import BadOption
from tickertape.base.units import parse_interval, parse_size, within


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("7B", 7),
        ("500KB", 500 * 1024),
        ("64MB", 64 * 1024**2),
        ("1GB", 1024**3),
        ("2TB", 2 * 1024**4),
        ("1.5KB", 1536),
        ("0.5 kb", 512),
        (" 64 mb ", 64 * 1024**2),
        ("999999999999999999", 999999999999999999),
    ],
)
def test_size_text_parses_to_bytes(value: str | int, expected: int) -> None:
    assert parse_size(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "MB",
        "-1",
        "1e3",
        "1,5KB",
        "1 K",
        "1KiB",
        "64 MB x",
        "0.3B",
        "1.0001KB",
        "\uff11KB",
        "1" * 30,
        -1,
        True,
        1.5,
        None,
    ],
)
def test_invalid_size_is_refused(value: object) -> None:
    with pytest.raises(BadOption):
        parse_size(value)  # type: ignore[arg-type]  # possible in a configuration file


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (10, 10.0),
        (0.25, 0.25),
        ("10", 10.0),
        ("250us", 0.00025),
        ("500ms", 0.5),
        ("10s", 10.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("1.5 s", 1.5),
        (" 0.1s ", 0.1),
    ],
)
def test_interval_text_parses_to_seconds(value: str | float, expected: float) -> None:
    result = parse_interval(value)
    assert result == expected
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1s",
        "5M",
        "10S",
        "1y",
        "1 2s",
        "inf",
        "nan",
        "1e3",
        -0.5,
        -1,
        math.inf,
        math.nan,
        False,
        None,
        [1],
        10**400,
        pytest.param(10**5_000, id="5,001 digits"),
        pytest.param(-(10**5_000), id="minus 5,001 digits"),
    ],
)
def test_invalid_interval_is_refused(value: object) -> None:
    with pytest.raises(BadOption):
        parse_interval(value)  # type: ignore[arg-type]  # possible in a configuration file


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.0, "within 0 s"),
        (0.00025, "within 0.00025 s"),
        (1.99981, "within 2 s"),
        (10.0, "within 10 s"),
        (2.5, "within 2.5 s"),
        (99.99, "within 100 s"),
        (1234.5, "within 1234 s"),
        (None, "in time"),
    ],
)
def test_wait_time_text_is_short(seconds: float | None, says: str) -> None:
    assert within(seconds) == says
