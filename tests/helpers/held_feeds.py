"""Held log feeds: start one for a test, as a feed of records does.

Must never judge.
"""

from __future__ import annotations

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.subscriptions.start_position import ReplayRange
from tickertape.engine.subscriptions.subscription import Subscription


def hold_feed(
    world: EngineWorld, peer: Peer, sub_id: str, topic: str, position: int, *, credit: int = 4096
) -> LogFeed:
    """Return a held feed of a topic or pattern from a position on, with its subscription registered."""
    broker = world.broker
    session = broker.sessions[peer.conn]
    peer.heard[sub_id], peer.marks[sub_id], peer.stamps[sub_id] = [], [], []
    peer.owed_credit[sub_id] = peer.outstanding[sub_id] = 0
    peer.credit[sub_id] = credit
    sub = Subscription(session, sub_id, credit)
    interest = broker.compiler.compile(topic, None, None, session.subscriber)
    feed = LogFeed(sub, interest, broker.services.log)
    feed.replays = True
    sub.feeds.append(feed)
    broker.subscriptions._registry.hold(session)[sub_id] = sub
    feed.begin(ReplayRange(position), None)
    broker.services.log.hold(feed)
    return feed
