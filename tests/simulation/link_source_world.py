"""Simulation of the source of a link: a log of several origins, its source machine, and a naive destination.

Must never compute the owed rows with the product's routes: the oracle judges each row by itself.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tests.helpers.link_frames import DESTINATION, OPEN
from tests.helpers.link_oracle import TRAVELLING, LoggedRow, NaiveRules, Named, rows_of
from tests.helpers.reserved_batches import with_reserved
from tests.helpers.source_log import LOG, START, JournalOfSource
from tickertape.batch import KIND_RESTATED, RUN_BY_SERVER, RUN_LATE, BatchBuilder, MessageBatch
from tickertape.batch.format import FLAG_SUPERSEDED, I8, U8
from tickertape.engine.replication.origins import Origin
from tickertape.engine.replication.places import LinkStart, StartRefused
from tickertape.engine.replication.routes import DestinationRoutes, PassThrough, ReplicationRule, RuleSet
from tickertape.engine.replication.source.link_frames import LinkFrame
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, encode
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpened,
    LinkOrigin,
    LinkPlace,
    LinkRequest,
    LinkRuns,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import (
    decode_holes,
    decode_names,
    decode_positions,
    encode_pairs,
    encode_positions,
)

THERE: Final = DESTINATION.log
OTHERS: Final = tuple(bytes([number]) * 16 for number in range(40, 44))
OWN_PUBLISHERS: Final = (2**63 + 11, 12, 13)
LOCAL: Final = ("holes", "link", "origin", "queue", "started", "transaction", "unknown")
TOPICS: Final = ("a", "a/1", "ab", "b", "b/1", "c", "/tickertape/x")
RULE_TOPICS: Final = (*TOPICS, ".*", "^a", "^a/", "^b", "1$", "[bc]")
GROUPS: Final = ("north", "northeast", "south")
FILTERS: Final = (None, None, "/n > 2", "/n < 4")
WINDOWS: Final = (1, 40, 300, 5_000, 100_000, 16 << 20)


class LinkSourceWorld:
    """One log on a strict disk, and links from it to one destination, one after the other."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.log = JournalOfSource(self.rng, tail_bytes=self.rng.choice((1, 3_000, 1 << 20)))
        self.rows: list[LoggedRow] = []
        """All accepted rows, by position."""
        self.row_of: dict[tuple[int, int, Origin | None], LoggedRow] = {}
        self._owed: list[str] = []
        """Judgement of each row."""
        self._stored_under: list[int] = []
        """Publisher of each row in this log."""
        self._next: Counter[int] = Counter()
        self._missing: defaultdict[int, list[int]] = defaultdict(list)
        """Skipped sequences of each publisher, which late runs bring."""
        self._rules = [
            ReplicationRule(topic=self.rng.choice(RULE_TOPICS), filter=self.rng.choice(FILTERS), sync=False)
            for _ in range(self.rng.choice((1, 2, 4)))
        ]
        if self.rng.random() < 0.5:
            self._rules.append(ReplicationRule(topic=".*", sync=False))
        self._pass_through = self.rng.choice((".*", ".*", "", "north", "^north$"))
        self._judge = NaiveRules(self._rules, self._pass_through, THERE)
        self.durable = 0
        """Position that the destination has kept."""
        self.has_place = False
        self.link: SimulatedLink | None = None

    # -- the log ----------------------------------------------------------------------------------------

    def _add_origin(self) -> None:
        log = self.rng.choice((*OTHERS, THERE))
        between = self.rng.sample([one for one in (*OTHERS, THERE) if one != log], self.rng.randrange(3))
        made = Origin(log, f"server-{log[0]}", self.rng.choice(GROUPS), (log, *between))
        record = self.log.add_origin(made)
        if record is not None:
            accepted = self.log.journal.accepted[-1]
            assert accepted.stamp is not None
            self._note(record, accepted.position, accepted.stamp.timestamp)

    def append(self) -> None:
        """Append a run of messages, or of records."""
        rng = self.rng
        if rng.random() < 0.1 and len(self.log.numbers) < 12:
            self._add_origin()
        number = rng.choice([0, 0, *self.log.numbers])
        choice = rng.random()
        if choice < 0.72:
            own = OWN_PUBLISHERS if not number else [100 + number, 200 + number]
            self._append_messages(rng.choice(own), number)
        elif choice < 0.86:
            self._append_records(number)
        elif choice < 0.93:
            self._append_deletes(number)
        else:
            topic, count = rng.choice(("$link", "$link", "$queue")), rng.choice((1, 1, 3))
            self._append(topic, [b"place"] * count, CONTROL_PUBLISHER, 0, kind=1)

    def _append_messages(self, publisher: int, number: int) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 2, 5, 30))
        size = rng.choice((0, 0, 10, 400))
        bodies = [json.dumps({"n": rng.randrange(7), "x": "y" * size}).encode() for _ in range(count)]
        topics = [rng.choice(TOPICS)] if rng.random() < 0.6 else rng.sample(TOPICS, 3)
        self._append(
            [rng.choice(topics) for _ in bodies], bodies, publisher, number, labels=rng.random() < 0.3
        )

    def _append_records(self, number: int) -> None:
        publisher, log = self._control(number)
        bodies = []
        for _ in range(self.rng.choice((1, 1, 3))):
            record = {
                "type": self.rng.choice(TRAVELLING + LOCAL),
                "latest_of": "x",
                "n": self.rng.randrange(99),
            }
            bodies.append(msgspec.msgpack.encode(record | ({"log": log} if log else {})))
        self._append("$control", bodies, publisher, number, kind=1)

    def _append_deletes(self, number: int) -> None:
        topics = self.rng.sample(TOPICS, self.rng.choice((1, 1, 3)))
        kind = self.rng.choice((DeleteKind.DELETED, DeleteKind.DELETED, DeleteKind.EXPIRED))
        built = DeleteBuilder(topics[0], bytes(16), kind)
        keys = [str(at).encode() for at in range(len(topics))]
        numbers = np.arange(1, len(keys) + 1)
        several = topics if len(topics) > 1 else None
        built.add(keys, numbers.astype(U8), numbers.astype(U8), numbers.astype(I8), topics=several)
        self._append("$sow", [encode(built.build())], self._control(number)[0], number, kind=1)

    def _control(self, number: int) -> tuple[int, bytes | None]:
        """Return the publisher of control records of an origin, as a log may store them, and its id."""
        if not number:
            return CONTROL_PUBLISHER, None
        log = self.log.numbers[number].log
        return self.rng.choice((CONTROL_PUBLISHER, control_publisher(log))), log

    def _append(
        self,
        topic: str | list[str],
        bodies: list[bytes],
        publisher: int,
        number: int,
        *,
        kind: int = 0,
        labels: bool = False,
    ) -> None:
        rng = self.rng
        builder = BatchBuilder()
        topics = [topic] * len(bodies) if isinstance(topic, str) else topic
        missing = self._missing[publisher]
        late = bool(missing) and not kind and rng.random() < 0.2
        if late:
            bodies = bodies[: len(missing)]
            sequences = [missing.pop(0) for _ in bodies]
        else:
            sequences = [self.log.next_record() if kind else self._sequence(publisher) for _ in bodies]
        for at, body in enumerate(bodies):
            extra: dict[str, Any] = {}
            if labels:
                extra = {"key": rng.choice(("", "k")), "correlation_id": rng.choice(("", "id"))}
                extra |= {"expiration_ms": rng.choice((0, 5)), "headers": rng.choice((b"", b"h" * 9))}
            builder.add(topics[at], body, sequence=sequences[at], kind=kind, **extra)
        flags = RUN_LATE if late else 0
        flags |= RUN_BY_SERVER if rng.random() < 0.2 else 0
        stamp = self.log.journal.next_stamp(self.log.now())
        restated = kind == 0 and number == 0 and rng.random() < 0.2
        batch = with_reserved(
            builder.build(publisher=publisher),
            origins=[number],
            run_flags=[flags],
            kinds=[rng.choice((0, KIND_RESTATED)) for _ in bodies] if restated else None,
            message_flags=[rng.choice((0, FLAG_SUPERSEDED)) for _ in bodies] if restated else None,
            order_stamps=[stamp - rng.randrange(1, 10**6)] if rng.random() < 0.4 else None,
        )
        self.counts["stored late"] += late
        self._note(batch, self.log.append(batch, stamp), stamp)

    def _note(self, batch: MessageBatch, position: int, stamp: int) -> None:
        """Enter the rows of an appended batch."""
        assert position == len(self.rows)
        for row in rows_of(batch, self.log.numbers):
            stamped = row if batch.order_stamps is not None else row._replace(order_stamp=stamp)
            self.rows.append(stamped)
            self.row_of[stamped.publisher, stamped.sequence, stamped.origin] = stamped
            self._owed.append(self._judge.judge(stamped))
            self._stored_under.append(batch.first_run.publisher)

    def _sequence(self, publisher: int) -> int:
        """Return the next sequence of a publisher, which may skip some."""
        skipped = self.rng.choice((0, 0, 0, 0, 2))
        before = self._next[publisher]
        self._missing[publisher] += range(before + 1, before + 1 + skipped)
        self._next[publisher] += 1 + skipped
        return self._next[publisher]

    def prune(self) -> None:
        """Remove old segments that the link does not need."""
        oldest = None if self.link is None else self.link.source.oldest_needed()
        if oldest is None and self.has_place:
            oldest = self.durable
        self.counts["removals"] += self.log.prune(oldest)

    def read(self) -> None:
        """The disk answers the reads of the link."""
        self.counts["reads"] += self.log.read()

    # -- the oracle -------------------------------------------------------------------------------------

    def owed(self, start: int, end: int) -> list[LoggedRow | Named]:
        """Return the sent rows and named messages of a range of the log."""
        found: list[LoggedRow | Named] = []
        for row, owed in zip(self.rows[start:end], self._owed[start:end], strict=True):
            if owed == "sent":
                found.append(row)
            elif owed == "named":
                found.append(Named(row.publisher, row.sequence, row.origin, row.order_stamp))
        return found

    def moves_places(self, start: int, end: int) -> bool:
        """Return whether a range has a row that is not a place."""
        return any(row.topic != "$link" for row in self.rows[start:end])

    def removed_highest(self) -> dict[int, int]:
        """Return the highest removed sequence of each publisher, as the destination knows it."""
        highest: dict[int, int] = {}
        first = self.log.view.first_position
        for row, stored in zip(self.rows[:first], self._stored_under[:first], strict=True):
            publisher = control_publisher(LOG) if stored == CONTROL_PUBLISHER else stored
            if publisher != control_publisher(THERE):
                highest[publisher] = max(highest.get(publisher, 0), row.sequence)
        return highest

    # -- links ------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a link. The destination starts at its durable place, if it has one."""
        self.disconnect()
        routes = DestinationRoutes(
            RuleSet(self._rules), PassThrough(self._pass_through), THERE, TopicCatalog()
        )
        self.link = SimulatedLink(self, LinkSource(self.log.facts, routes, frozenset()))

    def disconnect(self) -> None:
        """The connection ends."""
        if self.link is not None:
            self.link.source.stop()
            self.durable = self.link.durable
            self.has_place = self.has_place or self.link.has_place
            self.link = None
            self.counts["disconnects"] += 1

    def step(self) -> None:
        """Take one random step."""
        ways = [*[self.append] * 5, *[self.log.run_job] * 4, *[self._work] * 12, *[self.read] * 6, self.prune]
        self.rng.choice(ways)()
        if self.rng.random() < 0.004:
            self.connect()

    def _work(self) -> None:
        if self.link is not None:
            self.link.act()

    def finish(self) -> None:
        """Let the link end all its work, and check that nothing is missing."""
        self.log.settle()
        assert self.link is not None
        link = self.link
        for _ in range(20_000):
            before = link.progress()
            link.settle()
            self.read()
            if before == link.progress() and not link.source.has_work and not self.log.reads_outstanding:
                break
        link.check_end()


class _Held(NamedTuple):
    """A frame that the destination has not processed: a cost, the numbers of its rows, and `end`."""

    cost: int
    rows: range
    end: int


class SimulatedLink:
    """A source machine, a naive destination, and the check of order between them."""

    def __init__(self, world: LinkSourceWorld, source: LinkSource) -> None:
        self.world = world
        self.source = source
        self._rng = world.rng
        self._order = LinkOrder()
        self._order.from_source(OPEN)
        pair = (START, world.durable) if world.has_place else None
        window = self._rng.choice(WINDOWS)
        opened = LinkOpened(
            side=DESTINATION,
            credit=window,
            place=None if pair is None else LinkPlace(*pair),
            places=b"" if pair is None else encode_pairs([pair[0]], [pair[1]]),
        )
        self._order.from_destination(opened)
        self._goal = world.log.end
        start = source.opened(opened)
        assert not isinstance(start, StartRefused)
        self._start: LinkStart = start
        assert start.behind_removed == (pair is None and world.log.view.first_position > 0)
        self._removed = world.removed_highest() if start.behind_removed else {}
        self._found_removed: dict[int, int] = {}
        self._started = False
        self.durable = start.position
        self.has_place = False
        self._end = start.position
        self._found: list[LoggedRow | Named] = []
        self._origins: dict[int, Origin] = {}
        self._names: list[list[Named]] = []
        """Messages of each named row."""
        self._held: deque[_Held] = deque()
        self._requested: deque[int] = deque()
        """Requested rows without an answer."""
        self._withheld = 0
        """Credit of the requested rows."""
        self._returnable = 0
        self._processed_end = start.position
        self._waiting_end: int | None = None
        """`end` of the frame with unanswered rows."""
        world.counts["links"] += 1
        world.counts["links behind removed rows"] += start.behind_removed
        world.counts["windows of one byte"] += window == 1

    def progress(self) -> tuple[int, ...]:
        order = self._order
        return order.end, order.durable, order.named, len(self._requested), len(self._held), order.credit

    def act(self) -> None:
        """Take one random step of the source or of the destination."""
        choice = self._rng.random()
        if choice < 0.6:
            self._step_source()
        elif choice < 0.8:
            self._process()
        elif choice < 0.9:
            self._return_credit(whole=False)
        else:
            self._acknowledge(whole=False)

    def settle(self) -> None:
        """Take one step of each kind."""
        while self.source.has_work:
            self._step_source()
        self._process()
        self._return_credit(whole=True)
        self._acknowledge(whole=True)

    # -- the source -------------------------------------------------------------------------------------

    def _step_source(self) -> None:
        source, world = self.source, self.world
        blocked = self._order.credit <= 0 and self._order.credit < self._window()
        reads = world.log.reads_outstanding
        worked = source.has_work
        frames = source.step()
        assert worked or not frames
        if blocked and not self._requested:
            assert world.log.reads_outstanding == reads
            assert not frames
            world.counts["steps without credit"] += 1
        ends = [f for f in frames if isinstance(f.command, LinkNames) and not f.command.rows]
        assert len(ends) <= 1
        for frame in frames:
            self._take(frame)
        oldest = source.oldest_needed()
        assert oldest is not None
        assert oldest <= self.durable
        assert source._credit == self._order.credit
        kept = [len(frame.spans.positions) for frame in source._names._frames]
        assert sum(kept[1:]) * 36 <= self._window() - self._order.credit
        self._check_counts()

    def _window(self) -> int:
        return self._order._window

    def _check_counts(self) -> None:
        source, world = self.source, self.world
        assert (source.end, source.durable) == (self._end, self.durable)
        most = world.log.end - self.durable
        assert 0 <= source.behind <= most
        if self.durable < self._end:
            assert source.behind == most
        if source.resynced:
            assert not world.owed(self.durable, max(self._goal, self.durable))
            world.counts["resynced"] += 1

    def _take(self, frame: LinkFrame) -> None:
        command, counts = frame.command, self.world.counts
        before = self._order.credit
        self._order.from_source(command, frame.batch)
        cost = before - self._order.credit
        if isinstance(command, LinkHoles):
            self._take_holes(command, cost)
            return
        counts["oversized"] += self._order.credit < 0
        self._learn(command.origins)
        if isinstance(command, LinkRuns) and command.answers:
            assert frame.batch is not None
            self._take_answers(decode_positions(command.answers).tolist(), frame.batch)
            return
        rows = range(len(self._names), len(self._names))
        if isinstance(command, LinkRuns):
            assert frame.batch is not None
            frame.batch.verify()
            runs = frame.batch.runs
            assert not (runs["flags"] & np.uint32(RUN_LATE)).any()
            self._found += rows_of(frame.batch, self._origins)
            counts["frames of runs"] += 1
        elif command.rows:
            rows = self._take_names(command)
            counts["frames of names"] += 1
        else:
            assert self.world.moves_places(self._end, command.end)
            counts["frames of ends"] += 1
        assert self._found == self.world.owed(self._end, command.end)
        self._found.clear()
        self._end = command.end
        self._held.append(_Held(cost, rows, command.end))

    def _take_holes(self, command: LinkHoles, cost: int) -> None:
        rows = decode_holes(command.rows)
        self._found_removed |= dict(zip(rows.publishers.tolist(), rows.highest.tolist(), strict=True))
        assert command.position == self._start.position
        self._held.append(_Held(cost, range(0), command.position))
        self.world.counts["frames of holes"] += 1
        if not command.more:
            self._started = True
            assert command.behind == self._start.behind_removed
            assert self._found_removed == self._removed

    def _learn(self, origins: tuple[LinkOrigin, ...]) -> None:
        for one in origins:
            self._origins[one.number] = Origin(one.log, one.instance, one.group, one.path)

    def _take_names(self, command: LinkNames) -> range:
        table = decode_names(command.rows)
        first = len(self._names)
        columns = (column.tolist() for column in table)
        for publisher, low, high, number, stamp in zip(*columns, strict=True):
            origin = self._origins[number] if number else None
            messages = [Named(publisher, sequence, origin, stamp) for sequence in range(low, high + 1)]
            self._names.append(messages)
            self._found += messages
            self.world.counts["names of several messages"] += len(messages) > 1
        return range(first, len(self._names))

    def _take_answers(self, numbers: list[int], batch: MessageBatch) -> None:
        batch.verify()
        found = rows_of(batch, self._origins)
        expected = []
        for number in numbers:
            assert self._requested.popleft() == number
            expected += [self._row(message) for message in self._names[number]]
        assert found == expected
        assert batch.run_count == len(numbers)
        assert not (batch.runs["flags"] & np.uint32(RUN_LATE)).any()
        self.world.counts["answered rows"] += len(numbers)
        self.world.counts["answers of several rows"] += len(numbers) > 1
        if not self._requested:
            self._returnable += self._withheld
            self._withheld, self._waiting_end = 0, None

    def _row(self, message: Named) -> LoggedRow:
        """Return the named row of the log."""
        return next(row for row in self.world.rows if row[:2] == message[:2] and row.origin == message.origin)

    # -- the destination --------------------------------------------------------------------------------

    def _process(self) -> None:
        """Process the next frame, unless a requested row has no answer."""
        if not self._held or self._requested:
            return
        cost, rows, end = self._held.popleft()
        wanted = [row for row in rows if self._rng.random() < self._rng.choice((0, 0.2, 1))]
        if wanted and self._started:
            request = LinkRequest(positions=encode_positions(wanted))
            self._order.from_destination(request)
            self.source.received(request)
            self._requested.extend(wanted)
            self._withheld = len(wanted) * 36
            self._waiting_end = end
        else:
            self._processed_end = end
        self._returnable += cost - self._withheld

    def _return_credit(self, *, whole: bool) -> None:
        if not self._returnable:
            return
        amount = self._returnable if whole else self._rng.randint(1, self._returnable)
        self._returnable -= amount
        command = LinkCredit(bytes=amount)
        self._order.from_destination(command)
        self.source.received(command)

    def _acknowledge(self, *, whole: bool) -> None:
        if not self._started:
            return
        if self._waiting_end is None and not self._requested and not self._held:
            self._processed_end = self._end
        durable = self._processed_end
        if not whole:
            durable = self._rng.choice((durable, self._rng.randint(self.durable, durable)))
        command = LinkAck(durable=durable, level=self._rng.choice(("local", "written")))
        self._order.from_destination(command)
        self.source.received(command)
        self.durable = durable
        self.has_place = self.has_place or durable > self._start.position or not self._start.behind_removed
        assert self.source.level == command.level

    def check_end(self) -> None:
        """Everything was sent, named or is not for the link."""
        world, end = self.world, self.world.log.end
        assert not world.owed(self._end, end)
        assert not world.moves_places(self._end, end)
        assert not self._requested
        assert self.durable == self._end
        assert self.source.resynced
        assert self.source.behind == self.source.unsent == 0
        assert world.log.reads.budgets.log.held_bytes == 0
