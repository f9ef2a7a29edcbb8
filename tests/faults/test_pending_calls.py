"""Calls that wait for an answer while the connection fails at any byte of it.

Each ends with the documented error, none waits forever, and the client stays usable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import tickertape as tt
from tests.conformance.fronts import EVERY_FRONT, Front, front_fixture
from tickertape.testing import FaultProxy
from tickertape.testing.fault_proxy import Fault
from tickertape.testing.server import RunningServer, running_server, wait_until

SECONDS: Final = 20.0
PATIENCE: Final = 0.05
"""Seconds that a call waits for an answer that does not arrive."""
ANSWER_BYTES_MIN: Final = 32
STEP: Final[dict[Fault, int]] = {"cut": 7, "reset": 13, "stall": 23, "half_open": 23}
"""Without `--full` only every n-th byte of the answer, from byte 0 on."""

pytestmark = pytest.mark.slow
_names = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(config='[journal]\nsync = "never"\n') as running:
        yield running


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.uri) as running:
        yield running


front = front_fixture(*EVERY_FRONT)


class Case:
    """A call, and its preparation."""

    def __init__(
        self,
        call: Callable[[tt.Client, float], object],
        before: Callable[[tt.Client], object] = lambda _: None,
    ) -> None:
        self.call = call
        self.before = before


def subscribed(client: tt.Client) -> None:
    client.bookmark_subscribe("orders", tt.NOW, sub_id="s", options="replace", pause=False)


def paused(client: tt.Client) -> None:
    subscribed(client)
    client.pause("s")


def gone(client: tt.Client) -> None:
    with contextlib.suppress(tt.SubscriptionUnknown):
        client.unsubscribe("s")


def publish_and_flush(client: tt.Client, limit: float) -> None:
    client.publish("orders", b"1")
    client.publish_flush(limit)


CASES: Final = {
    "subscribe": Case(lambda client, limit: client.subscribe("orders", sub_id="s", timeout=limit), gone),
    "bookmark_subscribe": Case(
        lambda client, limit: client.bookmark_subscribe("orders", tt.NOW, sub_id="s", timeout=limit), gone
    ),
    "flush": Case(publish_and_flush),
    "flush_processed": Case(lambda client, limit: client.publish_flush(limit, level="processed")),
    "unsubscribe": Case(lambda client, limit: client.unsubscribe("s", timeout=limit), subscribed),
    "pause": Case(lambda client, limit: client.pause("s", timeout=limit), subscribed),
    "resume": Case(lambda client, limit: client.resume("s", timeout=limit), paused),
}


def outcome(call: Callable[[], object], fault: Fault) -> bool:
    """Return whether the call got its answer. Otherwise its error must be the documented one, in time."""
    try:
        call()
    except tt.TimedOut:
        assert fault in ("stall", "half_open")
        return False
    except tt.Disconnected:
        assert fault in ("cut", "reset")
        return False
    return True


def places(size: int, fault: Fault, request: pytest.FixtureRequest) -> range:
    assert size >= ANSWER_BYTES_MIN
    return range(0, size, 1 if request.config.getoption("--full") else STEP[fault])


def quiet(client: tt.Client, proxy: FaultProxy) -> int:
    """Wait until the server sends only answers of flushes. Return the bytes of one."""
    sizes = [0, 1]
    while sizes[-1] != sizes[-2]:
        before = proxy.to_client.passed_bytes
        client.publish_flush(level="processed")
        sizes.append(proxy.to_client.passed_bytes - before)
    return sizes[-1]


def check(outcomes: dict[int, bool]) -> None:
    """Check that a fault within the smallest frame prevents the answer."""
    assert 0 in outcomes
    assert not any(answered for place, answered in outcomes.items() if place < ANSWER_BYTES_MIN)


def usable(client: tt.Client, proxy: FaultProxy, fault: Fault) -> None:
    """Put an end to the fault, and show that the client works."""
    if fault != "stall":
        wait_until(lambda: proxy.connections == 0 or fault == "half_open")
        proxy.go()
        wait_until(lambda: not client.connected)
    else:
        proxy.go()
    client.connect(timeout=SECONDS)
    client.publish_flush(timeout=SECONDS, level="processed")


@pytest.mark.parametrize("fault", ["cut", "reset", "stall", "half_open"])
def test_connect_with_a_fault_at_any_byte_of_the_answer_ends_in_time(
    front: Front, proxy: FaultProxy, fault: Fault, request: pytest.FixtureRequest
) -> None:
    client = front.connect(f"c{next(_names)}", proxy.uri)
    size = proxy.to_client.passed_bytes
    client.close()
    client = front.make(f"c{next(_names)}", proxy.uri)
    limit = SECONDS if fault in ("cut", "reset") else PATIENCE
    outcomes = {}
    for place in places(size, fault, request):
        struck = proxy.to_client.after(place, fault)
        outcomes[place] = outcome(lambda: client.connect(timeout=limit), fault)
        assert struck.wait(SECONDS)
        proxy.go()
        wait_until(lambda: not client.connected or fault == "stall")
    check(outcomes)
    assert not any(outcomes.values())
    client.connect(timeout=SECONDS)
    client.publish("orders", b"1")
    client.publish_flush(timeout=SECONDS)


@pytest.mark.parametrize("fault", ["cut", "reset", "stall", "half_open"])
@pytest.mark.parametrize("name", CASES)
def test_client_call_with_a_fault_at_any_answer_byte_ends_in_time(
    front: Front, proxy: FaultProxy, name: str, fault: Fault, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    client = front.connect(f"c{next(_names)}", proxy.uri)
    case.before(client)
    flush_bytes = quiet(client, proxy)
    before = proxy.to_client.passed_bytes
    case.call(client, SECONDS)
    client.publish_flush(level="processed")  # every byte of the answer has arrived
    size = proxy.to_client.passed_bytes - before - flush_bytes
    limit = SECONDS if fault in ("cut", "reset") else PATIENCE
    outcomes = {}
    for place in places(size, fault, request):
        case.before(client)
        client.publish_flush(timeout=SECONDS, level="processed")
        struck = proxy.to_client.after(place, fault)
        outcomes[place] = outcome(lambda: case.call(client, limit), fault)
        while outcomes[place] and not struck.is_set():  # a short answer: the next one has this byte
            with contextlib.suppress(tt.Disconnected, tt.TimedOut):
                client.publish_flush(PATIENCE, level="processed")
        assert struck.wait(SECONDS)
        usable(client, proxy, fault)
    check(outcomes)
