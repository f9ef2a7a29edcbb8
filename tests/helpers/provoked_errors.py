"""Provocations: for each error code a call that makes the product raise the error.

With a real client and server, with the object that raises the error, or in an engine without sockets.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

import tickertape as tt
from tests.helpers.engine_parts import make_outbox
from tests.helpers.linked import join
from tests.helpers.peer import Peer, frame
from tests.helpers.queues import SECONDS
from tests.helpers.wire import joined
from tests.simulation.engine_world import EngineWorld
from tests.simulation.linked_engine import LinkedEngine
from tests.simulation.linked_engines import link_to
from tickertape.archive.location import ArchiveLocation, location_of
from tickertape.base.errors import FrameStalled, TickertapeError, error_from_code
from tickertape.base.interfaces import Now
from tickertape.base.limits import MIB
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.client.common.fork_safety import forked_error
from tickertape.client.protocol.heartbeat import ClientHeartbeat
from tickertape.client.publish_store.protocol import Stored
from tickertape.client.publishing.store_checks import taken_over
from tickertape.client.sql.query import SqlQuery
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import StagingJob
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor
from tickertape.engine.sow.query.order import SortOrder
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.retired_state import expired
from tickertape.journal.format.staging_file import StageOpen
from tickertape.journal.offline.snapshot import take_snapshot
from tickertape.payload.paths import parse_path
from tickertape.server.access.tokens import tokens_in
from tickertape.server.config.config import load_config
from tickertape.server.engine_driver import _STALLED
from tickertape.server.startup import open_instance
from tickertape.server.storage.spill_files import SpillFiles
from tickertape.server.storage.staging_files import StagingFiles
from tickertape.testing import RunningServer
from tickertape.testing.disk import StrictDisk
from tickertape.wire.commands import (
    PREFACE,
    Abort,
    Ack,
    Command,
    Commit,
    Flush,
    Goodbye,
    Logon,
    Prepare,
    Publish,
    Stage,
    Subscribe,
    Transaction,
)
from tickertape.wire.heartbeat import Liveness
from tickertape.wire.link import LinkNames
from tickertape.wire.link_order import LinkOrder

CONFIG = """
[limits]
subscriptions_per_connection_max = 2
[[journal.topic]]
name = "orders"
[[journal.topic]]
name = "checked"
[[topic]]
name = "checked"
validate = true
[[topic]]
name = "raw"
message_type = "binary"
"""


@dataclass
class Place:
    """The server of the table, with a directory for files."""

    server: RunningServer
    tls: str
    silent: Peer
    path: Path

    def client(self, name: str | None = None, **options: Any) -> tt.Client:
        made = tt.Client(name or f"client-{os.urandom(4).hex()}", self.server.uri, timeout=SECONDS, **options)
        made.connect()
        return made

    def goodbye(self, data: bytes, name: str | None = None) -> TickertapeError:
        """Return the error with which the server closes a connection that sent `data`."""
        with Peer(self.server.uri, name) as peer:
            peer.send(data)
            return reported(peer.until_closed()[-1])


def reported(command: Command) -> TickertapeError:
    assert isinstance(command, Goodbye | Ack), command
    return error_from_code(command.code, command.text)


def raised(call: Callable[[], object]) -> TickertapeError:
    """Return the error of a call."""
    with pytest.raises(TickertapeError) as caught:
        call()
    return caught.value


def of_client(call: Callable[[tt.Client], object]) -> Callable[[Place], TickertapeError]:
    """Return a provocation by a call of a connected client."""

    def provoke(place: Place) -> TickertapeError:
        with place.client() as client:
            return raised(lambda: call(client))

    return provoke


def of_place(call: Callable[[Place], object]) -> Callable[[Place], TickertapeError]:
    """Return a provocation by a call that gets the server and a directory."""
    return lambda place: raised(lambda: call(place))


Provoke = Callable[[Place], TickertapeError]


# -- provocations -------------------------------------------------------------------------------------


def refused_link(_: Place) -> TickertapeError:
    """A link to a server that does not replicate back."""
    source = LinkedEngine(1, 0, (link_to(1),), Counter())
    destination = LinkedEngine(2, 1, (), Counter())
    join(source, destination)
    (ended,) = source.ended
    assert ended.error is not None
    return ended.error


def twice(client: tt.Client) -> None:
    client.subscribe("orders", sub_id="s")
    client.subscribe("orders", sub_id="s")


def many(client: tt.Client) -> None:
    for number in range(3):
        client.subscribe("orders", sub_id=str(number))


def ended(client: tt.Client) -> None:
    stream = client.bookmark_subscribe("orders", tt.NOW, sub_id="a-stream")
    stream.close()
    stream.get(timeout=SECONDS)


def rejected(client: tt.Client) -> None:
    client.publish("checked", b"{")
    client.publish_flush()


def cause_of(call: Callable[[tt.Client], object]) -> Provoke:
    """Return a provocation by a call whose rejection the client reports to its handler."""

    def provoke(place: Place) -> TickertapeError:
        errors: list[TickertapeError] = []
        with place.client() as client:
            client.set_failed_write_handler(lambda error, _batch: errors.append(error))
            call(client)
            client.publish_flush()
        cause = errors[0].__cause__
        assert isinstance(cause, TickertapeError)
        return cause

    return provoke


def closed(place: Place) -> None:
    client = place.client("gone")
    client.close()
    client.publish("orders", b"1")


def publish_and_flush(client: tt.Client) -> None:
    """Wait for the answer to a message, so that the loss of the connection cannot arrive after the call."""
    client.publish("orders", b"1")
    client.publish_flush(timeout=SECONDS)


def taken_name(place: Place) -> TickertapeError:
    first = place.client("taken")
    lost: list[TickertapeError] = []
    with tt.Client(first.name, place.server.uri, timeout=SECONDS):
        lost.append(raised(lambda: publish_and_flush(first)))
    first.close()
    cause = lost[0] if isinstance(lost[0], tt.NameInUse) else lost[0].__cause__
    assert isinstance(cause, TickertapeError)
    return cause


def full_store(place: Place) -> None:
    store = tt.MemoryPublishStore(bytes_max=4096, when_full="raise")
    client = tt.Client("full", place.server.uri, publish_store=store)
    for _ in range(10):
        client.publish("orders", bytes(1000))


def foreign_store(place: Place) -> None:
    (place.path / "file").write_bytes(b"mine")
    tt.FilePublishStore(place.path)


def store_file(place: Place) -> Path:
    """Return the segment of a publish store that a client used."""
    store = tt.FilePublishStore(place.path / "s")
    store.attach("mine")
    store.close()
    return next((place.path / "s").glob("*.segment"))


def other_owner(place: Place) -> None:
    store_file(place)
    store = tt.FilePublishStore(place.path / "s")
    try:
        store.attach("other")
    finally:
        store.close()


def changed_store(at: int, value: bytes | None) -> Callable[[Place], TickertapeError]:
    """Return a provocation by a store whose segment was changed. None cuts it at `at`."""

    def provoke(place: Place) -> TickertapeError:
        file = store_file(place)
        data = file.read_bytes()
        file.write_bytes(data[:at] if value is None else data[:at] + value + data[at + len(value) :])
        return raised(lambda: tt.FilePublishStore(place.path / "s").attach("mine"))

    return provoke


def locked_store(place: Place) -> TickertapeError:
    first = tt.FilePublishStore(place.path / "s")
    try:
        return raised(lambda: tt.FilePublishStore(place.path / "s"))
    finally:
        first.close()


def store_of_a_file(place: Place) -> None:
    (place.path / "file").touch()
    tt.FilePublishStore(place.path / "file" / "s")


def full_ring(place: Place) -> None:
    store = tt.RingBookmarkStore(place.path / "ring", subscriptions=1, publishers=1)
    client = place.client(bookmark_store=store)
    try:
        for number in range(2):
            client.bookmark_subscribe("orders", tt.EPOCH, sub_id=str(number))
    finally:
        client.close()


def identity(text: str) -> Callable[[Place], TickertapeError]:
    """Return a provocation by a data directory with `identity.json`."""

    def provoke(place: Place) -> TickertapeError:
        (place.path / "identity.json").write_text(text)
        return raised(lambda: take_snapshot(SystemDisk(place.path)))

    return provoke


def other_instance(place: Place) -> None:
    disk = StrictDisk(Random(1))
    open_identity(disk, owner="first", create=True, new_id=bytes(16), instance="first")
    disk = disk.crash_clone(Random(1))
    open_identity(disk, owner="second", create=True, new_id=bytes(16), instance="second")


class Sink:
    """A connection to an engine without sockets, which commits transactions."""

    def __init__(self) -> None:
        self.world = EngineWorld(1, recorded=frozenset({"a"}))
        self.peer = self.world.connect("sink")

    def ask(self, kind: type[Command], batch: MessageBatch | None = None, **fields: object) -> int:
        self.peer.ids += 1
        self.peer.send(
            kind(id=self.peer.ids, transaction=Transaction(publisher="sink", name="t"), **fields), batch
        )
        return self.peer.ids

    def error(self, number: int, *, settle: bool = True) -> TickertapeError:
        if settle:
            self.world.settle()
        return reported(self.peer.answers.pop(number))

    def stage(self, body: bytes) -> TickertapeError | None:
        number = self.ask(Stage, MessageBatch.parse(batch_from_bodies("a", [body]).encode()), part="0")
        self.world.settle()
        answer = self.peer.answers.pop(number)
        return reported(answer) if isinstance(answer, Ack) and answer.code else None


def busy(_: Place) -> TickertapeError:
    sink = Sink()
    sink.stage(b"1")
    sink.ask(Prepare, part="0")
    sink.world.settle()
    sink.ask(Commit, parts=("0",))
    return sink.error(sink.ask(Abort), settle=False)


def unknown(_: Place) -> TickertapeError:
    sink = Sink()
    return sink.error(sink.ask(Commit, parts=("0",)))


def staged(transaction_bytes: int, disk_bytes: int) -> Callable[[Place], TickertapeError]:
    def provoke(_: Place) -> TickertapeError:
        sink = Sink()
        limits = sink.world.broker.transactions.staging.limits
        limits.transaction_bytes, limits.disk_bytes = transaction_bytes, disk_bytes
        error = sink.stage(bytes(4_000))
        assert error is not None
        return error

    return provoke


def staging_failed(_: Place) -> TickertapeError:
    answers: list[object] = []
    files = StagingFiles(StrictDisk(Random(1)), lambda _token, answer: answers.append(answer))
    files.submit(StagingJob(1, StageOpen(1)))
    files.stop()
    (error,) = answers
    assert isinstance(error, TickertapeError)
    return error


def collision(_: Place) -> TickertapeError:
    world = EngineWorld(1)
    world.broker._sessions._publishers.collides = lambda *_, **__: True  # type: ignore[method-assign]
    peer = world.connect("sink")
    assert peer.goodbye is not None
    return reported(peer.goodbye)


def stopping(_: Place) -> TickertapeError:
    world = EngineWorld(1)
    world.broker.close(world.now())
    peer = world.connect("late")
    assert peer.goodbye is not None
    return reported(peer.goodbye)


def slow(_: Place) -> TickertapeError:
    limits = SlowConsumerLimits(memory_bytes=2_000_000, connection_bytes=500_000, disk_bytes=0)
    world = EngineWorld(1, recorded=frozenset(), slow_clients=limits)
    reader = world.connect("slow")
    reader.subscribe("s", "u", credit=1 << 30)
    world.broker.blocked(reader.conn)
    publisher = world.connect("p")
    for _number in range(80):
        publisher.publish("u", [bytes(10_000)], sequenced=False)
    assert reader.goodbye is not None
    return reported(reader.goodbye)


def failed_disk(_: Place) -> TickertapeError:
    world = EngineWorld(1)
    world.disk.fail("write", 1, errno.EIO)
    world.connect("p").publish("a", [b"1"])
    world.settle()
    failure = world.broker.journal.commits.failure
    assert failure is not None
    return failure


def full_disk(_: Place) -> TickertapeError:
    sink = Sink()
    bodies = [bytes([n]) * (MIB // 8) for n in range(8)]
    sink.ask(Stage, MessageBatch.parse(batch_from_bodies("a", bodies).encode()), part="0")
    sink.ask(Prepare, part="0")
    sink.world.settle()
    for nth in range(1, 30):
        sink.world.disk.fail("preallocate", nth, errno.ENOSPC)
    return sink.error(sink.ask(Commit, parts=("0",)))


def archive(place: Place) -> None:
    from tickertape.archive.archive_writer import ArchiveWriter  # imports Delta tables

    ArchiveWriter(ArchiveLocation(str(place.path / "none")))


def configuration(place: Place) -> None:
    file = place.path / "c.toml"
    file.write_text("[journal]\nsnyc = 'always'\n")
    load_config(file)


def wrong_token(place: Place) -> TickertapeError:
    tokens = tokens_in(b"", str(place.path))
    return raised(lambda: tokens.user_of(Logon(name="n", password="p"), Now(0.0, 0)))


def over(_: Place) -> TickertapeError:
    batch = batch_from_bodies("orders", [b"1"])
    found = taken_over("mine", [Stored(5, 5, batch)], 4, 9)
    assert found is not None
    return found


def silence(_: Place) -> TickertapeError:
    heartbeat = ClientHeartbeat()
    heartbeat.choose(5, 20)
    return heartbeat.silence()


def header(data: bytes) -> bytes:
    return joined([struct.pack("<IIII", 16 + len(data) + -len(data) % 8, len(data), crc32c(data), 0), data])


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def batch_frame(batch: bytes) -> bytes:
    """Return a publish frame around `batch`, with a valid checksum of it."""
    whole = frame(Publish(frame=1), batch_from_bodies("orders", [b"1"]))
    size = struct.unpack_from("<I", whole, 4)[0]
    begin = 16 + size + -size % 8
    prefix = struct.pack("<IIII", begin + len(batch), size, crc32c(whole[16 : 16 + size]), crc32c(batch))
    return prefix + whole[16:begin] + batch


def refused(command: Command) -> Provoke:
    """Return a provocation by a command that a client does not send."""

    def provoke(place: Place) -> TickertapeError:
        with Peer(place.server.uri, "fields") as peer:
            peer.send(frame(command))
            return reported(peer.until(Ack)[-1])

    return provoke


GOOD = bytes(batch_from_bodies("orders", [b"12345678"]).encode())
LOGON = frame(Logon(name="again"))

PROVOKED: dict[str, Provoke] = {
    "usage": of_client(lambda c: c.sow_delete("orders")),
    "bad_bookmark": of_client(lambda c: c.bookmark_subscribe("orders", "yesterday")),
    "bad_option": of_client(lambda c: c.subscribe("orders", options="rat=1")),
    "limit_reached": of_client(many),
    "bad_topic": of_client(lambda c: c.publish("a.*", b"1")),
    "bad_name": of_place(lambda p: tt.Client("", p.server.uri)),
    "bad_filter": of_client(lambda c: c.subscribe("orders", filter="/price >")),
    "bad_path": of_place(lambda _: parse_path("")),
    "bad_order_by": of_place(lambda _: SortOrder.parse("price DESC")),
    "bad_query": of_place(lambda _: SqlQuery("selec 1")),
    "message_too_large": of_client(lambda c: c.publish("orders", bytes(17 * MIB))),
    "bad_message": of_client(lambda c: c.publish("orders", object())),
    "bad_body": cause_of(lambda c: c.publish("checked", b"{")),
    "bad_configuration": of_place(configuration),
    "topic_not_recorded": of_client(lambda c: c.bookmark_subscribe("odrers", tt.EPOCH)),
    "bookmark_unknown": of_client(lambda c: c.bookmark_subscribe("orders", "1|2|")),
    "not_a_queue": cause_of(lambda c: c.ack("orders", "1|2|")),
    "bookmark_expired": lambda _: expired("position 3", None, None),
    "subscription_exists": of_client(twice),
    "subscription_unknown": of_client(lambda c: c.pause("nope")),
    "publish_rejected": of_client(rejected),
    "publisher_taken_over": over,
    "wrong_journal": of_place(other_instance),
    "timed_out": of_client(lambda c: c.subscribe("orders", sub_id="a-stream").get(timeout=0)),
    "stream_ended": of_client(ended),
    "transaction_busy": busy,
    "transaction_too_large": staged(1_000, 9_000),
    "transaction_unknown": unknown,
    "closed": of_place(closed),
    "forked": lambda _: forked_error(),
    "store_full": of_place(full_store),
    "disconnected": of_place(lambda _: tt.Client("c", "tcp://127.0.0.1:1").connect()),
    "heartbeat": silence,
    "tls_failed": of_place(lambda p: tt.Client("c", p.server.uri.replace("tcp", "tls")).connect()),
    "authentication_failed": wrong_token,
    "tls_required": of_place(lambda p: tt.Client("c", f"tcp://{p.tls}").connect()),
    "name_in_use": taken_name,
    "publisher_collision": collision,
    "not_ready": stopping,
    "slow_client": slow,
    "not_tickertape": of_place(lambda p: tt.Client("c", p.server.admin_url.replace("http", "tcp")).connect()),
    "bad_version": lambda p: p.goodbye(b"tktape/9" + LOGON),
    "bad_frame": lambda p: p.goodbye(PREFACE + changed(LOGON, 20)),
    "frame_too_large": lambda p: p.goodbye(PREFACE + struct.pack("<IIII", 1 << 30, 32, 0, 0)),
    "bad_command": lambda p: p.goodbye(PREFACE + header(b"\x81\xa1c\xa4boom")),
    "bad_batch": lambda p: p.goodbye(batch_frame(bytes(4096)), "peer"),
    "bad_link": of_place(lambda _: LinkOrder().from_source(LinkNames(end=1))),
    "link_refused": refused_link,
    "corrupt_batch": lambda p: p.goodbye(batch_frame(changed(GOOD, len(GOOD) - 8)), "peer"),
    "logon_required": lambda p: p.goodbye(PREFACE + frame(Flush(id=1))),
    "already_logged_on": lambda p: p.goodbye(LOGON, "peer"),
    "logon_timeout": lambda p: reported(p.silent.until_closed()[-1]),
    "frame_stalled": lambda _: FrameStalled(_STALLED),
    "not_a_journal": of_place(lambda p: take_snapshot(SystemDisk(p.path))),
    "journal_locked": of_place(
        lambda p: open_identity(SystemDisk(p.server.data), owner="x", create=False, new_id=b"")
    ),
    "journal_version": identity('{"journal":"%s","format":99}' % ("00" * 16)),
    "journal_corrupt": identity("?"),
    "journal_failed": failed_disk,
    "spill_failed": of_place(lambda p: SpillFiles(p.path / "absent" / "below", "x")),
    "staging_full": staged(9_000, 1_000),
    "staging_failed": staging_failed,
    "journal_full": full_disk,
    "archive_failed": of_place(archive),
    "not_a_store": of_place(foreign_store),
    "store_locked": locked_store,
    "store_owner_mismatch": of_place(other_owner),
    "store_version": changed_store(8, b"\x63"),
    "store_corrupt": changed_store(10, None),
    "store_failed": of_place(store_of_a_file),
    "bookmark_store_full": of_place(full_ring),
}


def silent_client(_: Place) -> TickertapeError:
    clock = EngineClock()
    clock.set(Now(100.0, 0))
    monitor = HeartbeatMonitor(make_outbox(), clock)
    monitor.begin(1, 1000)
    clock.set(Now(102.0, 0))
    error = monitor.probed(1, Liveness(100.0, 0, 100.0))
    assert error is not None
    return error


def lost_recovery_point(place: Place) -> None:
    queue = '[[queue]]\nname = "orders"\nrecovery_point = "1|2|"\n'
    file = place.path / "c.toml"
    file.write_text(f'[instance]\ndata = "{place.path / "data"}"\n{CONFIG}{queue}')
    open_instance(load_config(file))


FURTHER: dict[str, tuple[str, Provoke, str | None]] = {
    "heartbeat of a client": ("heartbeat", silent_client, None),
    "pattern that is no expression": ("bad_topic", of_client(lambda c: c.subscribe("a(.*")), "a(.*"),
    "pattern with a look-ahead": ("bad_topic", of_client(lambda c: c.subscribe("a(?=b)")), "a(?=b)"),
    "pattern of many states": ("bad_topic", of_client(lambda c: c.subscribe("a.{100}b")), "a.{100}b"),
    "pattern that is not Unicode": ("bad_topic", of_client(lambda c: c.subscribe("\ud800.*")), r"\ud800.*"),
    "topic that is not Unicode": ("bad_topic", of_client(lambda c: c.subscribe("\ud800")), r"\ud800"),
    "filter that is not Unicode": (
        "bad_option", of_client(lambda c: c.subscribe("orders", filter="\ud800")), r"\ud800"
    ),
    "select list of a type without fields": (
        "bad_option", of_client(lambda c: c.subscribe("raw", select="[-/,+/a]")), "[-/,+/a]"
    ),
    "conflation key of a type without fields": (
        "bad_option",
        of_client(lambda c: c.subscribe("raw", conflation="1s", conflation_key="/a")),
        "/a",
    ),
    "pause without a subscription": ("usage", of_client(lambda c: c.pause()), None),
    "positions of another journal": (
        "wrong_journal", refused(
            Subscribe(id=1, sub_id="s", topic="orders", credit=4096, positions=(0, 1), journal="ab" * 16)
        ), "ab" * 16
    ),
    "credit out of range": (
        "bad_command", refused(Subscribe(id=1, sub_id="s", topic="orders", credit=1)), None
    ),
    "recovery point that is not in the log": ("bookmark_unknown", of_place(lost_recovery_point), "1|2|"),
    "scheme of an archive": (
        "bad_option", of_place(lambda _: location_of("s4://bucket/a")), "s4://bucket/a"
    ),
    "storage options of a directory": (
        "bad_option", of_place(lambda _: location_of("/srv/a", {"A": "b"})), "/srv/a"
    ),
}  # fmt: skip
"""Further errors by a name: the code, the provocation, and the value that the text has in quotes."""
