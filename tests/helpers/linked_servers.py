"""Real servers with replication links on loopback, and their logs as a client reads them.

Must never judge: tests do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tickertape as tt
from tickertape.testing import RunningServer
from tickertape.testing.ports import ReservedPort
from tickertape.testing.server import wait_until

SECONDS = 30.0
TOPIC = "orders"
ONE_WAY = 'exclude_validation = ["replicate"]'
RULE = f'[[replication.destination.topic]]\nname = "{TOPIC}"\nsync = false\n'


class LinkedServer(RunningServer):
    """A server that replicates. Its addresses stay the same after a restart."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory / name, directory / f"{name}.toml", listen=None)
        self.name = name
        self.port = ReservedPort()
        self.address = f"tcp://127.0.0.1:{self.port.number}"
        """Address for clients and links."""
        self.tls: tt.TLS | None = None
        """TLS settings of clients. None: the address has no TLS."""
        self.transport = f'[[transport]]\nlisten = "{self.address}"\nreplication = true\n'

    def configure(self, *destinations: str, more: str = "", group: str = "") -> LinkedServer:
        """Write the configuration file. `destinations`: tables of `destination`."""
        assert self.config is not None
        of_group = f'group = "{group}"\n' if group else ""
        head = f'[instance]\nname = "{self.name}"\n{of_group}{self.transport}{more}[replication]\n'
        self.config.write_text("\n".join([head, *destinations]))
        return self

    def release(self) -> None:
        super().release()
        self.port.release()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def client(self, name: str, store: tt.MemoryPublishStore | None = None) -> tt.Client:
        """Connect a client."""
        return tt.Client(name, self.address, publish_store=store, tls=self.tls, timeout=SECONDS)

    def events(self, name: str) -> list[str]:
        """Return the lines of an event."""
        return [line for line in self.errors().splitlines() if f" {name} " in f"{line} "]

    def log(self, topic: str = TOPIC) -> list[bytes]:
        """Return the bodies of a topic in the order of the log."""
        with self.client("judge") as client:
            return [bytes(message.data) for message in client.replay(topic)]


def destination(
    name: str, *addresses: str, rules: str = RULE, token: str = "", ca: str = "", more: str = ""
) -> str:
    """Return a table `[[replication.destination]]` with its topics."""
    listed = ", ".join(f'"{address}"' for address in addresses)
    lines = ["[[replication.destination]]", f'name = "{name}"', f"addresses = [{listed}]"]
    lines += [f'token_file = "{token}"'] * bool(token) + [f'ca = "{ca}"'] * bool(ca) + [more] * bool(more)
    return "\n".join([*lines, rules])


@contextmanager
def servers(directory: Path, *names: str) -> Iterator[list[LinkedServer]]:
    """Yield servers that are not configured. They are killed and released at the end."""
    made = [LinkedServer(directory, name) for name in names]
    try:
        yield made
    finally:
        for server in made:
            server.kill()
            server.release()


def two_way(first: LinkedServer, second: LinkedServer, ca: str = "") -> None:
    """Configure links in both directions."""
    first.configure(destination(second.name, second.address, ca=ca))
    second.configure(destination(first.name, first.address, ca=ca))


def publish(server: LinkedServer, name: str, bodies: Sequence[bytes]) -> None:
    """Publish as the client `name`, and wait until the server has persisted all of them."""
    with server.client(name, tt.MemoryPublishStore()) as client:
        for body in bodies:
            client.publish(TOPIC, body)
        client.publish_flush()


def bodies(name: str, count: int, first: int = 0) -> list[bytes]:
    """Return distinct bodies."""
    return [b'{"by": "%s", "n": %d}' % (name.encode(), number) for number in range(first, first + count)]


def have(expected: Sequence[bytes], *logs: LinkedServer) -> None:
    """Wait until each server has as many messages as expected, or more."""
    for server in logs:
        with server.client("waiting") as client:
            wait_until(lambda: sum(1 for _ in client.replay(TOPIC)) >= len(expected), SECONDS)


def differences(expected: Sequence[bytes], server: LinkedServer) -> dict[str, int]:
    """Return the number of missing, repeated and unexpected messages of a log, without zeros."""
    wanted, found = Counter(expected), Counter(server.log())
    counts = {
        "missing": sum((wanted - found).values()),
        "repeated": sum(count - 1 for count in found.values() if count > 1),
        "unexpected": len(found.keys() - wanted.keys()),
    }
    return {name: count for name, count in counts.items() if count}
