"""`[slow_clients]`: limits and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.limits import MIB
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.server.config.config import examine, load_config


def test_default_spill_directory_is_below_the_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("")
    config = load_config(file)
    assert config.slow_clients.limits == SlowConsumerLimits()
    assert config.slow_clients.path(config.instance.data) == f"{tmp_path}/data/spill"


def test_full_slow_clients_table_sets_every_key(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[slow_clients]\nmemory_limit = "100MB"\nconnection_limit = "2MB"\ndisk_limit = "64MB"\n'
        'directory = "slow"\nage_limit = "5m"\n'
    )
    config = load_config(file)
    assert config.slow_clients.limits == SlowConsumerLimits(100 * MIB, 2 * MIB, 64 * MIB, 300.0)
    assert config.slow_clients.path(config.instance.data) == f"{tmp_path}/slow"


def test_memory_limit_below_the_default_lowers_the_connection_limit(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[slow_clients]\nmemory_limit = "40MB"\ndisk_limit = 0\nage_limit = "none"\n')
    assert load_config(file).slow_clients.limits == SlowConsumerLimits(40 * MIB, 16 * MIB, 0, None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('memory_limit = "39MB"', "memory_limit: must be at least 40MB, not '39MB'"),
        ("memory_limit = []", 'memory_limit: must be a size such as "64MB"'),
        (
            'connection_limit = "65MB"',
            "connection_limit: must be at most memory_limit (67108864 bytes), not 68157440 bytes",
        ),
        ('disk_limit = "1MB"', "disk_limit: must be 0 (no spilling) or at least 64MB, not '1MB'"),
        (
            'disk_limit = 0\ndirectory = "d"',
            "directory: has no effect with disk_limit = 0. Remove one of the two keys.",
        ),
        ("directory = 5", "directory: must be the path of a directory, not 5"),
        ("age_limit = 0", 'age_limit: must be more than 0, or "none", not 0'),
        ('age_limit = "never"', "age_limit: "),
        ("age_limit = {}", 'age_limit: must be a time such as "30s", or "none", not a table'),
        ("disk_limits = 1", "disk_limits: unknown key. Did you mean 'disk_limit'? "),
    ],
)
def test_invalid_slow_clients_values_are_refused(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[slow_clients]\n{line}\n")
    config, problems = examine(file)
    assert config is None
    (found,) = problems
    assert f"slow_clients.{problem}" in str(found)
