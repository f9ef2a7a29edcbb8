"""Owns the toolkit for testing with Tickertape: a real server process, the strict disk.

Must never be imported by the product itself.
"""

from __future__ import annotations

from tickertape.testing.server import RunningServer, ServerNotReady, running_server, wait_until

__all__ = ["RunningServer", "ServerNotReady", "running_server", "wait_until"]
