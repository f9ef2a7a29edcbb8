"""The blocking and the asyncio client behind one interface, for tests of both.

A front makes clients with blocking calls. Calls of the asyncio client run on an event loop in a separate
thread, and the calling thread waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, cast

import pytest
import uvloop

import tickertape as tt

SECONDS_MAX = 60
BOTH_FRONTS = ("blocking", "asyncio")
EVERY_FRONT = (*BOTH_FRONTS, pytest.param("uvloop", marks=pytest.mark.full))
_NO_MORE = object()


class LoopThread:
    """An event loop on a separate thread."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = make()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS_MAX)

    def close(self) -> None:
        """Stop and close the loop."""
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS_MAX)
        self.loop.close()


class Driven:
    """A blocking proxy of an object of the asyncio client, iterators included."""

    def __init__(self, thread: LoopThread, target: Any) -> None:
        self.__dict__["thread"] = thread
        self.__dict__["target"] = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            return self._shown(self.thread.run(_called(value, *arguments, **options)))

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.target, name, value)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = self.thread.run(_next(self.target))
        if item is _NO_MORE:
            raise StopIteration
        return item

    def __enter__(self) -> Any:
        return self._shown(self.thread.run(self.target.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self.thread.run(self.target.__aexit__(*error))

    def _shown(self, outcome: Any) -> Any:
        kinds = (tt.AsyncClient, tt.AsyncMessageStream, AsyncIterator)
        return Driven(self.thread, outcome) if isinstance(outcome, kinds) else outcome


class DrivenTable(Driven):
    """A blocking proxy of a table of the asyncio client."""

    def __getitem__(self, key: Any) -> Any:
        return self.target[key]

    def __len__(self) -> int:
        return len(self.target)

    def __contains__(self, key: object) -> bool:
        return key in self.target

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())


async def _called(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    outcome = function(*arguments, **options)
    return await outcome if inspect.isawaitable(outcome) else outcome


async def _next(items: Any) -> Any:
    return await anext(items, _NO_MORE)


class Front:
    """One front. Its clients are closed at the end of the test."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._open = contextlib.ExitStack()
        self._thread: LoopThread | None = None
        if kind != "blocking":
            self._thread = LoopThread(uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop)

    def make(self, name: str, uri: str, **options: Any) -> tt.Client:
        """Return a client that is not connected."""
        if self._thread is None:
            client = tt.Client(name, uri, connect=False, **options)
        else:
            client = cast("tt.Client", Driven(self._thread, tt.AsyncClient(name, uri, **options)))
        self._open.callback(client.close)
        return client

    def make_ha(self, name: str, **options: Any) -> tt.HAClient:
        """Return an HA client that is not connected."""
        return self._made_ha("__call__", name, options)

    def make_ha_backed(self, by: str, name: str, **options: Any) -> tt.HAClient:
        """Return an HA client made by `memory_backed` or `file_backed`."""
        return self._made_ha(f"{by}_backed", name, options)

    def _made_ha(self, how: str, name: str, options: dict[str, Any]) -> tt.HAClient:
        kind: Any = tt.HAClient if self._thread is None else tt.AsyncHAClient
        make = kind if how == "__call__" else getattr(kind, how)
        if self._thread is None:
            client = make(name, **options)
        else:
            client = Driven(self._thread, self._thread.run(_called(make, name, **options)))
        self._open.callback(client.close)
        return cast("tt.HAClient", client)

    def connect(self, name: str, uri: str, **options: Any) -> tt.Client:
        """Return a connected client."""
        client = self.make(name, uri, **options)
        client.connect()
        return client

    def table(
        self, client: tt.Client, topic: str, filter: str | None = None, **options: Any
    ) -> tt.Table[None]:
        """Return an open table. It is closed before its client."""
        table: Any
        if not isinstance(client, Driven):
            table = tt.Table(client, topic, filter, **options)
        else:

            async def opened() -> object:
                return await tt.Table(client.target, topic, filter, **options)

            table = DrivenTable(client.thread, self.run(opened()))
        self._open.callback(table.close)
        return cast("tt.Table[None]", table)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await `work` on the event loop of an asyncio front."""
        assert self._thread is not None
        return self._thread.run(work)

    def publish_all(self, client: tt.Client, topic: str, messages: Sequence[bytes]) -> None:
        """Publish each message with a separate call, without pauses."""
        if not isinstance(client, Driven):
            for message in messages:
                client.publish(topic, message)
            return

        async def publish_each() -> None:
            for message in messages:
                await client.target.publish(topic, message)

        self.run(publish_each())

    def reconnecting(self, before: Callable[[], object], after: Callable[[], object]) -> Callable[..., Any]:
        """Return a disconnect handler: `before()`, reconnect, `after()`. Both may block."""
        if self._thread is None:

            def handle(client: tt.Client) -> None:
                before()
                client.connect(timeout=30)
                after()

            return handle

        async def handle_async(client: tt.AsyncClient) -> None:
            await asyncio.to_thread(before)
            await client.connect(timeout=30)
            after()

        return handle_async

    def close(self) -> None:
        """Close the clients, then the loop."""
        self._open.close()
        if self._thread is not None:
            self._thread.close()


def front_fixture(*kinds: Any) -> Any:
    """Return the fixture `front`: a front of each of these kinds."""

    @pytest.fixture(name="front", params=kinds)
    def opened(request: pytest.FixtureRequest) -> Iterator[Front]:
        front = Front(request.param)
        try:
            yield front
        finally:
            front.close()

    return opened
