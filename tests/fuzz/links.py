"""Fuzz targets of replication links: the frames for each end, and packed rows.

Must never allow an exception of a link: a violation is an event.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.fuzz.mutations import mended_frames
from tests.fuzz.target import Target, brief, taken
from tests.helpers.link_frames import OPEN, OPENED, conversation, names, run_of
from tests.helpers.wire import joined
from tickertape.base.errors import BadLink, JournalCorrupt
from tickertape.base.limits import frame_bytes_max
from tickertape.batch import merge
from tickertape.journal.format.link_records import LinkRecord, NewestPlaces, decode_link, encode_link
from tickertape.journal.format.replication_records import LogPlace
from tickertape.wire.commands import PREFACE
from tickertape.wire.connection import Event, Received, Violation
from tickertape.wire.frames import encode_frame
from tickertape.wire.link import (
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkRequest,
    LinkRuns,
    link_name_bytes,
    link_position_bytes,
)
from tickertape.wire.link_connection import LinkConnection, LinkRole
from tickertape.wire.link_rows import (
    decode_holes,
    decode_names,
    decode_places,
    decode_positions,
    decode_starts,
    encode_names,
    encode_pairs,
    encode_positions,
)

_CONVERSATION: Final = conversation()
_BEFORE_REQUESTS: Final = ("holes", "holes-end", "runs", "runs-control", "names", "names-end")
"""Frames of the source before the destination of the conversation requests rows."""


def _answered(connection: LinkConnection, events: Sequence[Event]) -> None:
    """Send the frames for which the other side of the conversation waits."""
    for event in events:
        if not isinstance(event, Received):
            continue
        if isinstance(event.command, LinkOpen):
            connection.send(OPENED)
        elif isinstance(event.command, LinkOpened) and event.command == OPENED:
            for name in _BEFORE_REQUESTS:
                _, command, batch = _CONVERSATION[name]
                connection.send(command, batch)
        elif isinstance(event.command, LinkRequest):
            count = len(event.command.positions) // link_position_bytes
            answers = LinkRuns(end=connection.order.end, answers=event.command.positions)
            connection.send(answers, merge([run_of(9, 1)] * count))
        elif isinstance(event.command, LinkNames) and event.command.rows:
            first = connection.order.named - len(event.command.rows) // link_name_bytes
            connection.send(LinkRequest(positions=encode_positions([first])))


def _frames(data: bytes) -> list[bytes]:
    """Cut a stream behind its preface into frames by their claimed sizes, the first one with the preface."""
    found, at, begin = [], len(PREFACE), 0
    while at + 4 <= len(data):
        at += max(struct.unpack_from("<I", data, at)[0], 16)
        found.append(data[begin:at])
        begin = at
    return [*found, data[begin:]]


def _pieces(data: bytes) -> list[bytes]:
    """Cut a stream into pieces in which at most one frame ends."""
    return [data[at : at + 7] for at in range(0, len(data), 7)]


def _events(role: LinkRole, pieces: Sequence[bytes]) -> list[Event]:
    """Feed a stream to an end of a link, which answers each command."""
    connection = LinkConnection(role)
    left = 0
    if role == "source":
        connection.send(OPEN)
        left = len(PREFACE)
    events: list[Event] = []
    for piece in pieces:
        found = connection.feed(piece[left:])
        left = max(left - len(piece), 0)
        _answered(connection, found)
        events += found
        order = connection.order
        assert connection.held_bytes <= frame_bytes_max
        assert order.durable <= order.end
        assert order.unanswered <= order.named
    return events


def link(role: LinkRole, data: bytes) -> str:
    """Feed an end of a link: no exception, and a violation is the last event, for any pieces."""
    events = _events(role, _frames(data))
    assert not any(isinstance(event, Violation) for event in events[:-1])
    for event in events:
        if isinstance(event, Violation):
            brief(event.error)
    assert [type(event) for event in _events(role, _pieces(data))] == [type(event) for event in events]
    return "violation" if events and isinstance(events[-1], Violation) else "taken"


def link_source(data: bytes) -> str:
    """Read the commands of a destination."""
    return link("source", data)


def link_destination(data: bytes) -> str:
    """Read the commands of a source."""
    return link("destination", data)


def link_rows(data: bytes) -> str:
    """Decode packed rows: `BadLink` with a short text, or rows that round-trip."""
    for decode in (decode_places, decode_starts, decode_holes):
        _round_trip(decode, lambda rows: encode_pairs(*rows), data)
    _round_trip(decode_positions, encode_positions, data)
    found = decode_names(data)
    with taken():
        assert encode_names(found) == data
    return "taken"


def _round_trip(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], data: bytes) -> None:
    try:
        rows = decode(data)
    except BadLink as error:
        brief(error)
        return
    with taken():
        assert encode(rows) == data


def _streams(side: LinkRole) -> list[bytes]:
    """Return streams behind a preface: the whole side, and its start with each later frame."""
    frames = {
        name: joined(encode_frame(command, batch))
        for name, (sender, command, batch) in _CONVERSATION.items()
        if sender == side
    }
    begin = b"".join(frames.pop(name) for name in ("link", "linked", "holes", "holes-end") if name in frames)
    return [PREFACE + begin + b"".join(frames.values()), *(PREFACE + begin + one for one in frames.values())]


def _row_seeds() -> list[bytes]:
    tables = [command.rows for _, command, _ in _CONVERSATION.values() if hasattr(command, "rows")]
    places = [encode_pairs([9, 5], [7, 7]), encode_positions([1, 5, 9]), encode_pairs([1, 2, 3], [4, 5, 6])]
    return [*filter(None, tables), *places, names(*[(7, 1, 2)] * 8)]


def link_record(data: bytes) -> str:
    """Decode a link record: `JournalCorrupt`, or places that can be written again."""
    found = decode_link(data)
    with taken():
        assert decode_link(encode_link(found)) == found
        newest = NewestPlaces()
        newest.add_earlier(found.place)
        newest.add_all_earlier(found.places or ())
        assert found.place in newest.in_order()
    return "taken"


def _record_seeds() -> list[bytes]:
    place = LogPlace(bytes(16), 2**64 - 1, 70)
    return [encode_link(LinkRecord(*place)), encode_link(LinkRecord(*place, places=[place, place]))]


LINK_TARGETS: Final[dict[str, Target]] = {
    "link_source": Target(link_source, lambda: _streams("destination"), mended_frames),
    "link_destination": Target(link_destination, lambda: _streams("source"), mended_frames),
    "link_rows": Target(link_rows, _row_seeds, allowed=(BadLink,)),
    "link_record": Target(link_record, _record_seeds, allowed=(JournalCorrupt,)),
}
