"""Promises of the README, on real processes, real sockets and a real disk.

Tests with the simulated disk cover power loss, torn writes and disks that lie.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.peer import Peer, frame
from tests.helpers.processes import files_of, run_tickertape
from tickertape.base.names import publisher_id
from tickertape.batch import batch_from_bodies
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import Ack, Flush, Publish

SECONDS = 30.0
EXIT_DISK_FAILED = 4
EXIT_REFUSED = 5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Yield a server for tests that do not stop it, each with separate topics."""
    with running_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[tt.Client]:
    with tt.Client(f"client of {request.node.name}", server.uri, timeout=SECONDS) as connected:
        yield connected


def numbered(count: int, first: int = 0, size: int = 8) -> list[bytes]:
    return [b"%d" % n + b" " * (size - 8) for n in range(first, first + count)]


def bodies(stream: tt.MessageStream) -> list[bytes]:
    return [body for batch in stream.batches(SECONDS) for body in batch.bodies_list()]


# -- 1 to 4: acknowledged, kept, once, in order -------------------------------------------------------


def test_promise_1_acknowledged_message_is_in_the_segment_file(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server, tt.Client("a", server.uri) as client:
        client.publish("orders", b"a body that is easy to find")
        client.publish_flush(timeout=SECONDS)
        segments = files_of(server.data / "journal")
        assert sum(data.count(b"a body that is easy to find") for data in segments.values()) == 1


HELD_SYNCS = """
import os, time
hold = os.environ["HOLD_SYNCS"]
def held(sync):
    def wait_and_sync(fd):
        while os.path.exists(hold):
            time.sleep(0.002)
        sync(fd)
    return wait_and_sync
os.fdatasync, os.fsync = held(os.fdatasync), held(os.fsync)
"""
"""Start of the interpreter of the server: each sync waits for the test."""


def test_promise_1_message_is_acknowledged_and_delivered_only_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HELD_SYNCS)
    hold = tmp_path / "hold"
    monkeypatch.setenv("HOLD_SYNCS", str(hold))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    with running_server(tmp_path / "data") as server, tt.Client("b", server.uri, timeout=SECONDS) as reader:
        store = tt.MemoryPublishStore()
        with tt.Client("a", server.uri, publish_store=store, timeout=SECONDS) as client:
            live = reader.bookmark_subscribe("orders", tt.EPOCH)
            client.publish("orders", b"first")
            client.publish_flush()
            assert live.get(SECONDS).data == b"first"
            hold.touch()
            client.publish("orders", b"second")
            client.publish_flush(level="processed")  # the server has accepted the message
            segments = server.data / "journal"
            wait_until(lambda: any(b"second" in data for data in files_of(segments).values()), SECONDS)
            with pytest.raises(tt.TimedOut):
                client.publish_flush(timeout=0.3)  # the message is written but not synced
            with pytest.raises(tt.TimedOut):
                live.get(0)
            assert client.unpersisted_count() == 1
            hold.unlink()
            client.publish_flush()
            assert client.unpersisted_count() == 0
            assert live.get(SECONDS).data == b"second"


@pytest.mark.timeout(90)
def test_promises_2_3_4_server_kills_keep_all_messages_once_and_in_order(tmp_path: Path) -> None:
    total, kills = 30_000, 3
    with running_server(tmp_path / "data") as server:
        publishers = [Publisher(f"publisher-{n}", server.uri, total) for n in range(2)]
        for publisher in publishers:
            publisher.start()
        for kill in range(1, kills + 1):
            share = total * kill // (kills + 1)
            wait_until(lambda share=share: all(p.acknowledged() >= share for p in publishers), SECONDS)
            server.kill()
            server.start()
            for publisher in publishers:
                publisher.allow(total * (kill + 1) // (kills + 1) + total // 10)
        for publisher in publishers:
            publisher.finish()
        with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
            stored = bodies(reader.replay("orders"))
        for publisher in publishers:
            mine = [body for body in stored if body.startswith(publisher.name.encode())]
            assert mine == publisher.bodies
        assert len(stored) == len(publishers) * total
        server.stop()
    code, output, _ = run_tickertape("journal", "verify", str(tmp_path / "data"))
    assert code == 0, output
    assert any(line.startswith("no corruption:") for line in output.splitlines()), output


class Publisher(threading.Thread):
    """Publisher with a small store, which reconnects and publishes up to an allowed count."""

    def __init__(self, name: str, uri: str, total: int) -> None:
        super().__init__(name=name, daemon=True)
        self.bodies = [b"%s %d" % (name.encode(), n) for n in range(total)]
        self._allowed = threading.Semaphore(total // 2)
        self._given = total // 2
        self._done = 0
        self._error: BaseException | None = None
        store = tt.MemoryPublishStore("256KB")
        self._client = tt.Client(name, uri, publish_store=store, timeout=SECONDS)
        self._client.set_disconnect_handler(self._reconnect)

    def run(self) -> None:
        try:
            for body in self.bodies:
                assert self._allowed.acquire(timeout=SECONDS)
                self._client.publish("orders", body)
                self._done += 1
        except BaseException as error:
            self._error = error
            raise

    def acknowledged(self) -> int:
        assert self._error is None, self._error
        return self._done - self._client.unpersisted_count()

    def allow(self, allowed: int) -> None:
        more = min(allowed, len(self.bodies)) - self._given
        if more > 0:
            self._given += more
            self._allowed.release(more)

    def finish(self) -> None:
        self.allow(len(self.bodies))
        self.join(SECONDS)
        wait_until(lambda: self.acknowledged() == len(self.bodies), SECONDS)
        self._client.close()

    def _reconnect(self, client: tt.Client) -> None:
        def connected() -> bool:
            try:
                client.connect(timeout=SECONDS)
            except tt.Disconnected:
                return False
            return True

        wait_until(connected, SECONDS)


def test_promise_3_resent_message_is_stored_once(server: RunningServer) -> None:
    """Our client does not resend persisted messages, so this test speaks the protocol directly."""

    def publish(number: int, first: int, count: int) -> bytes:
        batch = batch_from_bodies(
            "again", numbered(count, first), publisher=publisher_id("again"), first_sequence=100 + first
        )
        return frame(Publish(frame=number, sequenced=True), batch)

    for _ in range(2):
        with Peer(server.uri, "again") as peer:
            peer.send(publish(1, 0, 100) + publish(2, 0, 100) + publish(3, 50, 100) + publish(4, 10, 5))
            peer.send(frame(Flush(id=1)))
            peer.until(Ack)
    with tt.Client("reader of again", server.uri, timeout=SECONDS) as reader:
        assert bodies(reader.replay("again")) == numbered(150)


# -- 5 and 6: from anywhere, and on into live ---------------------------------------------------------


def test_promise_5_subscription_starts_at_any_start_point(client: tt.Client) -> None:
    client.publish_batch("anywhere", numbered(50))
    client.publish_flush()
    between = datetime.now(UTC)
    # The log's clock is the server's, in microseconds: wait until it has moved on.
    wait_until(lambda: datetime.now(UTC) > between)
    client.publish_batch("anywhere", numbered(50, 50))
    client.publish_flush()
    everything = list(client.replay("anywhere"))
    tenth, twentieth = everything[10].bookmark, everything[20].bookmark
    assert tenth is not None
    assert twentieth is not None
    now = client.bookmark_subscribe("anywhere", tt.NOW)

    starts: Sequence[tuple[str | datetime, range]] = [
        (tt.EPOCH, range(100)),
        (tenth, range(11, 100)),
        (between, range(50, 100)),
        (f"[{tenth}:{twentieth}]", range(10, 21)),
        (f"({tenth}:{twentieth})", range(11, 20)),
    ]
    for start, expected in starts:
        assert bodies(client.replay("anywhere", start)) == [b"%d" % n for n in expected], start
    client.publish("anywhere", b"100")
    assert now.get(SECONDS).data == b"100"


def test_promise_6_replay_continues_live_without_gap_or_duplicate(server: RunningServer) -> None:
    total, subscribers = 40_000, 4
    with (
        tt.Client("seam-publisher", server.uri, timeout=SECONDS) as publisher,
        tt.Client("seam-reader", server.uri, timeout=SECONDS) as reader,
    ):
        streams: list[tt.MessageStream] = []
        for first in range(0, total, 500):
            publisher.publish_batch("seam", numbered(500, first))
            if first % (total // subscribers) == total // subscribers // 2:
                # Published and not flushed: some messages are in the log, and some in transit.
                streams.append(reader.bookmark_subscribe("seam", tt.EPOCH, depth="64KB"))
        expected = numbered(total)
        for stream in streams:
            assert [stream.get(SECONDS).data for _ in range(total)] == expected
            with pytest.raises(tt.TimedOut):
                stream.get(0)
        assert len(streams) == subscribers


# -- 7: slow readers ----------------------------------------------------------------------------------


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.full
def test_promise_7_slow_reader_uses_little_memory_and_delays_no_other_reader(
    server: RunningServer,
) -> None:
    warm, count, size = 2000, 60_000, 1000
    with (
        tt.Client("slow-publisher", server.uri, timeout=SECONDS) as publisher,
        tt.Client("slow-reader", server.uri, timeout=SECONDS) as slow,
        tt.Client("fast-reader", server.uri, timeout=SECONDS) as fast,
    ):
        stalled = slow.bookmark_subscribe("slow", tt.EPOCH, depth="64KB")
        flowing = fast.bookmark_subscribe("slow", tt.EPOCH)
        publisher.publish_batch("slow", numbered(warm, size=size))
        publisher.publish_flush()
        assert [flowing.get(SECONDS).data for _ in range(warm)] == numbered(warm, size=size)
        before = memory_bytes(server.pid)
        for first in range(warm, warm + count, 5000):
            publisher.publish_batch("slow", numbered(5000, first, size))
            publisher.publish_flush()
            got = [flowing.get(SECONDS).data for _ in range(5000)]
            assert got == numbered(5000, first, size), (
                "the fast reader has all messages while the other is blocked"
            )
        # Of 60 MB the server keeps only the cached end of the log, regardless of readers.
        assert memory_bytes(server.pid) - before < 40 * 2**20
        found = [stalled.get(SECONDS).data for _ in range(warm + count)]
        assert found == numbered(warm + count, size=size)


# -- 8: damage ----------------------------------------------------------------------------------------

STOPPED_MESSAGES = 1000


@pytest.fixture
def stopped(tmp_path: Path) -> Callable[[str], Path]:
    """Return a maker of data directories of stopped or killed servers, with commits of 100 messages."""

    def make(how: str) -> Path:
        data = tmp_path / how
        with running_server(data) as server, tt.Client("a", server.uri, timeout=SECONDS) as client:
            for first in range(0, STOPPED_MESSAGES, 100):
                client.publish_batch("orders", numbered(100, first, size=1000))
                client.publish_flush()
            if how == "killed":
                server.kill()
        return data

    return make


def flip(data: Path, body: bytes) -> tuple[Path, int]:
    """Change one bit in the middle of a body, and return the file and the offset of the damage."""
    (file,) = (path for path in (data / "journal").iterdir() if body in path.read_bytes())
    contents = bytearray(file.read_bytes())
    at = contents.index(body) + len(body) // 2
    contents[at] ^= 0x10
    file.write_bytes(contents)
    return file, at


def test_promise_8_start_on_a_damaged_log_is_refused_without_changes(
    stopped: Callable[[str], Path],
) -> None:
    data = stopped("killed")
    file, at = flip(data, numbered(1, 50, size=1000)[0])
    before = files_of(data)
    code, output, errors = run_tickertape("serve", "--data", str(data), "--listen", "tcp://127.0.0.1:0")
    assert (code, output) == (EXIT_REFUSED, "")
    assert "journal_corrupt" in errors
    assert file.name in errors
    offset = named_offset(errors)
    assert offset <= at < offset + 100 * 1100, "the offset is the start of the damaged commit"
    # The lock contains the last process that tried to start.
    assert {**files_of(data), data / "lock": b""} == {**before, data / "lock": b""}


def named_offset(text: str) -> int:
    numbers = [int(word.strip(".,:;")) for word in text.split() if word.strip(".,:;").isdigit()]
    assert len(numbers) >= 1, text
    return numbers[0]


def test_promise_8_damaged_body_is_reported_and_never_delivered(stopped: Callable[[str], Path]) -> None:
    data = stopped("stopped")
    file, at = flip(data, numbered(1, 850, size=1000)[0])
    with running_server(data) as server, tt.Client("reader", server.uri, timeout=SECONDS) as reader:
        stream = reader.replay("orders")
        served: list[bytes] = []
        with pytest.raises(tt.TickertapeError) as raised:
            served.extend(message.data for message in stream)
        assert raised.value.code == "journal_corrupt"
        assert file.name in str(raised.value)
        assert 0 < len(served) <= 800, "messages before the damaged commit, and none of it"
        assert served == numbered(len(served), size=1000)
        # The server continues for other topics and new messages.
        reader.publish("orders", b"more")
        reader.publish_flush()
    code, output, errors = run_tickertape("journal", "verify", str(data))
    assert code == 1
    damage = next(line for line in output.splitlines() if line.startswith("CORRUPT"))
    assert file.name in damage
    assert "corrupt in 1 place" in errors
    assert named_offset(damage.split(file.name)[1]) <= at


# -- 9: the disk fails --------------------------------------------------------------------------------


def test_promise_8_truncated_log_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, tt.Client("a", server.uri, timeout=SECONDS) as client:
        for body in numbered(20, size=300):
            client.publish("orders", body)
            client.publish_flush()
        server.stop()
    (segment,) = (data / "journal").glob("*.segment")
    os.truncate(segment, segment.stat().st_size // 2)
    before = files_of(data)
    code, _, errors = run_tickertape("serve", "--data", str(data), "--listen", "tcp://127.0.0.1:0")
    assert code == EXIT_REFUSED
    assert "a clean stop sealed it, but the seal is missing" in errors
    assert {**files_of(data), data / "lock": b""} == {**before, data / "lock": b""}


@pytest.mark.full
def test_promise_9_disk_failure_stops_acknowledgements(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server:
        store = tt.MemoryPublishStore()
        client = tt.Client("a", server.uri, publish_store=store, timeout=SECONDS)
        lost = threading.Event()
        client.set_disconnect_handler(lambda _: lost.set())
        client.publish_batch("orders", numbered(1000, size=200))
        client.publish_flush()
        # From here on every write beyond the first 64 KiB of a file fails, so each that goes to the log.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        client.publish_batch("orders", numbered(1000, 1000, size=200))
        with pytest.raises(tt.TickertapeError) as raised:
            client.publish_flush()
        assert isinstance(raised.value, tt.Disconnected | tt.Refused)
        assert server.wait() == EXIT_DISK_FAILED
        assert "journal_failed" in server.errors()
        assert lost.wait(SECONDS)
        assert client.unpersisted_count() == 1000, "nothing of it was acknowledged"
        server.start()
        client.connect()
        client.publish_flush()
        assert bodies(client.replay("orders")) == numbered(2000, size=200)
        client.close()


# -- 10: history outside the log ----------------------------------------------------------------------


def test_promise_10_bookmark_outside_the_log_is_an_error(client: tt.Client) -> None:
    client.publish_batch("history", numbered(3))
    client.publish_flush()
    known = next(client.replay("history")).bookmark
    for unknown in ("7|7|", "1234567890123456789|1|", f"[7|7|:{known}]"):
        with pytest.raises(tt.BookmarkUnknown):
            client.bookmark_subscribe("history", unknown)
        with pytest.raises(tt.BookmarkUnknown):
            client.replay("history", unknown)
    # Another policy starts elsewhere, and the connection stays usable.
    from_the_start = client.replay("history", "7|7|", bookmark_not_found="epoch")
    assert bodies(from_the_start) == numbered(3)


def test_promise_10_replay_of_a_non_persistent_topic_is_refused(tmp_path: Path) -> None:
    config = '[[journal.topic]]\nname = "orders"\n'
    with (
        running_server(tmp_path / "data", config) as server,
        tt.Client("a", server.uri, timeout=SECONDS) as client,
    ):
        for ask in (client.bookmark_subscribe, client.replay):
            with pytest.raises(tt.TopicNotRecorded, match="quotes"):
                ask("quotes", tt.EPOCH)
        live = client.subscribe("quotes")
        client.publish("quotes", b"1")
        assert live.get(SECONDS).data == b"1"
        client.publish("orders", b"2")
        client.publish_flush()
        assert bodies(client.replay("orders")) == [b"2"]


# -- directories --------------------------------------------------------------------------------------


def test_data_directory_in_use_is_refused_and_the_server_continues(
    server: RunningServer, client: tt.Client
) -> None:
    code, output, errors = run_tickertape(
        "serve", "--data", str(server.data), "--listen", "tcp://127.0.0.1:0"
    )
    assert (code, output) == (EXIT_REFUSED, "")
    assert "journal_locked" in errors
    assert f"pid {server.pid}" in errors
    client.publish("in use", b"1")
    client.publish_flush()


def test_directory_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "aunt").write_text("dear aunt")
    before = files_of(tmp_path)
    code, output, errors = run_tickertape("serve", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:0")
    assert (code, output) == (EXIT_REFUSED, "")
    assert "not_a_journal" in errors
    assert files_of(tmp_path) == before


@pytest.mark.full
def test_publisher_sequences_ascend_across_server_kills(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        for first in (0, 10, 20):
            with tt.Client("a", server.uri, publish_store=tt.MemoryPublishStore(), timeout=SECONDS) as client:
                client.publish_batch("orders", numbered(10, first))
                client.publish_flush()
            server.kill()
            server.start()
        with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
            messages = list(reader.replay("orders"))
    assert [message.data for message in messages] == numbered(30)
    assert len({message.publisher for message in messages}) == 1
    assert all(a.sequence < b.sequence for a, b in pairwise(messages))
