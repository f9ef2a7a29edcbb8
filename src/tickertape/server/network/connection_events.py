"""Owns what is told of connections and of effects of the engine, as events.

Must never change anything: it looks at peers and effects, and writes lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from tickertape.base.errors import AuthenticationFailed, FrameStalled, HeartbeatMissed, SlowClient
from tickertape.engine.runtime.effects import (
    Effect,
    Fatal,
    LogEvent,
    LogonRefused,
    OfflineStart,
    OfflineStop,
    SubscriptionEnded,
)
from tickertape.server.events import event
from tickertape.server.network.connection import ClientConnection

_TOLD_LOUDLY: Final = (SlowClient.code, FrameStalled.code, HeartbeatMissed.code, AuthenticationFailed.code)
"""Ends of connections that are a warning."""


def log_effect(effect: Effect, peers: Mapping[int, ClientConnection]) -> None:
    """An effect that is worth a line; the others are not."""
    if isinstance(effect, LogEvent):
        event(effect.name, logging.WARNING if effect.warning else logging.INFO, **effect.fields)
    elif isinstance(effect, Fatal):
        event("failure", logging.CRITICAL, code=effect.error.code, text=str(effect.error))
    elif isinstance(effect, LogonRefused | SubscriptionEnded | OfflineStart | OfflineStop):
        peer = peers.get(effect.conn)
        client = peer.client if peer is not None else None
        if isinstance(effect, LogonRefused):
            event("refused", conn=effect.conn, client=client, code=effect.error.code, text=str(effect.error))
        elif isinstance(effect, SubscriptionEnded):
            event(
                "subscription_ended",
                logging.WARNING,
                conn=effect.conn,
                client=client,
                sub=effect.sub_id,
                topic=effect.topic,
                code=effect.error.code,
                text=str(effect.error),
            )
        elif isinstance(effect, OfflineStart):
            event("offline_start", logging.WARNING, conn=effect.conn, client=client, bytes=effect.bytes)
        else:
            event("offline_stop", conn=effect.conn, client=client, seconds=round(effect.seconds, 3))


def log_end(conn: int, peer: ClientConnection) -> None:
    """A connection is gone."""
    code, text = peer.ended
    level = logging.WARNING if code in _TOLD_LOUDLY else logging.INFO
    seconds = round(time.monotonic() - peer.since, 3)
    event(
        "connection_close",
        level,
        conn=conn,
        client=peer.client or None,
        address=peer.address or None,
        reason=code or "closed_by_peer",
        text=text or None,
        seconds=seconds,
    )
