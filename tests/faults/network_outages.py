"""A server and clients at two ends of a link that goes down and up.

Usage: `python -m tests.faults.network_outages DIRECTORY SEED CUTS`. Runs with the clients in a network
namespace of its own (`tests.helpers.namespaces`). The server has another one. Judges by `assert`, and prints
the number of each event.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

import tickertape as tt
from tests.faults.log_on_disk import read_log
from tickertape.testing import RunningServer, wait_until

SECONDS: Final = 30.0
TOPIC: Final = "orders"
HEARTBEAT: Final = 0.5
SHORT_SECONDS_MAX: Final = 0.2
"""Connections survive an outage shorter than two intervals and TCP's retransmission time."""
PAUSE_SECONDS: Final = 0.002
NEAR, FAR = ("10.99.0.2", "to-server"), ("10.99.0.1", "to-client")
"""Address and link of the clients, and of the server."""
PORT: Final = 9007


class FarServer(RunningServer):
    """A server in the namespace of another process."""

    def __init__(self, data: Path, namespace: Path) -> None:
        config = data.with_name("tickertape.toml")
        config.write_text(f'[[transport]]\nlisten = "tcp://{FAR[0]}:{PORT}"\ninsecure = true\n')
        super().__init__(data, config, listen=None)
        self._enter = ["nsenter", f"--net={namespace}"]

    def _command(self) -> list[str]:
        return [*self._enter, *super()._command()]

    def closes(self, name: str) -> list[str]:
        """Return the log lines of this client's closed connections."""
        lines = self.errors().splitlines()
        return [line for line in lines if " connection_close " in line and f" client={name} " in line]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Link:
    """The only link between the clients and the server. Either end can be taken down."""

    def __init__(self, holder: int) -> None:
        self.namespace = Path(f"/proc/{holder}/ns/net")
        ours = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(self.namespace) != ours, SECONDS)
        self._far = ("nsenter", f"--net={self.namespace}")
        _run(
            "ip", "link", "add", "name", NEAR[1], "type", "veth", "peer", "name", FAR[1], "netns", str(holder)
        )
        for enter, (address, name) in (((), NEAR), (self._far, FAR)):
            _run(*enter, "ip", "link", "set", "lo", "up")
            _run(*enter, "ip", "address", "add", f"{address}/24", "dev", name)
            _run(*enter, "ip", "link", "set", name, "up")

    def set(self, end: str, state: str) -> None:
        """Take an end down, or up."""
        enter, name = ((), NEAR[1]) if end == "near" else (self._far, FAR[1])
        _run(*enter, "ip", "link", "set", name, state)


@contextmanager
def linked() -> Iterator[Link]:
    """Open a link to a namespace that exists for the same time."""
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL) as holder:
        try:
            yield Link(holder.pid)
        finally:
            holder.kill()


class Ends:
    """A publisher that never stops, and a subscriber, whose link is cut."""

    def __init__(self, server: FarServer, link: Link) -> None:
        self.counts: Counter[str] = Counter()
        self._server = server
        self._link = link
        self.heard: list[bytes] = []
        self._published = 0
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._lost: dict[str, int] = {"publisher": 0, "reader": 0}
        self._publisher, self._reader = (self._made(name) for name in self._lost)
        self._reader.bookmark_subscribe(TOPIC, tt.EPOCH, sub_id="all", on_message=self._on_message)
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _made(self, name: str) -> tt.HAClient:
        client = tt.HAClient.memory_backed(
            name, servers=self._server.uri, heartbeat=HEARTBEAT, reconnect_delay=0.05, timeout=1.0
        )

        def changed(state: tt.ConnectionState) -> None:
            if state is tt.ConnectionState.DISCONNECTED:
                self._lost[name] += 1

        client.add_connection_state_listener(changed)
        client.connect_and_logon(timeout=SECONDS)
        return client

    def _on_message(self, message: tt.Message) -> None:
        self.heard.append(message.data)
        message.discard()

    def _publish(self) -> None:
        try:
            while not self._over.wait(PAUSE_SECONDS):
                self._publisher.publish(TOPIC, b"%d" % self._published, timeout=SECONDS)
                self._published += 1
        except BaseException as error:
            self._error = error
            raise

    def flows(self, count: int = 50) -> None:
        """Wait until `count` more messages have been received."""
        goal = len(self.heard) + count
        wait_until(lambda: self._error or len(self.heard) >= goal, SECONDS)
        assert self._error is None, self._error

    def cut(self, end: str, seconds: float) -> None:
        """Take the link down for longer than heartbeats allow: both sides notice, in time."""
        before = {name: (self._lost[name], len(self._server.closes(name))) for name in self._lost}
        self._link.set(end, "down")
        began = time.monotonic()
        # One message may have its answer in flight. Later ones have none, so that a flush has to ask.
        goal = self._published + 2
        wait_until(lambda: self._published >= goal, HEARTBEAT)
        published = self._published
        with pytest.raises(tt.TimedOut):  # the flush waits for a connection
            self._publisher.publish_flush(timeout=4 * HEARTBEAT)
        wait_until(lambda: all(self._lost[n] > before[n][0] for n in before), SECONDS)
        wait_until(lambda: all(len(self._server.closes(n)) > before[n][1] for n in before), SECONDS)
        for name, (_, closes) in before.items():
            assert " reason=heartbeat " in self._server.closes(name)[closes]
        at_the_cut = len(self.heard)
        wait_until(lambda: time.monotonic() - began >= seconds, SECONDS)
        assert len(self.heard) == at_the_cut, "nothing comes over a link that is down"
        self.counts["published meanwhile"] += self._published - published
        assert self._publisher.unpersisted_count() > 0
        self._link.set(end, "up")
        self.flows()
        self.counts[f"{end} end down"] += 1

    def blink(self, end: str) -> None:
        """Take an end down for a short time: the connections survive."""
        before = dict(self._lost)
        self._link.set(end, "down")
        time.sleep(SHORT_SECONDS_MAX)
        self._link.set(end, "up")
        self.flows()
        self.counts["connections that outlived a blink"] += before == self._lost

    def finish(self) -> None:
        """Check that all published messages are stored once and were received once, in order."""
        self._over.set()
        self._thread.join(SECONDS)
        assert self._error is None, self._error
        self._publisher.publish_flush(timeout=SECONDS)
        expected = [b"%d" % number for number in range(self._published)]
        wait_until(lambda: len(self.heard) >= len(expected), SECONDS)
        assert self.heard == expected
        stored = [message.body for message in read_log(self._server.data) if message.topic == TOPIC]
        assert stored == expected

    def close(self) -> None:
        """Close the clients in any state."""
        self._over.set()
        self._publisher.close()
        self._reader.close()
        self._thread.join(SECONDS)


def main(directory: Path, seed: int, cuts: int) -> None:
    """Run `cuts` outages of either end in turn, with a short one after each but the first."""
    rng = Random(seed)
    with linked() as link:
        server = FarServer(directory / "data", link.namespace)
        try:
            server.start()
            ends = Ends(server, link)
            try:
                for number in range(cuts):
                    ends.flows()
                    ends.cut(("far", "near")[number % 2], rng.uniform(0.0, 5.0) if number else 2.0)
                    if number:
                        ends.blink(rng.choice(("far", "near")))
                ends.finish()
            finally:
                ends.close()
            assert server.stop() == 0
        except BaseException as failure:
            failure.add_note(f"seed {seed}, output of the server: {server.errors()[-1500:]}")
            raise
        finally:
            server.kill()
    for what, times in sorted(ends.counts.items()):
        print(f"{times}\t{what}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
