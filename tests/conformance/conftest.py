"""Fixtures of the client conformance tests: the fronts, and one shared server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.conformance.fronts import EVERY_FRONT, Front, front_fixture
from tests.helpers.relay import Relay
from tickertape.testing.server import RunningServer, running_server

TOPICS = 1_000
"""The number of recorded topics for tests. Other topics are not recorded."""
CONFIG = "".join(f'[[journal.topic]]\nname = "recorded-{number}"\n' for number in range(TOPICS))
_numbers = itertools.count()
_topics = itertools.count()


front = front_fixture(*EVERY_FRONT)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RunningServer]:
    """A server that no test stops."""
    with running_server(config=CONFIG) as running:
        yield running


@pytest.fixture
def uri(shared_server: RunningServer) -> str:
    return shared_server.uri


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of this test alone."""
    with running_server(tmp_path / "data") as running:
        yield running


@pytest.fixture
def relay(uri: str) -> Iterator[Relay]:
    """A relay to the shared server. Tests can cut it."""
    with Relay(uri) as relay:
        yield relay


@pytest.fixture
def name() -> str:
    """A client name that no other test has."""
    return f"client-{next(_numbers)}"


@pytest.fixture
def topic() -> str:
    """A recorded topic that no other test has."""
    return f"recorded-{next(_topics)}"


@pytest.fixture
def other_topic() -> str:
    """A second recorded topic that no other test has."""
    return f"recorded-{next(_topics)}"


@pytest.fixture
def client(front: Front, uri: str, name: str) -> tt.Client:
    return front.connect(name, uri)
