"""Admin address of a real server: statistics, limits, and the commands that use it."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

import tickertape as tt
from tests.helpers.admin import ask, stats_of, status_of
from tests.helpers.processes import run_tickertape, source_environment
from tickertape.server.admin.schema import SubscriptionState
from tickertape.server.limits import admin_connections_max, admin_request_bytes_max
from tickertape.testing import RunningServer, running_server, wait_until

SECONDS = 20.0
CONFIG = '[[journal.topic]]\nname = "orders"\n[[journal.topic]]\nname = "fills"\n'

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Yield a server that records `orders` and `fills`, with 100 orders in its log."""
    with running_server(config=CONFIG) as running:
        with tt.Client("loader", running.uri, timeout=SECONDS) as client:
            client.publish_batch("orders", (b"%03d" % n for n in range(100)))
            client.publish_flush(SECONDS)
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[tt.Client]:
    with tt.Client("pricing", server.uri, timeout=SECONDS) as connected:
        yield connected


def only(stats_subscriptions: list[SubscriptionState]) -> SubscriptionState:
    (subscription,) = stats_subscriptions
    return subscription


def test_health_and_ready_endpoints_return_200(server: RunningServer) -> None:
    assert status_of(server, "/health") == (200, {"status": "ready"})
    assert status_of(server, "/ready") == (200, {"status": "ready"})


def test_stats_contain_journal_sessions_and_topics(server: RunningServer, client: tt.Client) -> None:
    before = stats_of(server)
    stream = client.bookmark_subscribe("orders", tt.EPOCH, sub_id="mine")
    plain = client.subscribe("prices")
    client.publish("prices", b"12345")
    client.publish("orders", b"1")
    client.publish_flush(SECONDS)
    wait_until(lambda: stats_of(server).totals.sent_messages > before.totals.sent_messages + 100, SECONDS)
    stats = stats_of(server)
    assert (stats.state, stats.instance, stats.pid) == ("ready", "tickertape", server.pid)
    assert stats.totals.persisted_messages == before.totals.persisted_messages + 1
    assert stats.journal.persisted_end == stats.journal.accepted_end > before.journal.persisted_end
    assert stats.journal.syncs.policy == "always"
    assert stats.journal.syncs.count >= stats.journal.commits > before.journal.commits
    assert stats.event_loop.count >= before.event_loop.count + 2
    assert 0 < stats.event_loop.highest_seconds <= stats.event_loop.total_seconds
    (session,) = stats.sessions
    assert (session.client, session.published_messages) == ("pricing", 2)
    assert session.address.startswith("127.0.0.1:")
    states = {subscription.topic: subscription for subscription in session.subscriptions}
    orders, prices = states["orders"], states["prices"]
    assert (orders.sub_id, orders.recorded, orders.caught_up, orders.lag_messages) == ("mine", True, True, 0)
    assert (prices.recorded, prices.position, prices.lag_messages) == (False, None, None)
    topics = {topic.name: topic for topic in stats.topics}
    assert (topics["prices"].recorded, topics["prices"].bytes, topics["prices"].last_bookmark) == (
        *(False, 5 * topics["prices"].messages, None),
    )
    last = [stream.get(SECONDS) for _ in range(topics["orders"].messages)][-1]
    assert topics["orders"].last_bookmark == last.bookmark
    assert topics["orders"].subscriptions == 1
    assert plain.get(SECONDS).data == b"12345"
    assert stats.memory.anonymous_bytes is not None


def test_stats_show_lag_and_blocked_subscriptions(server: RunningServer, client: tt.Client) -> None:
    client.publish_batch("fills", (b"%0100000d" % n for n in range(50)))  # more than the credit of a stream
    client.publish_flush(SECONDS)
    stream = client.bookmark_subscribe("fills", tt.EPOCH)

    def blocked() -> bool:
        return only(stats_of(server).sessions[0].subscriptions).blocked

    wait_until(blocked, SECONDS)
    behind = only(stats_of(server).sessions[0].subscriptions)
    assert not behind.caught_up
    assert 0 < (behind.lag_messages or 0) < 50
    for _ in range(50):
        stream.get(SECONDS)
    wait_until(lambda: only(stats_of(server).sessions[0].subscriptions).caught_up, SECONDS)


def test_stats_show_the_options_of_a_subscription(server: RunningServer, client: tt.Client) -> None:
    client.bookmark_subscribe("orders", tt.EPOCH, sub_id="rated", rate="2x", rate_max_gap="1m", pause=True)
    client.bookmark_subscribe("orders", tt.EPOCH, sub_id="conflated", conflation="250ms", filter="/a = 1")
    client.bookmark_subscribe("orders", tt.NOW, sub_id="live", live=True)
    client.subscribe("prices", sub_id="unrecorded")
    together = ["one", "two", "three"]
    for sub_id in together:  # without credit they stay behind together
        client.bookmark_subscribe("orders", tt.EPOCH, sub_id=sub_id, pause=True, depth=100)
    client.resume(*together)
    ends = [client.subscribe("orders").sub_id for _ in range(2)]

    def states() -> dict[str, SubscriptionState]:
        return {state.sub_id: state for state in stats_of(server).sessions[0].subscriptions}

    wait_until(lambda: all(states()[sub_id].caught_up for sub_id in ("live", *ends)), SECONDS)
    wait_until(lambda: all(states()[sub_id].blocked for sub_id in together), SECONDS)
    seen = states()
    assert seen["rated"].rate == "2 times the original pace, gaps of 60 s at most"
    assert (seen["rated"].paused, seen["rated"].reads_with) == (True, 0)
    assert (seen["conflated"].conflation_seconds, seen["conflated"].filter) == (0.25, "/a = 1")
    assert [sub_id for sub_id, state in seen.items() if state.live] == ["live"]
    assert [seen[sub_id].reads_with for sub_id in together] == [2, 2, 2]
    assert [seen[sub_id].reads_with for sub_id in ends] == [1, 1]
    assert seen["unrecorded"].reads_with is None
    assert {(seen[sub_id].rate, seen[sub_id].conflation_seconds) for sub_id in ("live", *ends)} == {
        (None, None)
    }


def test_stats_count_refused_commands_and_ended_connections(server: RunningServer, client: tt.Client) -> None:
    before = stats_of(server).totals
    with pytest.raises(tt.TickertapeError):
        client.bookmark_subscribe("prices", tt.EPOCH)
    second = tt.Client("pricing", server.uri, timeout=SECONDS)
    after = stats_of(server).totals
    assert sum(after.refused.values()) == sum(before.refused.values()) + 1
    assert after.ended["name_in_use"] == before.ended.get("name_in_use", 0) + 1
    second.close()
    wait_until(lambda: " reason=name_in_use " in server.errors(), SECONDS)
    assert " refused conn=" in server.errors()


@pytest.mark.full
def test_topic_counts_start_at_zero_after_a_restart() -> None:
    with running_server(config='[[journal.topic]]\nname = "orders"\n') as server:
        with tt.Client("loader", server.uri, timeout=SECONDS) as client:
            client.publish("orders", b"1")
            client.publish_flush(SECONDS)
        assert stats_of(server).topics[0].messages == 1
        address = server.admin_url
        server.restart()
        assert server.admin_url == address
        (topic,) = stats_of(server).topics
        assert (topic.name, topic.messages, topic.last_bookmark, topic.last_time) == ("orders", 0, None, None)


@pytest.mark.parametrize("form", ["prometheus", "openmetrics"])
def test_metrics_are_parsed_by_the_prometheus_client(
    server: RunningServer, client: tt.Client, form: str
) -> None:
    client.subscribe("orders")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"} if form == "openmetrics" else {}
    status, headers, body = ask(server, "/metrics", headers=accept)
    assert status == 200
    assert headers["content-type"].startswith(
        "application/openmetrics-text" if accept else "text/plain; version="
    )
    parse = openmetrics_families if accept else text_string_to_metric_families
    families = {family.name: family for family in parse(body.decode())}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds["tickertape_ready"] == "gauge"
    assert kinds["tickertape_persisted_messages"] == "counter"
    assert kinds["tickertape_event_loop_longest_step_seconds"] == "gauge"
    assert all(name.startswith("tickertape_") and family.documentation for name, family in families.items())
    samples = {s.labels["topic"]: s for s in families["tickertape_topic_messages"].samples}
    assert samples["orders"].value >= 100
    assert samples["orders"].labels["recorded"] == "true"
    for name in ("tickertape_journal_sync_seconds", "tickertape_event_loop_step_seconds"):
        assert kinds[name] == "histogram"
        buckets = [s for s in families[name].samples if s.name.endswith("_bucket")]
        values = [s.value for s in buckets]
        assert values == sorted(values)
        assert values[-1] > 0
        bounds = [s.labels["le"] for s in buckets]
        assert "0.1" in bounds, "an alert rule uses this bucket"
        assert bounds[-1] == "+Inf"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 404),
        ("/stats/x", "GET", 404),
        ("/stats?x=1", "GET", 400),
        ("/stats", "POST", 405),
        ("/stats", "HEAD", 200),
        ("/%00%1b[31m", "GET", 404),
    ],
)
def test_admin_requests_get_the_expected_status(
    server: RunningServer, path: str, method: str, status: int
) -> None:
    answered, headers, body = ask(server, path, method)
    assert answered == status
    if method == "HEAD":
        assert int(headers["content-length"]) > 100
        assert body == b""


def talk(server: RunningServer, data: bytes) -> bytes:
    """Send bytes to the admin address, and return its answer until it closes."""
    with connect(server) as connection:
        connection.sendall(data)
        said = b""
        while more := connection.recv(65536):
            said += more
        return said


def connect(server: RunningServer) -> socket.socket:
    place = urlsplit(server.admin_url)
    return socket.create_connection((place.hostname, place.port or 0), timeout=SECONDS)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /stats HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2 * admin_request_bytes_max, b"431"),
        (b"GET /" + b"x" * 2 * admin_request_bytes_max + b" HTTP/1.1\r\n", b"431"),
        (b"tktape/0" + bytes(100) + b"\r\n\r\n", b"400"),
        (b"GET /stats HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET /stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde", b"413"),
        (
            b"GET /stats HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
            b"413",
        ),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
    ],
    ids=["header", "target", "garbage", "no host", "body", "chunked", "http 1.0"],
)
def test_hostile_and_old_http_requests_are_answered_and_closed(
    server: RunningServer, data: bytes, status: bytes
) -> None:
    assert talk(server, data).split()[1] == status
    assert status_of(server, "/health")[0] == 200


def test_admin_connection_serves_several_requests(server: RunningServer) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert talk(server, request * 20 + last).count(b"HTTP/1.1 200") == 21


def test_admin_connection_above_the_limit_gets_503(server: RunningServer) -> None:
    held = [connect(server) for _ in range(admin_connections_max)]
    try:
        assert talk(server, b"").split()[1] == b"503"
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: ask(server, "/health")[0] == 200, SECONDS)


def test_stats_command_prints_a_table(server: RunningServer, client: tt.Client) -> None:
    client.subscribe("orders")
    code, output, _ = run_tickertape("stats", "--admin", server.admin_url)
    assert code == 0
    lines = {line.split()[0]: line for line in output.splitlines() if line}
    assert f"process {server.pid}, ready, up " in lines["server"]
    assert lines["syncs"].startswith("syncs        always: ")
    assert lines["pricing"].split()[2:5] == ["orders", "caught", "up"]


def test_stats_and_topics_commands_print_json(server: RunningServer) -> None:
    code, output, _ = run_tickertape("stats", "--admin", server.admin_url, "--output", "json")
    assert (code, output.count("\n")) == (0, 1)
    assert msgspec.json.decode(output)["journal"]["identity"] == stats_of(server).journal.identity
    code, output, _ = run_tickertape("topics", "--admin", server.admin_url, "--output", "json")
    assert code == 0
    assert "orders" in [msgspec.json.decode(line)["name"] for line in output.splitlines()]


def test_topics_command_prints_a_table(server: RunningServer) -> None:
    code, output, _ = run_tickertape("topics", "--admin", server.admin_url)
    head, *rows = output.splitlines()
    assert code == 0
    assert head.split() == ["topic", "persistent", "last", "bookmark", "last", "message", "messages", "bytes",
                            "subscriptions"]  # fmt: skip
    assert next(row.split()[1] for row in rows if row.startswith("orders ")) == "yes"


@pytest.mark.full
def test_topics_command_after_a_restart_reports_no_topic_with_messages() -> None:
    with running_server() as server:
        with tt.Client("loader", server.uri, timeout=SECONDS) as client:
            client.publish("orders", b"1")
            client.publish_flush(SECONDS)
        server.restart()
        code, output, _ = run_tickertape("topics", "--admin", server.admin_url)
    assert (code, output) == (0, "no topic received messages since the server started\n")


@pytest.mark.parametrize("command", ["stats", "topics"])
def test_stats_and_topics_without_an_admin_server_print_one_line(command: str, server: RunningServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    code, output, errors = run_tickertape(command, "--admin", url)
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(f"tickertape: Cannot connect to {url!r}: connection refused. ")
    code, _, errors = run_tickertape(command, "--admin", server.uri.replace("tcp", "http"))
    assert (code, errors.count("\n")) == (1, 1)
    assert "Cannot serve HTTP" in errors
    assert run_tickertape(command, "--admin", server.uri)[0] == 2


def test_explicit_admin_address_in_use_is_an_error(server: RunningServer) -> None:
    data = str(server.data.parent / "other")
    code, output, errors = run_tickertape(
        *("serve", "--data", data, "--listen", "tcp://127.0.0.1:0", "--admin", server.admin_url)
    )
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert f" CRITICAL listen_failed address={server.admin_url} " in errors


def test_event_flood_is_bounded_in_the_log() -> None:
    """Use a separate server, because the rate limit also counts the lines of other tests."""
    with running_server() as server:
        for n in range(200):
            with connect_to_server(server) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\x1b[31m %d" % n)
                stranger.recv(1000)

        def ended() -> int:
            return stats_of(server).totals.ended.get("not_tickertape", 0)

        wait_until(lambda: ended() >= 200, SECONDS)
        wait_until(lambda: " suppressed of=connection_open lines=" in server.errors(), SECONDS)
        log = server.errors()
        assert 0 < log.count(" connection_close ") < 200
        assert "\x1b" not in log


def connect_to_server(server: RunningServer) -> socket.socket:
    host, port = server.uri.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


@contextlib.contextmanager
def serving_at_the_default_address() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the first line and the process of a server with the default admin address."""
    command = [sys.executable, "-m", "tickertape", "serve", "--listen", "tcp://127.0.0.1:0", "--data"]
    with tempfile.TemporaryDirectory() as data:
        process = subprocess.Popen(
            [*command, data],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=source_environment(),
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline(), process
        finally:
            process.kill()
            process.communicate()


def test_default_admin_address_in_use_disables_the_admin_server() -> None:
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            held = True
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", 9008)))
            except OSError:  # another process has the address, and may release it before the server starts
                held = False
            ready, process = stack.enter_context(serving_at_the_default_address())
            if held or " admin " not in ready:
                assert re.fullmatch(r"ready tcp://127\.0\.0\.1:\d+\n", ready)
                process.terminate()
                _, log = process.communicate(timeout=SECONDS)
                assert process.returncode == 0
                assert " WARNING admin_off address=http://127.0.0.1:9008 " in log
                return
    pytest.fail("other processes take and release the default address all the time")


def test_json_events_cover_start_logon_and_stop() -> None:
    with running_server(config='[logging]\nformat = "json"\n') as server:
        with tt.Client("pricing", server.uri, timeout=SECONDS):
            pass
        server.stop()
        events = [msgspec.json.decode(line) for line in server.errors().splitlines()]
    names = [line["event"] for line in events]
    assert names[:3] == ["start", "recovered", "ready"]
    assert names[-3:] == ["signal", "drain", "stop"]
    logon = events[names.index("logon")]
    assert (logon["level"], logon["client"]) == ("info", "pricing")
    close = events[names.index("connection_close")]
    assert (close["client"], close["reason"]) == ("pricing", "closed_by_peer")


@pytest.mark.parametrize("path", ["/stats", "/metrics", "/health"])
def test_request_with_a_foreign_host_name_gets_421(path: str, server: RunningServer) -> None:
    """A web page could otherwise read client names through a browser here (DNS rebinding)."""
    for method in ("GET", "HEAD"):
        status, _, body = ask(server, path, method, {"Host": "evil.example"})
        assert status == 421
        assert (b"hosts in [admin]" in body) is (method == "GET")
    assert ask(server, path, headers={"Host": "localhost:1"})[0] == 200


def test_request_with_a_configured_host_name_is_answered() -> None:
    with running_server(config='[admin]\nhosts = ["db1.example.com"]\n') as server:
        assert ask(server, "/stats", headers={"Host": "db1.example.com:9008"})[0] == 200
        assert ask(server, "/stats", headers={"Host": "db2.example.com:9008"})[0] == 421
