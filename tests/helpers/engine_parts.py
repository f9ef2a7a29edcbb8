"""Parts of the engine for tests that need one of them alone."""

from __future__ import annotations

from tickertape.base.client_limits import DEFAULT, ClientLimits
from tickertape.base.limits import message_bytes_max
from tickertape.engine.commands.body_validation import BodyValidation
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.statistics import Statistics
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session, Subscriber


def make_outbox(clock: EngineClock | None = None) -> Outbox:
    return Outbox(Statistics(), clock or EngineClock())


def make_session(conn: int) -> Session:
    return Session(conn, Subscriber(None, str(conn)), conn, conn, Statistics())


def make_filter_context(types: dict[str, str]) -> FilterContext:
    return FilterContext(TopicCatalog(message_types=types), EngineClock())


def make_validation(types: dict[str, str], bytes_max: int = message_bytes_max) -> BodyValidation:
    return BodyValidation(TopicCatalog(validated=types), bytes_max)


def make_compiler(limits: ClientLimits = DEFAULT) -> InterestCompiler:
    return InterestCompiler(TopicCatalog(), EngineClock(), limits)
