"""Subscription options: parses and validates the option string of a subscribe command.

Invalid or unsupported values are rejected with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tickertape.base.errors import BadOption, NotAQueue
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min, queue_backlog_max
from tickertape.base.options import list_value, parse_options
from tickertape.base.text_format import not_one_of, shown
from tickertape.base.units import SIZE_UNITS, parse_interval
from tickertape.engine.conflation.buffer import ConflationOptions
from tickertape.engine.limits import (
    conflation_fields_max,
    rate_bytes_max,
    rate_gap_seconds_max,
    rate_messages_max,
    rate_multiple_max,
    rate_per_second_min,
)
from tickertape.engine.subscriptions.start_position import NOT_FOUND_POLICIES

_RATE: Final = re.compile(r"[ \t]*([0-9]{1,18}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]*)[ \t]*", re.ASCII)
_BYTE_UNITS: Final = ("B", "KB", "MB", "GB")
_FORMS: Final = "1000 (messages/s), 500KB (bytes/s) or 2x"
_OFF: Final = "none"
_AUTO: Final = "auto"


class RateUnit(Enum):
    """Unit of a rate."""

    MESSAGES = "messages a second"
    BYTES = "payload bytes a second"
    MULTIPLE = "times the original pace"


@dataclass(frozen=True, slots=True)
class Rate:
    """Maximum delivery rate of a subscription. Equal rates compare equal."""

    unit: RateUnit
    amount: float
    """Amount in the unit, above 0."""

    def __str__(self) -> str:
        return f"{self.amount:.12g} {self.unit.value}"


@dataclass(frozen=True, slots=True)
class ReplayRate:
    """A rate, and the longest wait between two messages if the rate is a multiple."""

    rate: Rate
    max_gap: float | None = None
    """Maximum wait during the replay, in seconds. None: no maximum."""

    def __str__(self) -> str:
        return (
            str(self.rate) if self.max_gap is None else f"{self.rate}, gaps of {self.max_gap:.12g} s at most"
        )


def parse_rate(text: str) -> Rate:
    """Parse a rate.

    Examples: `1000` or `0.5` (messages per second), `500KB` or `1.5MB` (payload bytes per second, 1 KB =
    1,024 bytes), `2x` or `0.5X` (multiple of the original rate). Raises `BadOption` for invalid text, for 0,
    and outside of the limits in engine/limits.py."""
    match = _RATE.fullmatch(text)
    letters = match[2].upper() if match else ""
    if match is None or letters not in ("", "X", *_BYTE_UNITS):
        raise BadOption(f"Invalid rate {shown(text)}. Use {_FORMS}.")
    if letters == "X":
        unit, factor, most = RateUnit.MULTIPLE, 1, rate_multiple_max
    elif letters:
        unit, factor, most = RateUnit.BYTES, SIZE_UNITS[letters], rate_bytes_max
    else:
        unit, factor, most = RateUnit.MESSAGES, 1, rate_messages_max
    amount = float(match[1]) * factor
    if not rate_per_second_min <= amount <= most:
        raise BadOption(
            f"Invalid rate {shown(text)}: {amount:g} {unit.value} is out of range. "
            f"Use {rate_per_second_min:g} to {most:g}, or leave the option out for no limit."
        )
    return Rate(unit, amount)


def parse_gap(text: str) -> float:
    """Parse a `rate_max_gap` such as `10s` to seconds. Raises `BadOption`, also for 0 and above one year."""
    seconds = _interval("rate_max_gap", text)
    if not 0 < seconds <= rate_gap_seconds_max:
        raise BadOption(
            f"Invalid rate_max_gap {shown(text)}: {seconds:g} s is out of range. "
            f"Use more than 0 and at most {rate_gap_seconds_max:.0f} s."
        )
    return seconds


def read_replay_rate(options: Mapping[str, str | None]) -> ReplayRate | None:
    """Return the rate in `options`, or None.

    Raises `BadOption` for an invalid value, and for `rate_max_gap` without a rate that is a multiple: only a
    multiple depends on the recorded timeline."""
    gap_text = _value(options, "rate_max_gap", "10s")
    max_gap = None if gap_text is None else parse_gap(gap_text)
    rate_text = _value(options, "rate", "1000, 500KB or 2x")
    if rate_text is None:
        if max_gap is not None:
            raise BadOption(
                "rate_max_gap requires a rate that is a multiple of the original rate. Add a rate such "
                "as rate=1x."
            )
        return None
    rate = parse_rate(rate_text)
    if max_gap is not None and rate.unit is not RateUnit.MULTIPLE:
        raise BadOption(
            "rate_max_gap requires a rate that is a multiple of the original rate, but "
            f"{shown(rate_text)} is "
            f"{rate.unit.value}. Use a rate such as 2x, or remove rate_max_gap."
        )
    return ReplayRate(rate, max_gap)


def read_conflation(options: Mapping[str, str | None]) -> ConflationOptions | None:
    """Return the conflation in `options`, or None if it is missing or `conflation=none`.

    Raises `BadOption` for an invalid interval, for `auto`, and for a key without an interval. It also raises
    it for a key that is not a list of fields, or has too many. Field names are not checked further."""
    fields_text = _value(options, "conflation_key", "[/symbol]")
    text = _value(options, "conflation", "1s")
    fields = () if fields_text is None else _fields(fields_text)
    if text is None or text == _OFF:
        if fields:
            raise BadOption(
                f"conflation_key requires an interval, but "
                f"{'none was given' if text is None else 'conflation=none disables conflation'}. "
                "Add an interval such as conflation=1s."
            )
        return None
    if text == _AUTO:
        raise BadOption(
            "conflation=auto is not supported: an interval that depends on the speed of the client "
            "would give another result in every replay. Use an interval such as conflation=1s."
        )
    seconds = _interval("conflation", text)
    if not conflation_seconds_min <= seconds <= conflation_seconds_max:
        raise BadOption(
            f"Invalid conflation {shown(text)}. "
            f"Use {conflation_seconds_min:g} to {conflation_seconds_max:.0f} s, or none."
        )
    return ConflationOptions(round(seconds * 1e6), fields)


def _interval(name: str, text: str) -> float:
    return parse_interval(text, name)


def _fields(text: str) -> tuple[str, ...]:
    fields = list_value(text)
    if len(fields) > conflation_fields_max:
        raise BadOption(
            f"Invalid conflation_key with {len(fields)} fields. Use at most {conflation_fields_max} fields."
        )
    for field in fields:
        if not field.startswith("/"):
            raise BadOption(
                f"Invalid field {shown(field)} in conflation_key. Fields start with /, as in /symbol."
            )
    if len(set(fields)) < len(fields):
        raise BadOption(f"Invalid conflation_key {shown(text)}: it has a field twice. Remove one of them.")
    return fields


def _value(options: Mapping[str, str | None], name: str, example: str) -> str | None:
    """Return the value of an option, or None if the option is missing. Raises `BadOption` without a value."""
    if name not in options:
        return None
    value = options[name]
    if value is None:
        raise BadOption(f"Option {name} requires a value. Use a value such as {name}={example}.")
    return value


_FLAGS: Final = frozenset({"bookmark", "browse", "fully_durable", "live", "pause", "replace", "timestamp"})
_REPLAY_ONLY: Final = frozenset(
    {"bookmark_not_found", "fully_durable", "live", "pause", "rate", "rate_max_gap"}
)
_WITHOUT_BOOKMARK: Final = {
    "pause": ", because a subscription without one cannot continue later. Add one. "
    "To pause a bookmark subscription, use the command pause.",
}
_ADD_BOOKMARK: Final = ". Add one, or remove the option."
_NOT_LIVE: Final = {
    "rate": "live messages are sent at once",
    "rate_max_gap": "live messages are sent at once",
    "pause": "messages are not stored for a paused subscription before they are persisted",
    "conflation": "conflation delays messages",
    "fully_durable": "live requests messages before they are persisted, fully_durable after that",
}
_QUEUE_ONLY: Final = ("browse", "max_backlog")
_VALUES: Final = frozenset(
    {"bookmark_not_found", "conflation", "conflation_key", "max_backlog", "rate", "rate_max_gap", "select"}
)


class SubscribeOptions(NamedTuple):
    """Options that are validated, also against each other."""

    not_found: str = "now"
    """Start for an unknown bookmark: now, epoch or fail."""
    select: str | None = None
    """The select list as written by the client."""
    pace: ReplayRate | None = None
    conflation: ConflationOptions | None = None
    pause: bool = False
    """Whether the subscription starts paused."""
    live: bool = False
    """Whether it receives messages before they are persisted, once it has caught up."""
    fully_durable: bool = False
    """Whether it receives messages when synchronous destinations have them on their disks."""
    replace: bool = False
    """Whether it replaces a subscription with the same id."""
    max_backlog: int | None = None
    """Requested maximum of unacknowledged messages (queues only)."""
    browse: bool = False
    """Whether it reads ready messages without consuming them (queues only)."""


def subscribe_options(text: str, *, replay: bool) -> SubscribeOptions:
    """Return the options of a command. `replay`: it has a bookmark or positions. Raises `BadOption`."""
    options = parse_options(text)
    for name, value in options.items():
        if name == "resume":
            raise BadOption("Unknown option 'resume' of a subscribe. Use the command resume.")
        if name not in _FLAGS | _VALUES:
            raise BadOption(not_one_of("Unknown option", name, sorted(_FLAGS | _VALUES)))
        if name in _FLAGS and value is not None:
            raise BadOption(f"Option {name} takes no value, got {shown(value)}. Remove the value.")
        if name in _VALUES and value is None:
            raise BadOption(f"Option {name} requires a value. Use {name}=VALUE.")
        if name in _QUEUE_ONLY and replay:
            raise BadOption(
                f"Cannot use option {name} with a bookmark: it is for queues, and a bookmark starts a "
                "replay. Remove one of them."
            )
        if name in _REPLAY_ONLY and not replay:
            raise BadOption(f"Option {name} requires a bookmark{_WITHOUT_BOOKMARK.get(name, _ADD_BOOKMARK)}")
    if "live" in options:
        for name in _NOT_LIVE:
            if name in options:
                raise BadOption(f"Option live excludes {name}: {_NOT_LIVE[name]}. Remove one of them.")
    not_found = options.get("bookmark_not_found") or "now"
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(not_one_of("Invalid bookmark_not_found", not_found, NOT_FOUND_POLICIES))
    return SubscribeOptions(
        not_found,
        options.get("select"),
        read_replay_rate(options),
        read_conflation(options),
        "pause" in options,
        "live" in options,
        "fully_durable" in options,
        "replace" in options,
        _backlog(options),
        "browse" in options,
    )


def check_queue_options(options: SubscribeOptions, topic: str, *, queue: bool) -> None:
    """Raise `NotAQueue` for options that require a queue, and `BadOption` for those that a queue excludes."""
    if not queue:
        for name, given in (("browse", options.browse), ("max_backlog", options.max_backlog is not None)):
            if given:
                raise NotAQueue(
                    f"Cannot use option {name}: {shown(topic)} is not a queue. "
                    "Remove the option, or name a queue."
                )
    elif options.conflation is not None:
        raise BadOption(
            f"Cannot use option conflation: {shown(topic)} is a queue, and each of its messages is "
            "acknowledged separately. Remove the option."
        )
    elif options.browse and (options.max_backlog is not None or options.replace):
        raise BadOption("Option browse excludes max_backlog and replace. Remove browse, or the others.")


def _backlog(options: Mapping[str, str | None]) -> int | None:
    text = options.get("max_backlog")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= queue_backlog_max):
        raise BadOption(f"Invalid max_backlog {shown(text)}. Use an integer from 1 to {queue_backlog_max:,}.")
    return int(text)
