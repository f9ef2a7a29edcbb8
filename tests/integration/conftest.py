"""Server, client and consumers that several tests of a module share.

The module of the tests configures the server in `CONFIG`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tickertape as tt
from tests.helpers.queues import SECONDS
from tickertape.testing import RunningServer, running_server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """Yield one server for all tests of a module, configured by its `CONFIG`."""
    with running_server(config=request.module.CONFIG) as running:
        yield running


@pytest.fixture
def client(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[tt.Client]:
    """Yield a client with the name of the test."""
    with tt.Client(request.node.name[:80], server.uri, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def a(server: RunningServer) -> Iterator[tt.Client]:
    """Yield a consumer."""
    with tt.Client("a", server.uri, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def b(server: RunningServer) -> Iterator[tt.Client]:
    """Yield another consumer."""
    with tt.Client("b", server.uri, timeout=SECONDS) as client:
        yield client
