"""Toolkit for tests with Tickertape. The product does not import it.

It contains a real server process, a fault proxy, a simulated disk, virtual time, and conformance checks for
custom stores and other objects of an application.
"""

from __future__ import annotations

from tickertape.testing.bookmark_stores import check_bookmark_store
from tickertape.testing.clock import Standstill, VirtualClock, VirtualLoop
from tickertape.testing.disk import StrictDisk
from tickertape.testing.fault_proxy import FaultProxy
from tickertape.testing.ha_parts import (
    check_delay_strategy,
    check_server_chooser,
    check_subscription_manager,
)
from tickertape.testing.publish_stores import check_publish_store
from tickertape.testing.server import RunningServer, ServerNotReady, running_server, wait_until

__all__ = [
    "FaultProxy",
    "RunningServer",
    "ServerNotReady",
    "Standstill",
    "StrictDisk",
    "VirtualClock",
    "VirtualLoop",
    "check_bookmark_store",
    "check_delay_strategy",
    "check_publish_store",
    "check_server_chooser",
    "check_subscription_manager",
    "running_server",
    "wait_until",
]
