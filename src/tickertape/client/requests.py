"""Owns what an application may ask of a subscription, and the option string that says it on the wire.

Must never send a request whose options this version does not carry out: what is not built yet raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from tickertape.base.bookmarks import EPOCH, MOST_RECENT, Bookmark, bookmark_text, parse_bookmark
from tickertape.base.errors import BadOption, BadTopic, UsageError
from tickertape.base.limits import (
    credit_bytes_default,
    credit_bytes_max,
    message_cost_bytes,
    subscription_id_bytes_max,
)
from tickertape.base.options import format_options, parse_options
from tickertape.base.units import parse_size
from tickertape.client.subscriptions import DeliveryContext, Request

StartPoint = str | datetime | Bookmark | Sequence[str | Bookmark]
NOT_FOUND: Final = ("fail", "now", "epoch")
BUILT: Final = ("bookmark", "timestamp", "bookmark_not_found")
NOT_BUILT: Final = (
    "filter", "rate", "rate_max_gap", "conflation", "conflation_key", "pause", "resume", "live",
    "fully_durable", "select", "replace", "max_backlog", "oof", "send_keys", "no_empties", "send_empties",
    "no_sowkey", "top_n", "skip_n", "projection", "grouping",
)  # fmt: skip


def refuse_not_built(options: Mapping[str, object]) -> None:
    """Raise `BadOption` if any of `options` is asked for (neither None nor False)."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise BadOption(f"{name}={value!r}: {name} is not built yet; leave it out")


def start_text(bookmark: StartPoint) -> str:
    """The text of a start point for the wire. `MOST_RECENT` is EPOCH as there is no bookmark store.

    Raises `BadBookmark`.
    """
    text = bookmark_text(bookmark)
    if text == MOST_RECENT:
        return EPOCH
    parse_bookmark(text)
    return text


def make_request(
    topic: str,
    sub_id: str,
    *,
    bookmark: StartPoint | None = None,
    timestamp: bool = False,
    bookmark_not_found: str = "fail",
    options: str | None = None,
    depth: int | str | None = None,
    until_caught_up: bool = False,
    positions: tuple[int, int] | None = None,
    journal: str | None = None,
) -> Request:
    """The request of a subscription. Raises `BadTopic`, `BadBookmark`, `BadOption`.

    `options` is the option string of the reference; what it says wins over the keyword of the same name.
    """
    _check_kinds(topic, positions, {"sub_id": sub_id, "options": options, "journal": journal})
    if not 0 < len(sub_id.encode()) <= subscription_id_bytes_max:
        raise BadOption(f"sub_id={sub_id!r}: a subscription id has 1 to {subscription_id_bytes_max} bytes")
    asked = parse_options(options or "")
    for name in asked:
        if name not in BUILT:
            why = "is not built yet" if name in NOT_BUILT else "does not exist"
            raise BadOption(f"option {name} {why}; there are {', '.join(BUILT)}")
    replays = bookmark is not None or positions is not None
    wire: dict[str, str | None] = {}
    if replays or _flag(asked, "bookmark"):
        wire["bookmark"] = None
    if timestamp or _flag(asked, "timestamp"):
        wire["timestamp"] = None
    if bookmark is not None:
        wire["bookmark_not_found"] = asked.get("bookmark_not_found") or bookmark_not_found
        if wire["bookmark_not_found"] not in NOT_FOUND:
            raise BadOption(
                f"bookmark_not_found={wire['bookmark_not_found']!r}: use one of {', '.join(NOT_FOUND)}"
            )
    elif "bookmark_not_found" in asked:
        raise BadOption("bookmark_not_found needs a bookmark")
    depth_bytes = credit_bytes_default if depth is None else parse_size(depth)
    if not message_cost_bytes <= depth_bytes <= credit_bytes_max:
        raise BadOption(
            f"depth={depth!r}: a stream's depth is {message_cost_bytes} to {credit_bytes_max:,} bytes"
        )
    return Request(
        topic=topic,
        context=DeliveryContext(
            sub_id=sub_id, with_bookmark="bookmark" in wire, with_timestamp="timestamp" in wire
        ),
        bookmark=None if bookmark is None else start_text(bookmark),
        options=format_options(wire),
        depth_bytes=depth_bytes,
        until_caught_up=until_caught_up,
        positions=positions,
        journal=journal,
    )


def _check_kinds(topic: str, positions: tuple[int, int] | None, texts: Mapping[str, str | None]) -> None:
    if not isinstance(topic, str):
        raise BadTopic(f"a topic name is text, not {type(topic).__name__}")
    if not topic:
        raise BadTopic("a subscription needs a topic; this one is empty")
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise BadOption(f"{name} is text, not {type(text).__name__}")
    if positions is not None and not all(type(position) is int and position >= 0 for position in positions):
        raise UsageError("positions in a log are numbers from 0 on")


def _flag(asked: Mapping[str, str | None], name: str) -> bool:
    if asked.get(name) is not None:
        raise BadOption(f"option {name} takes no value")
    return name in asked
