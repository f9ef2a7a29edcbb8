"""Rate and conflation options of subscriptions: accepted values and refusals."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadOption
from tickertape.base.options import parse_options
from tickertape.engine.conflation.buffer import ConflationOptions
from tickertape.engine.subscriptions.options import (
    Rate,
    RateUnit,
    ReplayRate,
    parse_gap,
    parse_rate,
    read_conflation,
    read_replay_rate,
)


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("1000", RateUnit.MESSAGES, 1000),
        ("0.5", RateUnit.MESSAGES, 0.5),
        ("1000000000", RateUnit.MESSAGES, 1e9),
        ("0.001", RateUnit.MESSAGES, 0.001),
        ("100B", RateUnit.BYTES, 100),
        ("500KB", RateUnit.BYTES, 500 * 1024),
        ("500 kb", RateUnit.BYTES, 500 * 1024),
        ("1.5MB", RateUnit.BYTES, 1.5 * 1024**2),
        ("2GB", RateUnit.BYTES, 2 * 1024**3),
        ("2X", RateUnit.MULTIPLE, 2),
        ("1x", RateUnit.MULTIPLE, 1),
        ("0.5x", RateUnit.MULTIPLE, 0.5),
        (" 0.5X ", RateUnit.MULTIPLE, 0.5),
    ],
)
def test_rate_text_parses_to_a_rate(text: str, unit: RateUnit, amount: float) -> None:
    assert parse_rate(text) == Rate(unit, amount)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "KB",
        "-1",
        "+1",
        "1e3",
        "1,000",
        "1_000",
        "nan",
        "NaN",
        "inf",
        "Infinity",
        "2xx",
        "x2",
        "2 x x",
        "1.",
        ".5",
        "1..2",
        "1.5.2",
        "500K",
        "500TB",
        "500KiB",
        "10/s",
        "10s",
        "0x10",
        "\N{FULLWIDTH DIGIT ONE}",
        "1\n",
        "[1]",
        "2\N{MULTIPLICATION SIGN}",
        "1" * 19,
        "0.0000000001",
    ],
)
def test_invalid_rate_is_refused_with_valid_examples(text: str) -> None:
    with pytest.raises(BadOption, match=r"Invalid rate .* Use 1000 \(messages/s\)"):
        parse_rate(text)


@pytest.mark.parametrize(
    "text", ["0", "0.0", "0x", "0KB", "0.0009", "0.0009x", "1000000001", "1000001x", "1000GB", "9" * 18]
)
def test_rate_outside_the_limits_is_refused_with_the_limits(text: str) -> None:
    with pytest.raises(BadOption, match=r"Use 0\.001 to 1e"):
        parse_rate(text)


def test_equal_rates_of_different_spelling_compare_equal() -> None:
    assert parse_rate("1MB") == parse_rate("1024kb")
    assert hash(parse_rate("2X")) == hash(parse_rate("2.0x"))
    assert parse_rate("2x") != parse_rate("2")
    assert [str(parse_rate(text)) for text in ("1000", "1KB", "0.5x")] == [
        "1000 messages a second",
        "1024 payload bytes a second",
        "0.5 times the original pace",
    ]


def test_gap_text_parses_to_seconds() -> None:
    assert [parse_gap(text) for text in ("10s", "500ms", "1m", "2", "1.5h")] == [10, 0.5, 60, 2, 5400]


@pytest.mark.parametrize("text", ["0", "0s", "-1s", "nan", "inf", "", "10 parsecs", "366d", "9" * 18 + "w"])
def test_invalid_gap_is_refused_with_the_option_name(text: str) -> None:
    with pytest.raises(BadOption, match=r"rate_max_gap"):
        parse_gap(text)


def test_replay_rate_is_read_from_options() -> None:
    assert read_replay_rate(parse_options("bookmark,timestamp")) is None
    assert read_replay_rate(parse_options("rate=1000")) == ReplayRate(Rate(RateUnit.MESSAGES, 1000))
    assert read_replay_rate(parse_options("rate=5X, rate_max_gap = 10s,")) == ReplayRate(
        Rate(RateUnit.MULTIPLE, 5), 10.0
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("rate_max_gap=10s", "requires a rate that is a multiple"),
        ("rate=1000,rate_max_gap=10s", "but .* is .* a second. Use a rate such as 2x"),
        ("rate=1MB,rate_max_gap=10s", "but .* is .* a second. Use a rate such as 2x"),
        ("rate", "Option rate requires a value. Use a value such as rate="),
        ("rate=2x,rate_max_gap", "Option rate_max_gap requires a value"),
        ("rate=2x,rate_max_gap=soon", "^Invalid rate_max_gap 'soon'. Use seconds or a number with us"),
        ("rate=fast", "Invalid rate 'fast'"),
    ],
)
def test_invalid_replay_rate_options_are_refused_with_the_reason(options: str, reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        read_replay_rate(parse_options(options))


def test_conflation_is_read_from_options() -> None:
    assert read_conflation(parse_options("rate=2x")) is None
    assert read_conflation(parse_options("conflation=none")) is None
    assert read_conflation(parse_options("conflation=2s")) == ConflationOptions(2_000_000)
    wanted = ConflationOptions(1_500_000, ("/tickerId",))
    assert read_conflation(parse_options("conflation=1500ms, conflation_key = [/tickerId]")) == wanted
    assert read_conflation(parse_options("conflation=1.5s,conflation_key=/tickerId")) == wanted
    several = read_conflation(parse_options("conflation=1m,conflation_key=[/a, /b/c]"))
    assert several == ConflationOptions(60_000_000, ("/a", "/b/c"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("conflation", "Option conflation requires a value"),
        ("conflation=auto", "conflation=auto is not supported: .* Use an interval"),
        ("conflation=often", "^Invalid conflation 'often'. Use seconds or a number with us"),
        ("conflation=0s", "Use 0.001 to 86400 s, or none"),
        ("conflation=999us", "Use 0.001 to 86400 s, or none"),
        ("conflation=2d", "Use 0.001 to 86400 s, or none"),
        ("conflation=-1s", "Invalid conflation '-1s'"),
        ("conflation_key=[/a]", "requires an interval, but none was given"),
        ("conflation=none,conflation_key=[/a]", "conflation=none disables conflation"),
        ("conflation=1s,conflation_key", "Option conflation_key requires a value"),
        ("conflation=1s,conflation_key=[a]", "Invalid field 'a'"),
        ("conflation=1s,conflation_key=[/a,]", "a member is empty"),
        ("conflation=1s,conflation_key=[/a,/a]", "has a field twice"),
        (
            f"conflation=1s,conflation_key=[{','.join(f'/f{i}' for i in range(17))}]",
            "with 17 fields. Use at most 16",
        ),
    ],
)
def test_invalid_conflation_options_are_refused_with_the_reason(options: str, reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        read_conflation(parse_options(options))
