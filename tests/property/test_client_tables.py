"""Tables on the engine in virtual time: deletes, refreshes, lost connections and crashes of the server.

Each complete result must equal the records of the log at its position. After a refresh, no record is left
that was removed before the call. A copy that is updated at the changed keys only must equal the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, TypeVar, cast

import msgspec
import pytest

import tickertape as tt
from tests.helpers.sow_engine import send
from tests.helpers.tiers import parts
from tests.property.test_client_queries import World
from tests.unit.client.peer import UnusedWaiter
from tickertape.base.errors import Disconnected, TickertapeError, TimedOut
from tickertape.client.api.sow_calls import SowCalls
from tickertape.client.api.table import Table, TableFeed
from tickertape.client.api.table_guard import SendQuery, TableGuard, TableSteps, WaitUntil
from tickertape.client.common.effects import (
    DeliverBatch,
    DeliverShared,
    End,
    ResolveCall,
    Send,
    SnapshotBegun,
    SnapshotEnded,
)
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.sow.table import TableKey
from tickertape.engine.commands import sow
from tickertape.engine.sow.state.delete import decode
from tickertape.payload.canonical import encode_canonical, normal_form
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete

T = TypeVar("T")
RUNS = 12
STEPS = 500
FILTERS = (None, "/n % 2 = 0")


def state_of(log: list[Any]) -> dict[bytes, bytes]:
    """Return the bodies of the records after these messages, by canonical key."""
    state: dict[bytes, tuple[int, int, bytes]] = {}
    for one in log:
        if one.topic == "t":
            key = encode_canonical(normal_form(msgspec.json.decode(one.body)["id"]))
            state[key] = one.publisher, one.sequence, one.body
        elif one.topic == SOW_TOPIC:
            record = decode(one.body)
            cuts = record.offsets.tolist()
            for begin, end in pairwise(cuts):
                state.pop(record.key_bytes[begin:end], None)
    return {key: body for key, (_, _, body) in state.items()}


class Call:
    """Pending call of a table."""

    def __init__(self, world: TableWorld, steps: TableSteps) -> None:
        self.world = world
        self.steps = steps
        self.waiting: WaitUntil | None = None
        self.asked = False
        self.over = False
        self.error: TickertapeError | None = None
        self.done: Callable[[], object] = lambda: None

    def advance(self, answer: object = None) -> None:
        """Take all steps that are possible now."""
        while not self.over:
            try:
                step = self.steps.throw(answer) if isinstance(answer, Exception) else self.steps.send(answer)
            except StopIteration:
                self.over = True
                self.done()
                return
            except TickertapeError as error:
                self.over, self.error = True, error
                return
            answer = None
            if isinstance(step, WaitUntil):
                self.waiting = step
                if not step.condition():
                    return
                self.waiting = None
                continue
            answer = self.ask(step)
            if answer is None:
                return

    def ask(self, step: SendQuery) -> TickertapeError | None:
        token = UnusedWaiter()
        try:
            step.begin(token)
        except TickertapeError as error:
            return error
        self.world.calls[token] = self.advance
        return None

    def look(self) -> None:
        """Continue if its condition is true by now."""
        if not self.over and self.waiting is not None and self.waiting.condition():
            self.waiting = None
            self.advance()


class VirtualGuard(TableGuard[None]):
    """Guard of a table in virtual time: its calls return at once."""

    opens_at_once = True

    def __init__(self, world: TableWorld) -> None:
        self.world = world
        self.lock = nullcontext()

    def perform(self, steps: TableSteps, seconds: float | None, late: Callable[..., TimedOut]) -> None:
        del seconds, late
        call = Call(self.world, steps)
        self.world.table_calls.append(call)
        call.advance()

    def locked(self, step: Callable[[], T]) -> T:
        return step()

    def wake(self) -> None:
        """Do nothing: `settle` checks the conditions of all calls."""

    def refuse(self) -> None:
        """Do nothing: the process does not fork."""


class VirtualClient(SowCalls[Any, Any, None]):
    """The part of a client that tables use."""

    def __init__(self, world: TableWorld) -> None:
        self.world = world
        self.core = world.core
        self._driver = cast("Any", self)

    def new_sub_id(self) -> str:
        self.world.made += 1
        return f"table-{self.world.made}"

    def seconds(self, timeout: object) -> None:
        del timeout

    def leave(self, request: SubscribeRequest) -> None:
        self.core.leave(request)

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        self.core.consumed(request.context.sub_id, cost, request)

    def _sub_id(self, sub_id: str | None) -> str:
        return sub_id or self.new_sub_id()

    def _table_guard(self) -> VirtualGuard:
        return VirtualGuard(self.world)


class Screen:
    """A table, and a copy that is updated at the changed keys only."""

    def __init__(self, table: Table[None], filter_text: str | None) -> None:
        self.table = table
        self.filter = filter_text
        self.copy: dict[TableKey, bytes] = {}

    def draw(self) -> None:
        for key in self.table.changed():
            message = self.table.get(key)
            if message is None:
                del self.copy[key]
            else:
                self.copy[key] = message.data
        assert self.copy == self.content()

    def content(self) -> dict[TableKey, bytes]:
        return {key: message.data for key, message in self.table.items()}

    def matching(self, bodies: list[bytes]) -> set[bytes]:
        return {one for one in bodies if self.filter is None or msgspec.json.decode(one)["n"] % 2 == 0}


class TableWorld(World):
    """Engine, publishers and one client with tables instead of handlers."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        super().__init__(seed, counts)
        self.screens: dict[str, Screen] = {}
        """Open tables, by the id of their subscription."""
        self.table_calls: list[Call] = []
        self.made = 0
        self.expected: tuple[type[TickertapeError], ...] = (Disconnected, tt.NotReady)
        """Errors of ended feeds."""
        self.client = VirtualClient(self)

    # -- events ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        if self.random.random() < 0.6:
            super().publish()
            return
        peer = self.random.choice(self.publishers)
        rest = self.random.randrange(3)
        send(peer, [SowDelete(topic="t", filter=f"/id % 3 = {rest}")])
        self.counts["deletes"] += 1

    def query(self) -> None:
        """Open a table, or refresh one."""
        if self.core.logon.logged_on is None or not self.placed:
            return
        if self.screens and self.random.random() < 0.7:
            self.refresh(self.random.choice(list(self.screens.values())))
        elif len(self.screens) < 2:
            filter_text = self.random.choice(FILTERS)
            screen = Screen(Table(self.client, "t", filter_text), filter_text)
            sub_id = f"table-{self.made}"
            self.table_calls[-1].done = lambda: self.screens.update({sub_id: screen})

    def refresh(self, screen: Screen) -> None:
        log = self.engine.log()
        alive = set(state_of(log).values())
        dead = {one.body for one in log if one.topic == "t"} - alive
        crashes = self.counts["crashed"]
        screen.table.refresh()

        def done() -> None:
            self.counts["refreshed"] += 1
            if self.counts["crashed"] == crashes:
                left = dead.intersection(screen.content().values())
                assert not left, f"{left} were removed before the refresh"

        call = self.table_calls[-1]
        if call.over:
            done()
        call.done = done

    def hand_on(self) -> None:
        if self.screens:
            self.random.choice(list(self.screens.values())).draw()

    # -- carrying out ---------------------------------------------------------------------------------

    def settle(self) -> None:
        while effects := self.core.effects():
            for effect in effects:
                self.perform(effect)
        for call in list(self.table_calls):
            call.look()
        self.table_calls = [call for call in self.table_calls if not call.over]

    def perform(self, effect: object) -> None:
        if isinstance(effect, Send):
            assert self.line is not None
            self.line.to_server += b"".join(effect.buffers)
        elif isinstance(effect, DeliverBatch):
            effect.sink.push(effect.batch)
        elif isinstance(effect, DeliverShared):
            for sink, share, _ in effect.parts:
                sink.push(share)
        elif isinstance(effect, ResolveCall):
            self.resolved(effect)
        elif isinstance(effect, SnapshotBegun):
            effect.sink.snapshot_begun(effect.as_of, effect.position)
        elif isinstance(effect, SnapshotEnded):
            effect.sink.snapshot_ended(*effect[1:])
            self.check_result(effect)
        elif isinstance(effect, End):
            assert effect.error is None or isinstance(effect.error, self.expected), effect
            effect.sink.end(effect.reason, effect.error)

    def resolved(self, effect: ResolveCall) -> None:
        if effect.token in self.calls:
            call = self.calls.pop(effect.token)
            call(effect.outcome if isinstance(effect.outcome, TickertapeError) else None)
        else:
            super().resolved(effect)

    def check_result(self, effect: SnapshotEnded) -> None:
        assert isinstance(effect.sink, TableFeed)
        screen = self.screens.get(effect.sink.request.context.sub_id)
        if screen is None:
            return
        log = self.engine.log()
        places = [f"{one.publisher}|{one.sequence}|" for one in log]
        end = 0 if effect.as_of == "0" else places.index(effect.as_of) + 1
        possible = [screen.matching(list(state_of(log[:end]).values()))]
        while end < len(log) and log[end].topic == SOW_TOPIC:  # `as_of` does not name deletes
            end += 1
            possible.append(screen.matching(list(state_of(log[:end]).values())))
        assert set(screen.content().values()) in possible
        assert screen.table.as_of == effect.as_of
        self.counts["results"] += 1

    # -- running and checking -------------------------------------------------------------------------

    def handed(self) -> int:
        return sum(screen.table.restarts for screen in self.screens.values())

    def finish(self) -> None:
        self.settle_all()
        for screen in self.screens.values():
            screen.draw()
            self.refresh(screen)
            self.settle_all()
            wanted = screen.matching(list(self.engine.records("t").values()))
            assert set(screen.content().values()) == wanted
            assert state_of(self.engine.log()) == self.engine.records("t")
            screen.draw()
            self.counts["restarted"] += screen.table.restarts > 0
        assert not self.table_calls, "a call of a table never returns"


@pytest.mark.behaviour(55)
@pytest.mark.behaviour(56)
@pytest.mark.parametrize("block", parts(16))
def test_tables_equal_the_records_through_network_faults(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * RUNS, (block + 1) * RUNS):
        world = TableWorld(seed, counts)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = {"lost", "crashed", "deletes", "refreshed", "results", "restarted"}
    assert {name for name in wanted if counts[name]} == wanted, counts


def test_refused_refresh_does_not_block_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TableWorld(0, Counter())
    world.expected = (tt.LimitReached,)
    world.connect()
    world.settle_all()
    table = Table(world.client, "t")
    world.settle_all()
    refusals: list[TickertapeError] = [tt.LimitReached("full")]

    def check(_: object) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(sow, "check_replaces", check)
    for _ in range(2):
        table.refresh()
    first, second = world.table_calls
    world.settle_all()
    assert (type(first.error), second.over, second.error) == (tt.LimitReached, True, None)
    assert not world.table_calls
