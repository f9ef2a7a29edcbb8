"""Exit codes: 2 for a mistake of the user in every command, 1 if the work fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.cli.journal.test_journal import flip
from tests.unit.cli.support.test_output_options import LEAVES
from tests.unit.journal.written import Written
from tickertape.cli.support.command_group import cli

NO_OWNER = "http://127.0.0.1:1"
"""A valid admin address without a server."""
NONE = "unix:///none/socket"
"""A valid server address without a server."""
SERVER = f"--server {NONE}"

MISTAKES = {
    "serve": [
        "none.toml", "bad.toml", "--listen x", "--admin x", "--name ''", "a b", "dir", "--data lines/x",
    ],
    "check": ["", "none.toml", "dir", "good.toml --output xml"],
    "doctor": ["--data lines", "none.toml", "bad.toml", "--seconds soon", "--seconds 1d"],
    "publish": [
        "", "t* lines", "t none", "t lines --message x", "t --rate 0", "t --rate x", "t --timeout x",
        "t --server localhost", "t --key dir", "t --token-file none", "t --certificate none",
        "t --message { --require-json",
    ],
    "subscribe": [
        "", "t --bookmark x", "t --live", "t --rate 2x", "t --until-caught-up",
        "t --ack --bookmark epoch", "t --limit 0", "t --timeout x", "t --server localhost",
        "t --admin localhost", "t --bookmark-not-found x", "t --output data",
        "t --ca none --server tls://a:1",
    ],
    "sow": [
        "", "t --skip 1", "t --top -1", "t --top x", "t --limit 0", "t --output data", "t --server localhost",
        "t --follow --sow-key k", "t --follow --output csv", "t --follow --output arrow",
    ],
    "sow-delete": [
        "", "t", "t* --sow-key k", "t --sow-key k --filter /a", "t --filter /a --data lines", "t --data none",
        "t --sow-key k --server x",
    ],
    "delta-publish": ["", "t* lines", "t none", "t --timeout x", "t --server localhost"],
    "query": ["", "q --memory-limit x", "q --limit 0", "q --output data", "q --server localhost"],
    "ack": ["", "q", "q x", "q* 1|2|", "q 1|2| --filter /a", "q 1|2| --option x", "q 1|2| --server x"],
    "queue browse": ["", "q*", "q --limit 0", "q --timeout x", "q --server x", "q --admin x"],
    "queue ls": ["x", "--admin x", "--limit 0"],
    "replication ls": ["x", "--admin x"],
    "replication holes": ["x", "--admin x", "--publisher"],
    "replication compare": ["", "data", "none none", "lines data", "data data --limit 0"],
    "replication downgrade": ["", "x y", "x --admin x", "x --token-file none"],
    "replication upgrade": ["", "x y", "x --admin x", "x --token-file none"],
    "replication pause": ["", "x y", "x --admin x", "x --token-file none"],
    "replication resume": ["", "x y", "x --admin x", "x --token-file none"],
    "queue purge": ["", "q*", f"q {SERVER}", "q --yes --admin x", "q --yes --server x"],
    "queue requeue": ["", "q*", "q --to t*", "q --limit 0", "q --idle x", "q --server x"],
    "journal dump": [
        "", "none", "lines", "dir", "data --from x", "data --to epoch", "data --topic t*", "data --limit 0",
        "data --commits --topic t", "data --from [0|1|:1|1|) --to 7",
    ],
    "journal find": ["", "data", "data x", "none 1", "dir 1"],
    "journal grep": ["", "data", "data (", "none x", "dir x", "data x --in head", "data x --limit 0"],
    "journal ls": ["", "none", "dir", "data --limit 0"],
    "journal prune": [
        "", "data", "none --archived x", "data --archived x --keep-age x", "data --archived x --keep-size x",
        "data --archived ''", "data --archived x --storage-option x", "dir --archived x",
        "data --archived none",
    ],
    "journal verify": ["", "none", "dir", "data --limit 0"],
    "pipeline archive": [
        "", "--to x --once --interval 5s", "--to x --server x", "--to x --batch 0", "--to x --interval x",
        f"--to x {SERVER}",
    ],
    "pipeline audit": ["", f"{NONE} --bookmark x", f"{NONE} --limit 0", f"{NONE} --driver-memory x", NONE],
    "pipeline compact": ["", "x --keep x", "'' ", "x --storage-option x", "none", "x --keep 10m"],
    "pipeline init": ["", "dir-with-file", "lines", "lines/new", "new --example x", "new --server localhost"],
    "pipeline run": ["none", "dir", "--conf x", "--full-refresh-all --refresh x", "--dry-run --refresh x"],
    "token new": [
        "", "'A b'", "a --expires x", "a --clients (", "a --clients ( --add tokens.toml",
        "known --add known.toml", "a --add lines", "a --out lines", "a --out none/token",
        "a --add none/tokens",
    ],
    "health": ["x", "--admin x"],
    "stats": ["x", "--admin x", "--watch 0", "--watch x"],
    "topics": ["x", "--admin x", "--limit 0"],
    "monitoring": ["full", "lines", "lines/new"],
    "filter explain": ["", "/a =", "/a --type x"],
    "filter test": ["", "/a =", "/a none", "TOPIC_NAME()='t' lines", "/a lines --limit 0"],
    "error": ["no-such-code", "a b"],
    "completion": ["", "tcsh"],
}  # fmt: skip
"""Arguments of each command that are mistakes."""

FAILURES = {
    "check": ["bad.toml"],
    "publish": [f"t --message x {SERVER}", f"t lines {SERVER}"],
    "subscribe": [f"t {SERVER}", f"t --bookmark 1|2| {SERVER}"],
    "sow": [f"t {SERVER}", f"t --follow {SERVER}"],
    "sow-delete": [f"t --sow-key k --yes {SERVER}"],
    "delta-publish": [f"t lines {SERVER}"],
    "query": [f"q {SERVER}"],
    "ack": [f"q 1|2| {SERVER}"],
    "queue browse": [f"q {SERVER}"],
    "queue ls": [f"--admin {NO_OWNER}"],
    "replication ls": [f"--admin {NO_OWNER}"],
    "replication holes": [f"--admin {NO_OWNER}"],
    "replication compare": ["damaged data"],
    "replication downgrade": [f"x --admin {NO_OWNER}"],
    "replication upgrade": [f"x --admin {NO_OWNER}"],
    "replication pause": [f"x --admin {NO_OWNER}"],
    "replication resume": [f"x --admin {NO_OWNER}"],
    "queue purge": [f"q --yes {SERVER}", f"q --yes --admin {NO_OWNER}"],
    "queue requeue": [f"q {SERVER}"],
    "journal dump": ["damaged", "data --from 9|9|"],
    "journal find": ["data 9|9|", "data 1000000"],
    "journal grep": ["data no-such-text", "damaged x"],
    "journal verify": ["damaged"],
    "health": [f"--admin {NO_OWNER}"],
    "stats": [f"--admin {NO_OWNER}"],
    "topics": [f"--admin {NO_OWNER}"],
    "filter test": ["/a=2 lines"],
}
"""Arguments of commands whose work fails, or finds nothing."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the arguments name."""
    root = tmp_path_factory.mktemp("files")
    written = Written(segment_bytes=8192)
    for _ in range(20):
        written.publish()
    written.stop()
    for name, data in written.disk.contents().items():
        path = root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    shutil.copytree(root / "data", root / "damaged")
    segment = root / "damaged/journal/0000000001.segment"
    flip(segment, 600)
    (root / "lines").write_text('{"a":1}\n')
    (root / "bad.toml").write_text("x = 1\n")
    (root / "good.toml").write_text("")
    (root / "known.toml").write_text(f"[known]\nsha256 = '{'0' * 64}'\n")
    (root / "known.toml").chmod(0o600)
    (root / "dir").mkdir()
    for name in ("dir-with-file", "full"):
        (root / name).mkdir()
        (root / name / "prometheus-rules.yml").write_text("")
    return root


def rows(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(command, arguments) for command, cases in table.items() for arguments in cases]


def words(text: str) -> list[str]:
    """Words of a command line, without the escapes of a shell."""
    return ["" if word == "''" else word.strip("'") for word in text.replace("'A b'", "A_b").split()]


def exit_code(root: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: str) -> tuple[int, str]:
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", "")  # no Java, so that no command starts Spark
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(cli, [*command.split(), *words(arguments)])
    return result.exit_code, result.stderr


def test_exit_code_tables_name_every_command() -> None:
    assert sorted(MISTAKES) == sorted(" ".join(path) for path in LEAVES)
    assert FAILURES.keys() <= MISTAKES.keys()


@pytest.mark.parametrize(("command", "arguments"), rows(MISTAKES))
def test_mistake_of_the_user_is_exit_code_2(
    files: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: str
) -> None:
    before = sorted(files.rglob("*"))
    code, stderr = exit_code(files, monkeypatch, command, arguments)
    assert code == 2, stderr
    assert stderr or command == "check"
    assert "Unexpected" not in stderr
    assert sorted(files.rglob("*")) == before, "nothing is created"


@pytest.mark.parametrize(("command", "arguments"), rows(FAILURES))
def test_failed_work_is_exit_code_1(
    files: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: str
) -> None:
    code, stderr = exit_code(files, monkeypatch, command, arguments)
    assert code == 1, stderr
    assert "Unexpected" not in stderr
