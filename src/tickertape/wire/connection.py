"""Protocol state of one connection, in either role: preface, frames and the order of commands.

It is sans-I/O: it turns bytes into events and commands into buffers. Protocol errors of the peer are events,
not exceptions. The engine and the client execute the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import UnionType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tickertape.base.errors import (
    AlreadyLoggedOn,
    BadBatch,
    BadCommand,
    BadFrame,
    BadVersion,
    LogonRequired,
    NotTickertape,
    PeerError,
)
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import frame_bytes_before_logon_max, frame_bytes_max
from tickertape.base.text_format import did_you_mean, shown
from tickertape.batch import MessageBatch
from tickertape.wire.commands import (
    CARRIES_BATCH,
    PREFACE,
    WIRE_VERSION,
    ClientCommand,
    Command,
    Goodbye,
    Heartbeat,
    LoggedOn,
    Logon,
    ServerCommand,
)
from tickertape.wire.frames import Frame, FrameReader, encode_frame


class Received(msgspec.Struct, frozen=True):
    """A command of the peer, with its batch if it has one. The batch owns its memory and may be kept."""

    command: Command
    batch: MessageBatch | None = None


class Violation(msgspec.Struct, frozen=True):
    """A protocol violation, the last event. Send `Goodbye(error.code, ...)` and close the connection."""

    error: PeerError


Event = Received | Violation

_TAG_FIELD: Final = "c"
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_VERSION_DIGITS: Final = b"0123456789"
_TLS_BEGINS: Final = b"\x16\x03"
_TLS_ANSWERS: Final = (b"\x15\x03", b"\x16\x03")
"""First bytes of a TLS alert and of a TLS handshake."""
_HTTP_BEGINS: Final = (
    b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ",
    b"PRI * ",
)  # fmt: skip
_HTTP_STARTS: Final = tuple(method[: len(PREFACE)] for method in _HTTP_BEGINS)
HTTP_TEXT: Final = (
    "Cannot serve HTTP: this is an address for Tickertape clients. Use the admin address of the server."
)
"""Error text for an HTTP client."""
NO_LINKS_TEXT: Final = (
    "Cannot open a replication link: this address accepts clients only. Use an address of the server whose "
    "[[transport]] has replication = true."
)
"""Error text for the source of a link."""
_TEXT: Final = b"\t\r\n" + bytes(range(32, 127))
_JUDGED_BYTES: Final = 4
_SHOWN_BYTES: Final = 24


ClientRole = Literal["server", "client"]
"""End of a connection between a client and a server."""


class PeerRole(NamedTuple):
    """Role of one end of a connection: the commands that it receives, and their order."""

    name: str
    receives: msgspec.msgpack.Decoder[Any]
    """Decoder of the commands that it receives."""
    sends: msgspec.msgpack.Decoder[Any]
    """Decoder of the commands of the other end."""
    tags: tuple[str, ...]
    """Names of the commands that it receives."""
    accepts: bool
    """Whether this end accepts connections. Otherwise it connects, and sends the preface."""
    opening: type[Command]
    """First command that it receives, apart from `early`."""
    early: tuple[type[Command], ...]
    """Commands that it accepts before `opening`."""
    with_batch: tuple[type[Command], ...]
    """Commands with a batch."""
    first_bytes_max: int
    """Largest frame before `Connection.logged_on`."""
    out_of_order: Callable[[str, bool], PeerError]
    """Return the error of a command name: a second `opening` (True), or a command before it (False)."""
    alternatives: tuple[PeerRole, ...] = ()
    """Possible roles of this end. The first command of the peer chooses the role that it opens."""
    refusals: Mapping[str, str] = {}
    """Texts of the errors for commands that only other addresses accept, by name."""


def tags_of(commands: UnionType) -> tuple[str, ...]:
    """Return the names of a union of commands."""
    return tuple(str(kind.__struct_config__.tag) for kind in commands.__args__)


def _out_of_order_at_server(name: str, again: bool) -> PeerError:
    if again:
        return AlreadyLoggedOn(f"Duplicate {name}. Log on only once per connection.")
    return LogonRequired(f"Unexpected {name} before the logon. Log on first.")


def _out_of_order_at_client(name: str, again: bool) -> PeerError:
    if again:
        return AlreadyLoggedOn(f"Duplicate {name}. Log on only once per connection.")
    return LogonRequired(
        f"Unexpected {name} from the server before its answer to the logon. Update the server."
    )


_FROM_CLIENT: Final = msgspec.msgpack.Decoder[ClientCommand](ClientCommand)
_FROM_SERVER: Final = msgspec.msgpack.Decoder[ServerCommand](ServerCommand)
CLIENT_ROLES: Final[Mapping[ClientRole, PeerRole]] = {
    "server": PeerRole(
        "server",
        _FROM_CLIENT,
        _FROM_SERVER,
        tags_of(ClientCommand),
        True,
        Logon,
        (),
        CARRIES_BATCH,
        frame_bytes_before_logon_max,
        _out_of_order_at_server,
        refusals={"link": NO_LINKS_TEXT},
    ),
    # A client chose its server, and the logon's answer (a list of topics) may be the largest frame.
    "client": PeerRole(
        "client",
        _FROM_SERVER,
        _FROM_CLIENT,
        tags_of(ServerCommand),
        False,
        LoggedOn,
        (Goodbye, Heartbeat),
        CARRIES_BATCH,
        frame_bytes_max,
        _out_of_order_at_client,
    ),
}


class Connection:
    """Protocol state of one connection.

    Use: read into `buffer()` and call `received(n)`, or `feed(data)`. Write the buffers that `send` returns.

    It enforces the order of the logon. The first event of a server is `Received(Logon)`, and it is the only
    one. Before `LoggedOn`, a client accepts only `LoggedOn`, `Goodbye` and `Heartbeat`. After a `Violation`
    it ignores all further bytes. Sending still works, for the goodbye.

    `scratch` is a read buffer that connections of one thread may share (see `FrameReader`).
    """

    __slots__ = (
        "_begun",
        "_broken",
        "_decode",
        "_first",
        "_opening",
        "_preface",
        "_preface_filled",
        "_reader",
        "_role",
        "_room",
        "_with_batch",
        "role",
        "speaks_http",
    )

    def __init__(self, role: ClientRole | PeerRole, *, scratch: memoryview | None = None) -> None:
        own = role if isinstance(role, PeerRole) else CLIENT_ROLES[role]
        self._assume(own)
        self._reader = FrameReader(own.first_bytes_max, scratch, partial(_foresee, own))
        # The preface has its own memory, so that it is checked before any byte of a frame is read.
        self._preface = memoryview(bytearray(len(PREFACE))) if own.accepts else None
        self._preface_filled = 0
        # Unchecked first bytes of a server, and the buffer of the read that follows.
        self._first: bytes | None = None if own.accepts else b""
        self._room = memoryview(b"")
        self._begun = False  # whether the logon (server) or its answer (client) arrived
        self._broken = False
        self.speaks_http = False
        """Whether the peer is an HTTP client, which cannot read frames."""

    def _assume(self, role: PeerRole) -> None:
        self._role = role
        self.role = role.name
        self._decode, self._opening, self._with_batch = role.receives.decode, role.opening, role.with_batch

    # -- sending --------------------------------------------------------------------------------------

    def preface(self) -> bytes:
        """Return the bytes before the first command: eight from a client, none from a server."""
        return b"" if self._role.accepts else PREFACE

    def send(
        self, command: Command, batch: MessageBatch | None = None, *, batch_crc: int | None = None
    ) -> list[Buffer]:
        """Return the buffers to write, in order. `batch_crc` avoids computing the checksum of a batch twice.

        Raises `FrameTooLarge` for a frame above the receiver's limit, and `BadCommand` for a command that
        requires a batch and has none, or the reverse.
        """
        # Exact type: isinstance calls the metaclass of commands, which costs more than the whole encoding.
        if (batch is None) is (type(command) in self._with_batch):
            raise BadCommand(_batch_problem(command, batch is None))
        return encode_frame(command, batch, batch_crc=batch_crc)

    # -- receiving ------------------------------------------------------------------------------------

    def logged_on(self) -> None:
        """Accept frames up to `frame_bytes_max`, because the peer is logged on."""
        self._reader.frame_bytes_max = frame_bytes_max

    def buffer(self) -> memoryview:
        """Return the buffer for the next read, never empty. It is valid until `received`."""
        if self._preface is not None:
            return self._preface[self._preface_filled :]
        if self._first is not None:
            self._room = self._reader.buffer()
            return self._room
        return self._reader.buffer()

    def received(self, size: int) -> list[Event]:
        """Return the events of the `size` bytes that were read into `buffer()`."""
        if self._broken:
            return []
        if self._preface is not None:
            return self._judge_preface(self._preface, size)
        if self._first is not None:
            problem = self._judge_server(self._first + self._room[: min(size, _SHOWN_BYTES)])
            if problem is not None:
                return [self._violation(problem)]
        events: list[Event] = []
        for frame in self._reader.received(size):
            event = self._event(frame)
            events.append(event)
            if isinstance(event, Violation):
                return events
        if self._reader.error is not None:
            events.append(self._violation(self._reader.error))
        return events

    @property
    def held_bytes(self) -> int:
        """Bytes held for an incomplete frame (at most one)."""
        return self._reader.held_bytes

    @property
    def large_frame(self) -> tuple[int, int] | None:
        """Size of the incomplete large frame and its received bytes, or None."""
        return self._reader.large_frame

    def abandon(self) -> None:
        """Stop reading and free all read memory."""
        self._broken = True
        self._reader.abandon()

    def feed(self, data: Buffer) -> list[Event]:
        """Copy bytes that were read elsewhere, and return their events.

        The present limits apply to all of `data`. Call `logged_on` before you pass the bytes after a logon.
        """
        events: list[Event] = []
        rest = memoryview(data)
        while rest and not self._broken:
            room = self.buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            events += self.received(size)
            rest = rest[size:]
        return events

    def _judge_preface(self, preface: memoryview, size: int) -> list[Event]:
        self._preface_filled += size
        if self._preface_filled < len(preface):
            return []
        self._preface = None
        found = preface.tobytes()
        if found == PREFACE:
            return []
        error: PeerError
        if found[:-1] == PREFACE[:-1] and found[-1] in _VERSION_DIGITS:
            error = BadVersion(
                f"Unsupported protocol version '{chr(found[-1])}'. Use a client with version {WIRE_VERSION}."
            )
        elif found.startswith(_TLS_BEGINS):
            error = NotTickertape("Cannot log on: this address does not use TLS. Connect to tcp://.")
        elif is_http(found):
            self.speaks_http = True
            error = NotTickertape(HTTP_TEXT)
        else:
            error = NotTickertape(
                f"Cannot log on: the client sent {found!r} instead of {PREFACE!r}. Use a Tickertape client."
            )
        return [self._violation(error)]

    def _judge_server(self, first: bytes) -> PeerError | None:
        """Return the error of a peer with these first bytes. No frame starts with four text characters."""
        if len(first) < _JUDGED_BYTES:
            self._first = first
            return None
        self._first, self._room = None, memoryview(b"")
        if first.startswith(_TLS_ANSWERS):
            return NotTickertape("Cannot log on: this address requires TLS. Connect to tls://.")
        if not all(byte in _TEXT for byte in first[:_JUDGED_BYTES]):
            return None
        if first.startswith(b"HTTP"):
            return NotTickertape(
                "Cannot log on: the peer is an HTTP server, not a Tickertape server. "
                "Use the listen address of the server, not its admin address."
            )
        return NotTickertape(
            f"Cannot log on: the peer is not a Tickertape server, it sent {first[:_SHOWN_BYTES]!r}. "
            "Check host and port."
        )

    def _event(self, frame: Frame) -> Event:
        try:
            command: Command = self._decode(frame.header)
        except _DECODE_ERRORS as error:
            return self._violation(_header_error(self._role, frame.header, error))
        kind = type(command)
        if not self._begun or kind is self._opening:
            problem = self._order_error(command)
            if problem is not None:
                return self._violation(problem)
        if frame.batch is None:
            if kind in self._with_batch:
                return self._violation(BadFrame(_batch_problem(command, True)))
            return Received(command)
        if kind not in self._with_batch:
            return self._violation(BadFrame(_batch_problem(command, False)))
        try:
            return Received(command, MessageBatch.parse(frame.batch))
        except BadBatch as error:
            return self._violation(error)

    def _order_error(self, command: Command) -> PeerError | None:
        """Return the error of a command that violates the order of the logon. Record the logon."""
        for role in self._role.alternatives:
            if type(command) is role.opening:
                self._assume(role)
                self._reader.expect(partial(_foresee, role))
        if type(command) is not self._opening:
            early = isinstance(command, self._role.early)
            return None if early else self._role.out_of_order(_name(command), False)
        if self._begun:
            return self._role.out_of_order(_name(command), True)
        self._begun = True
        return None

    def _violation(self, error: PeerError) -> Violation:
        self._broken = True
        return Violation(error)


def is_http(first: bytes) -> bool:
    """Return whether the first eight bytes of a client start an HTTP request."""
    return first.startswith(_HTTP_STARTS)


def may_become_http(first: bytes) -> bool:
    """Return whether fewer than eight bytes are the incomplete start of an HTTP request."""
    return any(len(first) < len(start) and start.startswith(first) for start in _HTTP_STARTS)


def _foresee(role: PeerRole, header: bytes, total: int | None, size: int) -> PeerError | None:
    """Return the error of an incomplete frame with a complete `header`, or None.

    Its batch has `size` bytes and claims `total` bytes. `total` is None if it has not arrived.
    """
    try:
        command = role.receives.decode(header)
    except _DECODE_ERRORS as error:
        return _header_error(role, header, error)
    if type(command) not in role.with_batch:
        return BadFrame(_batch_problem(command, False))
    return (
        None
        if total is None
        else BadBatch(f"Invalid batch: it claims {total} bytes, its frame has {size}. Report the defect.")
    )


def _header_error(role: PeerRole, header: bytes, error: Exception) -> PeerError:
    """Return the error of a `header` that is unknown, or a command of the other role."""
    try:
        command = role.sends.decode(header)
    except _DECODE_ERRORS:
        return _unknown_command(role, header) or BadCommand(
            f"Invalid command header: {shown(str(error))}. Update the older side."
        )
    name = role.name
    return BadCommand(f"Invalid command {_name(command)}: only a {name} sends it, and this is the {name}.")


def _unknown_command(role: PeerRole, header: bytes) -> PeerError | None:
    """Return the error of a `header` with an unknown command name, or None."""
    try:
        tag = msgspec.msgpack.decode(header, type=dict[str, object]).get(_TAG_FIELD)
    except _DECODE_ERRORS:
        return None
    if not isinstance(tag, str) or tag in role.tags:
        return None
    if tag in role.refusals:
        return BadCommand(role.refusals[tag])
    return BadCommand(f"Unknown command {shown(tag)}.{did_you_mean(tag, role.tags)} Update the older side.")


def _name(command: Command) -> str:
    return f"{type(command).__name__} ({command.__struct_config__.tag!r})"


def _batch_problem(command: Command, required: bool) -> str:
    need = "requires a batch, but has none" if required else "must not have a batch"
    return f"Invalid command: {_name(command)} {need}. Update the older side."
