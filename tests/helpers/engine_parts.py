"""Parts of the engine for tests that need one of them alone."""

from __future__ import annotations

from tickertape.base.client_limits import DEFAULT, ClientLimits
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.statistics import Statistics


def make_outbox(clock: EngineClock | None = None) -> Outbox:
    return Outbox(Statistics(), clock or EngineClock())


def make_filter_context(types: dict[str, str]) -> FilterContext:
    return FilterContext(types, EngineClock())


def make_compiler(limits: ClientLimits = DEFAULT) -> InterestCompiler:
    return InterestCompiler({}, EngineClock(), limits)
