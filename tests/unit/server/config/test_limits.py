"""The table `[limits]`: defaults, bounds and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import run_tickertape
from tickertape.base.client_limits import DEFAULT, LEAST, MOST, ClientLimits
from tickertape.base.errors import ConfigurationError
from tickertape.server.config.config import Config, load_config


def _limits(tmp_path: Path, text: str) -> ClientLimits:
    file = tmp_path / "c.toml"
    file.write_text("[limits]\n" + text)
    return load_config(file).limits


def test_limits_default_to_the_product_limits(tmp_path: Path) -> None:
    assert _limits(tmp_path, "") == DEFAULT == Config().limits


def test_limits_take_sizes_and_counts(tmp_path: Path) -> None:
    text = 'message_bytes_max = "1MB"\nfilter_bytes_max = 512\nsubscriptions_per_connection_max = 7\n'
    assert _limits(tmp_path, text) == ClientLimits(1 << 20, 512, 7)


@pytest.mark.parametrize("name", ClientLimits._fields)
def test_limit_accepts_both_bounds_and_refuses_values_beyond(tmp_path: Path, name: str) -> None:
    low, high = getattr(LEAST, name), getattr(MOST, name)
    for value in (low, high):
        assert getattr(_limits(tmp_path, f"{name} = {value}\n"), name) == value
    for value, says in (
        (low - 1, "must be at least"),
        (high + 1, "must be at most"),
        ("1.5", "must be an integer"),
        ("true", "must be an integer"),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            _limits(tmp_path, f"{name} = {value}\n")
        assert f"limits.{name}" in str(caught.value)


def test_unknown_limit_is_refused_with_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'message_bytes_max'"):
        _limits(tmp_path, "message_byte_max = 1\n")


def test_check_shows_the_limits_and_finds_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[limits]\nmessage_bytes_max = "1MB"\n')
    code, out, _ = run_tickertape("check", str(file))
    assert code == 0
    assert "messages of 1,048,576 bytes, filters of 4,096 bytes, 10,000 subscriptions a connection" in out
    file.write_text('[limits]\nmessage_bytes_max = "17MB"\n')
    code, out, error = run_tickertape("check", str(file))
    assert code
    assert "limits.message_bytes_max: must be at most 16,777,216, not 17,825,792: frames" in out + error


def test_memory_of_records_is_a_size_with_a_least_value(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    assert load_config(None).sow_bytes_max is None
    for text, expected in (('"8GB"', 8 << 30), ('"64MB"', 64 << 20), ("99999999", 99_999_999)):
        file.write_text(f"[limits]\nsow_bytes_max = {text}\n")
        assert load_config(file).sow_bytes_max == expected
    for text, says in (
        ('"63MB"', "limits.sow_bytes_max: must be at least 64MB, not '63MB'"),
        ('"8 parsecs"', "limits.sow_bytes_max: Invalid size '8 parsecs'. Use bytes or a number with B, KB, "),
        ("[]", 'limits.sow_bytes_max: must be a size such as "8GB", not a list'),
        ("true", "limits.sow_bytes_max: Invalid size of type bool. Use a number of bytes or text "),
    ):
        file.write_text(f"[limits]\nsow_bytes_max = {text}\n")
        with pytest.raises(ConfigurationError) as caught:
            load_config(file)
        assert says in str(caught.value)
