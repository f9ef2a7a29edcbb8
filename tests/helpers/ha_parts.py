"""Parts of HA clients that record their calls, and a server that never answers.

Server choosers, authenticators, delay strategies and stores record the calls of an HA client. A subscription
manager keeps its subscriptions in a file. Must never decide anything by themselves: they behave like the
parts that they extend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import tickertape as tt
from tests.helpers.listen_addresses import listening
from tickertape.client.ha.server_chooser import ConnectionInfo
from tickertape.client.publish_store.protocol import Stored

Trace = list[str]


class NotingChooser(tt.DefaultServerChooser):
    """The default chooser. `meanwhile` is called at each call."""

    def __init__(self, trace: Trace, uris: str | Sequence[str], **options: object) -> None:
        super().__init__(uris, **options)  # type: ignore[arg-type]
        self._trace = trace
        self.meanwhile: Callable[[], object] = lambda: None

    def current_uri(self) -> str | None:
        self.meanwhile()
        self._trace.append("uri")
        return super().current_uri()

    def current_authenticator(self) -> tt.Authenticator | None:
        self._trace.append("authenticator")
        return super().current_authenticator()

    def report_success(self, info: ConnectionInfo) -> None:
        self._trace.append("success")
        super().report_success(info)

    def report_failure(self, error: tt.TickertapeError, info: ConnectionInfo) -> None:
        self._trace.append("failure")
        self._last_error = error
        self._current = (self._current + 1) % len(self._uris)


class NotingAuthenticator:
    """Gives a new password each time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._given = 0

    def authenticate(self, user: str | None, password: str | None) -> str:
        self._trace.append("authenticate")
        return self._next(user, password)

    def retry(self, user: str | None, password: str | None) -> str:
        self._trace.append("retry")
        return self._next(user, password)

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        self._trace.append(f"completed {user} {password}")

    def _next(self, user: str | None, password: str | None) -> str:
        self._given += 1
        return f"{user}/{password}/{self._given}"


class NotingDelays(tt.FixedDelayStrategy):
    """A fixed delay with a clock of its delays alone: the duration of attempts does not count."""

    def __init__(self, trace: Trace, delay: float, **options: object) -> None:
        super().__init__(delay, **options)  # type: ignore[arg-type]
        self._trace = trace
        self._now = 0.0

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        self._trace.append("delay")
        delay = super().next_delay(uri, self._now, chance)
        self._now += delay or 0.0
        return delay

    def reset(self) -> None:
        self._trace.append("reset")
        super().reset()


class NotingStore(tt.MemoryPublishStore):
    """The store in memory. Publishes and acknowledgements call it too, so it records only while `noting` is
    set.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self.noting = False

    def discard(self, sequence: int) -> None:
        self._note("discard")
        super().discard(sequence)

    def held(self) -> Sequence[Stored]:
        self._note("held")
        return super().held()

    def _note(self, what: str) -> None:
        if self.noting and self._trace[-1:] != [what]:
            self._trace.append(what)


class FileManager(tt.MemorySubscriptionManager):
    """Keeps subscriptions in a file. `handlers` are those of the process, by id."""

    def __init__(self, path: Path, handlers: Mapping[str, tt.Handler]) -> None:
        super().__init__()
        self._path = path
        self._handlers = handlers
        self.bound: list[tt.StoredSubscription] = []
        if path.exists():
            for stored in msgspec.json.decode(path.read_bytes(), type=list[tt.StoredSubscription]):
                super().subscribed(stored)

    def subscribed(self, subscription: tt.StoredSubscription) -> None:
        super().subscribed(subscription)
        self._write()

    def unsubscribed(self, sub_id: str) -> None:
        super().unsubscribed(sub_id)
        self._write()

    def bind(self, subscription: tt.StoredSubscription) -> tt.Handler | None:
        self.bound.append(subscription)
        return self._handlers.get(subscription.sub_id)

    def _write(self) -> None:
        self._path.write_bytes(msgspec.json.encode(self.stored()))


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Run a server that accepts connections and never answers, and return its address."""
    listener, uri = listening()
    with listener:
        yield uri


def nowhere() -> str:
    """Return an address without a listener."""
    listener, uri = listening()
    listener.close()
    return uri
