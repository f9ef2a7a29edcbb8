"""Simulation of two or three logs joined by links, with publishers that fail over between them.

Must never compute an expectation with the product: sets of sent, acknowledged and stored messages decide.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from random import Random
from typing import Final

from tests.simulation.joined_link import JoinedLink
from tests.simulation.replicating_log import Key, LogCopy, ReplicatingLog
from tickertape.base.interfaces import Now
from tickertape.engine.runtime.holes import PublisherConnection

LOGS: Final = tuple(bytes([number]) * 16 for number in (50, 51, 52))
TOPOLOGIES: Final = {
    "pair": ((0, 1), (1, 0)),
    "chain": ((0, 1), (1, 0), (1, 2), (2, 1)),
    "mesh": ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)),
}
WINDOWS: Final = (1, 300, 2_000, 100_000, 16 << 20)
ROUNDS_MAX: Final = 500
QUIET_ROUNDS: Final = 10
"""Rounds without any frame after which links are idle."""


class PublisherLine:
    """A connection of a publisher to one server, with the frames on their way."""

    def __init__(self, server: ReplicatingLog, claim: int, session: int) -> None:
        self.server = server
        self.run = server.run
        self.connection = PublisherConnection(claim, session)
        self.frames: deque[list[int]] = deque()
        self.sent_last = 0

    @property
    def open(self) -> bool:
        """Whether the process of the server still runs."""
        return self.run == self.server.run


class StoringPublisher:
    """A publisher with a publish store."""

    def __init__(self, publisher: int) -> None:
        self.publisher = publisher
        self.next = 1
        self.store: list[int] = []
        """Messages without an acknowledgement, ascending."""
        self.acknowledged = 0
        self.line: PublisherLine | None = None
        self.sessions = 0

    def acknowledge(self, line: PublisherLine, last: int) -> None:
        """The server of a connection acknowledges all messages up to `last`."""
        if line is self.line:
            self.acknowledged = max(self.acknowledged, last)
            self.store = [sequence for sequence in self.store if sequence > self.acknowledged]


class PairWorld:
    """Logs, links in both directions of each edge, publishers, and faults."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self._mono, self._wall = 100.0, 1_760_000_000_000_000
        self.topology = self.rng.choice([*TOPOLOGIES])
        counts[self.topology] += 1
        self.edges = TOPOLOGIES[self.topology]
        members = frozenset(LOGS[: 2 if self.topology == "pair" else 3])
        self.logs = [ReplicatingLog(log, members, self.rng, counts, self._now) for log in sorted(members)]
        for source, destination in self.edges:
            self.logs[destination].sources.add(self.logs[source].id)
            self.logs[source].durable[self.logs[destination].id] = 0
        ends = (0, 2) if self.topology == "chain" else range(len(self.logs))
        self.joiner = self.rng.choice((None, None, *ends))
        """Log that joins the others late. Retention of the others does not wait for it before."""
        self.exempt: set[Key] = set()
        """Messages that all sources of the joined log had removed before."""
        self.joined = -1
        """Number of the log that joined late."""
        self.restored = False
        """Whether an old copy of a data directory was started."""
        self.publishers = [StoringPublisher(publisher) for publisher in (2**63 + 11, 12, 13)]
        self.old_lines: list[tuple[StoringPublisher, PublisherLine]] = []
        self.links: dict[tuple[int, int], JoinedLink] = {}
        self.windows = WINDOWS if self.rng.random() < 0.5 else WINDOWS[2:]
        self.sent: set[Key] = set()
        self.acknowledged: set[Key] = set()
        self.lost: set[Key] = set()
        """Acknowledged messages that an old copy of a data directory lost, and no other log has."""

    def _now(self) -> Now:
        self._mono += self.rng.random() * 0.001
        self._wall += self.rng.randrange(1, 1_500)
        return Now(self._mono, self._wall)

    # -- publishers -------------------------------------------------------------------------------------

    def publish(self) -> None:
        """A publisher sends new messages."""
        publisher = self.rng.choice(self.publishers)
        if publisher.line is None or not publisher.line.open:
            self.fail_over(publisher)
        line = publisher.line
        assert line is not None
        count = self.rng.choice((1, 1, 4, 12))
        sequences = list(range(publisher.next, publisher.next + count))
        publisher.next += count
        if count > 1 and self.rng.random() < 0.2:
            sequences.remove(self.rng.choice(sequences[:-1]))
            self.counts["skipped sequences"] += 1
        publisher.store += sequences
        self.sent |= {(publisher.publisher, sequence) for sequence in sequences}
        line.frames.append(sequences)

    def fail_over(self, publisher: StoringPublisher | None = None) -> None:
        """A publisher connects to a server, and resends the messages without an acknowledgement."""
        publisher = publisher or self.rng.choice(self.publishers)
        if publisher.line is not None:
            self.old_lines.append((publisher, publisher.line))
            self.counts["failovers"] += 1
        publisher.sessions += 1
        servers = [log for number, log in enumerate(self.logs) if number != self.joiner]
        line = PublisherLine(self.rng.choice(servers), publisher.acknowledged, publisher.sessions)
        store = deque(publisher.store)
        while store:
            line.frames.append([store.popleft() for _ in range(min(len(store), self.rng.choice((1, 5, 50))))])
            self.counts["resent frames"] += 1
        publisher.line = line

    def deliver_publish(self) -> None:
        """Frames of publishers arrive, also on old connections."""
        lines = [(one, one.line) for one in self.publishers if one.line is not None]
        for publisher, line in [*lines, *self.old_lines]:
            if self.rng.random() < 0.5:
                self._deliver_line(publisher, line)
        for pair in [*self.old_lines]:
            if self.rng.random() < 0.1 or not pair[1].frames or not pair[1].open:
                self.old_lines.remove(pair)

    def _deliver_line(self, publisher: StoringPublisher, line: PublisherLine) -> bool:
        if not line.open or not line.frames:
            return False

        def acknowledge(last: int) -> None:
            before = {*publisher.store}
            publisher.acknowledge(line, last)
            self.acknowledged |= {(publisher.publisher, s) for s in before - {*publisher.store}}

        self.counts["frames of old connections"] += line is not publisher.line
        line.server.publish(publisher.publisher, line.frames.popleft(), line.connection, acknowledge)
        return True

    # -- links ------------------------------------------------------------------------------------------

    def connect(self, edge: tuple[int, int] | None = None) -> None:
        """A source connects. The destination ends an earlier connection of the link."""
        edge = edge or self.rng.choice(self.edges)
        if self.joiner in edge:
            return
        old = self.links.get(edge)
        if old is not None:
            old.end_at_source()
            old.end_at_destination()
        source, destination = (self.logs[number] for number in edge)
        window = self.rng.choice(self.windows)
        self.links[edge] = JoinedLink(source, destination, window, self.rng, self.counts)
        self.counts["tiny windows"] += window <= 300

    def reconnect(self) -> None:
        """A link without a connection connects."""
        down = [edge for edge in self.edges if edge not in self.links or not self.links[edge].whole]
        if down:
            self.connect(self.rng.choice(down))

    def join(self) -> None:
        """The late log gets its links."""
        number, self.joiner = self.joiner, None
        if number is not None:
            removed = [{*self.logs[source].removed} for source, to in self.edges if to == number]
            self.exempt = set.intersection(*removed)
            self.joined = number
            self.counts["joins behind removed rows"] += bool(self.exempt)

    def cut(self) -> None:
        """The network ends a connection: at one end at first, and bytes on the way are lost."""
        if self.links:
            link = self.links[self.rng.choice([*self.links])]
            if self.rng.random() < 0.5:
                link.lose_bytes()
                link.end_at_source()
            else:
                link.lose_bytes()
                link.end_at_destination()
            self.counts["cuts"] += 1

    def _some_links(self) -> list[JoinedLink]:
        return [link for link in self.links.values() if self.rng.random() < 0.7]

    def send(self) -> None:
        """Sources take steps."""
        for link in self._some_links():
            for _ in range(self.rng.choice((1, 4))):
                link.send()

    def deliver(self) -> None:
        """Frames arrive."""
        for link in self._some_links():
            for _ in range(self.rng.choice((1, 5))):
                link.deliver_to_destination()
        for link in self._some_links():
            for _ in range(self.rng.choice((1, 5))):
                link.deliver_to_source()

    def work(self) -> None:
        """Destinations take steps."""
        for link in self._some_links():
            if link.taker is not None and self.rng.random() < 0.05:
                link.taker.pause(self.rng.choice(("sow_full", None)))
                self.counts["pauses"] += 1
            link.work()

    # -- servers ----------------------------------------------------------------------------------------

    def run_disks(self) -> None:
        """Disks complete some jobs and reads."""
        for log in self.logs:
            for _ in range(self.rng.choice((0, 1, 5))):
                log.run_job()
            if self.rng.random() < 0.7:
                log.read()

    def report(self) -> None:
        """Servers write reports that are due."""
        self._mono += self.rng.choice((0, 0.5, 2))
        for log in self.logs:
            log.report()

    def prune(self) -> None:
        """A server removes rows that all destinations have."""
        number = self.rng.randrange(len(self.logs))
        log = self.logs[number]
        pins = []
        for edge in self.edges:
            if edge[0] != number or self.joiner in edge:
                continue
            destination, link = self.logs[edge[1]], self.links.get(edge)
            sender = None if link is None else link.sender
            needed = None if sender is None else sender.oldest_needed()
            pins.append(log.durable[destination.id] if needed is None else needed)
            if destination.copy is not None:
                pins.append(destination.copy.needed[log.id])
        log.prune(min(pins, default=log.view.end_position))

    def _drop_connections(self, number: int) -> None:
        """All connections of a server end there."""
        for (source, destination), link in self.links.items():
            if source == number:
                link.end_at_source()
            if destination == number:
                link.end_at_destination()

    def crash(self, kind: str = "") -> None:
        """A server loses power, is killed, or starts on an old copy of its data directory."""
        number = self.rng.randrange(len(self.logs))
        copied = [at for at, log in enumerate(self.logs) if log.copy is not None and log.copy.is_old(log)]
        kind = kind or self.rng.choice(("power", "power", "kill", "copy"))
        if kind == "copy" and copied:
            number = self.rng.choice(copied)
        log = self.logs[number]
        self._drop_connections(number)
        copy = log.copy if number in copied else None
        if kind == "copy" and copy is not None:
            for edge, link in self.links.items():
                if number in edge:  # a late acknowledgement would move a pin above the places of the copy
                    link.end_at_source()
                    link.end_at_destination()
            for one in self.logs:
                one.copy = None
                if log.id in one.durable:
                    one.durable[log.id] = copy.needed[one.id]
            log.restore(copy)
            self.restored = True
            stored = {key for one in self.logs for key in one.stored()}
            self.lost |= self.acknowledged - stored
            self.counts["old copies"] += 1
        elif kind == "kill":
            log.kill()
            self.counts["kills"] += 1
        else:
            log.lose_power()
            self.counts["power losses"] += 1

    def keep_copy(self) -> None:
        """Copy the data directory of a server."""
        number = self.rng.randrange(len(self.logs))
        if self.joiner is not None or self.logs[number].copy is not None:
            return  # its sources would remove rows that the copy needs
        log = self.logs[number]
        needed = {one.id: one.durable[log.id] for one in self.logs if log.id in one.durable}
        log.copy = LogCopy(
            log.disk.kill_clone(self.rng),
            [*log.removed],
            {**log.durable},
            needed,
            log.journal.commits.persisted_end,
        )

    # -- steps ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take one random step."""
        ways = [self.send, self.deliver, self.work, self.run_disks, self.deliver_publish] * 8
        ways += [self.publish] * 8 + [self.reconnect] * 3 + [self.report, self.fail_over] + [self.prune] * 3
        self.rng.choice(ways)()
        if self.rng.random() < 0.04:
            faults = (
                self.cut,
                self.cut,
                self.connect,
                self.crash,
                self.crash,
                self.keep_copy,
                self.keep_copy,
            )
            self.rng.choice(faults)()
        if self.rng.random() < 0.005:
            self.check_stable()
        if self.rng.random() < 0.008:
            self.join()

    def run(self, steps: int) -> None:
        """Take random steps. At times a server then starts on an old copy of its data directory."""
        old = self.rng.random() < 0.4
        for at in range(steps):
            self.step()
            if old and at == steps // 3:
                self.join()
                self.keep_copy()
        if old:
            self.crash("copy")

    def heal(self) -> None:
        """Connect everything, send all messages again, and wait until nothing happens any more."""
        self.old_lines.clear()
        self.join()
        for edge in self.edges:
            if edge not in self.links or not self.links[edge].whole:
                self.connect(edge)
        quiet = 0
        for _ in range(ROUNDS_MAX):
            quiet = 0 if self._round() else quiet + 1
            if quiet == QUIET_ROUNDS:
                break
        else:
            raise AssertionError("links do not become idle")
        self.check()

    def _round(self) -> int:
        """Each part does all its work. Return the number of frames and disk jobs."""
        done = 0
        self._mono += 1.5
        for publisher in self.publishers:
            waits = publisher.line is not None and (
                publisher.line.frames or publisher.line.server.unacknowledged
            )
            if publisher.store and (publisher.line is None or not publisher.line.open or not waits):
                self.fail_over(publisher)
            while publisher.line is not None and self._deliver_line(publisher, publisher.line):
                done += 1
        for link in self.links.values():
            if link.taker is not None:
                link.taker.pause(None)
            before = link.frames
            for _ in range(50):
                moved = link.send() + link.deliver_to_destination() + link.work() + link.deliver_to_source()
                if not moved:
                    break
            done += link.frames - before
        for log in self.logs:
            while log.run_job():
                done += 1
            done += log.read()
            log.report()
        return done

    # -- checks -----------------------------------------------------------------------------------------

    def check_stable(self) -> None:
        """All members have the rows that reports call stable on their disks, unless one lost them."""
        if self.restored or self.joiner is not None:
            return
        stored = [{*log.stored()} for log in self.logs]
        for log in self.logs:
            stable = log.stable
            rows = {row.key for row in log.messages() if row.position < stable}
            for keys in stored:
                assert rows <= keys | self.exempt, (log.name, "a stable row is missing")
            self.counts["stable rows"] += len(rows)

    def check(self) -> None:
        """Each log has each message once, no acknowledged message is missing, and links are idle."""
        stored = [log.stored() for log in self.logs]
        everything = {key for keys in stored for key in keys}
        missing = self.acknowledged - self.lost - everything
        assert not missing, ("acknowledged messages are lost", sorted(missing)[:5])
        assert self.sent - self.acknowledged <= everything, "unacknowledged messages"
        assert everything <= self.sent
        for number, (log, keys) in enumerate(zip(self.logs, stored, strict=True)):
            exempt = self.exempt if number == self.joined else set()
            twice = [key for key, count in Counter(keys).items() if count > 1]
            assert not twice, (log.name, "twice", twice[:5])
            lacking = everything - {*keys} - exempt
            assert not lacking, (log.name, "lacks", sorted(lacking)[:5])
            self._check_holes(log, everything - exempt)
            self._check_origins(number)
        for link in self.links.values():
            sender = link.sender
            assert sender is not None
            assert sender.behind == sender.unsent == 0
            assert sender.resynced
        self.check_stable()
        self.counts["messages"] += len(everything)

    def _check_holes(self, log: ReplicatingLog, everything: set[Key]) -> None:
        """Only sequences that no log has are in holes."""
        for publisher in self.publishers:
            for hole in log.exact.known.holes(publisher.publisher):
                inside = {(publisher.publisher, s) for s in range(hole.first, hole.last + 1)}
                assert not inside & everything, (log.name, "a hole has stored messages", hole)
                self.counts["open holes at the end"] += 1

    def _check_origins(self, number: int) -> None:
        """Paths start at a log in which a client stored the message, and follow the links."""
        here = self.logs[number]
        numbers = {log.id: at for at, log in enumerate(self.logs)}
        for row in here.messages():
            origin = self.logs[numbers[row.path[0]]] if row.path else here
            assert row.key in origin.taken, (here.name, row, "no client stored the message there")
            steps = [numbers[log] for log in row.path] + [number]
            assert all(edge in self.edges for edge in pairwise(steps)), (here.name, row)
            assert len({*steps}) == len(steps)
            if row.path:
                assert row.order_stamp in origin.taken[row.key], (here.name, row)
            self.counts["messages of two links"] += len(row.path) > 1
