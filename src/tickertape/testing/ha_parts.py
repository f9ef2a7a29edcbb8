"""Conformance checks for server choosers, delay strategies and subscription managers.

They use the protocols only, so an application can run them on its own classes.
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
    """Raise `AssertionError` where a server chooser does not do what its client needs.

    `make` gives a fresh one each time, which has at least one server. Not checked is where it goes: one that
    stays where connecting fails passes, as it may know no other server, or one address of many; and so does
    one that has no server any more. Try with `report_failure` whether yours moves on as you want it to.
    """
    chooser = make()
    must(isinstance(chooser, ServerChooser), "it lacks methods of ServerChooser")
    must(bool(_uri(chooser)), "a fresh one has no server")
    for round_ in range(ROUNDS):
        uri = _uri(chooser)
        if not uri:
            must(isinstance(chooser.error(), str), "its error is no text")
            return
        must(_uri(chooser) == uri, "it moved though nothing was reported")
        authenticator = chooser.current_authenticator()
        must(authenticator is None or isinstance(authenticator, Authenticator), "no Authenticator")
        info = ConnectionInfo(NAME, uri)
        if round_ % 5 == 4:
            chooser.report_success(info)
        else:
            chooser.report_failure(Disconnected("checked"), info)
    must(isinstance(chooser.error(), str), "its error is no text")


def check_delay_strategy(make: Callable[[], DelayStrategy], *, gives_up: bool = False) -> None:
    """Raise `AssertionError` where a delay strategy does not do what its client needs.

    `make` gives a fresh one each time. With `gives_up=True` it has to say None within `ROUNDS` times that are
    an hour apart, and to begin afresh after `reset` all the same.
    """
    strategy = make()
    must(isinstance(strategy, DelayStrategy), "it lacks methods of DelayStrategy")
    first = _waits(strategy, 1_000.0)
    same("the same questions have other answers", _waits(make(), 1_000.0), first)
    must(first[0] is not None, "a fresh one gives up at once")
    must((None in first) == gives_up, "it gives up" if None in first else "it never gives up")
    strategy.reset()
    same("it does not begin afresh after a reset", _waits(strategy, 1_000_000.0), first)


def check_subscription_manager(make: Callable[[], SubscriptionManager], *, survives: bool = False) -> None:
    """Raise `AssertionError` where a subscription manager does not do what its client needs.

    `make` gives a fresh, empty one each time, or with `survives=True` the one that it gave before, as it is
    found when the process begins again; it then has handlers for all that is stored.
    """
    manager = make()
    must(isinstance(manager, SubscriptionManager), "it lacks methods of SubscriptionManager")
    same("a fresh one has subscriptions", list(manager.stored()), [])
    first, second, third = (_subscription(sub_id) for sub_id in ("a", "b", "c"))
    for subscription in (first, second, third):
        manager.subscribed(subscription)
    wanted = [first, second, third]
    same("it does not keep the order, or not every field", list(manager.stored()), wanted)
    manager.unsubscribed("b")
    manager.unsubscribed("unknown")
    same("an id that ended goes, and no other", list(manager.stored()), [first, third])
    other = _subscription("a", topic="others")
    manager.subscribed(other)
    same("one id stands for one subscription", sorted(manager.stored(), key=_id), [other, third])
    if survives:
        manager = make()
        same("it forgot subscriptions", sorted(manager.stored(), key=_id), [other, third])
        for subscription in manager.stored():
            must(callable(manager.bind(subscription)), "it has no handler for what it stored")
            manager.subscribed(subscription)  # as the client tells of what it brought back
        same("told again of what it stored, it has", sorted(manager.stored(), key=_id), [other, third])
    for sub_id in ("a", "c"):
        manager.unsubscribed(sub_id)
    same("all have ended", list(manager.stored()), [])


def _uri(chooser: ServerChooser) -> str | None:
    uri = chooser.current_uri()
    if uri:
        parse_uri(uri)
    return uri


def _waits(strategy: DelayStrategy, mono: float) -> list[float | None]:
    waits: list[float | None] = []
    for round_ in range(ROUNDS):
        wait = strategy.next_delay("tcp://127.0.0.1:9007", mono + 3_600 * round_, (round_ % 10) / 10)
        must(wait is None or (math.isfinite(wait) and wait >= 0), f"{wait!r} is no number of seconds")
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
