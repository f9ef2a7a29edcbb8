"""Fuzz targets, each with its valid inputs and allowed exceptions.

`allowed` of a target has the exceptions that an input may cause. Must never catch more than these.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from tests.fuzz.bodies import BODY_TARGETS
from tests.fuzz.claims import CLAIM_TARGETS
from tests.fuzz.deletes import DELETE_TARGETS
from tests.fuzz.filters import FILTER_TARGETS
from tests.fuzz.links import LINK_TARGETS
from tests.fuzz.mutations import mended_frames, mended_segment
from tests.fuzz.security import TOKENS_TARGET
from tests.fuzz.sow import SOW_TARGETS
from tests.fuzz.staging import STAGING_TARGETS
from tests.fuzz.state_files import STATE_TARGETS
from tests.fuzz.stores import STORE_TARGETS
from tests.fuzz.target import TEXT_CHARACTERS_MAX, Target, brief, taken, texts
from tests.helpers.engine_parts import make_validation
from tests.helpers.wire_golden import examples
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_log import Log, disk_with, messages_in, reopened, small_log
from tests.unit.client.peer import Named
from tests.unit.server.config.test_config import FULL
from tickertape.base.bookmarks import Bookmark, parse_bookmark
from tickertape.base.errors import (
    BadBatch,
    BadBookmark,
    BadOption,
    ConfigurationError,
    CorruptBatch,
    Disconnected,
    JournalCorrupt,
    JournalVersion,
    MessageTooLarge,
    WrongJournal,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import frame_bytes_max
from tickertape.base.options import format_options, list_value, parse_options
from tickertape.base.units import parse_interval, parse_size
from tickertape.batch import MessageBatch, merge, select, select_topic, slice_batch
from tickertape.client.common.effects import EndConnection
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.journal.format.identity import IDENTITY_FILE, read_identity
from tickertape.journal.format.retired_state import (
    ForeignRecord,
    HighestSequences,
    RetiredManifest,
    RetiredState,
    decode_retired,
    encode_retired,
    is_expired,
)
from tickertape.journal.format.segment import (
    FormatError,
    decode_commit,
    decode_footer,
    decode_segment_header,
    encode_commit,
    encode_segment_header,
    segment_path,
)
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.offline.verify import verify
from tickertape.journal.recovery.segment_scan import SegmentScan
from tickertape.server.config.addresses import parse_listen
from tickertape.server.config.config import examine
from tickertape.wire.commands import (
    PREFACE,
    Ack,
    LoggedOn,
    Logon,
    Persisted,
    Processed,
    Publish,
    Rejected,
)
from tickertape.wire.connection import ClientRole, Connection, Received, Violation
from tickertape.wire.frames import FrameReader, encode_frame

# -- the wire -----------------------------------------------------------------------------------------


def _frames(role: ClientRole) -> list[bytes]:
    """Return each example of a side in a stream of its own, and all of them in one."""
    frames = [b"".join(encode_frame(c, b)) for r, c, b in examples().values() if r == role]
    return [PREFACE + frame for frame in frames] + [PREFACE + b"".join(frames)]


def wire(role: ClientRole, data: bytes) -> str:
    """Feed a connection: no exception, a violation is the last event, and at most one frame is held in
    memory.
    """
    connection = Connection(role)
    connection.logged_on()
    stream = data if role == "server" else data[len(PREFACE) :]
    events = connection.feed(stream)
    assert not any(isinstance(event, Violation) for event in events[:-1])
    assert connection.held_bytes <= frame_bytes_max
    for event in events:
        if isinstance(event, Received) and event.batch is not None:
            use(event.batch)
        elif isinstance(event, Violation):
            brief(event.error)
    one_by_one = Connection(role)
    one_by_one.logged_on()
    again = [event for at in range(len(stream)) for event in one_by_one.feed(stream[at : at + 1])]
    assert [type(event) for event in again] == [type(event) for event in events]
    return "violation" if events and isinstance(events[-1], Violation) else "taken"


def wire_server(data: bytes) -> str:
    """Read the commands of a client."""
    return wire("server", data)


def wire_client(data: bytes) -> str:
    """Read the commands of a server."""
    return wire("client", data)


def frame_reader(data: bytes) -> str:
    """Feed a frame reader: no exception, and its frames are inside the input."""
    reader = FrameReader()
    rest, taken = memoryview(data), 0
    while rest and reader.error is None:
        room = reader.buffer()
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        rest = rest[size:]
        for frame in reader.received(size):
            taken += 16 + len(frame.header) + (0 if frame.batch is None else len(memoryview(frame.batch)))
    assert taken <= len(data)
    return "taken" if reader.error is None else "violation"


def engine(data: bytes) -> str:
    """Feed commands of a client to an engine: no exception, and another client is served."""
    world = EngineWorld(1, recorded=frozenset({"orders", "t"}), validated={"t": "json"})
    witness = world.connect("witness")
    connection = Connection("server")
    connection.logged_on()
    conn = 77
    world.broker.connected(conn)
    for event in connection.feed(data):
        if isinstance(event, Violation):
            world.broker.goodbye(conn, event.error)
        else:
            world.broker.received(conn, event.command, event.batch, world.now())
        world.collect()
    world.settle()
    _undisturbed(world, witness)
    return "stays" if conn in world.broker.connections else "sent away"


def _undisturbed(world: EngineWorld, witness: Peer) -> None:
    assert world.fatal is None
    witness.subscribe("watch", "orders", bookmark="0|1|")
    witness.publish("orders", [b"seen"])
    world.settle()
    assert witness.goodbye is None
    assert [heard.body for heard in witness.heard["watch"]] == [b"seen"]


def _sessions() -> list[bytes]:
    """Return the commands of a client from its logon on."""
    commands = [(c, b) for r, c, b in examples().values() if r == "client" and not isinstance(c, Logon)]
    logon = PREFACE + b"".join(encode_frame(Logon(name="fuzzer")))
    whole = [b"".join(encode_frame(c, b)) for c, b in commands if not isinstance(c, Publish)]
    publishes = [b"".join(encode_frame(c, b)) for c, b in commands if isinstance(c, Publish)]
    return [logon + b"".join(publishes + whole), *(logon + frame for frame in publishes + whole)]


_NOW: Final = Now(100.0, 1_760_000_000_000_000)
_LOGGED_ON: Final = LoggedOn(
    version=0,
    software="",
    instance="a",
    journal="j",
    epoch=1,
    publisher=7,
    last_persisted=0,
    recorded=("orders", "fills"),
    validated=("orders",),
)


def client(data: bytes) -> str:
    """Feed the commands of a server to a working client: no exception, at worst it disconnects."""
    core = ClientProtocol("fuzzed")
    core.set_store(MemoryPublishStore(), _NOW)
    core.receive(ConnectionOpened(Named("logon")), _NOW)
    core.receive(b"".join(encode_frame(_LOGGED_ON)), _NOW)
    for number in range(6):
        core.publishing.publish("orders" if number % 2 else "fills", b"%d" % number)
        core.publishing.publish("unrecorded", b"%d" % number)
    core.subscribe(Named("token"), make_request("orders", "s", bookmark="0"), Named("sink"))
    core.flush(Named("flush"), "persisted")
    core.receive(data, _NOW)
    hung_up = any(isinstance(effect, EndConnection) for effect in core.effects())
    core.receive(ConnectionEnded(Disconnected("over")), _NOW)
    core.receive(ConnectionOpened(Named("again")), _NOW)
    core.receive(b"".join(encode_frame(_LOGGED_ON)), _NOW)
    core.effects()
    return "hung up" if hung_up else "goes on"


def _server_streams() -> list[bytes]:
    """Return possible answers to that client: each by itself, and all of them."""
    answers = [
        Ack(id=1, start=0),
        Persisted(frame=1, sequence=_NOW.wall * 1000 + 1),
        Rejected(frame=1, code="bad_topic", text="no"),
        Rejected(frame=3, sequence=1, code="bad_body", text="no", refused=(_NOW.wall * 1000 + 2,)),
        Processed(frame=2),
        Persisted(frame=4, sequence=_NOW.wall * 1000 + 6),
    ]
    frames = [b"".join(encode_frame(answer)) for answer in answers]
    frames += [b"".join(encode_frame(c, b)) for r, c, b in examples().values() if r == "server"]
    return [*frames, b"".join(frames[:6]), b"".join(frames)]


def mended_stream(data: bytes) -> bytes:
    """Return `mended_frames` of a stream without a preface."""
    return mended_frames(PREFACE + data)[len(PREFACE) :]


# -- batches ------------------------------------------------------------------------------------------


def batch(data: bytes) -> str:
    """`BadBatch`, or a batch that can be used in every way."""
    parsed = MessageBatch.parse(data)
    with taken():
        assert parsed.encode() == data
        use(parsed)
    return "taken"


def use(parsed: MessageBatch) -> None:
    """Use a parsed batch: only `CorruptBatch` from `verify`, `MessageTooLarge` from oversized ones."""
    with contextlib.suppress(CorruptBatch):
        parsed.verify()
    messages = list(parsed)
    assert len(messages) == parsed.count
    assert sum(len(message.data) for message in messages) == parsed.body_bytes
    for labels in (parsed.correlation_ids, parsed.keys, parsed.headers):
        assert labels is None or len(labels.text) == labels.offsets[-1]
    assert parsed.order_stamps is None or len(parsed.order_stamps) == parsed.run_count
    assert parsed.message_flags is None or len(parsed.message_flags) == parsed.count
    with contextlib.suppress(MessageTooLarge):
        half = slice_batch(parsed, parsed.count // 2, parsed.count)
        chosen = select(parsed, np.arange(parsed.count) % 2 == 0)
        for part in (half, chosen, merge([half, chosen])):
            assert MessageBatch.parse(part.encode()).count == part.count
        for topic in parsed.topics[:4]:
            select_topic(parsed, topic)
    split = make_validation(dict.fromkeys(parsed.topics[:4], "json")).split(Publish(frame=1), parsed)
    assert split is None or split.rejections


def _batches() -> list[bytes]:
    reserved = (Path(__file__).parents[1] / "golden" / "batch-reserved.bin").read_bytes()
    return [*[b.encode() for _, _, b in examples().values() if b is not None], reserved]


# -- the journal --------------------------------------------------------------------------------------


@functools.cache
def _log() -> Log:
    return small_log(3, marks=True)


def headers(data: bytes) -> str:
    """Decode headers: `FormatError`, None for other bytes, or a value that round-trips."""
    with contextlib.suppress(FormatError):
        header, _ = decode_segment_header(data)
        assert decode_segment_header(encode_segment_header(header)[0])[0] == header
    commit = decode_commit(data, segment_header_bytes)
    if commit is not None:
        again = decode_commit(encode_commit(commit)[0])
        assert again is not None
    decode_footer(data[-40:])
    return "no commit" if commit is None else "a commit"


def _headers() -> list[bytes]:
    files = _log().files
    ends = [data[: segment_header_bytes + commit_header_bytes] + data[-40:] for data in files.values()]
    return [end for end in ends if len(end) > segment_header_bytes]


def index(data: bytes) -> str:
    """`ValueError`, or an index that answers every question."""
    found = SegmentIndex.decode(data, 1 << 20)
    with taken():
        _ask_everything(found)
    return "taken"


def _ask_everything(found: SegmentIndex) -> None:
    for block in range(min(found.blocks, 8)):
        found.block_bounds(block)
        found.position_bounds(block)
        found.next_block_with("topic11", block)
    found.block_of_position(5)
    found.block_of_time(1_700_000_000_000_000)
    found.places_of_publisher(11, 3)
    found.publisher_bounds(11)
    found.highest_sequences()
    found.encode()
    while found.reduce():
        found.places_of_publisher(11, 3)


def retired(data: bytes) -> str:
    """Decode retired state: `ValueError`, or a usable value that can be rewritten."""
    head = b"TKTRET\0\0" + bytes(4) + crc32c(data).to_bytes(4, "little")
    found = decode_retired(head + data)
    with taken():
        assert found.highest.of(11) <= max(found.highest.as_dict().values(), default=0)
        str(found)
        assert decode_retired(encode_retired(found))._replace(highest=found.highest) == found
        is_expired(found, Bookmark(11, 3))
    return "taken"


def _retireds() -> list[bytes]:
    highest = HighestSequences(np.array([11, 12], np.uint64), np.array([5, 9], np.uint64))
    kept = RetiredState(
        bytes(range(16)),
        3,
        40,
        7,
        123,
        8192,
        1_700_000_000_000_000,
        24_576,
        highest,
        (b"a", b"bc"),
        {},
        (),
        {},
    )
    reserved = kept._replace(
        records=(b"a", ForeignRecord(bytes(16), b"bc")),
        manifests={"orders": RetiredManifest(40, 6, 2, 123, 456)},
        links=(b"link",),
        holes={11: np.array([2, 3], np.uint64).tobytes()},
    )
    return [encode_retired(one)[16:] for one in (kept, reserved)]


def _indexes() -> list[bytes]:
    data = _log().files[segment_path(1)]
    footer = decode_footer(data[-40:])
    assert footer is not None
    begin = footer.seal_offset + commit_header_bytes
    return [data[begin : begin + footer.index_bytes]]


def segment(data: bytes) -> str:
    """Scan a segment: `FormatError` from its header, or a finite scan with all commits inside."""
    header, crc = decode_segment_header(data[:segment_header_bytes])
    with taken():
        scan = SegmentScan(lambda at, size: data[at : at + size], len(data), header, crc)
        end = segment_header_bytes
        for commit in scan.commits():
            assert commit.header.offset == end
            end = commit.header.end
    assert scan.ending is not None
    assert end <= len(data)
    return scan.ending.verdict.name


def recovery(data: bytes) -> str:
    """Open a log with this last segment: refused by name, or open, then read or corrupt."""
    log = _log()
    path = segment_path(log.last_segment)
    files = log.with_file(path, data)
    # Looking without opening never fails: it reports.
    assert verify(disk_with(files)).segments
    journal, disk, _ = reopened(files)
    # Readers that check the publishers' checksums raise `CorruptBatch`.
    assert messages_in(journal, disk)[: len(log.sealed)] == log.sealed
    return "open"


def _segments() -> list[bytes]:
    log = _log()
    last = log.files[segment_path(log.last_segment)]
    return [last[: log.used], log.files[segment_path(1)]]


def identity(data: bytes) -> str:
    """Decode an identity: `JournalCorrupt` or `JournalVersion`, or 16 bytes."""
    disk = disk_with({IDENTITY_FILE: data})
    assert len(read_identity(disk).journal_id) == 16
    return "taken"


# -- text ---------------------------------------------------------------------------------------------


def config(data: bytes) -> str:
    """Examine a file: no exception, a configuration, or printable problems with positions."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "c.toml"
        file.write_bytes(data)
        found, problems = examine(file, environment={"A": "x"})
        assert (found is None) == bool(problems)
        assert all(str(p).isprintable() and len(str(p)) < TEXT_CHARACTERS_MAX for p in problems)
        return "problems" if problems else "in order"


def options(data: bytes) -> str:
    """Parse options: `BadOption` with a short text, or options that round-trip."""
    text = data.decode("utf-8", "replace")
    for parse in (parse_size, parse_interval):
        with contextlib.suppress(BadOption):
            assert parse(text) >= 0
    with contextlib.suppress(ConfigurationError):
        parse_listen(text)
    found = parse_options(text)
    with taken():
        assert "none" in found or parse_options(format_options(found)) == found
    for value in found.values():
        with contextlib.suppress(BadOption):
            list_value(value or "")
    return "taken"


def bookmark(data: bytes) -> str:
    """Parse a bookmark: `BadBookmark` with a short text, or a value that round-trips."""
    found = parse_bookmark(data.decode("utf-8", "replace"))
    with taken():
        assert parse_bookmark(str(found)) == found
    return type(found).__name__


def _configs() -> list[bytes]:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    found = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    # An included file that does not exist would hide all other problems of a document.
    alone = [text.replace('include = ["topics.toml"]\n', "").encode() for text in found]
    return [FULL.encode(), b"[instance]\nname = 'a long name' # a comment\ndata = \"${A}\"\n", *alone]


_TOML_WORDS: Final = (
    b'"', b"'", b'"""', b"'''", b"\\", b"#", b"\n", b"=", b"[", b"]", b"[[", b"]]", b"{", b"}", b",", b".",
    b"${A}", b"${B}", b"${", b"1e999", b"0xffffffffffffffffffff", b"nan", b"true", b"\xff", b"\x00", b"a.b",
    b"2020-01-01 00:00:00", b"\r\n", b"include = [\"c.toml\"]\n", b"[[topic]]\n", b"\\u0000",
)  # fmt: skip
_OPTION_WORDS: Final = (
    b"[", b"]", b"(", b")", b"'", b'"', b",", b"=", b" ", b"none", b"64MB", b"1e9s", b"\xff",
)  # fmt: skip
_BOOKMARK_WORDS: Final = (
    b"[", b"]", b"(", b")", b":", b",", b"|", b"0", b"0|1|", b"18446744073709551615|",
    b"18446744073709551616",
    b"20260101T000000", b"Z", b"z", b".123456", b"recent", b" ", b"\xc2\xb2", b"99991231T235959",
)  # fmt: skip

TARGETS: Final[dict[str, Target]] = {
    "wire_server": Target(wire_server, lambda: _frames("client"), mended_frames, cost=4),
    "wire_client": Target(wire_client, lambda: _frames("server"), mended_frames, cost=4),
    "client": Target(client, _server_streams, mended_stream, cost=2),
    "frame_reader": Target(frame_reader, lambda: [s[8:] for s in _frames("server")]),
    "engine": Target(engine, _sessions, mended_frames, cost=20),
    "batch": Target(batch, _batches, cost=3, allowed=(BadBatch,)),
    "headers": Target(headers, _headers),
    "index": Target(index, _indexes, allowed=(ValueError,)),
    "segment": Target(segment, _segments, mended_segment, allowed=(FormatError,)),
    "recovery": Target(
        recovery,
        _segments,
        mended_segment,
        cost=20,
        allowed=(JournalCorrupt, JournalVersion, WrongJournal, CorruptBatch),
    ),
    "retired": Target(retired, _retireds, allowed=(ValueError,)),
    "identity": Target(
        identity, lambda: [_log().files[IDENTITY_FILE]], cost=2, allowed=(JournalCorrupt, JournalVersion)
    ),
    "config": Target(config, _configs, words=_TOML_WORDS, cost=4),
    "options": Target(
        options,
        texts("bookmark,rate=2x,conflation_key=[/a,/b('x')],", "none", "64MB", "500ms", "tcp://[::1]:0"),
        words=_OPTION_WORDS,
        allowed=(BadOption,),
    ),
    "bookmark": Target(
        bookmark,
        texts("0", "0|1|", "1|2|,3|4|", "[20260101T000000:1|2|)", "( 1|2| : 5|6| ]", "20260101T000000.5Z"),
        words=_BOOKMARK_WORDS,
        allowed=(BadBookmark,),
    ),
    "tokens": TOKENS_TARGET,
    **CLAIM_TARGETS,
    **DELETE_TARGETS,
    **BODY_TARGETS,
    **FILTER_TARGETS,
    **LINK_TARGETS,
    **SOW_TARGETS,
    **STAGING_TARGETS,
    **STATE_TARGETS,
    **STORE_TARGETS,
}  # fmt: skip
