"""`check`: every problem of a configuration with its place, as text and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tickertape.cli.support.command_group import cli
from tickertape.server.config.memory import sow_bytes_default
from tickertape.server.limits import configuration_problems_max


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_check_prints_every_problem_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("x = 1\n[journal]\ncreate = 5\n")
    result = run("check", str(file))
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{file}:1: x: unknown key. ")
    assert second == f"{file}:3: journal.create: must be true or false, not 5"
    assert (result.stderr, result.exit_code) == (f"tickertape: {file}: 2 problems\n", 1)


def test_check_summarises_a_valid_file_without_creating_data(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[[transport]]\nlisten = "unix:///s"\n[journal]\nsync = "interval"\ncreate = false\n'
        '[[journal.topic]]\nname = "orders"\n[[journal.topic]]\npattern = "^fx/"\n'
        '[[topic]]\nname = "orders"\nvalidate = true\n'
        '[[queue]]\nname = "orders"\nsemantics = "at-most-once"\n'
        '[[queue]]\nname = "work"\nunderlying = "^fx/"\nlease_period = "30s"\ndead_letter = "orders"\n'
    )
    result = run("check", str(file))
    assert result.exit_code == 0
    assert result.stdout == (
        f"{file}: valid\n"
        "  instance      tickertape\n"
        f"  data          {tmp_path}/data (must exist)\n"
        "  listen        unix:///s\n"
        "  admin         http://127.0.0.1:9008\n"
        "  journal       orders, ^fx/ persistent, sync every 1 s, segments of 268,435,456 bytes\n"
        "  slow_clients  67,108,864 bytes in memory, 16,777,216 a connection, "
        f"then 1,073,741,824 on disk in {tmp_path}/data/spill\n"
        "  limits        messages of 16,777,216 bytes, filters of 4,096 bytes, "
        "10,000 subscriptions a connection\n"
        "  transactions  17,179,869,184 bytes of staged messages, 4,294,967,296 a transaction, "
        "expire after 3600 s\n"
        "  validate      orders (json)\n"
        "  queue         orders, at-most-once, round-robin\n"
        "  queue         work over ^fx/, at-least-once, proportional, leased for 30 s, "
        "dead letters to orders\n"
    )
    assert not (tmp_path / "data").exists()


def test_check_prints_problems_of_all_files_lines_and_variables(tmp_path: Path) -> None:
    (tmp_path / "inner.toml").write_text("[jornal]\nsync = 1\n")
    file = tmp_path / "c.toml"
    file.write_text(
        'include = ["inner.toml", "absent.toml"]\n'
        "[instance]\nnaem = 'x'\nname = ${NAME}\n"
        '[journal]\nsegment_size = "${NOT_SET_ANYWHERE}"\nsync = "sometimes"\n'
        "[[transport]]\nlisten = tcp://127.0.0.1:0\n[[view]]\nname = 'q'\n"
    )
    result = run("check", str(file))
    found_lines = [line.replace(f"{tmp_path}/", "").split(" ", 1) for line in result.stdout.splitlines()]
    assert [place for place, _ in found_lines] == [
        "c.toml:1:", "c.toml:3:", "c.toml:4:", "c.toml:6:", "c.toml:7:", "c.toml:9:",
        "c.toml:10:", "inner.toml:1:",
    ]  # fmt: skip
    texts = "\n".join(text for _, text in found_lines)
    for part in (
        "Did you mean 'name'",
        "Did you mean 'journal'",
        "'NOT_SET_ANYWHERE' is not set",
        "not supported",
    ):
        assert part in texts
    assert "missing" not in texts, "a listen address on an invalid line is not missing"
    assert result.stderr.endswith("8 problems\n")


def test_check_json_prints_one_document(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("x = 1\n[journal]\ncreate = 5\n")
    result = run("check", str(file), "--output", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (1, "")
    assert (found["file"], found["valid"]) == (str(file), False)
    assert found["problems"][1] == {
        "file": str(file),
        "line": 3,
        "key": "journal.create",
        "text": "must be true or false, not 5",
    }
    file.write_text("[instance]\nname = 'a'\n")
    result = run("check", str(file), "--output", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["valid"], found["problems"]) == (0, True, [])
    assert found["configuration"]["instance"]["name"] == "a"
    assert found["configuration"]["instance"]["drain_timeout"] == 10.0
    assert "drain_seconds" not in result.stdout
    assert found["configuration"]["admin"]["listen"] == "http://127.0.0.1:9008"
    absent = json.loads(run("check", str(tmp_path / "absent"), "--output", "json").stdout)
    assert absent["problems"][0]["line"] is None


def test_check_counts_problems_above_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("".join(f"key{number} = 1\n" for number in range(50_000)))
    result = run("check", str(file))
    lines = result.stdout.splitlines()
    assert len(lines) == configuration_problems_max + 1
    assert lines[-1] == f"{file}: and {50_000 - configuration_problems_max} more problems"
    assert result.stderr == f"tickertape: {file}: 50,000 problems\n"


def test_check_with_bad_usage_exits_2_and_accepts_names_outside_utf8(tmp_path: Path) -> None:
    assert run("check").exit_code == 2
    assert run("check", "a", "b").exit_code == 2
    odd = os.fsdecode(bytes(tmp_path) + b"/\xff.toml")
    result = run("check", odd)
    assert (result.exit_code, "': No such file or directory. Check" in result.stdout) == (2, True)


def test_check_reads_the_tokens_file(tmp_path: Path) -> None:
    file, tokens = tmp_path / "c.toml", tmp_path / "tokens.toml"
    file.write_text("[authentication]\ntokens_file = 'tokens.toml'\n")
    result = run("check", str(file))
    assert result.exit_code == 1
    cause = f"Cannot read tokens_file '{tokens}': No such file or directory"
    assert result.stdout == f"{file}: {cause}. Check the path and its permissions.\n"
    assert json.loads(run("check", str(file), "--output", "json").stdout)["valid"] is False
    tokens.touch(mode=0o600)
    assert run("check", str(file)).exit_code == 0


ARCHIVE = """
[archive]
location = "s3://bucket/log"
storage_options = {AWS_ACCESS_KEY_ID = "id", AWS_SECRET_ACCESS_KEY = "${ARCHIVE_SECRET}"}
"""


def test_check_json_masks_every_storage_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVE_SECRET", "topsecret123")
    file = tmp_path / "c.toml"
    file.write_text(ARCHIVE)
    result = run("check", str(file), "--output", "json")
    assert result.exit_code == 0
    assert "topsecret123" not in result.stdout
    configuration = json.loads(result.stdout)["configuration"]
    options = configuration["archive"]["storage_options"]
    assert configuration["limits"]["filter_bytes_max"] == 4096
    assert options == {"AWS_ACCESS_KEY_ID": "***", "AWS_SECRET_ACCESS_KEY": "***"}


def test_check_shows_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVE_SECRET", "topsecret123")
    file = tmp_path / "c.toml"
    file.write_text(ARCHIVE)
    result = run("check", str(file))
    assert "  archive       s3://bucket/log, refreshed every " in result.stdout
    assert "topsecret123" not in result.stdout


def test_check_suggests_archive_for_a_misspelt_section(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[archve]\nlocation = "a"\n')
    assert "Did you mean 'archive'?" in run("check", str(file)).stdout


def test_check_warns_about_unrestricted_tokens_beside_restricted_ones(tmp_path: Path) -> None:
    file, tokens = tmp_path / "c.toml", tmp_path / "tokens.toml"
    file.write_text("[authentication]\ntokens_file = 'tokens.toml'\n")
    run("token", "new", "desk", "--add", str(tokens))
    assert "warning" not in run("check", str(file)).stdout, "only one token exists"
    run("token", "new", "spark", "--add", str(tokens), "--clients", "^spark-")
    result = run("check", str(file))
    warnings = [line for line in result.stdout.splitlines() if "warning" in line]
    assert result.exit_code == 0
    assert warnings == [
        (
            "  warning       Token 'desk' may use every client name, including those of other "
            "tokens. Add clients = to it."
        )
    ]
    document = json.loads(run("check", str(file), "--output", "json").stdout)
    assert len(document["warnings"]) == 1
    assert document["valid"] is True


def test_problem_in_a_pipe_exits_1(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x = 1\n")
    os.close(writing)
    try:
        assert run("check", f"/dev/fd/{reading}").exit_code == 1
    finally:
        os.close(reading)
    assert run("check", str(tmp_path)).exit_code == 2


SOW = """
[limits]
sow_bytes_max = "1GB"
[[sow]]
name = "positions"
pattern = "^positions/"
key = ["/account", "/symbol"]
expiration = "30s"
[[sow]]
name = "settings"
expiration = "enabled"
[[sow]]
name = "names"
"""


def test_check_shows_sow_topics_and_the_memory_of_records(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(SOW)
    result = run("check", str(file))
    assert [line for line in result.stdout.splitlines() if line.startswith("  sow")] == [
        "  sow           positions and ^positions/, key /account, /symbol, expire after 30 s",
        "  sow           settings, explicit keys, expiration enabled",
        "  sow           names, explicit keys",
        "  sow_bytes_max 1,073,741,824",
    ]
    configuration = json.loads(run("check", str(file), "--output", "json").stdout)["configuration"]
    assert configuration["limits"]["sow_bytes_max"] == 1 << 30
    assert configuration["sow"][0]["key"] == ["/account", "/symbol"]
    assert "sow_bytes_max" not in configuration
    file.write_text("")
    configuration = json.loads(run("check", str(file), "--output", "json").stdout)["configuration"]
    assert configuration["limits"]["sow_bytes_max"] == sow_bytes_default()


# -- links between servers --------------------------------------------------------------------------------


def linked(path: Path, name: str, peer: str, topic: str = "orders", more: str = "") -> Path:
    """Write a configuration with a link to `peer`."""
    file = path / f"{name}.toml"
    file.write_text(
        f'[instance]\nname = "{name}"\n{more}[[replication.destination]]\nname = "{peer}"\n'
        'addresses = ["unix:///s"]\n[[replication.destination.topic]]\n'
        f'name = "{topic}"\nsync = false\n'
    )
    return file


def test_check_with_fitting_servers_is_valid(tmp_path: Path) -> None:
    first, second = linked(tmp_path, "ny-1", "ny-2"), linked(tmp_path, "ny-2", "ny-1")
    result = run("check", str(first), "--with", str(second))
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"{first}: valid")
    assert "  destination   ny-2 at unix:///s, topics orders" in result.stdout.splitlines()


def test_check_shows_supported_keys_of_replication_only(tmp_path: Path) -> None:
    result = run("check", str(linked(tmp_path, "ny-1", "ny-2")), "--output", "json")
    replication = json.loads(result.stdout)["configuration"]["replication"]
    assert list(replication) == ["acknowledge", "ready", "peak_rate", "destinations"]
    (destination,) = replication["destinations"]
    assert set(destination) == {
        "name", "addresses", "rules", "token_file", "ca", "insecure", "pass_through", "exclude_validation",
        "downgrade_after", "downgrade_grace", "upgrade_below",
    }  # fmt: skip


def test_check_prints_the_messages_that_publish_stores_must_hold(tmp_path: Path) -> None:
    file = linked(tmp_path, "ny-1", "ny-2")
    text = file.read_text().replace("sync = false", "sync = true")
    text = text.replace("addresses =", 'downgrade_after = "5m"\naddresses =', 1)
    head, table, rest = text.partition("[[replication.destination]]")
    file.write_text(f"{head}[replication]\npeak_rate = 1000\n{table}{rest}")
    lines = run("check", str(file)).stdout.splitlines()
    assert "  destination   ny-2 at unix:///s, topics orders, downgraded after 300 s" in lines
    assert "  stores        publish stores must hold 300,000 messages until a downgrade" in lines


def test_check_with_servers_that_do_not_fit_prints_each_mismatch(tmp_path: Path) -> None:
    first, second = linked(tmp_path, "ny-1", "ny-2"), linked(tmp_path, "ny-2", "ny-1", topic="trades")
    third = linked(tmp_path, "ny-3", "ny-1")
    for arguments in ((str(second), str(third)), (str(second), "--with", str(third))):
        result = run("check", str(first), "--with", *arguments)
        lines = result.stdout.splitlines()
        assert result.exit_code == 1
        assert len(lines) == 3
        for line, source, destination in zip(
            lines, ("ny-1", "ny-2", "ny-3"), ("ny-2", "ny-1", "ny-1"), strict=True
        ):
            assert line.startswith(f"{first}: Cannot replicate ")
            assert f"from '{source}' to '{destination}'" in line


def test_check_with_other_files_lists_the_problems_of_each(tmp_path: Path) -> None:
    first, second = linked(tmp_path, "ny-1", "ny-2"), linked(tmp_path, "ny-2", "ny-1", more="x = 1\n")
    result = run("check", str(first), "--with", str(second), "--output", "json")
    problems = json.loads(result.stdout)["problems"]
    assert [(row["file"], row["line"], row["key"]) for row in problems] == [(str(second), 3, "instance.x")]


def test_check_with_equal_names_and_without_replication_reports_both(tmp_path: Path) -> None:
    first = linked(tmp_path, "ny-1", "ny-2")
    twin, plain = tmp_path / "twin.toml", tmp_path / "plain.toml"
    twin.write_text(first.read_text())
    plain.write_text('[instance]\nname = "ny-2"\n')
    lines = run("check", str(first), "--with", str(twin), str(plain)).stdout.splitlines()
    assert lines[:2] == [
        f"{first}: Two configurations have the instance name 'ny-1'. Give each server its own name.",
        f"{first}: The server 'ny-2' does not replicate. Add a table [replication].",
    ]


def test_check_of_two_files_names_the_option(tmp_path: Path) -> None:
    first = linked(tmp_path, "ny-1", "ny-2")
    result = run("check", str(first), str(first))
    assert result.exit_code == 2
    assert "Use --with for further files" in result.stderr
