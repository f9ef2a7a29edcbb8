"""Configuration of the admin address, logging and the drain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.errors import ConfigurationError
from tickertape.server.config.addresses import ListenAddress, parse_admin
from tickertape.server.config.config import AdminConfig, Config, LoggingConfig, examine, load_config


def test_admin_and_logging_defaults_apply_without_keys() -> None:
    config = Config()
    assert (config.admin, config.logging) == (
        AdminConfig(listen=None),
        LoggingConfig(format="text", level="info"),
    )
    assert config.instance.drain_seconds == 10.0


def test_admin_and_logging_keys_are_read_and_arguments_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[admin]\nlisten = "http://0.0.0.0:80"\ninsecure = true\nhosts = ["db1.example.com", "tickertape"]\n'
        '[logging]\nformat = "json"\nlevel = "error"\n[instance]\ndrain_timeout = "1m"\n'
    )
    config = load_config(file)
    hosts = ("db1.example.com", "tickertape")
    assert config.admin == AdminConfig(listen="http://0.0.0.0:80", insecure=True, hosts=hosts)
    assert config.logging == LoggingConfig(format="json", level="error")
    assert config.instance.drain_seconds == 60.0
    assert load_config(file, admin="off").admin == AdminConfig(listen="off", insecure=True, hosts=hosts)
    assert load_config(admin="http://[::1]:0").admin == AdminConfig(listen="http://[::1]:0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[admin]\nlisten = "http://0.0.0.0:9008"',
            "2: admin.listen: http://0.0.0.0:9008 is reachable",
        ),
        (
            '[admin]\nlisten = "tcp://127.0.0.1:9008"',
            "2: admin.listen: Invalid admin address 'tcp://127.0.0.1:9008'",
        ),
        (
            '[admin]\nlisten = "https://127.0.0.1:9008"',
            "2: admin.listen: Cannot listen on https://: not supported yet.",
        ),
        ("[admin]\nlisten = 9008", "2: admin.listen: must be a string in quotes, not 9008"),
        ("[admin]\nport = 9008", "2: admin.port: unknown key. [admin] takes listen, insecure, hosts"),
        ('[admin]\nhosts = ["a:80"]', "2: admin.hosts: Invalid host name 'a:80'. Use a name without a port"),
        ("[admin]\nhosts = [1]", "2: admin.hosts: must be a string in quotes, not 1"),
        ("[admin]\nhosts = ''", "2: admin.hosts: Invalid host name ''. Use a name without a port"),
        ("[admin]\nhosts = {}", "2: admin.hosts: must be a string in quotes, not a table"),
        ('[logging]\nformat = "xml"', '2: logging.format: must be one of "text", "json", not \'xml\''),
        (
            "[logging]\nlevel = []",
            '2: logging.level: must be one of "debug", "info", "warning", "error", not a',
        ),
        ("[instance]\ndrain_timeout = -1", "2: instance.drain_timeout: Invalid interval '-1'"),
        ("[instance]\ndrain_timeout = []", "2: instance.drain_timeout: must be a time such as 1 (seconds)"),
    ],
)
def test_invalid_admin_and_logging_values_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    config, problems = examine(file)
    assert config is None
    assert [str(problem).startswith(f"{file}:{says}") for problem in problems] == [True], problems


@pytest.mark.parametrize(
    ("text", "host", "loopback"),
    [
        ("http://127.0.0.1:9008", "127.0.0.1", True),
        ("http://127.0.0.1:9008/", "127.0.0.1", True),
        ("http://[::1]:9008", "::1", True),
        ("http://localhost:9008", "localhost", True),
        ("http://metrics.example:9008", "metrics.example", False),
    ],
)
def test_admin_address_is_parsed_with_loopback_flag(text: str, host: str, loopback: bool) -> None:
    assert parse_admin(text) == ListenAddress(host, 9008, "")
    assert parse_admin(text).loopback is loopback


@pytest.mark.parametrize(
    "text", ["", "9008", "http://", "http://a", "http://a:b", "http://a:1/stats", "unix:///a"]
)
def test_invalid_admin_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Use (http://127\.0\.0\.1:9008|0 to 65535)"):
        parse_admin(text)
