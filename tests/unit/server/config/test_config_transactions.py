"""`[transactions]`: limits and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.limits import GIB, MIB
from tickertape.server.config.config import examine, load_config
from tickertape.server.startup import open_instance


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c.toml"
    file.write_text(f"[transactions]\n{text}\n")
    return file


def test_empty_transactions_table_has_defaults(tmp_path: Path) -> None:
    limits = load_config(written(tmp_path, "")).transactions.limits
    assert (limits.disk_bytes, limits.transaction_bytes, limits.age_seconds) == (16 * GIB, 4 * GIB, 3600)


def test_every_key_reaches_the_engine(tmp_path: Path) -> None:
    file = written(tmp_path, 'disk_limit = "64MB"\nbytes_max = "8MB"\nexpire_after = "90s"')
    opened = open_instance(load_config(file, data=str(tmp_path / "data")))
    limits = opened.broker.transactions.staging.limits
    opened.disk.close_all()
    assert (limits.disk_bytes, limits.transaction_bytes, limits.age_seconds) == (64 * MIB, 8 * MIB, 90)


def test_disk_limit_below_the_default_lowers_the_transaction_limit(tmp_path: Path) -> None:
    limits = load_config(written(tmp_path, 'disk_limit = "1GB"')).transactions.limits
    assert (limits.disk_bytes, limits.transaction_bytes) == (GIB, GIB)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('disk_limit = "1023KB"', "disk_limit: must be at least 1MB, not '1023KB'"),
        ("disk_limit = []", 'disk_limit: must be a size such as "4GB", not '),
        ("bytes_max = 0", "bytes_max: must be at least 1MB, not 0"),
        (
            'bytes_max = "17GB"',
            "bytes_max: must be at most disk_limit (17,179,869,184 bytes), not 18,253,611,008 bytes",
        ),
        ('disk_limit = "2MB"\nbytes_max = "3MB"', "bytes_max: must be at most disk_limit"),
        ("expire_after = 0", "expire_after: must be at least 1 s, not 0"),
        ("expire_after = {}", 'expire_after: must be a time such as "1h", not '),
        ('expire_after = "never"', "expire_after: "),
        ("expires = 1", "expires: unknown"),
    ],
)
def test_invalid_transactions_values_are_refused(tmp_path: Path, line: str, problem: str) -> None:
    config, problems = examine(written(tmp_path, line))
    assert config is None
    (found,) = problems
    assert f"transactions.{problem}" in str(found)
