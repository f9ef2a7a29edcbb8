"""Subscribe arguments: validation, and construction of the request.

Invariant: an option that is not implemented raises, and is never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tickertape.base.bookmarks import EPOCH, MOST_RECENT, Bookmark, bookmark_text, parse_bookmark
from tickertape.base.errors import BadOption, BadTopic, SubscriptionUnknown, UsageError
from tickertape.base.limits import (
    credit_bytes_max,
    expiration_never_ms,
    message_cost_bytes,
    subscription_id_bytes_max,
)
from tickertape.base.options import format_options, list_value, parse_options
from tickertape.base.text_format import is_finite, is_utf8, not_one_of, shown, shown_number, wrong_type
from tickertape.base.units import parse_interval, parse_size
from tickertape.client.common.request import RecordQuery, SubscribeRequest, SubscriptionContext
from tickertape.client.limits import credit_bytes_default
from tickertape.wire.commands import Resolve

Rate = float | str
"""Messages/s, or text: `"1000"`, `"500KB"` (payload bytes/s), `"2x"` (twice the original rate)."""
Interval = float | str
"""Seconds, or text with a unit: `"500ms"`, `"10s"`."""
Fields = str | Sequence[str]
"""Field paths: a list, or text such as `"[/a,/b]"`."""

NOT_BUILT: Final = (
    "oof", "send_keys", "no_empties", "send_empties", "no_sowkey", "top_n", "skip_n",
    "projection", "grouping",
)  # fmt: skip


def merge_options(text: str, given: Mapping[str, object]) -> dict[str, str | None]:
    """Return the options of the option string `text` and of the keywords `given`.

    Keywords that are None and flags that are False are ignored. Raises `BadOption`.
    """
    options = parse_options(text)
    for name, value in options.items():
        if name not in _FORMS:
            raise BadOption(_unknown_option(name))
        if (_FORMS[name] is _flag) != (value is None):
            takes = f"requires a value. Use {name}=VALUE" if value is None else "takes no value. Remove it"
            raise BadOption(f"Invalid option {name!r}: it {takes}.")
    for name, asked in given.items():
        if asked is None:
            continue
        form = _FORMS[name]
        written = form(name, asked)
        if form is _flag and not asked:
            continue
        if name in options:
            raise BadOption(
                f"Cannot set option {name!r} twice: as {name}={shown(str(asked))} and in "
                f"options={shown(text)}. Remove one of them."
            )
        options[name] = written
    return options


def _unknown_option(name: str) -> str:
    if name == "filter":
        return "Invalid option 'filter'. Pass the filter separately as filter=."
    return not_one_of("Unsupported option" if name in NOT_BUILT else "Unknown option", name, _FORMS)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadOption(wrong_type(name, value, "True or False"))


def _count(name: str, value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return value
    if type(value) is not int or value < 1:
        raise BadOption(f"Invalid {name} {value!r}. Use a number of messages, 1 or more.")
    return str(value)


def _rate(name: str, value: object) -> str:
    kinds = "1000 (messages/s), '500KB' (bytes/s) or '2x'"
    return _number(name, value, kinds) if _is_number(value) else _text(name, value, kinds)


def _interval(name: str, value: object) -> str:
    kinds = "seconds or text such as '500ms'"
    return _number(name, value, kinds) + "s" if _is_number(value) else _text(name, value, kinds)


def _fields(name: str, value: object) -> str:
    if isinstance(value, str):
        text = value.strip()
        return _alone(name, text if text.startswith("[") or "," not in text else f"[{text}]")
    if not isinstance(value, list | tuple) or not all(isinstance(field, str) for field in value):
        raise BadOption(
            f"Invalid {name} {shown(repr(value))}. Use a list of str, or text such as '{_example(name)}'."
        )
    fields = tuple([field.strip() for field in value])
    text = "[" + ",".join(fields) + "]"
    try:
        whole = list_value(text) == fields
    except BadOption as error:
        raise BadOption(f"Invalid {name} {shown(repr(value))}: {error}") from None
    if not whole:
        first = list_value(_example(name))[0]
        raise BadOption(
            f"Invalid {name} {shown(repr(value))}: a member is not exactly one field. Use one field such as "
            f"'{first}' for each member."
        )
    return _alone(name, text)


def _example(name: str) -> str:
    return "[+/a,-/b]" if name == "select" else "[/a,/b]"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: object, kinds: str) -> str:
    assert isinstance(value, int | float)
    if not (is_finite(value) and value > 0):
        bounds = "below 1e308" if value > 0 else "above 0"
        raise BadOption(f"Invalid {name} {shown_number(value)}: it must be {bounds}. Use {kinds}.")
    text = str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")
    if text == "0":
        raise BadOption(f"Invalid {name} {value}: it has more than 9 decimals. Use {kinds}.")
    return text


def _text(name: str, value: object, kinds: str = "str") -> str:
    if not isinstance(value, str):
        raise BadOption(wrong_type(name, value, kinds))
    return _alone(name, value)


def _alone(name: str, text: str) -> str:
    """Return the stripped `text`, which must be the value of exactly one option."""
    text = text.strip()
    try:
        one = parse_options(f"{name}={text}") == {name: text}
    except BadOption as error:
        raise BadOption(f"Invalid {name} {shown(text)}: {error}") from None
    if not one:
        raise BadOption(
            f"Invalid {name} {shown(text)}: it is more than one value. Pass each other option separately."
        )
    return text


_FORMS: Final[dict[str, Callable[[str, object], str | None]]] = {
    "bookmark": _flag,
    "timestamp": _flag,
    "bookmark_not_found": _text,
    "rate": _rate,
    "rate_max_gap": _interval,
    "conflation": _interval,
    "conflation_key": _fields,
    "select": _fields,
    "pause": _flag,
    "live": _flag,
    "fully_durable": _flag,
    "replace": _flag,
    "max_backlog": _count,
    "browse": _flag,
}
"""All options, with the function that formats the value of a keyword."""


StartPoint = str | datetime | Bookmark | Sequence[str | Bookmark]
_Given = dict[str, object]
NOT_FOUND: Final = ("fail", "now", "epoch")


class MadeUpId(str):
    """Generated id of a subscription without an id from the application."""

    __slots__ = ()


def start_text(bookmark: StartPoint) -> str:
    """Return the text of a start point in wire format, or `MOST_RECENT`. Raises `BadBookmark`."""
    text = bookmark_text(bookmark)
    if text != MOST_RECENT:
        parse_bookmark(text)
    return text


def wire_text(bookmark: StartPoint) -> str:
    """Return the text of a start point outside of a subscription: `MOST_RECENT` becomes EPOCH."""
    text = start_text(bookmark)
    return EPOCH if text == MOST_RECENT else text


def make_request(
    topic: str,
    sub_id: str,
    *,
    bookmark: StartPoint | None = None,
    filter: str | None = None,
    timestamp: bool = False,
    options: str | None = None,
    depth: int | str | None = None,
    until_caught_up: bool = False,
    positions: tuple[int, int] | None = None,
    journal: str | None = None,
    numbered: bool = False,
    given: Mapping[str, object] | None = None,
    query: RecordQuery | None = None,
) -> SubscribeRequest:
    """Return the request of a subscription. Raises `BadTopic`, `BadBookmark`, `BadOption`.

    `options` is the option string of AMPS, `given` are keywords named like options. An option in
    both is an error. `timestamp=True` requests timestamps in addition to both.
    """
    _check_kinds(
        topic, positions, {"sub_id": sub_id, "filter": filter, "options": options, "journal": journal}
    )
    if not 0 < len(sub_id.encode()) <= subscription_id_bytes_max:
        raise BadOption(f"Invalid sub_id {sub_id!r}. Use 1 to {subscription_id_bytes_max} bytes.")
    asked = merge_options(options or "", given or {})
    wire: dict[str, str | None] = {}
    if bookmark is not None or positions is not None or "bookmark" in asked:
        wire["bookmark"] = None
    if timestamp or "timestamp" in asked:
        wire["timestamp"] = None
    not_found = asked.pop("bookmark_not_found", None)
    if bookmark is not None:
        wire["bookmark_not_found"] = not_found = not_found or NOT_FOUND[0]
        if not_found not in NOT_FOUND:
            raise BadOption(not_one_of("Invalid bookmark_not_found", not_found, NOT_FOUND))
    elif not_found is not None:
        raise BadOption(
            "bookmark_not_found requires a bookmark. Pass bookmark= or remove bookmark_not_found."
        )
    if bookmark is not None or positions is not None:
        _refuse_queue_options(asked)
    return SubscribeRequest(
        topic=topic,
        context=SubscriptionContext(
            sub_id=str(sub_id),
            with_bookmark="bookmark" in wire or (query is not None and query.follow),
            with_timestamp="timestamp" in wire,
        ),
        bookmark=None if bookmark is None else start_text(bookmark),
        filter=filter,
        options=format_options(wire | asked),
        replace="replace" in asked,
        depth_bytes=_depth_bytes(depth),
        until_caught_up=until_caught_up,
        positions=positions,
        journal=journal,
        numbered=numbered,
        named=not isinstance(sub_id, MadeUpId),
        query=query,
    )


def _refuse_queue_options(asked: Container[str]) -> None:
    for name in ("max_backlog", "browse"):
        if name in asked:
            raise BadOption(
                f"Cannot use {name} with a bookmark: {name} is for queues, and a bookmark starts a replay. "
                "Remove one of them."
            )


def pace_given(rate: object, rate_max_gap: object, conflation: object, conflation_key: object) -> _Given:
    """Return the rate and conflation keywords of a call."""
    return {
        "rate": rate,
        "rate_max_gap": rate_max_gap,
        "conflation": conflation,
        "conflation_key": conflation_key,
    }


def manner_given(*, pause: bool, live: bool, fully_durable: bool) -> _Given:
    """Return the delivery keywords of a call."""
    return {"pause": pause, "live": live, "fully_durable": fully_durable}


def resolve_command(topic: str, bookmark: str = "", **asked: Any) -> Resolve:
    """Return the command that resolves a start point or a range of the log to positions.

    `asked` are fields of `Resolve`. A bookmark that the log does not hold is an error, because the first
    position would be a guess. Raises `BadTopic`, `BadOption`.
    """
    resolve = Resolve(id=0, topic=topic, bookmark=bookmark, options="bookmark_not_found=fail", **asked)
    _check_kinds(topic, resolve.positions, {"filter": resolve.filter, "journal": resolve.journal})
    return resolve


def _depth_bytes(depth: int | str | None) -> int:
    depth_bytes = credit_bytes_default if depth is None else parse_size(depth)
    if not message_cost_bytes <= depth_bytes <= credit_bytes_max:
        raise BadOption(f"Invalid depth {depth!r}. Use {message_cost_bytes} to {credit_bytes_max:,} bytes.")
    return depth_bytes


def not_found_given(bookmark_not_found: str) -> str | None:
    """Return the keyword `bookmark_not_found` of a call, or None for the default."""
    return None if bookmark_not_found == "fail" else bookmark_not_found


def _check_kinds(topic: str, positions: tuple[int, int] | None, texts: Mapping[str, str | None]) -> None:
    if not isinstance(topic, str):
        raise BadTopic(wrong_type("topic", topic, "str"))
    if not topic:
        raise BadTopic("Cannot subscribe to an empty topic. Pass the name or pattern of a topic.")
    if not is_utf8(topic):
        raise BadTopic(f"Invalid topic {shown(topic)}: it is not valid Unicode. Use another name.")
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise BadOption(wrong_type(name, text, "str"))
        if text is not None and not is_utf8(text):
            raise BadOption(f"Invalid {name} {shown(text)}: it is not valid Unicode. Use valid Unicode text.")
    if positions is not None and not all(type(position) is int and position >= 0 for position in positions):
        raise UsageError(f"Invalid positions {positions!r}. Use integers of 0 or more.")


def check_sub_ids(what: str, sub_ids: object) -> tuple[str, ...]:
    """Return `sub_ids` as a tuple, for the command `what`. Raises `UsageError`."""
    if not sub_ids or not isinstance(sub_ids, list | tuple):
        raise UsageError(
            f"Cannot {what}: no subscription is named. Pass the sub_id of at least one subscription."
        )
    for sub_id in sub_ids:
        if not isinstance(sub_id, str):
            raise UsageError(wrong_type("sub_id", sub_id, "str"))
    return tuple(sub_ids)


def check_known(sub_ids: Sequence[str], running: Container[str], consequence: str) -> None:
    """Raise `SubscriptionUnknown` unless all of them are running."""
    for sub_id in sub_ids:
        if sub_id not in running:
            cure = "Pass each id separately." if "," in sub_id else "Use the id of an active subscription."
            raise SubscriptionUnknown(
                f"Unknown subscription {sub_id!r} on this connection: {consequence}. {cure}"
            )


def extras(
    expiration: float | str | None, correlation_id: str | None, sow_key: str | None
) -> tuple[int, str, str]:
    """Return expiration, correlation id and key of a message in wire format.

    The expiration is in milliseconds: 0 without one, `expiration_never_ms` for 0 seconds, otherwise at least
    1. Raises `BadOption` for an invalid expiration, `UsageError` for a label that is not text.
    """
    for name, label in (("correlation_id", correlation_id), ("sow_key", sow_key)):
        if label is not None and not isinstance(label, str):
            raise UsageError(wrong_type(name, label, "str"))
    life = 0
    if expiration is not None:
        seconds = parse_interval(expiration, "expiration")
        life = max(1, round(seconds * 1000)) if seconds else expiration_never_ms
    return life, correlation_id or "", sow_key or ""
