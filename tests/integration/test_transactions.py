"""Transactions of a real server: memory, statistics, configuration and journal tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.admin import ask, stats_of
from tests.helpers.relay import Relay
from tests.unit.journal.commit.test_chains import unfinished
from tickertape.base.limits import MIB
from tickertape.batch import batch_from_bodies
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking.log_client import LogClient
from tickertape.client.protocol.transactions import onward, staging
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import Commit, Committed, Staged, Transaction

SECONDS = 60.0
LARGE_BYTES = 300 * MIB
GROWTH_BYTES_MAX = 48 * MIB
"""Growth of the anonymous memory of the server during a commit of `LARGE_BYTES`: waiting blocks of staging
files, the tail of the log, and buffers."""

pytestmark = pytest.mark.slow


class Watch:
    """Watch of the highest anonymous memory of a process."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.before = self.highest = self.now()

    def now(self) -> int:
        """Return the anonymous memory in bytes."""
        (line,) = [line for line in self._status.read_text().splitlines() if line.startswith("RssAnon")]
        return int(line.split()[1]) * 1024

    def _sample(self) -> None:
        while not self._over.wait(0.005):
            self.highest = max(self.highest, self.now())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_large_transaction_is_mapped_instead_of_read_into_memory() -> None:
    body = bytes(range(256)) * 4096
    count = LARGE_BYTES // len(body)
    with running_server() as server, tt.Client("large", server.uri, timeout=SECONDS) as client:
        with client.transaction("warm") as warm:
            warm.publish("t", b"warm")
        transaction = client.transaction("large", bytes_max=LARGE_BYTES + 64 * MIB)
        for _ in range(count):
            transaction.publish("t", body)
        with Watch(server.pid) as watch:
            assert transaction.commit(timeout=SECONDS).message_count == count
        grown = watch.highest - watch.before
        assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB more"
        stats = stats_of(server)
        assert stats.transactions.staged_bytes == 0
        assert stats.journal.file_bytes > LARGE_BYTES
        read = client.replay("t")
        assert sum(message.data == body for message in read) == count


@pytest.mark.full
def test_finished_transactions_leave_no_files() -> None:
    with (
        running_server() as server,
        tt.Client("many", server.uri) as client,
        tt.Client("reader", server.uri) as reader,
        tt.Client("behind", server.uri) as behind,
    ):
        files = Path(f"/proc/{server.pid}/fd")
        stream = reader.subscribe("t")
        behind.subscribe("t", conflation="10s", conflation_key="/id")
        before = len(list(files.iterdir()))
        for number in range(100):
            with client.transaction(str(number)) as transaction:
                transaction.publish("t", {"id": number})
        seen = [message.json()["id"] for _, message in zip(range(100), stream, strict=False)]
        assert seen == list(range(100))
        wait_until(lambda: len(list(files.iterdir())) < before + 20)


def test_stats_and_metrics_count_transactions() -> None:
    with (
        running_server(config='[transactions]\nbytes_max = "2MB"\nexpire_after = "1s"\n') as server,
        tt.Client("c", server.uri, timeout=SECONDS) as client,
    ):
        for _ in range(2):
            with client.transaction("one") as transaction:
                transaction.publish("t", b"1")
        large = client.transaction("large")
        for _ in range(6):
            large.publish("t", bytes(500_000))
        with pytest.raises(tt.TransactionTooLarge, match=r"raise bytes_max of \[transactions\]"):
            large.commit()
        stats = stats_of(server).transactions
        assert (stats.committed, stats.repeated, stats.waiting) == (1, 1, 0)
        assert stats.staged_parts + stats.expired == 1
        wait_until(lambda: stats_of(server).transactions.expired == 1, SECONDS)
        after = stats_of(server).transactions
        # Before the final refusal the client aborts possible parts of earlier attempts.
        assert (after.staged_parts, after.staged_bytes, after.aborted) == (0, 0, 1)
        shown = ask(server, "/metrics")[2].decode()
        for line in (
            "tickertape_transactions_committed_total 1.0",
            "tickertape_transactions_repeated_total 1.0",
            "tickertape_transactions_expired_total 1.0",
            "tickertape_transactions_aborted_total 1.0",
            "tickertape_transactions_staged_parts 0.0",
            "tickertape_transactions_staged_bytes 0.0",
            "tickertape_transactions_waiting 0.0",
        ):
            assert line in shown
        said = CliRunner().invoke(cli, ["stats", "--admin", str(server.admin_url)]).stdout
        assert "1 committed, 1 aborted, 1 expired, 0 parts staged, 0 bytes, 0 waiting" in said


SMALL = '[transactions]\nbytes_max = "2MB"\n'
"""Limits for one attempt, but not for two."""


def invoice(client: tt.Client, size: int = 1_500_000) -> tt.ClientTransaction:
    transaction = client.transaction("invoice")
    for number in range(3):
        transaction.publish("t", b"%d" % number + bytes(size // 3))
    return transaction


@contextmanager
def held_back() -> Iterator[tuple[RunningServer, Relay, tt.Client, tt.ClientTransaction]]:
    """Yield a transaction whose first attempt timed out after the server staged a part."""
    with (
        running_server(config=SMALL) as server,
        Relay(server.uri) as relay,
        tt.Client("c", relay.uri, timeout=SECONDS) as client,
    ):
        transaction = invoice(client)
        relay.hold()
        with pytest.raises(tt.TimedOut):
            transaction.commit(timeout=0.2)
        wait_until(lambda: stats_of(server).transactions.staged_bytes > 0, SECONDS)
        relay.release()
        yield server, relay, client, transaction


def test_staged_parts_of_a_failed_attempt_do_not_count_for_the_next() -> None:
    with held_back() as (server, _, client, transaction):
        assert not transaction.uncertain
        assert transaction.commit().message_count == 3
        assert stats_of(server).transactions.staged_bytes == 0
        assert len(list(client.replay("t"))) == 3


def test_abort_drops_staged_parts_of_a_failed_attempt() -> None:
    with held_back() as (server, _, client, transaction):
        transaction.abort()
        stats = stats_of(server).transactions
        assert (stats.staged_parts, stats.staged_bytes, stats.aborted) == (0, 0, 1)
        assert invoice(client).commit().message_count == 3


def test_abort_with_a_lost_connection_aborts_the_transaction() -> None:
    with held_back() as (server, relay, client, transaction):
        relay.cut()
        transaction.abort()
        assert transaction.aborted
        with pytest.raises(tt.UsageError, match="is finished"):
            transaction.commit()
        wait_until(lambda: stats_of(server).transactions.staged_bytes == 0, SECONDS)
        client.connect()
        assert invoice(client).commit().message_count == 3


@pytest.mark.full
def test_staged_parts_of_an_ended_process_do_not_count_for_the_next(tmp_path: Path) -> None:
    """Prepared parts outlive the connection and the server."""
    with running_server(tmp_path, config=SMALL) as server:
        with LogClient("c", server.uri, timeout=SECONDS) as client:
            transaction = invoice(client)
            steps = transaction._buffer.committing()
            answer: object = None
            while not isinstance(answer, Staged):
                answer = client.ask(*onward(steps, answer), SECONDS)
        assert stats_of(server).transactions.staged_parts == 1
        server.stop()
    with (
        running_server(tmp_path, config=SMALL) as server,
        tt.Client("c", server.uri, timeout=SECONDS) as client,
    ):
        assert stats_of(server).transactions.staged_parts == 1
        assert invoice(client).commit().message_count == 3
        assert stats_of(server).transactions.staged_parts == 0
        assert len(list(client.replay("t"))) == 3


def test_journal_tools_hide_transactions_without_an_end(tmp_path: Path) -> None:
    written = unfinished(jobs=3)
    for name, data in written.disk.contents().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    runner = CliRunner()
    verified = runner.invoke(cli, ["journal", "verify", str(tmp_path)])
    assert verified.exit_code == 0, verified.stdout
    assert "15 messages of a transaction without an end. The next start cuts them off." in verified.stdout
    dumped = runner.invoke(cli, ["journal", "dump", str(tmp_path), "--unsynced", "--output", "json"])
    assert dumped.exit_code == 0, dumped.stderr
    assert len(dumped.stdout.splitlines()) == written.messages
    with running_server(tmp_path) as server:
        said = CliRunner().invoke(cli, ["journal", "verify", str(tmp_path)])
        assert said.exit_code == 0
        assert stats_of(server).journal.persisted_end == written.messages


def test_journal_tools_beside_a_committing_server_read_whole_transactions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    runner = CliRunner()
    with running_server(data) as server, tt.Client("c", server.uri, timeout=SECONDS) as client:
        for number in range(8):
            with client.transaction(str(number), space="s") as transaction:
                transaction.publish_batch("t", [{"tx": number, "i": i} for i in range(20)])
                transaction.publish("t", {"tx": number, "i": 20})
            dumped = runner.invoke(
                cli, ["journal", "dump", str(data), "--unsynced", "--topic", "t", "--output", "json"]
            )
            assert dumped.exit_code == 0, dumped.stderr
            seen = [json.loads(line)["data"] for line in dumped.stdout.splitlines()]
            assert seen == [{"tx": n, "i": i} for n in range(number + 1) for i in range(21)]
            assert runner.invoke(cli, ["journal", "verify", str(data)]).exit_code == 0


def test_prepared_parts_survive_a_server_kill_and_any_client_commits(tmp_path: Path) -> None:
    key = Transaction(publisher="sink", space="q", name="1")
    with running_server(tmp_path / "data") as server:
        with LogClient("task", server.uri, timeout=SECONDS) as task:
            steps = staging(key, "part", [batch_from_bodies("t", [b"1", b"2"])])
            for make, batch in steps:
                task.ask(make, batch, SECONDS)
        server.kill()
        server.start()
        stats = stats_of(server).transactions
        assert stats.staged_parts == 1
        assert stats.staged_bytes > 0
        kept = "bytes of staged, uncommitted transaction parts, in 1 files"
        wait_until(lambda: kept in server.errors())
        with LogClient("driver", server.uri, timeout=SECONDS) as driver:
            answer = driver.ask(lambda n: Commit(id=n, transaction=key, parts=("part",)), None, SECONDS)
            assert isinstance(answer, Committed)
            assert answer.messages == 2
            assert [message.data for message in driver.replay("t")] == [b"1", b"2"]
        assert stats_of(server).transactions.staged_parts == 0
