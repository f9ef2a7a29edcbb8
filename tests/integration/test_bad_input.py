"""Bad input within the protocol: bodies, start points, directories, damage, a full disk.

Each input has its own error and is refused in time. Another client publishes and reads undisturbed, and the
memory of the server stays below `SERVER_ANONYMOUS_BYTES_MAX`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tickertape as tt
from tests.helpers.admin import ask, stats_of
from tests.helpers.peer import Peer, frame
from tests.helpers.processes import files_of, run_tickertape
from tests.helpers.witness import SECONDS, Witness
from tickertape.base.errors import TickertapeError
from tickertape.base.limits import KIB, MIB
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.journal.format.identity import IDENTITY_FILE
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import Ack, Flush, Goodbye, Persisted, Publish, Rejected, Resolve, Subscribe

CONFIG = """
[[journal.topic]]
name = "witness"
[[journal.topic]]
name = "orders"
[[journal.topic]]
name = "raw"
[[journal.topic]]
name = "checked"
[[journal.topic]]
name = "checked-bare"
[[topic]]
name = "checked"
validate = true
[[topic]]
name = "checked-bare"
validate = true
"""
EXIT_REFUSED = 5

pytestmark = pytest.mark.slow


@pytest.fixture
def witness(server: RunningServer) -> Iterator[Witness]:
    watching = Witness(server)
    yield watching
    watching.check()


# -- bodies -------------------------------------------------------------------------------------------


def test_invalid_body_is_rejected_to_the_publisher_only(server: RunningServer, witness: Witness) -> None:
    refused: list[tuple[str, int, bytes]] = []

    def failed(error: TickertapeError, batch: MessageBatch | None) -> None:
        assert isinstance(error.__cause__, tt.BadBody)
        assert "is not json: " in str(error)
        assert batch is not None
        refused.extend(
            (error.code, int(sequence), body)
            for sequence, body in zip(batch.sequences, batch.bodies_list(), strict=True)
        )

    store = tt.MemoryPublishStore()
    with tt.Client("careless", server.uri, publish_store=store, timeout=SECONDS) as client:
        client.set_failed_write_handler(failed)
        sequences = [client.publish("checked", body) for body in (b"1", b"{", b"[3]", b"x", b"5")]
        client.publish_flush()
        assert refused == [("publish_rejected", sequences[1], b"{"), ("publish_rejected", sequences[3], b"x")]
        assert client.publish("checked", b"6") is not None
        client.publish_flush()
        assert client.unpersisted_count() == 0
        assert [message.data for message in client.replay("checked")] == [b"1", b"[3]", b"5", b"6"]


def test_valid_bodies_of_a_frame_with_an_invalid_one_are_stored(
    server: RunningServer, witness: Witness
) -> None:
    with Peer(server.uri, "bare") as peer:
        peer.send(frame(Publish(frame=1), batch_from_bodies("checked-bare", [b'"a"', b"a", b'"b"'])))
        peer.send(frame(Flush(id=1)))
        (rejected,) = [c for c in peer.until(Ack) if isinstance(c, Rejected)]
        assert (rejected.code, rejected.refused) == ("bad_body", (1,))
    with tt.Client("reader", server.uri, timeout=SECONDS) as client:
        assert [message.data for message in client.replay("checked-bare")] == [b'"a"', b'"b"']


def test_topic_without_validation_accepts_any_body(server: RunningServer, witness: Witness) -> None:
    with tt.Client("any", server.uri, timeout=SECONDS) as client:
        client.publish("raw", b"\xff\x00")
        client.publish_flush()
        assert [message.data for message in client.replay("raw")] == [b"\xff\x00"]


# -- requests -----------------------------------------------------------------------------------------

LONG = "x" * 200_000
ASKED: dict[str, tuple[dict[str, object], str]] = {
    "an invalid timestamp": ({"bookmark": "yesterday"}, "bad_bookmark"),
    "an invalid month": ({"bookmark": "20261301T000000"}, "bad_bookmark"),
    "an invalid second": ({"bookmark": "20261101T000060"}, "bad_bookmark"),
    "a zone": ({"bookmark": "20261101T000000+01:00"}, "bad_bookmark"),
    "a small z": ({"bookmark": "20261101T000000z"}, "bad_bookmark"),
    "digits of another script": ({"bookmark": "\uff12\uff10\uff12\uff161101T000000"}, "bad_bookmark"),
    "an empty bookmark": ({"bookmark": ""}, "bad_bookmark"),
    "the most recent": ({"bookmark": "recent"}, "bad_bookmark"),
    "a range without an end": ({"bookmark": "[0:"}, "bad_bookmark"),
    "a range without a bracket": ({"bookmark": "0:20261101T000000)"}, "bad_bookmark"),
    "a range of three": ({"bookmark": "[0:1|2|:3|4|]"}, "bad_bookmark"),
    "a range that ends at NOW": ({"bookmark": "[0:0|1|]"}, "bad_bookmark"),
    "a range without a start": ({"bookmark": "[:20261101T000000)"}, "bad_bookmark"),
    "brackets in a range": ({"bookmark": "[[0:1|2|]]"}, "bad_bookmark"),
    "a time in a list": ({"bookmark": "1|2|,20261101T000000"}, "bad_bookmark"),
    "a list with a hole": ({"bookmark": "1|2|,,3|4|"}, "bad_bookmark"),
    "an invalid bookmark of 200 KB": ({"bookmark": LONG}, "bad_bookmark"),
    "an end that the log does not hold": ({"bookmark": "[0:7|7|]"}, "bookmark_unknown"),
    "an unknown option": ({"bookmark": "0", "options": "no_such_option"}, "bad_option"),
    "an option twice": ({"bookmark": "0", "options": "bookmark,bookmark"}, "bad_option"),
    "an option without a value": ({"bookmark": "0", "options": "bookmark_not_found="}, "bad_option"),
    "an option with a needless value": ({"bookmark": "0", "options": f"timestamp={LONG}"}, "bad_option"),
    "brackets that stay open": ({"bookmark": "0", "options": "conflation_key=[/a"}, "bad_option"),
    "an invalid rate": ({"bookmark": "0", "options": "rate=fast"}, "bad_option"),
    "a rate of zero": ({"bookmark": "0", "options": "rate=0"}, "bad_option"),
    "a rate without a bookmark": ({"options": "rate=2x"}, "bad_option"),
    "a gap of a steady rate": ({"bookmark": "0", "options": "rate=10,rate_max_gap=1s"}, "bad_option"),
    "live and a rate": ({"bookmark": "0", "options": "live,rate=10"}, "bad_option"),
    "live and paused": ({"bookmark": "0", "options": "live,pause"}, "bad_option"),
    "live without a bookmark": ({"options": "live"}, "bad_option"),
    "live and durable": ({"bookmark": "0", "options": "live,fully_durable"}, "bad_option"),
    "conflation by itself": ({"bookmark": "0", "options": "conflation=auto"}, "bad_option"),
    "a key without an interval": ({"bookmark": "0", "options": "conflation_key=[/a]"}, "bad_option"),
    "an invalid key field": ({"bookmark": "0", "options": "conflation=1s,conflation_key=[a]"}, "bad_option"),
    "an invalid select list": ({"options": "select=[a]"}, "bad_option"),
    "200 KB of option": ({"bookmark": "0", "options": LONG}, "bad_option"),
    "a long option twice": ({"bookmark": "0", "options": f"{LONG[:9_000]},{LONG[:9_000]}"}, "bad_option"),
    "an incomplete filter": ({"filter": "/a ="}, "bad_filter"),
    "an empty filter": ({"filter": ""}, "bad_filter"),
    "a filter that goes on": ({"filter": "/a = 1 2"}, "bad_filter"),
    "a quote that stays open": ({"filter": "/a = 'x"}, "bad_filter"),
    "an unknown function": ({"filter": "NO_SUCH(/a) = 1"}, "bad_filter"),
    "an aggregate": ({"filter": "SUM(/a) = 1"}, "bad_filter"),
    "a look-ahead": ({"filter": "/a LIKE '(?=x)'"}, "bad_filter"),
    "a reference back": ({"filter": r"/a LIKE '(x)\1'"}, "bad_filter"),
    "a filter of 200 KB": ({"filter": LONG}, "bad_filter"),
    "a deep filter": ({"filter": "(" * 2_000 + "1=1" + ")" * 2_000}, "bad_filter"),
    "a filter with a control character": ({"filter": "/a = \x00"}, "bad_filter"),
    "a topic that is not recorded": ({"topic": "elsewhere", "bookmark": "0"}, "topic_not_recorded"),
    "no topic": ({"topic": ""}, "bad_topic"),
    "a topic of 200 KB": ({"topic": LONG}, "bad_topic"),
    "a pattern of 200 KB": ({"topic": "^ord.*" + LONG}, "bad_topic"),
    "an invalid pattern": ({"topic": "(ord"}, "bad_topic"),
    "a pattern that is not linear": ({"topic": "^(?=ord)"}, "bad_topic"),
    "the server's own topic": ({"topic": "$control", "bookmark": "0"}, "bad_topic"),
    "a control character": ({"topic": "a\nb"}, "bad_topic"),
    "no subscription id": ({"sub_id": ""}, "bad_command"),
    "a subscription id of 200 KB": ({"sub_id": LONG}, "bad_command"),
    "no credit": ({"credit": 0}, "bad_command"),
    "positions of another journal": (
        {"positions": (0, 1), "journal": LONG}, "wrong_journal",
    ),
    "positions and a bookmark": ({"positions": (0, 1), "bookmark": "0", "journal": ""}, "bad_option"),
}  # fmt: skip


@pytest.mark.behaviour(3)
@pytest.mark.parametrize("what", list(ASKED))
def test_invalid_subscribe_is_refused_in_short_and_the_connection_continues(
    server: RunningServer, what: str
) -> None:
    fields, code = ASKED[what]
    whole: dict[str, object] = {"id": 1, "sub_id": "s", "topic": "orders", "credit": 1000} | fields
    with Peer(server.uri, "asker") as peer:
        peer.send(frame(Subscribe(**whole)))  # type: ignore[arg-type]
        answer = peer.until(Ack)[-1]
        assert isinstance(answer, Ack)
        assert (answer.id, answer.code) == (1, code)
        assert len(answer.text) < 600
        assert answer.text.replace("\n", "").isprintable()
        if "bookmark" in fields and code != "bad_command" and "positions" not in fields:
            resolve = Resolve(
                id=2,
                topic=str(whole["topic"]),
                bookmark=str(fields["bookmark"]),
                options=str(whole.get("options", "")),
            )
            peer.send(frame(resolve))
            answer = peer.until(Ack)[-1]
            assert isinstance(answer, Ack)
            assert (answer.id, answer.code) == (2, code)
        peer.send(frame(Subscribe(id=3, sub_id="good", topic="orders", credit=1000)))
        good = peer.until(Ack)[-1]
        assert isinstance(good, Ack)
        assert (good.id, good.code) == (3, "")


def test_publish_to_an_invalid_topic_is_rejected_and_the_next_frame_is_stored(
    server: RunningServer, witness: Witness
) -> None:
    with Peer(server.uri, "mixer") as peer:
        peer.send(frame(Publish(frame=1), batch_from_bodies("or*ers", [b"1"])))
        peer.send(frame(Publish(frame=2), batch_from_bodies("orders", [b"mixer"])))
        peer.send(frame(Flush(id=1)))
        said = peer.until(Ack)
    assert [(c.frame, c.code) for c in said if isinstance(c, Rejected)] == [(1, "bad_topic")]
    assert [c.frame for c in said if isinstance(c, Persisted)] in ([2], [])


# -- directories --------------------------------------------------------------------------------------


@pytest.mark.full
def test_segment_of_another_instance_refuses_the_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with running_server(tmp_path / name) as made, tt.Client("p", made.uri, timeout=SECONDS) as client:
            client.publish("orders", name.encode())
            client.publish_flush()
    segments = sorted((tmp_path / "a" / "journal").iterdir())
    shutil.copy(segments[0], tmp_path / "b" / "journal" / segments[0].name)
    assert refusal(tmp_path / "b") == "wrong_journal"


def test_directory_of_another_format_refuses_the_start(tmp_path: Path) -> None:
    with running_server(tmp_path / "a"):
        pass
    file = tmp_path / "a" / IDENTITY_FILE
    identity = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode(identity | {"format": 99}))
    assert refusal(tmp_path / "a") == "journal_version"
    file.write_bytes(b"\x00" * 100)
    assert refusal(tmp_path / "a") == "journal_corrupt"
    file.unlink()
    assert refusal(tmp_path / "a") == "not_a_journal"


def test_directory_of_another_instance_refuses_the_start(tmp_path: Path) -> None:
    with running_server(tmp_path / "a", config='[instance]\nname = "ny-1"\n'):
        pass
    assert msgspec.json.decode((tmp_path / "a" / IDENTITY_FILE).read_bytes())["instance"] == "ny-1"
    assert refusal(tmp_path / "a", "--name", "ny-2") == "wrong_journal"
    with running_server(tmp_path / "a", config='[instance]\nname = "ny-1"\n'):
        pass


def test_file_as_data_directory_refuses_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (file, tmp_path / "dangling"):
        code, output, errors = run_tickertape("serve", "--data", str(path), "--listen", "tcp://127.0.0.1:0")
        assert (code, output) == (EXIT_REFUSED, "")
        assert f" start_refused code=not_a_journal data={path} text=" in errors
        assert f"'{path}': it is not a directory" in errors.replace("\\'", "'")
    assert file.read_bytes() == b"mine"


def refusal(data: Path, *options: str) -> str:
    """Return the code of a refused start, which writes only the lock."""
    before = files_of(data) | {data / "lock": b""}
    arguments = "serve", "--data", str(data), "--listen", "tcp://127.0.0.1:0", *options
    code, output, errors = run_tickertape(*arguments)
    assert f" data={data} " in errors
    assert (code, output) == (EXIT_REFUSED, "")
    assert files_of(data) | {data / "lock": b""} == before
    return errors.split(" start_refused code=")[1].split()[0]


def test_damaged_segment_ends_only_the_replay_that_reads_the_damage(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as made, tt.Client("p", made.uri, timeout=SECONDS) as client:
        for first in range(0, 1000, 100):
            bodies = [b"body %06d" % n + bytes(1000) for n in range(first, first + 100)]
            client.publish_batch("orders", bodies)
            client.publish_flush()
    (segment,) = [p for p in (tmp_path / "data" / "journal").iterdir() if b"body 000850" in p.read_bytes()]
    data = bytearray(segment.read_bytes())
    data[data.index(b"body 000850")] ^= 1
    segment.write_bytes(data)
    with running_server(tmp_path / "data") as damaged:
        watching = Witness(damaged)
        with tt.Client("reader", damaged.uri, timeout=SECONDS) as reader:
            stream = reader.replay("orders")
            with pytest.raises(TickertapeError) as caught:
                list(stream)
            assert caught.value.code == "journal_corrupt"
            assert reader.connected
            assert [m.data for m in reader.replay("witness")], "other parts of the log stay readable"
        watching.check()
        assert stats_of(damaged).totals.ended_subscriptions == {"journal_corrupt": 1}
        status, _, metrics = ask(damaged, "/metrics")
        assert (status, one_metric(metrics.decode(), "ended_subscriptions_total")) == (
            200,
            'tickertape_ended_subscriptions_total{code="journal_corrupt"} 1.0',
        )
        code, output, _ = run_tickertape("stats", "--admin", damaged.admin_url)
        assert code == 0
        assert re.search(r"^subs ended +journal_corrupt 1$", output, re.MULTILINE)
        wait_until(lambda: " subscription_ended " in damaged.errors(), SECONDS)
        logged = [line for line in damaged.errors().splitlines() if " subscription_ended " in line]
        assert len(logged) == 1
        assert " WARNING subscription_ended conn=" in logged[0]
        for field in (" client=reader ", " sub=", " topic=orders ", " code=journal_corrupt ", segment.name):
            assert field in logged[0]


def one_metric(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"tickertape_{name}")]
    return line


# -- a full disk --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let root mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk_rejects_publishes_until_space_is_free(small_disk: Path) -> None:
    config = '[journal]\nsegment_size = "1MB"\n'
    body = bytes(8 * KIB)
    with running_server(small_disk / "data", config) as full:
        store = tt.MemoryPublishStore()
        keeper = tt.Client("keeper", full.uri, publish_store=store, timeout=SECONDS)
        bare = tt.Client("bare", full.uri, timeout=SECONDS)
        reader = tt.Client("reader", full.uri, timeout=SECONDS)
        live = reader.subscribe("small")
        bare.publish("small", b"first")
        bare.publish_flush()
        ballast = small_disk / "ballast"
        fill(ballast)
        stored = 0
        while publish_one(bare, "large", body):
            stored += 1
        assert stored < 6 * MIB // len(body)
        # With a store the server closes the connection instead, so no message is lost or reordered.
        keeper.publish("kept", body)
        with pytest.raises(tt.Disconnected, match=r"journal_full|[Nn]ot connected"):
            keeper.publish_flush()
        assert keeper.unpersisted_count() == 1
        # Reads continue, and connections stay open.
        assert live.get(SECONDS).data == b"first"
        assert len(list(reader.replay("large"))) == stored
        assert bare.connected
        ballast.unlink()
        keeper.connect()
        retried = 0
        while not publish_one(bare, "small", b"again"):  # the server tries once a second
            retried += 1
            assert retried < 1000
            wait(bare, 0.05)
        while keeper.unpersisted_count():
            try:
                keeper.publish_flush()
            except tt.Disconnected:
                keeper.connect()
        assert [m.data for m in reader.replay("kept")] == [body]
        assert len(list(reader.replay("large"))) == stored
        assert [m.data for m in reader.replay("small")] == [b"first", b"again"]
        for client in (keeper, bare, reader):
            client.close()


def fill(file: Path) -> None:
    """Fill the disk."""
    written = os.open(file, os.O_WRONLY | os.O_CREAT)
    code = 0
    while not code:
        try:
            os.write(written, bytes(64 * KIB))
        except OSError as error:
            code = error.errno or -1
    os.close(written)
    assert code == errno.ENOSPC


def publish_one(client: tt.Client, topic: str, body: bytes) -> bool:
    """Publish a message, and return False if the disk of the server is full."""
    client.publish(topic, body)
    try:
        client.publish_flush()
    except tt.PublishRejected as error:
        refused = str(error)
    else:
        return True
    assert "Cannot prepare the next segment" in refused
    return False


def wait(client: tt.Client, seconds: float) -> None:
    """Wait on a subscription without messages."""
    stream = client.subscribe("quiet")
    with pytest.raises(tt.TimedOut):
        stream.get(seconds)
    stream.close()


def test_publisher_with_sequences_is_disconnected_while_the_disk_is_full(small_disk: Path) -> None:
    config = '[journal]\nsegment_size = "1MB"\n'
    with running_server(small_disk / "data", config) as full, Peer(full.uri, "raw") as peer:
        fill(small_disk / "ballast")
        publisher = peer.publisher
        number = 0
        codes: list[str] = []
        while not codes:
            number += 1
            batch = batch_from_bodies("t", [bytes(64 * KIB)], publisher=publisher, first_sequence=number)
            peer.send(frame(Publish(frame=number, sequenced=True), batch))
            peer.send(frame(Flush(id=number)))
            said = peer.until_any(Ack, Goodbye)
            codes = [c.code for c in said if isinstance(c, Goodbye)]
        assert codes == ["journal_full"]
        assert not any(isinstance(c, Rejected) for c in said)
