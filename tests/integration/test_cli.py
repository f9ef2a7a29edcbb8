"""Command line with a real server: output and exit codes that scripts use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from tickertape.cli.support.command_group import cli
from tickertape.testing.server import RunningServer, running_server, wait_until

STEP_SECONDS_MAX: Final = 30
COMMAND: Final = (sys.executable, "-m", "tickertape")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield one server for all tests, each with separate topics."""
    with running_server(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=STEP_SECONDS_MAX, check=False
    )


def begin(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A run in the background of a script ignores Ctrl-C, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (no thread runs)
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Wait for the end, and return the exit code and the rest of the output."""
    try:
        out, errors = process.communicate(timeout=STEP_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return process.returncode, out, errors


def publish(server: RunningServer, topic: str, data: bytes, *arguments: str) -> None:
    done = run("publish", topic, "--server", server.uri, *arguments, stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def everything(server: RunningServer, topic: str, *arguments: str) -> bytes:
    done = run(
        "subscribe", topic, "--server", server.uri, "--bookmark", "epoch", "--until-caught-up", *arguments
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_published_lines_are_read_back_by_subscribe(server: RunningServer, tmp_path: Path) -> None:
    publish(server, "read-back", b'{"id": 1}\nplain\n', "--name", "loader-1")
    file = tmp_path / "more.txt"
    file.write_bytes(b"last")
    done = run("publish", "read-back", str(file), "--server", server.uri, "--name", "loader-1")
    assert done.returncode == 0
    assert everything(server, "read-back") == b'{"id": 1}\nplain\nlast\n'
    rows = [json.loads(line) for line in everything(server, "read-back", "--output", "json").splitlines()]
    assert [row.get("data", row.get("text")) for row in rows] == [{"id": 1}, "plain", "last"]
    assert len({row["publisher"] for row in rows}) == 1
    assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows})
    # each printed bookmark is a start point
    rest = run(
        "subscribe",
        "read-back",
        "--server",
        server.uri,
        "--bookmark",
        rows[1]["bookmark"],
        "--until-caught-up",
    )
    assert rest.stdout == b"last\n"
    whole = f"[{rows[0]['bookmark']}:{rows[1]['bookmark']}]"
    ranged = run("subscribe", "read-back", "--server", server.uri, "--bookmark", whole, "--timeout", "20s")
    assert (ranged.returncode, ranged.stdout) == (0, b'{"id": 1}\nplain\n')


def test_publish_sends_the_message_options_unchanged(server: RunningServer) -> None:
    publish(
        server, "options", b"not read\n", "--message", '{"a": 1}', "--message", "", "--message", "two\nlines"
    )
    rows = everything(server, "options", "--output", "json").splitlines()
    assert [json.loads(row).get("data", json.loads(row).get("text")) for row in rows] == [
        {"a": 1},
        "",
        "two\nlines",
    ]


def test_publish_summary_says_whether_the_messages_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal shows the summary, so the test reads the remarks of the command."""
    remarks: list[str] = []
    monkeypatch.setattr("tickertape.cli.commands.publish.remark", remarks.append)
    with running_server(tmp_path / "data", '[[journal.topic]]\nname = "orders"\n') as running:
        for topic in ("orders", "plain"):
            arguments = ["publish", topic, "--message", "1", "--message", "2", "--server", running.uri]
            assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert remarks == [
        "2 messages persisted",
        "2 messages published, not stored: the topic 'plain' is not persistent",
    ]


def test_variables_name_the_server_of_a_command(server: RunningServer) -> None:
    publish(server, "variables", b"1\n")
    done = run_with("", "topics", TICKERTAPE_ADMIN=server.admin_url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"variables" in done.stdout
    replay = ("subscribe", "variables", "--bookmark", "epoch", "--until-caught-up")
    done = run_with("", *replay, TICKERTAPE_SERVER=server.uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


@pytest.mark.full
@pytest.mark.parametrize("start", ["epoch", "[20260101T000000:20260101T000001]"])
def test_empty_replay_of_a_missing_topic_names_a_near_topic(server: RunningServer, start: str) -> None:
    publish(server, "replayed", b"1\n")
    replay = ("--server", server.uri, "--bookmark", start, "--until-caught-up")
    done = run("subscribe", "replaid", *replay, "--admin", server.admin_url)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == (
        "tickertape: No messages of 'replaid' were replayed. The server lists no topic 'replaid'. "
        "Did you mean 'replayed'?\n"
    )
    done = run("subscribe", "replaid", *replay)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == (
        "tickertape: No messages of 'replaid' were replayed. Check the topic name: "
        "`tickertape topics --admin URL` lists the topics of a server.\n"
    )


def test_replay_with_end_before_start_reports_the_order(server: RunningServer) -> None:
    publish(server, "backwards", b"1\n")
    times = "[20270101T000000:20260101T000000)"
    done = run("subscribe", "backwards", "--server", server.uri, "--bookmark", times)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == (
        "tickertape: No messages of 'backwards' were replayed. The end '20260101T000000.000000Z' of the "
        "range is before its start '20270101T000000.000000Z'. Swap them.\n"
    )


def test_empty_replay_of_a_topic_that_exists_has_no_hint(server: RunningServer) -> None:
    publish(server, "filtered", b'{"a": 1}\n')
    replay = ("--server", server.uri, "--bookmark", "epoch", "--until-caught-up", "--filter", "/a = 2")
    done = run("subscribe", "filtered", *replay, "--admin", server.admin_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.full
def test_timeout_of_a_missing_topic_names_a_near_topic(server: RunningServer) -> None:
    publish(server, "waited-for", b"1\n")
    asked = ("--server", server.uri, "--admin", server.admin_url, "--timeout", "2s")
    done = run("subscribe", "waited-fr", *asked)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.endswith(b" The server lists no topic 'waited-fr'. Did you mean 'waited-for'?\n")
    assert done.stderr.count(b"\n") == 1


def test_replay_with_messages_does_not_ask_the_admin_address(server: RunningServer) -> None:
    publish(server, "not-asked", b"1\n")
    with socket.create_server(("127.0.0.1", 0)) as admin:
        url = f"http://127.0.0.1:{admin.getsockname()[1]}"
        assert everything(server, "not-asked", "--admin", url) == b"1\n"
        admin.setblocking(False)
        with pytest.raises(BlockingIOError):
            admin.accept()


def test_publish_of_an_invalid_json_line_exits_1_after_the_lines_before(
    server: RunningServer,
) -> None:
    done = run(
        "publish", "checked", "--server", server.uri, "--require-json", stdin=b'{"id": 1}\n[2]\n{\n[3]\n'
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"tickertape: Cannot publish '<stdin>': line 3 is not JSON: ")
    assert done.stderr.endswith(b". Correct it. Messages published before this line: 2.\n")
    assert everything(server, "checked") == b'{"id": 1}\n[2]\n'


def test_live_messages_are_printed_on_arrival(server: RunningServer) -> None:
    publish(server, "live", b"0\n")
    reader = begin("subscribe", "live", "--server", server.uri, "--bookmark", "epoch", "--limit", "3")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"0\n"  # now the command is subscribed
    publish(server, "live", b"1\n")
    assert reader.stdout.readline() == b"1\n"
    publish(server, "live", b"2\n3\n")
    assert end(reader) == (0, b"2\n", b"")


def test_subscribe_timeout_exits_3(server: RunningServer) -> None:
    done = run("subscribe", "silent", "--server", server.uri, "--timeout", "200ms")
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"within 0.2 s" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_unresponsive_server_exits_3_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        done = run("subscribe", "orders", "--server", address, "--timeout", "200ms")
    assert (done.returncode, done.stdout) == (3, b"")
    expected = (
        f"tickertape: Cannot log on: no Tickertape server answered at {address!r} within 0.2 s. "
        "Check host and port.\n"
    )
    assert done.stderr.decode() == expected


def test_closed_output_pipe_ends_subscribe_without_an_error(server: RunningServer) -> None:
    publish(server, "much", b"x" * 99 + b"\n" + b"%0100d\n" % 0 * 20_000)
    with begin(
        "subscribe", "much", "--server", server.uri, "--bookmark", "epoch", "--until-caught-up"
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"x" * 99 + b"\n"
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(STEP_SECONDS_MAX) == 0


def test_ctrl_c_ends_subscribe_without_a_traceback(server: RunningServer) -> None:
    publish(server, "interrupted", b"0\n")
    reader = begin("subscribe", "interrupted", "--server", server.uri, "--bookmark", "epoch")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"0\n"
    reader.send_signal(signal.SIGINT)
    assert end(reader) == (130, b"", b"")


def test_server_error_is_one_line_and_exit_code_1(server: RunningServer) -> None:
    done = run("subscribe", "nothing", "--server", server.uri, "--bookmark", "1|1|", "--until-caught-up")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"tickertape: Cannot find the bookmark '1|1|' in the log. Start ")
    assert done.stderr.endswith(b"or pass --bookmark-not-found now.\n")
    assert b"or pass --bookmark-not-found" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_journal_of_a_running_server_is_listed_and_verified(server: RunningServer) -> None:
    publish(server, "listed", b"1\n2\n")
    done = run("journal", "verify", str(server.data))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"no corruption: ")
    listed = run("journal", "ls", str(server.data), "--output", "json")
    segments = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [s["state"] for s in segments if s["state"] != "reserved"] == ["active"]
    assert listed.stderr == b"", "no damage and no notes"


# -- servers of their own -----------------------------------------------------------------------------


@pytest.mark.full
def test_killed_server_ends_publish_and_subscribe_with_exit_code_1(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as running:
        publisher = begin("publish", "orders", "--server", running.uri)
        assert publisher.stdin is not None
        publisher.stdin.write(b"1\n")
        publisher.stdin.flush()
        reader = run("subscribe", "orders", "--server", running.uri, "--bookmark", "epoch", "--limit", "1")
        assert reader.stdout == b"1\n"
        listener = begin("subscribe", "orders", "--server", running.uri, "--bookmark", "epoch")
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"1\n"
        running.kill()
        wait_until(
            lambda: not takes_a_line(publisher), STEP_SECONDS_MAX
        )  # the command ends before the last line
        with contextlib.suppress(BrokenPipeError):
            publisher.stdin.close()
        publisher.stdin = None
        for process, says in ((publisher, b"messages may not be persisted."), (listener, b"")):
            code, out, errors = end(process)
            assert (code, out) == (1, b"")
            assert errors.startswith(b"tickertape: ")
            assert errors.endswith(says + b"\n")
            assert errors.count(b"\n") == 1
        # an unsealed log is not damaged
        assert run("journal", "verify", str(running.data)).returncode == 0
        running.start()
        assert everything(running, "orders") == b"1\n"


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "taken over"])
def test_publish_names_the_lost_server_and_the_reason(tmp_path: Path, how: str) -> None:
    with running_server(tmp_path / "data") as running:
        publisher = begin("publish", "orders", "--server", running.uri, "--name", "loader")
        assert takes_a_line(publisher)
        reader = run("subscribe", "orders", "--server", running.uri, "--bookmark", "epoch", "--limit", "1")
        assert reader.returncode == 0
        if how == "killed":
            running.kill()
        else:
            publish(running, "orders", b"2\n", "--name", "loader")
        wait_until(lambda: not takes_a_line(publisher), STEP_SECONDS_MAX)
        with contextlib.suppress(BrokenPipeError):
            publisher.stdin.close()  # type: ignore[union-attr]
        publisher.stdin = None
        code, _, errors = end(publisher)
        text = errors.decode()
        assert code == 1
        assert text.startswith("tickertape: ")
        assert running.uri in text
        assert "connect()" not in text
        if how == "taken over":
            assert f"{running.uri!r}: the server closed the connection (name_in_use): " in text


def takes_a_line(process: subprocess.Popen[bytes]) -> bool:
    """Write a line to a process, and return False if it has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(b"more\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return process.poll() is None


def serve(*arguments: str) -> subprocess.Popen[bytes]:
    return begin("serve", *arguments)


def stop(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    process.terminate()
    return end(process)


def test_serve_prints_one_ready_line_and_stops_cleanly(tmp_path: Path) -> None:
    socket_path = tmp_path / "tt.sock"
    server = serve(
        *("--data", str(tmp_path / "data"), "--listen", "tcp://127.0.0.1:0"),
        *("--listen", f"unix://{socket_path}", "--admin", "http://127.0.0.1:0"),
    )
    assert server.stdout is not None
    word, tcp, unix, what, admin = server.stdout.readline().split()
    assert (word, unix, what) == (b"ready", f"unix://{socket_path}".encode(), b"admin")
    assert admin.startswith(b"http://127.0.0.1:")
    assert tcp.startswith(b"tcp://127.0.0.1:")
    assert not tcp.endswith(b":0")
    assert run("publish", "orders", "--server", unix.decode(), stdin=b"1\n").returncode == 0
    again = run("serve", "--data", str(tmp_path / "data"), "--listen", "tcp://127.0.0.1:0")
    assert (again.returncode, again.stdout) == (5, b"")
    assert f"(pid {server.pid})".encode() in again.stderr
    assert again.stderr.count(b"\n") == 1
    code, output, log = stop(server)
    assert (code, output) == (0, b"")
    events = [line.split()[2] for line in log.splitlines()]
    assert (events[:3], events[-3:]) == ([b"start", b"recovered", b"ready"], [b"signal", b"drain", b"stop"])


def test_serve_refuses_a_foreign_directory_and_an_address_in_use(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("...")
    done = run("serve", "--data", str(tmp_path / "letters"), "--listen", "tcp://127.0.0.1:0")
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"dear.txt" in done.stderr
    assert os.listdir(tmp_path / "letters") == ["dear.txt"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        uri = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--data", str(tmp_path / "data"), "--listen", uri)
    assert (done.returncode, done.stdout) == (1, b"")
    assert uri.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_serve_reads_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text('[[journal.topic]]\nname = "${TOPIC}"\n')
    config = tmp_path / "server.toml"
    config.write_text(
        'include = ["topics.toml"]\n[[transport]]\nlisten = "tcp://127.0.0.1:0"\n[journal]\nsync = "never"\n'
    )
    environment = os.environ | {"TOPIC": "orders"}
    server = subprocess.Popen(
        [*COMMAND, "serve", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    uri = server.stdout.readline().split()[1].decode()
    assert (tmp_path / "data" / "identity.json").exists()  # beside the configuration file
    run("publish", "orders", "--server", uri, stdin=b"1\n")
    replay = ("--bookmark", "epoch", "--until-caught-up")
    assert run("subscribe", "orders", "--server", uri, *replay).stdout == b"1\n"
    refused = run("subscribe", "fills", "--server", uri, *replay)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert stop(server)[0] == 0


def test_subscribe_options_reach_the_server(server: RunningServer) -> None:
    publish(server, "asked-1", b"".join(b'{"k": %d, "n": %d}\n' % (i % 2, i) for i in range(20)))
    publish(server, "asked-2", b'{"k": 7, "n": 20}\n')
    both = everything(server, "^asked-[12]$", "--select", "-/,+/n").splitlines()
    assert both == [b'{"n":%d}' % i for i in range(21)]
    conflated = everything(server, "asked-1", "--conflation", "1d", "--conflation-key", "/k").splitlines()
    assert conflated[-2:] == [b'{"k": 0, "n": 18}', b'{"k": 1, "n": 19}']
    assert len(conflated) <= 4
    paced = everything(server, "asked-1", "--rate", "1000x", "--rate-max-gap", "1s", "--resume-after", "10ms")
    assert len(paced.splitlines()) == 20
    unknown = everything(server, "asked-2", "--bookmark-not-found", "epoch", "--bookmark", "1|1|")
    assert unknown == b'{"k": 7, "n": 20}\n'


def test_subscribe_with_pause_starts_after_a_line_of_input(server: RunningServer) -> None:
    publish(server, "paused", b"1\n2\n")
    arguments = ("subscribe", "paused", "--server", server.uri, "--bookmark", "epoch", "--limit", "2")
    waiting = begin(*arguments, "--pause")
    assert waiting.stdin is not None
    waiting.stdin.write(b"go\n")
    waiting.stdin.flush()
    assert end(waiting) == (0, b"1\n2\n", b"")
    assert run(*arguments, "--pause").stdout == b"1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rate", "fast"), b"Invalid rate 'fast'"),
        (("--conflation", "auto"), b"conflation=auto"),
        (("--conflation", "1s", "--conflation-key", "a"), b"conflation_key"),
        (("--select", "+a"), b"select"),
    ],
)
def test_refused_subscribe_option_is_one_line_and_exit_code_2(
    server: RunningServer, arguments: tuple[str, ...], says: bytes
) -> None:
    done = run("subscribe", "refused", "--server", server.uri, "--bookmark", "epoch", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_invalid_filter_is_bad_usage_with_a_caret(server: RunningServer) -> None:
    done = run("subscribe", "refused", "--server", server.uri, "--filter", "/a =")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"tickertape: Invalid filter at column 5: ")
    assert done.stderr.endswith(b"\n  /a =\n      ^\n")


def run_with(redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command with a standard stream closed by the shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments],
        input=b"",
        capture_output=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.full
@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_acts_as_the_null_device(server: RunningServer, redirection: str) -> None:
    publish(server, "closed", b"one\n")
    reading = ("--bookmark", "epoch", "--until-caught-up", "--output", "json")
    for arguments in (("publish", "closed"), ("subscribe", "closed", *reading)):
        done = run_with(redirection, *arguments, "--server", server.uri)
        assert (done.returncode, done.stderr) == (0, b"")
    done = run_with(redirection, "topics", "--admin", server.admin_url)
    assert (done.returncode, done.stderr) == (0, b"")


def test_topic_outside_the_encoding_of_the_output_is_printed_escaped(server: RunningServer) -> None:
    publish(server, "x/\u2603", b"one\n")
    done = run_with("", "topics", "--admin", server.admin_url, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"x/\\u2603" in done.stdout


def test_doctor_measures_beside_a_running_server_without_leftover_files(
    server: RunningServer, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[instance]\ndata = "{server.data}"\n')
    before = sorted(os.listdir(server.data))
    done = run("doctor", str(config), "--seconds", "50ms", "--output", "json")
    assert done.stderr == b""
    document = json.loads(done.stdout)
    assert done.returncode == int(document["failed"])
    findings = {finding["check"]: finding for finding in document["findings"]}
    assert findings["synced write"]["figures"]["writes"] >= 1
    assert {"free space", "open files", "clock", "versions"} <= findings.keys()
    assert sorted(os.listdir(server.data)) == before
    lines = run("doctor", str(config), "--seconds", "0").stdout.decode().splitlines()
    assert any(line.split()[0] in {"ok", "warn"} and "synced write" in line for line in lines)


def test_interrupted_doctor_leaves_no_files(tmp_path: Path) -> None:
    process = begin("doctor", "--data", str(tmp_path), "--seconds", "60s")

    def measuring() -> bool:
        with contextlib.suppress(OSError):
            names = os.listdir(f"/proc/{process.pid}/fd")
            return any(
                os.path.realpath(f"/proc/{process.pid}/fd/{name}").startswith(str(tmp_path)) for name in names
            )
        return False

    wait_until(measuring)
    process.send_signal(signal.SIGINT)
    assert end(process) == (130, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_doctor_with_an_invalid_configuration_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[jornal]\n")
    done = run("doctor", str(config))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Did you mean 'journal'" in done.stderr


def test_health_is_ready_while_the_server_runs(server: RunningServer) -> None:
    done = run("health", "--admin", server.admin_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ready\n", b"")
    document = run("health", "--admin", server.admin_url, "--output", "json").stdout
    assert document == b'{"status":"ready"}\n'


def test_health_without_a_server_is_exit_code_1() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = run("health", "--admin", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
