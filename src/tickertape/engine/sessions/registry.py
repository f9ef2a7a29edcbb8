"""Session registry: sessions by connection and client name, and the logon that creates them.

Invariants:
- With persistent topics, a client name belongs to one connection. The name identifies a publisher, and the
  log would mix the messages of two.
"""

from __future__ import annotations

from typing import Protocol

from tickertape.base.errors import BadCommand, BadOption, BadVersion, NameInUse, PublisherCollision
from tickertape.base.interfaces import Now
from tickertape.base.limits import last_persisted_max
from tickertape.base.names import check_client_name, derived_publisher_id, publisher_id
from tickertape.base.options import parse_options
from tickertape.base.text_format import not_one_of, shown
from tickertape.engine.runtime.ack_conflation import ack_conflation_of
from tickertape.engine.runtime.holes import PublisherConnection
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.statistics import Statistics
from tickertape.engine.sessions.session import Session, Subscriber
from tickertape.wire.commands import WIRE_VERSION, Logon


class LogonPolicy(Protocol):
    """Decides who may log on, and which client names a user may use."""

    def user_of(self, logon: Logon, now: Now) -> str | None:
        """Return the user of a logon. Raises `AuthenticationFailed`."""
        ...

    def check_name(self, user: str | None, name: str) -> None:
        """Raise `AuthenticationFailed` unless `user` may use the client name `name`."""
        ...


class LinkPolicy(Protocol):
    """Decides which instances may open a replication link to this one."""

    def admit_link(self, instance: str, token: str | None, now: Now) -> None:
        """Raise `AuthenticationFailed` unless `instance` may open a link with this token."""
        ...


class AllowAll:
    """Policy that accepts every logon and every client name."""

    def user_of(self, logon: Logon, now: Now) -> str | None:  # noqa: ARG002 - other policies check expiry
        """Return the user that the logon names."""
        return logon.user

    def check_name(self, user: str | None, name: str) -> None:
        """Accept any client name."""


class SessionRegistry:
    """All sessions. `exclusive`: a client name belongs to one connection."""

    def __init__(
        self,
        instance: str,
        publishers: PublisherDirectory,
        policy: LogonPolicy,
        statistics: Statistics,
        *,
        exclusive: bool = True,
    ) -> None:
        self._instance = instance
        self._statistics = statistics
        self._publishers = publishers
        self._policy = policy
        self._exclusive = exclusive
        self.by_conn: dict[int, Session] = {}
        self._by_name: dict[str, Session] = {}

    def logon(self, conn: int, command: Logon, user: str | None) -> tuple[Session, Session | None]:
        """Return the new session of `user`, and the session to close because the new one takes over its
        client name.

        Raises `BadVersion`, `BadOption`, `BadName`, `BadCommand`, `NameInUse` or `PublisherCollision`."""
        if WIRE_VERSION not in command.versions:
            versions = shown(str(list(command.versions)))[1:-1]
            raise BadVersion(
                f"Cannot log on: this server supports protocol version {WIRE_VERSION}, the client supports "
                f"{versions}. Update the older side."
            )
        conflation = 0.0
        for option, value in parse_options(command.options).items():
            if option != "ack_conflation":
                raise BadOption(not_one_of("Unknown logon option", option, ("ack_conflation",)))
            conflation = ack_conflation_of(value)
        check_client_name(command.name)
        publishing = _publishing_of(command)
        publisher = publisher_id(command.name)
        derived = derived_publisher_id(command.name, self._instance)
        if self._publishers.collides(publisher, command.name) or self._publishers.collides(
            derived, command.name, derived=True
        ):
            raise PublisherCollision(
                f"Cannot log on as {shown(command.name)}: another client name has the same publisher id. "
                "Use another client name."
            )
        old = self._by_name.get(command.name) if self._exclusive else None
        if old is not None and old.user != user:
            raise NameInUse(
                f"Cannot log on: client name {shown(command.name)} is in use by another user. "
                "Use another client name."
            )
        subscriber = Subscriber(user, command.name, command.software)
        session = Session(conn, subscriber, publisher, derived, self._statistics, conflation)
        session.publishing = publishing
        self.by_conn[conn] = self._by_name[command.name] = session
        return session, old

    def user_of(self, command: Logon, now: Now) -> str | None:
        """Return the user of a logon. Raises `AuthenticationFailed`."""
        return self._policy.user_of(command, now)

    def check_name(self, session: Session, name: str) -> None:
        """Raise an error unless a session may publish under a client name."""
        check_client_name(name)
        if name != session.name:
            self._policy.check_name(session.user, name)

    def derived_id(self, name: str) -> int:
        """Return the derived publisher id of a client name. Raises `PublisherCollision`."""
        derived = derived_publisher_id(name, self._instance)
        if self._publishers.collides(derived, name, derived=True):
            raise PublisherCollision(
                f"Cannot publish as {shown(name)}: another client name has the same publisher id. "
                "Use another client name."
            )
        return derived

    def remove(self, conn: int) -> Session | None:
        """Remove a connection. Return its session, or None."""
        session = self.by_conn.pop(conn, None)
        if session is not None and self._by_name.get(session.name) is session:
            del self._by_name[session.name]
        return session


def _publishing_of(command: Logon) -> PublisherConnection:
    """Return the claim of a logon. Raises `BadCommand`."""
    if command.persisted > last_persisted_max:
        raise BadCommand(
            f"Cannot log on: the claim {command.persisted} is above {last_persisted_max}, the largest "
            "allowed sequence. Correct the client."
        )
    return PublisherConnection(command.persisted or None, command.session)
