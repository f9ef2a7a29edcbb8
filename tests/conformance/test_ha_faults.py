"""HA clients behind a proxy that spoils their connections at any byte: everything is stored once and
delivered once, in order, and nobody waits for ever.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.tiers import parts
from tickertape.testing import FaultProxy
from tickertape.testing.server import wait_until

FAULTS: Final = ("cut", "reset", "stall", "half_open")
SECONDS: Final = 60.0
ROUNDS: Final = 6
MESSAGES: Final = 150
"""In each round."""
SEEDS: Final = 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", parts(SEEDS, 2))
def test_faults_at_any_byte_lose_and_double_nothing(
    front: Front, uri: str, name: str, topic: str, seed: int
) -> None:
    random = Random(seed)
    heard: list[bytes] = []

    def handle(message: tt.Message) -> None:
        heard.append(message.data)
        message.discard()

    with FaultProxy(uri) as near, FaultProxy(uri) as far:
        options = {"reconnect_delay": 0.01, "heartbeat": 0.2}
        publisher = front.make_ha(f"{name}-publisher", servers=near.uri, **options)
        subscriber = front.make_ha(name, servers=far.uri, **options)
        told: list[BaseException] = []
        for client in (publisher, subscriber):
            client.set_exception_listener(told.append)
            client.connect_and_logon(SECONDS)
        subscriber.bookmark_subscribe(topic, tt.EPOCH, sub_id="all", on_message=handle)
        sent = 0
        for round_ in range(ROUNDS):
            proxy = random.choice((near, far)) if round_ else near
            way = random.choice((proxy.to_server, proxy.to_client))
            struck = way.after(random.randrange(6_000 if round_ else 60), random.choice(FAULTS))
            for _ in range(MESSAGES):
                publisher.publish(topic, b"%d" % sent)
                sent += 1
            if not struck.wait(0.3):  # it strikes in a later round, or never
                continue
            wait_until(lambda: publisher.connected and publisher.unpersisted_count() == 0, SECONDS)
        for proxy in (near, far):
            proxy.go()
        wait_until(lambda: publisher.connected and publisher.unpersisted_count() == 0, SECONDS)
        wait_until(lambda: len(heard) >= sent, SECONDS)
        expected = [b"%d" % number for number in range(sent)]
        assert heard == expected
        with front.connect(f"{name}-reader", uri) as reader:
            assert [message.data for message in reader.replay(topic)] == expected
        assert told == []
        assert near.accepted + far.accepted > 2, "no fault struck"
        subscriber.close()
        publisher.close()
