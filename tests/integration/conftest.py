"""Owns what several tests on one real server share: the server, and two consumers.

Must never decide how the server is configured: the module of the tests says it as `CONFIG`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tickertape as tt
from tests.helpers.queues import SECONDS
from tickertape.testing import RunningServer, running_server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """One server for all tests of a module, configured by its `CONFIG`; modules may have another one."""
    with running_server(config=request.module.CONFIG) as running:
        yield running


@pytest.fixture
def a(server: RunningServer) -> Iterator[tt.Client]:
    """A consumer."""
    with tt.Client("a", server.uri, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def b(server: RunningServer) -> Iterator[tt.Client]:
    """Another one."""
    with tt.Client("b", server.uri, timeout=SECONDS) as client:
        yield client
