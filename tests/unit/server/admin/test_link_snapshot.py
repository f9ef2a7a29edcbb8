"""Holes, levels and the state of a replicating server in snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TypeVar, cast

import pytest

from tests.helpers.linked import join
from tests.simulation.linked_engine import LinkedEngine, body_of
from tests.simulation.linked_engines import link_to
from tickertape.server.admin import snapshot
from tickertape.server.admin.schema import HoleStatus
from tickertape.server.admin.snapshot import InstanceSnapshot, status
from tickertape.server.engine_driver import EngineDriver

OTHER = "server-1"
T = TypeVar("T")


class Driver:
    """The parts of a driver that snapshots of links read."""

    def __init__(self, sync: str = "orders", acknowledge: int | None = None, links: int = 1) -> None:
        destinations = tuple(link_to(number, sync=sync) for number in range(1, links + 1))
        self.engine = LinkedEngine(1, 0, destinations, Counter(), acknowledge=acknowledge)
        self.broker = self.engine.broker
        self.stopped: _Running = _Running()


class _Running:
    def done(self) -> bool:
        """Return whether the server has stopped."""
        return False


def finished(steps: Generator[None, None, T]) -> T:
    """Run all steps of a query."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def state_of(driver: Driver, *, needs_links: bool = False) -> tuple[str, str | None]:
    """Return the state of a server, and the cause."""
    return status(cast("EngineDriver", driver), needs_links=needs_links)


def test_holes_are_listed_with_the_publisher_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(sync="")
    for name in ("p", "q"):
        peer = driver.engine.connect(name, persisted=5, session=1)
        driver.engine.settle()
        assert peer.logged_on is not None
        peer.next_sequence = 6
        peer.publish("orders", [body_of(peer.logged_on.publisher, 6)])
        driver.engine.settle()
    of_server = InstanceSnapshot(cast("EngineDriver", driver), "ny-1")
    found = finished(of_server.holes())
    assert [(one.client, one.first, one.last, one.proven) for one in found.holes] == [
        ("p", 1, 5, True),
        ("q", 1, 5, True),
    ]
    assert isinstance(found.holes[0], HoleStatus)
    assert found.left_out == 0
    monkeypatch.setattr(snapshot, "holes_listed_max", 1)
    found = finished(of_server.holes())
    assert ([one.client for one in found.holes], found.left_out) == (["p"], 1)


@pytest.mark.parametrize("needs_links", [False, True])
def test_state_names_the_destination_that_acknowledgements_wait_for(needs_links: bool) -> None:
    driver = Driver()
    waiting = "waiting" if needs_links else "ready"
    reason = f"acknowledgements wait for the destination '{OTHER}'"
    assert state_of(driver, needs_links=needs_links) == (waiting, reason)
    other = LinkedEngine(2, 1, (link_to(0, sync="orders"),), Counter())
    join(driver.engine, other)
    assert state_of(driver, needs_links=needs_links) == ("ready", None)
    driver.broker.set_link_stopped(OTHER, driver.engine.now(), stopped=True)
    assert state_of(driver, needs_links=needs_links) == (waiting, reason)
    driver.broker.change_level(OTHER, driver.engine.now(), downgraded=True)
    driver.engine.collect()
    driver.engine.settle()
    assert state_of(driver, needs_links=needs_links) == ("ready", None)


def test_state_of_a_server_without_synchronous_links_is_ready() -> None:
    assert state_of(Driver(sync=""), needs_links=True) == ("ready", None)


def test_state_with_any_n_waits_when_fewer_destinations_are_connected() -> None:
    driver = Driver(acknowledge=1, links=2)
    assert state_of(driver, needs_links=True)[0] == "waiting"
    other = LinkedEngine(2, 1, (link_to(0, sync="orders"),), Counter())
    join(driver.engine, other)
    assert state_of(driver, needs_links=True) == ("ready", None)
