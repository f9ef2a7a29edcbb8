"""Protocol state of one connection, in either role: preface, frames and the order of commands.

It is sans-I/O: it turns bytes into events and commands into buffers. Protocol errors of the peer are events,
not exceptions. The engine and the client execute the commands.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

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
from tickertape.base.text_format import shown
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

Role = Literal["server", "client"]
"""Which side this end is."""


class Received(msgspec.Struct, frozen=True):
    """A command of the peer, with its batch if it carries one. The batch owns its memory and may be kept."""

    command: Command
    batch: MessageBatch | None = None


class Violation(msgspec.Struct, frozen=True):
    """The peer broke the protocol. It is the last event: say `Goodbye(error.code, ...)` and close."""

    error: PeerError


Event = Received | Violation

_Decoder = msgspec.msgpack.Decoder[ClientCommand] | msgspec.msgpack.Decoder[ServerCommand]
_FROM_CLIENT: Final = msgspec.msgpack.Decoder[ClientCommand](ClientCommand)
_FROM_SERVER: Final = msgspec.msgpack.Decoder[ServerCommand](ServerCommand)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_VERSION_DIGITS: Final = b"0123456789"
_TLS_BEGINS: Final = b"\x16\x03"
_TLS_ANSWERS: Final = (b"\x15\x03", b"\x16\x03")
"""An alert, or a handshake."""
_TEXT: Final = b"\t\r\n" + bytes(range(32, 127))
_JUDGED_BYTES: Final = 4
_SHOWN_BYTES: Final = 24
_BEFORE_LOGGED_ON: Final = (LoggedOn, Goodbye, Heartbeat)
"""Commands that a server may send before the client is logged on."""


class Connection:
    """One connection. Read into `buffer()` and call `received(n)`, or `feed(data)`; write what `send` gives.

    The order of logon is kept here: a server's first event is `Received(Logon)`, and there is no second one;
    a client gets nothing but `LoggedOn`, `Goodbye` or `Heartbeat` before `LoggedOn`. After a `Violation` all
    further bytes are ignored; sending still works, for the goodbye.

    `scratch` is memory to read into, which connections of one thread may share (see `FrameReader`).
    """

    __slots__ = (
        "_begun",
        "_broken",
        "_decoder",
        "_first",
        "_preface",
        "_preface_filled",
        "_reader",
        "_room",
        "role",
    )

    def __init__(self, role: Role, *, scratch: memoryview | None = None) -> None:
        self.role = role
        server = role == "server"
        # a client chose its server and gets its largest answer, the list of recorded topics, with the logon
        limit = frame_bytes_before_logon_max if server else frame_bytes_max
        self._decoder: _Decoder = _FROM_CLIENT if server else _FROM_SERVER
        self._reader = FrameReader(limit, scratch, partial(_foresee, role, self._decoder))
        # the preface has memory of its own: no byte of a frame is read before it was judged
        self._preface = memoryview(bytearray(len(PREFACE))) if server else None
        self._preface_filled = 0
        # the first bytes of a server, until they are judged, and where the next ones are read to
        self._first: bytes | None = None if server else b""
        self._room = memoryview(b"")
        self._begun = False  # the logon has come (server), or its answer (client)
        self._broken = False

    # -- sending --------------------------------------------------------------------------------------

    def preface(self) -> bytes:
        """What goes out before the first command: eight bytes from a client, nothing from a server."""
        return PREFACE if self.role == "client" else b""

    def send(
        self, command: Command, batch: MessageBatch | None = None, *, batch_crc: int | None = None
    ) -> list[Buffer]:
        """Return the buffers to write, in order. `batch_crc` saves computing it again for a batch sent twice.

        Raises `FrameTooLarge` when the receiver would refuse it for its size, and `BadCommand` when it would
        refuse the command with, or without, a batch.
        """
        # by exact type: isinstance asks the metaclass of commands, which costs more than the whole encoding
        if (batch is None) is (type(command) in CARRIES_BATCH):
            raise BadCommand(_batch_problem(command))
        return encode_frame(command, batch, batch_crc=batch_crc)

    # -- receiving ------------------------------------------------------------------------------------

    def logged_on(self) -> None:
        """Accept frames up to `frame_bytes_max` from now on: the peer is logged on."""
        self._reader.frame_bytes_max = frame_bytes_max

    def buffer(self) -> memoryview:
        """Return where to read to, never empty; valid until `received`."""
        if self._preface is not None:
            return self._preface[self._preface_filled :]
        if self._first is not None:
            self._room = self._reader.buffer()
            return self._room
        return self._reader.buffer()

    def received(self, size: int) -> list[Event]:
        """Return the events of the `size` bytes just read into `buffer()`."""
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
        """Memory held for a frame that is not complete yet; at most one frame."""
        return self._reader.held_bytes

    @property
    def large_frame(self) -> tuple[int, int] | None:
        """Size of a frame that is read into memory of its own and is not complete, and how much has come."""
        return self._reader.large_frame

    def abandon(self) -> None:
        """Nothing more will be read: all memory of it is given back."""
        self._broken = True
        self._reader.abandon()

    def feed(self, data: Buffer) -> list[Event]:
        """As `received`, for bytes that were read elsewhere; they are copied once more.

        All of `data` is judged by the limits that hold now: call `logged_on` before what comes after a logon.
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
            error = BadVersion(f"the peer speaks version {chr(found[-1])}, we speak version {WIRE_VERSION}")
        elif found.startswith(_TLS_BEGINS):
            error = NotTickertape("this address takes connections without TLS: connect to tcp://")
        else:
            error = NotTickertape(f"the connection began with {found!r}, not with {PREFACE!r}")
        return [self._violation(error)]

    def _judge_server(self, first: bytes) -> PeerError | None:
        """Return the error of a peer that sent these first bytes; four characters are not the start of a
        frame."""
        if len(first) < _JUDGED_BYTES:
            self._first = first
            return None
        self._first, self._room = None, memoryview(b"")
        if first.startswith(_TLS_ANSWERS):
            return NotTickertape("Cannot log on: this address expects TLS. Connect to tls://.")
        if not all(byte in _TEXT for byte in first[:_JUDGED_BYTES]):
            return None
        return NotTickertape(
            f"Cannot log on: the peer is not a Tickertape server, it sent {first[:_SHOWN_BYTES]!r}. "
            "Check host and port."
        )

    def _event(self, frame: Frame) -> Event:
        try:
            command = self._decoder.decode(frame.header)
        except _DECODE_ERRORS as error:
            return self._violation(_header_error(self.role, frame.header, error))
        kind = type(command)
        if not self._begun or kind is Logon or kind is LoggedOn:
            problem = self._order_error(command)
            if problem is not None:
                return self._violation(problem)
        if frame.batch is None:
            if kind in CARRIES_BATCH:
                return self._violation(BadFrame(_batch_problem(command)))
            return Received(command)
        if kind not in CARRIES_BATCH:
            return self._violation(BadFrame(_batch_problem(command)))
        try:
            return Received(command, MessageBatch.parse(frame.batch))
        except BadBatch as error:
            return self._violation(error)

    def _order_error(self, command: Command) -> PeerError | None:
        """Return the error of `command` before or as the logon; record the logon."""
        name = _name(command)
        if isinstance(command, Logon | LoggedOn):
            if self._begun:
                return AlreadyLoggedOn(f"a second {name} on one connection")
            self._begun = True
            return None
        if self.role == "server":
            return LogonRequired(f"{name} came before the logon, which is the first command of a connection")
        if isinstance(command, _BEFORE_LOGGED_ON):
            return None
        return LogonRequired(f"{name} came from the server before it answered the logon")

    def _violation(self, error: PeerError) -> Violation:
        self._broken = True
        return Violation(error)


def _foresee(role: Role, decoder: _Decoder, header: bytes, total: int | None, size: int) -> PeerError | None:
    """Return the error of a frame whose `header` was received and which has `size` bytes for a batch that
    claims `total` bytes; None while that is unknown and there may be a batch."""
    try:
        command = decoder.decode(header)
    except _DECODE_ERRORS as error:
        return _header_error(role, header, error)
    if type(command) not in CARRIES_BATCH:
        return BadFrame(_batch_problem(command))
    return None if total is None else BadBatch(f"batch says it has {total} bytes, its frame gives it {size}")


def _header_error(role: Role, header: bytes, error: Exception) -> PeerError:
    """Return why `header` is not a command for this `role`: it belongs to the other role, or is unknown."""
    other = _FROM_SERVER if role == "server" else _FROM_CLIENT
    try:
        command = other.decode(header)
    except _DECODE_ERRORS:
        return BadCommand(f"a header that is no known command: {shown(str(error))}")
    return BadCommand(f"{_name(command)} is a command that only a {role} sends, and this is the {role}")


def _name(command: Command) -> str:
    return f"{type(command).__name__} ({command.__struct_config__.tag!r})"


def _batch_problem(command: Command) -> str:
    need = (
        "carries a batch, and has none" if type(command) in CARRIES_BATCH else "carries no batch, and has one"
    )
    return f"{_name(command)} {need}"
