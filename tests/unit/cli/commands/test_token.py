"""`token new`: output, written files, and their permissions."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tickertape.base.interfaces import Now
from tickertape.cli.support.command_group import cli
from tickertape.security.tokens import hash_of, name_in
from tickertape.server.access.tokens import read_tokens
from tickertape.wire.commands import Logon

NOW = Now(0.0, 1_800_000_000_000_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def new(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["token", "new", *arguments])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_token_is_printed_once_with_the_entry_for_the_server() -> None:
    result = new("desk")
    assert result.exit_code == 0
    (text,) = result.stdout.split()
    assert name_in(text) == "desk"
    assert f'["desk"]\nsha256 = "{hash_of(text).hex()}"\n' in result.stderr
    assert text not in result.stderr


def test_token_files_have_owner_permissions(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "spark.token"
    result = new("spark", "--add", str(file), "--out", str(out), "--clients", "^spark-")
    assert (result.exit_code, result.output) == (0, "")
    assert (mode(file), mode(out)) == (0o600, 0o600)
    logon = Logon(name="spark-1", password=out.read_text().strip())
    assert read_tokens(str(file)).user_of(logon, NOW) == "spark"


def test_new_token_is_appended_to_existing_tokens(file: Path) -> None:
    first = new("a", "--add", str(file)).stdout.strip()
    file.chmod(0o640)
    kept = file.read_text()
    second = new("b.1", "--add", str(file), "--expires", "2099-01-31T00:00:00+02:00").stdout.strip()
    assert file.read_text().startswith(kept)
    assert mode(file) == 0o640
    tokens = read_tokens(str(file))
    assert [tokens.user_of(Logon(name="x", password=text), NOW) for text in (first, second)] == ["a", "b.1"]
    assert not tokens.still_good("b.1", "any", Now(0.0, 4_100_000_000_000_000))
    assert sorted(path.name for path in file.parent.iterdir()) == ["tokens.toml"]


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59-14:00"])
def test_token_expiry_at_the_last_date_is_accepted_in_any_time_zone(
    file: Path, tmp_path: Path, moment: str
) -> None:
    out = tmp_path / "a.token"
    result = new("a", "--add", str(file), "--out", str(out), "--expires", moment, "--clients", "^any$")
    assert (result.exit_code, result.output) == (0, "")
    assert read_tokens(str(file)).still_good("a", "any", NOW)


def test_refused_token_leaves_no_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.token"
    assert new("a", "--add", str(file), "--out", str(out), "--clients", "(").exit_code == 2
    assert list(tmp_path.rglob("*.token*")) == list(tmp_path.rglob("*.new")) == []
    assert new("a", "--add", str(file), "--out", str(out)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["A b"], "Invalid token name. Use 1 to 64"),
        (["a", "--expires", "tomorrow"], "Invalid time 'tomorrow'. Use a time with a time zone"),
        (["a", "--expires", "2099-01-01"], "Use a time with a time zone"),
        (["a", "--expires", "2099-01-01T00:00:00+01:00:30"], "Use a time with a time zone"),
        (["a", "--clients", "it's"], "Add it to the tokens_file by hand"),
    ],
)
def test_token_new_with_invalid_options_exits_2(file: Path, arguments: list[str], says: str) -> None:
    result = new(*arguments, "--add", str(file))
    assert result.exit_code == 2
    assert says in result.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("[a]\nsha256 = '" + "0" * 64 + "'\n", ["a"], "already has a token of this name. Remove that token"),
        ("[a\n", ["b"], "not TOML"),
        (
            "",
            ["b", "--clients", "("],
            "clients '(': invalid regular expression: missing ) in '('. Use a ",
        ),
    ],
)
def test_invalid_tokens_file_is_refused_and_unchanged(
    file: Path, text: str, arguments: list[str], says: str
) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
    result = new(*arguments, "--add", str(file))
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""
    assert file.read_text() == text
    assert sorted(path.name for path in file.parent.iterdir()) == ["tokens.toml"]


def test_token_never_overwrites_an_existing_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.token"
    out.write_text("precious")
    result = new("a", "--add", str(file), "--out", str(out))
    assert result.exit_code == 2
    assert "the file exists" in result.stderr
    assert out.read_text() == "precious"
    assert not file.exists()


def test_token_without_clients_prints_a_warning(file: Path) -> None:
    result = new("desk", "--add", str(file))
    assert result.exit_code == 0
    assert "warning: token 'desk' may use every client name" in result.stderr
    assert "warning" not in new("spark", "--add", str(file), "--clients", "^spark-").stderr


def test_token_of_links_has_the_pattern_and_no_warning(file: Path) -> None:
    result = new("ny-1", "--add", str(file), "--links", "^ny-")
    assert (result.exit_code, result.stderr) == (0, "")
    assert tomllib.loads(file.read_text())["ny-1"]["links"] == "^ny-"
    assert "for clients or for links" in new("a", "--links", "a", "--clients", "b").stderr


def test_token_new_json_has_token_and_entry(file: Path, tmp_path: Path) -> None:
    result = new("desk", "--clients", "^desk-", "--output", "json")
    made = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, made["name"]) == (0, "", "desk")
    assert made["entry"].startswith(f'["desk"]\nsha256 = "{hash_of(made["token"]).hex()}"\n')
    out = tmp_path / "desk.token"
    result = new("desk", "--add", str(file), "--out", str(out), "--clients", "^d", "--output", "json")
    assert json.loads(result.stdout)["token"] is None
    assert hash_of(out.read_text().strip()).hex() in file.read_text()


def test_expression_is_refused_with_the_text_of_check(file: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f"[authentication]\ntokens_file = '{file}'\n")
    file.touch(mode=0o600)
    file.write_text(f"[a]\nsha256 = '{'0' * 64}'\nclients = '('\n")
    (line,) = CliRunner().invoke(cli, ["check", str(config)]).stdout.splitlines()
    file.unlink()
    result = new("a", "--clients", "(", "--add", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    reason = line.removeprefix(f"{config}: Invalid tokens_file '{file}': ")
    assert result.stderr == f"tickertape: Cannot create a token: {reason}\n"
    assert not file.exists()
