"""Application policies: safe calls of choosers, authenticators, delay strategies and managers.

Their exceptions are reported. Nothing here is called under a lock of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import msgspec

from tickertape.base.bookmarks import bookmark_text
from tickertape.base.errors import BadOption, Refused, TickertapeError, UsageError
from tickertape.base.options import parse_options
from tickertape.base.text_format import described, is_finite, wrong_type
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common.address import Address, parse_uri
from tickertape.client.common.credentials import Credentials
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import RecordQuery, SubscribeRequest, SubscriptionContext
from tickertape.client.ha.authenticator import Authenticator, DefaultAuthenticator, PasswordGiven
from tickertape.client.ha.delay_strategy import DelayStrategy
from tickertape.client.ha.reconnect import DelayChosen, ServerChosen
from tickertape.client.ha.server_chooser import ConnectionInfo, DefaultServerChooser, ServerChooser
from tickertape.client.ha.subscription_manager import (
    MemorySubscriptionManager,
    StoredSubscription,
    SubscriptionManager,
)
from tickertape.client.subscriptions.bookmark_tracker import StoredBookmarkTracker
from tickertape.client.subscriptions.resubscribe import ReplayState, ServerTerms
from tickertape.wire.commands import LoggedOn


class ServerDescription(NamedTuple):
    """Description of a server in its answer to a logon, as `ConnectionInfo` has it."""

    instance: str = ""
    group: str = ""
    behind: bool = False


def described_server(answer: LoggedOn) -> ServerDescription:
    """Return the description of the server that sent an answer."""
    replication = answer.replication
    if replication is None:
        return ServerDescription(answer.instance)
    return ServerDescription(answer.instance, replication.group, replication.behind)


class ApplicationPolicies:
    """Policy objects of the application for one client.

    `handlers` reports their exceptions. Raises `BadOption` for an object that lacks methods.
    """

    def __init__(
        self,
        name: str,
        chooser: ServerChooser,
        delays: DelayStrategy,
        manager: SubscriptionManager | None,
        *,
        user: str | None,
        password: str | None,
        credentials: Credentials,
        handlers: HandlerRunner,
    ) -> None:
        if not isinstance(chooser, ServerChooser):
            raise BadOption(wrong_type("server_chooser", chooser, "one with all methods of ServerChooser"))
        if manager is not None and not isinstance(manager, SubscriptionManager):
            raise BadOption(
                wrong_type("subscription_manager", manager, "one with all methods of SubscriptionManager")
            )
        self._name = name
        self._chooser = chooser
        self._delays = delays
        self._manager = MemorySubscriptionManager() if manager is None else manager
        self._user = user
        self._password = password
        self._credentials = credentials
        self._report = handlers.report
        self._authenticator: Authenticator = DefaultAuthenticator()
        self._refused: Authenticator | None = None
        """Authenticator whose password the server refused last."""
        self._used: tuple[str | None, str | None] = (None, None)

    # -- connecting -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reset the delay strategy."""
        self._run(self._delays.reset)

    def choose(self) -> ServerChosen:
        """Ask the chooser for the next server."""
        try:
            return self._ask_chooser()
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._report(error)
            return ServerChosen(None, f"it raised {described(error)}")

    def _ask_chooser(self) -> ServerChosen:
        with plainly("the server chooser"):
            uri = self._chooser.current_uri()
            if not uri:
                return ServerChosen(None, str(self._chooser.error()))
            authenticator: object = self._chooser.current_authenticator() or DefaultAuthenticator()
            if not isinstance(authenticator, Authenticator):
                refusal = BadOption(
                    wrong_type("authenticator", authenticator, "one with all methods of Authenticator")
                )
                self._report(refusal)
                return ServerChosen(None, str(refusal))
            self._authenticator = authenticator
            return ServerChosen(uri)

    def delay(self, uri: str, mono: float, chance: float) -> DelayChosen:
        """Ask the delay strategy for the wait before an attempt (see `DelayStrategy.next_delay`)."""
        try:
            with plainly("the delay strategy"):
                seconds = self._delays.next_delay(uri, mono, chance)
                wrong = "" if _is_delay(seconds) else repr(seconds)
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._report(error)
            return DelayChosen(None, f"the delay strategy raised {described(error)}")
        if not wrong:
            return DelayChosen(seconds)
        self._report(
            UsageError(f"Invalid delay {wrong} from the delay strategy. Return finite seconds >= 0, or None.")
        )
        return DelayChosen(
            None, f"the delay strategy returned {wrong}, which is neither finite seconds >= 0 nor None"
        )

    def begin_attempt(self, uri: str) -> tuple[Address, str | None, PasswordGiven]:
        """Return the address, the user, and the password or an awaitable of it."""
        address = parse_uri(uri)
        self._credentials.check(address)
        user = address.user if self._user is None else self._user
        password = address.password if self._password is None else self._password
        authenticator = self._authenticator
        refused, self._refused = self._refused, None
        ask = authenticator.retry if refused is authenticator else authenticator.authenticate
        with plainly("the authenticator"):
            return address, user, ask(user, password)

    def uses(self, user: str | None, password: str | None) -> None:
        """Record the credentials of the logon."""
        self._used = user, password

    def succeeded(self, uri: str, server: ServerDescription) -> None:
        """Report that a server accepted the logon."""
        used, self._used = self._used, (None, None)
        self._run(self._authenticator.completed, *used, server.instance)
        self._run(self._chooser.report_success, ConnectionInfo(self._name, uri, *server))
        self.refresh()

    def failed(self, error: TickertapeError, uri: str) -> None:
        """Report that the attempt failed."""
        self._used = (None, None)
        if isinstance(error, Refused):
            self._refused = self._authenticator
        self._run(self._chooser.report_failure, error, ConnectionInfo(self._name, uri))

    # -- subscriptions ----------------------------------------------------------------------------------

    def subscribed(self, stored: StoredSubscription) -> None:
        """Report a subscription with a handler."""
        self._run(self._manager.subscribed, stored)

    def unsubscribed(self, sub_id: str) -> None:
        """Report the final end of a subscription."""
        self._run(self._manager.unsubscribed, sub_id)

    def to_restore(self) -> list[tuple[StoredSubscription, Handler]]:
        """Return the stored subscriptions with handlers. Report exceptions, and skip invalid items."""
        found: list[tuple[StoredSubscription, Handler]] = []
        try:
            with plainly("the subscription manager"):
                given: Sequence[Any] = self._manager.stored()
            for stored in given:
                with plainly("the subscription manager"):
                    handler = self._manager.bind(stored)
                if handler is None:
                    continue
                if _is_whole(stored) and callable(handler):
                    found.append((stored, handler))
                    continue
                kinds = f"{type(stored).__name__} and {type(handler).__name__}"
                self._report(
                    UsageError(
                        f"Invalid result of the subscription manager: {kinds}. "
                        "Return a valid StoredSubscription and a callable handler."
                    )
                )
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._report(error)
        return found

    def _run(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            with plainly(getattr(method, "__qualname__", repr(method))):
                method(*arguments)
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._report(error)


def _is_delay(value: Any) -> bool:
    return value is None or (issubclass(type(value), Real) and is_finite(value) and value >= 0)


@contextmanager
def plainly(who: str) -> Iterator[None]:
    """Convert unusual exceptions of application code (asyncio, generators) into `UsageError`.

    Otherwise they would end the task that connects.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UsageError(
            f"Cannot use {who}: it raised {type(error).__name__}. Raise subclasses of Exception only."
        ) from error


def _is_whole(stored: object) -> bool:
    """Return whether `stored` is a stored subscription whose fields have valid types."""
    if not isinstance(stored, StoredSubscription):
        return False
    try:
        msgspec.convert(msgspec.to_builtins(stored), StoredSubscription)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def chooser_of(servers: str | Sequence[str] | None, chooser: ServerChooser | None) -> ServerChooser:
    """Return the chooser for a list of servers, or the given chooser. Raises `BadOption`."""
    if servers is None and chooser is None:
        raise BadOption("Cannot connect without servers. Pass servers= or server_chooser=.")
    if servers is not None and chooser is not None:
        raise BadOption("Cannot use servers= and server_chooser= together. Pass only one.")
    if chooser is None and not servers:
        raise BadOption(
            "Invalid servers: the list is empty. Give at least one address, such as tcp://host:9007."
        )
    return DefaultServerChooser(servers or ()) if chooser is None else chooser


def as_failure(error: Exception, uri: str) -> TickertapeError:
    """Return the failure of an attempt as a `TickertapeError`."""
    if isinstance(error, TickertapeError):
        return error
    failure = UsageError(f"Cannot connect to {uri!r}: {described(error)}.")
    failure.__cause__ = error
    return failure


def stored_of(request: SubscribeRequest) -> StoredSubscription:
    """Return a subscription in the form for a manager."""
    stored = StoredSubscription(
        command="subscribe",
        topic=request.topic,
        filter=request.filter,
        options=request.options,
        sub_id=request.context.sub_id,
        bookmark=request.bookmark,
        depth_bytes=request.depth_bytes,
    )
    query = request.query
    if query is None:
        return stored
    return msgspec.structs.replace(
        stored,
        command="sow_and_subscribe",
        order_by=query.order_by,
        top_n=query.top_n,
        skip_n=query.skip_n,
        batch_size=query.batch_size,
    )


def request_of(stored: StoredSubscription, store: BookmarkStore | None) -> SubscribeRequest:
    """Return the request that restores a subscription. It resumes at the recovery point of the store.

    A query starts with a new result.
    """
    options = parse_options(stored.options)
    bookmark = None if stored.bookmark is None else bookmark_text(stored.bookmark)
    if bookmark is not None and store is not None:
        tracker = StoredBookmarkTracker(store, stored.sub_id)
        replay = ReplayState(bookmark, stored.options, tracker, until_caught_up=False)
        bookmark = replay.again(conflated=ServerTerms(stored.options).conflated, live=False)
    query = None
    if stored.command == "sow_and_subscribe":
        query = RecordQuery(
            order_by=stored.order_by,
            top_n=stored.top_n,
            skip_n=stored.skip_n,
            batch_size=stored.batch_size,
            follow=True,
        )
    return SubscribeRequest(
        topic=stored.topic,
        context=SubscriptionContext(
            sub_id=stored.sub_id,
            with_bookmark="bookmark" in options or query is not None,
            with_timestamp="timestamp" in options,
        ),
        query=query,
        bookmark=bookmark,
        filter=stored.filter,
        options=stored.options,
        replace="replace" in options,
        depth_bytes=stored.depth_bytes,
    )
