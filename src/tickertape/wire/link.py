"""Commands of a replication link (docs/formats/wire.md): from its source and from its destination.

A link carries the log of the source in log order. The source connects. Limits on the number of entries apply
while a command is decoded. `link_checks.py` checks contents, and `link_order.py` the order of commands.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from tickertape.base.limits import (
    client_name_bytes_max,
    filter_bytes_max,
    link_feature_characters_max,
    link_features_max,
    link_incoming_max,
    link_key_fields_max,
    link_origins_max,
    link_origins_per_frame_max,
    link_path_logs_max,
    link_places_max,
    link_rows_max,
    link_rules_max,
    link_starts_max,
    link_text_bytes_max,
    link_topics_max,
    link_versions_max,
    link_window_bytes_max,
    topic_bytes_max,
)
from tickertape.wire.commands import Command, Count, Goodbye, Heartbeat

LINK_VERSION: Final = 0
"""Version of the link protocol."""
link_place_bytes: Final = 16
"""Size of a start with a position, and of a first hole: two u64."""
link_name_bytes: Final = 36
"""Size of a name: u64 publisher, u64 first, u64 last, u32 origin, i64 order stamp."""
link_position_bytes: Final = 8
"""Size of the position of a named row."""

# Lengths of texts are in characters here. `link_checks.py` checks their bytes.
LinkLogId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Id of a log."""
_Digest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Digests = Annotated[tuple[_Digest, ...], msgspec.Meta(max_length=link_rules_max)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=client_name_bytes_max)]
_Topic = Annotated[str, msgspec.Meta(max_length=topic_bytes_max)]
_Topics = Annotated[tuple[_Topic, ...], msgspec.Meta(max_length=link_topics_max)]
_Text = Annotated[str, msgspec.Meta(max_length=link_text_bytes_max)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=link_feature_characters_max)]
_Words = Annotated[tuple[_Word, ...], msgspec.Meta(max_length=link_features_max)]
_Version = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_OriginNumber = Annotated[int, msgspec.Meta(ge=1, le=link_origins_max)]
_Credit = Annotated[int, msgspec.Meta(ge=1, le=link_window_bytes_max)]
_Places = Annotated[bytes, msgspec.Meta(max_length=link_place_bytes * link_places_max)]
_Starts = Annotated[bytes, msgspec.Meta(max_length=link_place_bytes * link_starts_max)]
_Positions = Annotated[bytes, msgspec.Meta(max_length=link_position_bytes * link_rows_max)]
_NameRows = Annotated[bytes, msgspec.Meta(max_length=link_name_bytes * link_rows_max)]
_HoleRows = Annotated[bytes, msgspec.Meta(max_length=link_place_bytes * link_rows_max)]


# -- the handshake ------------------------------------------------------------------------------------


class LinkRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rule of a link: topics that it replicates. The first matching rule of a topic applies."""

    topic: _Topic
    """Name or pattern."""
    filter: Annotated[str, msgspec.Meta(max_length=filter_bytes_max)] | None = None
    sync: bool
    """Whether acknowledgements wait for the destination."""


class LinkSowTopic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Definition of a SOW topic, as far as it decides which records exist."""

    name: _Topic
    key: Annotated[tuple[_Topic, ...], msgspec.Meta(max_length=link_key_fields_max)] = ()
    key_domain: _Text = ""
    missing_key: _Word
    pattern: _Topic | None = None


class LinkTopics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Configured topics of one side of a link."""

    recorded: _Topics | None = None
    """Names and patterns of the persistent topics. None: all topics."""
    types: Annotated[dict[_Topic, _Word], msgspec.Meta(max_length=link_topics_max)] = {}
    """Message types by topic."""
    validated: _Topics = ()
    """Topics that validate message bodies."""
    derived: _Topics = ()
    """Topics of recorded views."""
    sow: Annotated[tuple[LinkSowTopic, ...], msgspec.Meta(max_length=link_topics_max)] = ()


class LinkedOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server whose clients' messages reach one side of a link."""

    instance: _Name
    group: _Name
    log: LinkLogId
    digests: _Digests = ()
    """Digests of the rules on the path of the messages."""
    path: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=link_path_logs_max)] = ()
    """Instances that the messages pass, from that server to the source of the link."""


class LinkedSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link from another server to one side of a link."""

    instance: _Name
    log: LinkLogId
    start: Count
    """Start id of its source."""
    rules: Annotated[tuple[LinkRule, ...], msgspec.Meta(max_length=link_rules_max)] = ()
    origins: Annotated[tuple[LinkedOrigin, ...], msgspec.Meta(max_length=link_origins_max)] = ()
    """Servers whose messages it brings. Its source is one of them."""


class LinkSide(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One side of a link, as both sides validate it."""

    versions: Annotated[tuple[_Version, ...], msgspec.Meta(min_length=1, max_length=link_versions_max)] = (
        LINK_VERSION,
    )
    software: _Text = ""
    features: _Words = ()
    required: _Words = ()
    """Features that the other side must have."""
    instance: _Name
    group: _Name
    log: LinkLogId
    starts: _Starts
    """Starts of the log with their first positions, the newest last (`link_rows.py`)."""
    destination: _Text = ""
    """Instance name of the destination of the link from this side. Empty: no link leads to the other side."""
    rules: Annotated[tuple[LinkRule, ...], msgspec.Meta(max_length=link_rules_max)] = ()
    """Rules of that link."""
    pass_through: _Topic = ""
    """Pattern of the groups whose messages that link passes on. Empty: only messages of this log."""
    digests: _Digests = ()
    """Digests of the rules of that link."""
    excluded: _Words = ()
    """Checks that do not apply to that link."""
    topics: LinkTopics = LinkTopics()
    sources: Annotated[tuple[LinkedSource, ...], msgspec.Meta(max_length=link_incoming_max)] = ()
    """Links to this side, without the one that starts. Their logs are those that it receives directly."""
    replaced: Annotated[tuple[LinkLogId, ...], msgspec.Meta(max_length=link_origins_max)] = ()
    """Logs that a newer log of the same instance has replaced."""


class LinkOpen(Command, tag="link", frozen=True, kw_only=True):
    """First command of a source. `heartbeat_ms` is the heartbeat interval of both sides, 0 for none."""

    side: LinkSide
    token: _Text | None = None
    heartbeat_ms: Count = 0

    def __repr__(self) -> str:
        return f"LinkOpen(instance={self.side.instance!r})"  # never show a token


class LinkPlace(NamedTuple):
    """Position in the log of a source, with the start of the source in which the position was made."""

    start: Count
    position: Count


class LinkOpened(Command, tag="linked", frozen=True, kw_only=True):
    """Answer of a destination that accepts the link with `version`."""

    side: LinkSide
    version: _Version = LINK_VERSION
    place: LinkPlace | None = None
    """Place up to which the destination has the log of the source. None: it has none of it."""
    places: _Places = b""
    """Last place of each of the newest 64 starts of the source, `place` last (`link_rows.py`)."""
    reached: bool = False
    """The destination has rows of the source by the links of other servers. A missing place is then no sign
    of an old copy."""
    holes: Count = 0
    """Number of open holes at the destination."""
    credit: _Credit
    """Flow-control credit of the source, in cost bytes."""


# -- from the source ----------------------------------------------------------------------------------


class LinkOrigin(msgspec.Struct, frozen=True, array_like=True):
    """Meaning of an origin number of the source. 0 is the log of the source itself."""

    number: _OriginNumber
    log: LinkLogId
    """Log in which a client stored the messages."""
    instance: _Name
    group: _Name
    path: Annotated[tuple[LinkLogId, ...], msgspec.Meta(min_length=1, max_length=link_path_logs_max)]
    """Logs that the messages passed, the origin first."""


_Origins = Annotated[tuple[LinkOrigin, ...], msgspec.Meta(max_length=link_origins_per_frame_max)]


class LinkHoles(Command, tag="fh", frozen=True, kw_only=True):
    """First holes: starts the stream at `position`, before all runs and names.

    If retention has removed messages before `position` that the destination lacks, `behind` is true, and
    `rows` has each publisher of removed messages with the highest removed sequence number, by publisher
    (`link_rows.py`). The destination opens a hole up to it. With `more` further rows follow.
    """

    position: Count
    behind: bool = False
    rows: _HoleRows = b""
    more: bool = False


class LinkRuns(Command, tag="rp", frozen=True, kw_only=True):
    """A batch of runs of the log. All rows below `end` were sent, named, or are not for this link.

    Runs keep publisher, sequence numbers, checksum and labels. Their `origin` is 0 or a number of `origins`,
    of this frame or an earlier one.

    With `answers` the runs are those of requested rows instead, one run for each: the positions of the rows,
    in the order of the requests. The frame costs no credit, and its `end` is the one of the last frame.
    """

    end: Count
    origins: _Origins = ()
    answers: _Positions = b""


class LinkNames(Command, tag="nm", frozen=True, kw_only=True):
    """Names of runs whose bodies the destination should have (`link_rows.py`), and a new `end`.

    Without rows the frame only moves `end`.
    """

    end: Count
    origins: _Origins = ()
    rows: _NameRows = b""


# -- from the destination -----------------------------------------------------------------------------


class LinkRequest(Command, tag="lk", frozen=True, kw_only=True):
    """Request the bodies of named rows. The destination processes nothing behind them before they arrive.

    `positions` counts the rows of all `LinkNames` of the connection from 0 (increasing u64).
    """

    positions: Annotated[
        bytes, msgspec.Meta(min_length=link_position_bytes, max_length=link_position_bytes * link_rows_max)
    ]


class LinkAck(Command, tag="ra", frozen=True, kw_only=True):
    """All rows of the source below position `durable` are durable at the destination.

    `level` is `local` (synced to its disk) or `written` (sync policy `interval` or `never`).
    """

    durable: Count
    level: Literal["local", "written"] = "local"


class LinkCredit(Command, tag="cr", frozen=True, kw_only=True):
    """Return `bytes` of credit, after the destination processed frames of that cost."""

    bytes: _Credit


SourceCommand = LinkOpen | LinkHoles | LinkRuns | LinkNames | Goodbye | Heartbeat
DestinationCommand = LinkOpened | LinkRequest | LinkAck | LinkCredit | Goodbye | Heartbeat
