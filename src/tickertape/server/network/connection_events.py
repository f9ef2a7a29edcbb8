"""Event log entries of connections and of engine effects."""

from __future__ import annotations

import logging
import time
from typing import Final

from tickertape.base.errors import AuthenticationFailed, FrameStalled, HeartbeatMissed, SlowClient
from tickertape.engine.runtime.effects import (
    Fatal,
    LogEvent,
    LogonRefused,
    OfflineStart,
    OfflineStop,
    SubscriptionEnded,
)
from tickertape.server.events import event
from tickertape.server.network.connection import PeerConnection

ConnectionEffect = LogonRefused | SubscriptionEnded | OfflineStart | OfflineStop

_WARNINGS: Final = (SlowClient.code, FrameStalled.code, HeartbeatMissed.code, AuthenticationFailed.code)
"""Error codes that are logged as a warning when they close a connection."""


def log_effect(effect: LogEvent | Fatal) -> None:
    """Log an engine effect without a connection."""
    if isinstance(effect, LogEvent):
        event(effect.name, logging.WARNING if effect.warning else logging.INFO, **effect.fields)
    else:
        event("failure", logging.CRITICAL, code=effect.error.code, text=str(effect.error))


def log_connection_effect(effect: ConnectionEffect, client: str | None) -> None:
    """Log an effect on the connection of a client."""
    conn = effect.conn
    if isinstance(effect, LogonRefused):
        event("refused", conn=conn, client=client, code=effect.error.code, text=str(effect.error))
    elif isinstance(effect, SubscriptionEnded):
        event(
            "subscription_ended",
            logging.WARNING,
            conn=conn,
            client=client,
            sub=effect.sub_id,
            topic=effect.topic,
            code=effect.error.code,
            text=str(effect.error),
        )
    elif isinstance(effect, OfflineStart):
        event("offline_start", logging.WARNING, conn=conn, client=client, bytes=effect.bytes)
    else:
        event("offline_stop", conn=conn, client=client, seconds=round(effect.seconds, 3))


def log_end(conn: int, connection: PeerConnection) -> None:
    """Log the end of a connection."""
    code, text = connection.ended
    level = logging.WARNING if code in _WARNINGS else logging.INFO
    seconds = round(time.monotonic() - connection.since, 3)
    event(
        "connection_close",
        level,
        conn=conn,
        client=connection.client or None,
        address=connection.address or None,
        reason=code or "closed_by_peer",
        text=text or None,
        seconds=seconds,
    )
