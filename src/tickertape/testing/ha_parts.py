"""Conformance checks for server choosers, delay strategies and subscription managers.

They use only the protocols, so an application can run them on its own classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tickertape.base.errors import Disconnected
from tickertape.client.common.address import parse_uri
from tickertape.client.ha.authenticator import Authenticator
from tickertape.client.ha.delay_strategy import DelayStrategy
from tickertape.client.ha.server_chooser import ConnectionInfo, ServerChooser
from tickertape.client.ha.subscription_manager import StoredSubscription, SubscriptionManager
from tickertape.testing.verdicts import must, same

NAME = "checked"
ROUNDS = 50


def check_server_chooser(make: Callable[[], ServerChooser]) -> None:
    """Check a server chooser. Raise `AssertionError` with the first violated requirement.

    The check does not cover the order of servers. It accepts a chooser that runs out of servers, or that
    stays on a failing server, which may be its only one. To test the order, call `report_failure` in a test
    of your own.

    Args:
        make: Returns a new chooser with at least one server.

    Example:
        >>> check_server_chooser(lambda: tt.DefaultServerChooser("tcp://127.0.0.1:9007"))
    """
    chooser = make()
    must(isinstance(chooser, ServerChooser), "it lacks methods of ServerChooser")
    must(bool(_uri(chooser)), "a new chooser has no server")
    for round_ in range(ROUNDS):
        uri = _uri(chooser)
        if not uri:
            must(isinstance(chooser.error(), str), "its error is not str")
            return
        must(_uri(chooser) == uri, "it moved to another server without a report")
        authenticator = chooser.current_authenticator()
        must(authenticator is None or isinstance(authenticator, Authenticator), "not an Authenticator")
        info = ConnectionInfo(NAME, uri)
        if round_ % 5 == 4:
            chooser.report_success(info)
        else:
            chooser.report_failure(Disconnected("checked"), info)
    must(isinstance(chooser.error(), str), "its error is not str")


def check_delay_strategy(make: Callable[[], DelayStrategy], *, gives_up: bool = False) -> None:
    """Check a delay strategy. Raise `AssertionError` with the first violated requirement.

    Args:
        make: Returns a new strategy.
        gives_up: Whether the strategy must return None within 50 calls, if each call has a time `mono` one
            hour after the previous one. False (default): it must not.

    Example:
        >>> check_delay_strategy(lambda: tt.FixedDelayStrategy(1))
    """
    strategy = make()
    must(isinstance(strategy, DelayStrategy), "it lacks methods of DelayStrategy")
    first = _waits(strategy, 1_000.0)
    same("equal calls have different results", _waits(make(), 1_000.0), first)
    must(first[0] is not None, "a new strategy gives up at once")
    must((None in first) == gives_up, "it gives up" if None in first else "it never gives up")
    strategy.reset()
    same("it does not start again after a reset", _waits(strategy, 1_000_000.0), first)


def check_subscription_manager(make: Callable[[], SubscriptionManager], *, survives: bool = False) -> None:
    """Check a subscription manager. Raise `AssertionError` with the first violated requirement.

    Args:
        make: Returns a new, empty manager. With `survives=True`, each later call returns a manager that has
            restored the subscriptions of the first one, as after a restart of the process, and has a handler
            for each of these subscriptions.
        survives: Whether subscriptions survive the end of the process. Default False.

    Example:
        >>> check_subscription_manager(tt.MemorySubscriptionManager)
    """
    manager = make()
    must(isinstance(manager, SubscriptionManager), "it lacks methods of SubscriptionManager")
    same("a new manager has subscriptions", list(manager.stored()), [])
    first, second, third = (_subscription(sub_id) for sub_id in ("a", "b", "c"))
    for subscription in (first, second, third):
        manager.subscribed(subscription)
    wanted = [first, second, third]
    same("it does not keep the order, or not every field", list(manager.stored()), wanted)
    manager.unsubscribed("b")
    manager.unsubscribed("unknown")
    same("unsubscribed removes only its id", list(manager.stored()), [first, third])
    other = _subscription("a", topic="others")
    manager.subscribed(other)
    same("an id has one subscription", sorted(manager.stored(), key=_id), [other, third])
    if survives:
        manager = make()
        same("subscriptions survive a restart", sorted(manager.stored(), key=_id), [other, third])
        for subscription in manager.stored():
            must(callable(manager.bind(subscription)), "it has no handler for a stored subscription")
            manager.subscribed(subscription)  # as the client does after a restart
        same("restored subscriptions stay single", sorted(manager.stored(), key=_id), [other, third])
    for sub_id in ("a", "c"):
        manager.unsubscribed(sub_id)
    same("all subscriptions are removed", list(manager.stored()), [])


def _uri(chooser: ServerChooser) -> str | None:
    uri = chooser.current_uri()
    if uri:
        parse_uri(uri)
    return uri


def _waits(strategy: DelayStrategy, mono: float) -> list[float | None]:
    waits: list[float | None] = []
    for round_ in range(ROUNDS):
        wait = strategy.next_delay("tcp://127.0.0.1:9007", mono + 3_600 * round_, (round_ % 10) / 10)
        must(wait is None or (math.isfinite(wait) and wait >= 0), f"{wait!r} is not a number of seconds")
        waits.append(wait)
        if wait is None:
            break
    return waits


def _subscription(sub_id: str, topic: str = "orders") -> StoredSubscription:
    return StoredSubscription(
        command="subscribe",
        topic=topic,
        filter="/price > 10",
        options="bookmark,bookmark_not_found=fail,timestamp",
        sub_id=sub_id,
        bookmark="0",
        depth_bytes=100_000,
    )


def _id(subscription: StoredSubscription) -> str:
    return subscription.sub_id
