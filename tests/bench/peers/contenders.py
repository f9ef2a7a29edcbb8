"""Contenders: a server in one setting, and the fault that its acknowledged messages survive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.peers import disk, installed, nats, postgres, rabbitmq, tickertape, valkey
from tests.bench.peers.serving import PeerServer, our_interpreter

OURS: Final = "Tickertape"
PROCESS: Final = "kill of the process"
MACHINE: Final = "crash of the machine"


@dataclass(frozen=True)
class Contender:
    """A server in one setting."""

    peer: str
    """Name of its module, and of its load program."""
    server: type[PeerServer]
    setting: str
    label: str
    """The setting in words of its documentation."""
    survives: str
    """The fault after which every acknowledged message is still stored."""

    @property
    def name(self) -> str:
        """Name without the setting, the same for all settings of a server."""
        return self.server.name

    @property
    def key(self) -> str:
        return f"{self.peer}/{self.setting}"

    @property
    def module(self) -> str:
        return f"tests.bench.peers.{self.peer}"

    @property
    def interpreter(self) -> Path:
        return our_interpreter() if self.name == OURS else installed.python()


CONTENDERS: Final = (
    Contender("tickertape", tickertape.TickertapeServer, "always", "`sync = always`", MACHINE),
    Contender("valkey", valkey.ValkeyServer, "always", "`appendfsync always`", MACHINE),
    Contender("nats", nats.NatsServer, "always", "file stream, `sync_interval: always`", MACHINE),
    Contender("rabbitmq", rabbitmq.RabbitServer, "quorum", "quorum queue of one node, confirms", MACHINE),
    Contender("postgres", postgres.PostgresServer, "on", "`fsync` and `synchronous_commit` on", MACHINE),
    Contender("tickertape", tickertape.TickertapeServer, "never", "`sync = never`", PROCESS),
    Contender("valkey", valkey.ValkeyServer, "everysec", "`appendfsync everysec`", PROCESS),
    Contender("nats", nats.NatsServer, '"2m"', "file stream, default `sync_interval` of 2 min", PROCESS),
    Contender("rabbitmq", rabbitmq.RabbitServer, "stream", "stream of one node, confirms", PROCESS),
    Contender("postgres", postgres.PostgresServer, "off", "`fsync` off, `synchronous_commit` on", PROCESS),
)

DISK: Final = Contender("disk", disk.Disk, "", "`pwrite` and `fdatasync` of 300 bytes", MACHINE)
"""No contender, but the time below which no synced acknowledgement is possible."""


def contenders(survives: str) -> list[Contender]:
    """Return the contenders of one durability, ours first."""
    return [contender for contender in CONTENDERS if contender.survives == survives]
