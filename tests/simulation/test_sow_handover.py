"""Queries with the messages after them: result and messages are the log, without gap or duplicate.

Readers stop, leave and come, retention keeps one segment, and the fold applies updates and deletes while
results are copied and sent. The oracle is a dict over the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.helpers.record_rows import open_scans
from tests.helpers.small_columns import make_columns_small
from tests.helpers.sow_engine import publish
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_peer import Heard
from tests.simulation.journal_world import read_log
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import few_records, record_copy
from tickertape.engine.sow.query import query as query_module
from tickertape.engine.sow.query import result as result_module
from tickertape.engine.sow.state.delete import DeleteBuilder, decode
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.sow_command import SOW_TOPIC

HAND_OVERS = 80
SEEDS_MAX = 80
SEGMENT_BYTES = 8_192
KEYS = 60
ORDERS = SowDefinition("orders", key=("/id",))
REGIONS = SowDefinition("regions", key=("/id",), pattern="^region/")
TOPICS = ("orders", "region/eu", "region/us")
QUERIES = {
    "orders": ("orders",),
    "regions": ("region/eu", "region/us"),
    "region/us": ("region/us",),
    "^(orders|regions)$": TOPICS,
}
ENDED_EARLY = "ended early"


class Row(NamedTuple):
    """A row of the log: a message, or a delete of keys of orders."""

    message: Heard | None
    deleted: tuple[int, ...] = ()


class Asked(NamedTuple):
    """A query of the test."""

    peer: SowPeer
    sub_id: str
    topic: str
    least: int | None
    """Lowest value of the filter. None: without a filter."""
    persisted: int
    """End of the log at the request."""


class World(QueryWorld):
    """A server whose retention leaves the segment of the last message, as with checkpoints of the states."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rows: dict[int, Row] = {}
        super().__init__(
            ORDERS,
            REGIONS,
            seed=seed,
            counts=counts,
            segment_bytes=SEGMENT_BYTES,
            retention=RetentionPolicy(age_seconds=1),
        )
        retention, states = self.broker.retention, self.broker.states
        retention._pins.remove(self.broker.state_checkpoints.oldest_needed)
        retention.pin(lambda: RetentionPin(states.fold.folded, "folded"))
        self.small_tail()
        self.small_bounds()
        self.publishers = [self.connect(f"publisher {n}") for n in range(2)]
        self.asked: list[Asked] = []
        self.ended: set[int] = set()
        """Queries that ended before their result or their messages did."""

    def look(self) -> None:
        """Read the rest of the log, before retention removes a part of it."""
        for first, batch in read_log(self.broker.journal, self.disk, len(self.rows)):
            for i in range(len(self.rows) - first, batch.count):
                topic = batch.topic(i)
                deleted: tuple[int, ...] = ()
                message = None
                if topic == SOW_TOPIC:
                    record = decode(batch.body(i))
                    keys = record.keys_between(0, record.count)
                    deleted = tuple(msgspec.msgpack.decode(key, type=int) for key in keys)
                elif batch.kinds is None or not batch.kinds[i]:
                    message = Heard(batch.publisher(i), batch.sequence(i), topic, batch.body(i))
                self.rows[first + i] = Row(message, deleted)

    # -- actions ----------------------------------------------------------------------------------------

    def act(self) -> None:
        """Take one random action."""
        choice = self.rng.random()
        if choice < 0.30:
            self._publish()
        elif choice < 0.32:
            self._delete()
        elif choice < 0.40:
            self._ask()
        elif choice < 0.52:
            for peer in self.readers():
                for sub_id in list(peer.owed_credit):
                    if self.rng.random() < 0.5:
                        peer.give_credit(sub_id)
        elif choice < 0.57:
            for peer in self.readers():
                self.broker.blocked(peer.conn)
        elif choice < 0.62:
            for peer in self.readers():
                self.broker.writable(peer.conn)
            self.collect()
        elif choice < 0.64:
            self.wake(30)
        elif choice < 0.66:
            self._leave()
        else:
            self.step()

    def run_job(self) -> None:
        super().run_job()
        self.look()

    def readers(self) -> Iterator[SowPeer]:
        """Yield the connected readers."""
        for peer in list(self.peers.values()):
            if isinstance(peer, SowPeer) and peer not in self.publishers:
                yield peer

    def _publish(self) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 4, 40))
        messages = []
        for _ in range(count):
            text = "x" * rng.choice((1, 30, 200))
            value = {"id": rng.randrange(KEYS), "v": rng.randrange(100), "text": text}
            messages.append((rng.choice((*TOPICS, "other")), msgspec.json.encode(value)))
        publish(rng.choice(self.publishers), messages)

    def _delete(self) -> None:
        """Let the fold take the whole log, and delete some records."""
        fold = self.state("orders").fold
        while self.broker.states.fold.folded < self.broker.journal.commits.accepted_end:
            if self.jobs:
                self.run_job()
            elif self.reads:
                self.run_read()
            else:
                self.work()
        slots = fold.records.live_slots(0, fold.records.slot_end)[:5]
        if not len(slots):
            return
        rows = fold.records.rows(slots)
        builder = DeleteBuilder("orders", self.state("orders").key_fingerprint)
        order = sorted(range(len(slots)), key=lambda at: fold.keys.keys_of(slots)[at])
        names = [fold.keys.keys_of(slots)[at] for at in order]
        publishers = fold.records.publishers.ids(rows.publishers)
        builder.add(names, publishers[order], rows.sequences[order], rows.order_stamps[order])
        self.append_delete(builder.build(len(names), len(names)))
        self.wake()
        self.counts["deleted"] += len(names)

    def _ask(self) -> None:
        rng = self.rng
        if len(self.asked) - len(self.ended) > 6:
            return
        peers = list(self.readers())
        peer = rng.choice(peers) if len(peers) > 2 else self.reader(f"reader {len(self.asked)}")
        sub_id, topic = f"q{len(self.asked)}", rng.choice([*QUERIES])
        least = rng.choice((None, 50))
        condition = None if least is None else f"/v >= {least}"
        self.asked.append(Asked(peer, sub_id, topic, least, self.broker.journal.commits.persisted_end))
        credit = rng.choice((600, 3_000, 1 << 20))
        number = peer.query(sub_id, topic, follow=True, credit=credit, filter=condition)
        assert peer.answer(number).code == ""

    def _leave(self) -> None:
        """Let a reader unsubscribe, or lose the connection."""
        rng = self.rng
        active = [at for at in range(len(self.asked)) if at not in self.ended]
        if not active:
            return
        number = rng.choice(active)
        peer = self.asked[number].peer
        if rng.random() < 0.7:
            peer.unsubscribe(self.asked[number].sub_id)
            self.ended.add(number)
            del peer.owed_credit[self.asked[number].sub_id]
            return
        self.broker.disconnected(peer.conn)
        del self.peers[peer.conn]
        self.ended |= {at for at in active if self.asked[at].peer is peer}

    # -- the oracle -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare each query with the log."""
        self.look()
        assert len(self.rows) == self.broker.journal.commits.persisted_end, "the oracle has the whole log"
        for number, asked in enumerate(self.asked):
            result = asked.peer.results[asked.sub_id]
            if not result.groups:
                assert number in self.ended
                continue
            self.counts["hand-overs"] += number not in self.ended
            self.counts[ENDED_EARLY] += number in self.ended
            position = result.position
            assert position >= asked.persisted
            state = self._state(asked, position)
            found = [Heard(one.publisher, one.sequence, one.topic, one.body) for one in result.records]
            messages = self._messages(asked, position)
            if number in self.ended:
                assert set(found) <= set(state.values())
                assert asked.peer.heard[asked.sub_id] == messages[: len(asked.peer.heard[asked.sub_id])]
                continue
            assert len(found) == len(set(found))
            assert set(found) == set(state.values())
            assert asked.peer.heard[asked.sub_id] == messages
            assert result.end is not None
            assert (result.end.matches, result.end.records) == (len(state), len(state))
            before = [row.message for at, row in sorted(self.rows.items()) if at < position and row.message]
            as_of = f"{before[-1].publisher}|{before[-1].sequence}|" if before else "0"
            assert {group.as_of for group in result.groups} == {as_of}
            self.counts["with messages after the result"] += bool(messages)
            self.counts["several frames"] += len(result.frames) > 1
            if asked.least is None:
                self._check_each_position(asked, found, position)

    def _covers(self, asked: Asked, message: Heard) -> bool:
        if message.topic not in QUERIES[asked.topic]:
            return False
        return asked.least is None or msgspec.json.decode(message.body)["v"] >= asked.least

    def _messages(self, asked: Asked, position: int) -> list[Heard]:
        rows = [row.message for at, row in sorted(self.rows.items()) if at >= position]
        return [message for message in rows if message is not None and self._covers(asked, message)]

    def _state(self, asked: Asked, end: int) -> dict[tuple[str, int], Heard]:
        """Return the records of a query at a position, by topic and key."""
        state: dict[tuple[str, int], Heard] = {}
        for at, row in sorted(self.rows.items()):
            if at < end:
                _apply(state, row)
        return {key: message for key, message in state.items() if self._covers(asked, message)}

    def _check_each_position(self, asked: Asked, found: list[Heard], position: int) -> None:
        """Compare result and messages with the state at each position, while nothing is deleted."""
        mine = {_key(message): message for message in found}
        state = dict(mine)
        heard = iter(asked.peer.heard[asked.sub_id])
        for at, row in sorted(self.rows.items()):
            if at < position:
                continue
            if row.deleted:
                return
            if row.message is not None and self._covers(asked, row.message):
                _apply(state, row)
                message = next(heard)
                mine[_key(message)] = message
                assert mine == state
                self.counts["positions"] += 1


def _key(message: Heard) -> tuple[str, int]:
    return message.topic, msgspec.json.decode(message.body)["id"]


def _apply(state: dict[tuple[str, int], Heard], row: Row) -> None:
    for key in row.deleted:
        state.pop(("orders", key), None)
    if row.message is not None and row.message.topic in TOPICS:
        state[_key(row.message)] = row.message


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies, columns, pieces and frames of results be small, so that the fold continues between them."""
    make_columns_small(monkeypatch)
    monkeypatch.setattr(few_records, "few_records_max", 3)
    monkeypatch.setattr(record_copy, "query_step_slots_max", 7)
    monkeypatch.setattr(record_copy, "query_step_keys_max", 3)
    monkeypatch.setattr(query_module, "query_piece_rows_max", 5)
    monkeypatch.setattr(result_module, "result_frame_bytes_max", 900)


@pytest.mark.usefixtures("_small_steps")
def test_results_and_later_messages_are_the_log_in_any_schedule() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_MAX):
        if counts["hand-overs"] >= HAND_OVERS:
            break
        world = World(seed, counts)
        for _ in range(350):
            world.act()
        for peer in world.readers():
            world.broker.writable(peer.conn)
        world.collect()
        world.settle()
        world.check()
        counts["columns"] += world.broker.states.columns.nbytes > 0
        counts["removed"] += world.broker.retention.removed_segments
        assert len(world.broker.services.records) == 0
        assert not any(open_scans(topic.fold.changes) for topic in world.broker.states.topics)
    assert counts["hand-overs"] >= HAND_OVERS
    assert counts["with messages after the result"] > HAND_OVERS // 2
    assert counts["several frames"] > HAND_OVERS // 2
    assert counts["positions"] > 1_000
    assert counts["deleted"] > 20
    assert counts["removed"] > 20
    assert counts["columns"] > 8, "worlds with columns"
    assert counts[ENDED_EARLY] > 10
